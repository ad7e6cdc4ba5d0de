"""Writes an exported encoder: all files or none."""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from nearfar import __version__
from nearfar.config.objects import required_objects
from nearfar.errors import UserError
from nearfar.exported.card import card, public_name
from nearfar.exported.load import load_file_text
from nearfar.parts.encoders.per_view import ConcatFeatures
from nearfar.parts.encoders.portable import Portable, portable
from nearfar.run.features import encoder_digest
from nearfar.run.trained import Run
from nearfar.system.files import as_path, recover_folder, replace_folder, temporary_name
from nearfar.system.untrusted import read_json

WEIGHTS, CONFIG, CARD, LOAD = "model.safetensors", "config.json", "README.md", "load.py"
FORMAT = "nearfar encoder"


@dataclass(frozen=True)
class ExportParts:
    """Everything that the export writes about an encoder."""

    run: Run
    encoder: nn.Module
    out: Portable
    shape: tuple[int, ...]  # of one preprocessed instance
    config: dict[str, Any]
    source: str  # of `plain_view`


def export(
    run: Run | str | Path,
    to: str | Path,
    *,
    licence: str | None = None,
    onnx: bool = False,
    torch_export: bool = False,
    projector: Any = None,
) -> Path:
    """Writes the run's frozen encoder to the folder `to` and returns it.

    `licence` is an identifier such as `apache-2.0`, for the model card. `onnx` and `torch_export` add the
    network in those formats, each checked against the encoder. `projector` names data whose features are
    added as files for TensorBoard's projector. An earlier export in the folder is replaced atomically. A
    folder with other files is refused.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    to = as_path("to", to)
    target = Path(os.path.realpath(to))  # a symbolic link stays
    try:
        recover_folder(target)
        _check_folder(to)
    except OSError as problem:
        raise UserError(f"--to {to} could not be read: {problem.strerror or problem}") from None
    parts = _parts(run)
    temporary = temporary_name(target)
    try:
        temporary.mkdir(parents=True)
        _write(parts, temporary, licence)
        if onnx or torch_export:
            from nearfar.exported.runtimes import write_onnx, write_program

            for requested, write in ((onnx, write_onnx), (torch_export, write_program)):
                if requested:
                    write(parts.encoder, parts.shape, temporary)
        if projector is not None:
            from nearfar.exported.projector import write_projector

            write_projector(run, projector, temporary / "projector")
        replace_folder(temporary, target)
    except OSError as problem:
        raise UserError(f"--to {to} could not be written: {problem.strerror or problem}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return to


def is_export(folder: Path) -> bool:
    """Returns whether `export` wrote this folder."""
    config = read_json(folder / CONFIG)
    return isinstance(config, dict) and config.get("format") == FORMAT


def _check_folder(to: Path) -> None:
    if to.is_file():
        raise UserError(f"--to was the file {to}; export writes a folder")
    if to.is_dir() and any(to.iterdir()) and not is_export(to):
        raise UserError(f"--to {to} contains files that are not an exported encoder; choose a new folder")


def _parts(run: Run) -> ExportParts:
    settings, description = run.settings, run.description
    encoder = run.encoder().cpu().eval()
    custom_objects = [key for key in required_objects(settings) if key in ("method", "backbone", "encoders")]
    network = run.modality.networks.smallest if custom_objects else settings.backbone
    shapes = run.modality.networks.inputs(network, settings.views, description).shapes
    out = portable(encoder, settings.backbone, shapes)
    preprocessing, source = settings.parts["views"].portable(description)
    channels = encoder.channels if isinstance(encoder, ConcatFeatures) else ()
    # per-view networks with different channels take all channels at once
    shape = (sum(channels), *shapes[0][1:]) if len({*channels}) > 1 else shapes[0]
    config = {
        "format": FORMAT,
        "version": 1,
        "nearfar": __version__,
        "architecture": {
            "library": out.library if out.expression or custom_objects else "nearfar",
            "name": settings.backbone,
            "python": out.expression,
            "differs": out.differs,
            "parameters": sum(value.numel() for value in encoder.parameters()),
        },
        "input": {"modality": run.modality.name, "shape": list(shape), **preprocessing},
        "features": _width(encoder, shape),
        "weights": {"file": WEIGHTS, "encoder": encoder_digest(encoder)},
        "training": {
            "step": run.facts["step"],
            "choices": run.choices(),
            "data": {"name": public_name(settings.data), **description.as_plain()},
            "settings": {**settings.as_plain(), "data": public_name(settings.data), "init": None},
        },
    }
    return ExportParts(run, encoder, out, shape, config, source)


def _width(encoder: nn.Module, shape: tuple[int, ...]) -> int | None:
    dim = getattr(encoder, "dim", None)
    if isinstance(dim, int):
        return dim
    try:
        with torch.no_grad():
            return int(encoder(torch.zeros(2, *shape)).shape[1])
    except Exception:  # a custom network may fail; the width is informative only
        return None


def _write(parts: ExportParts, folder: Path, licence: str | None) -> None:
    weights = save(parts.out.weights, metadata={"format": "pt"})
    parts.config["weights"] |= {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    (folder / WEIGHTS).write_bytes(weights)
    (folder / CONFIG).write_text(json.dumps(parts.config, indent=1) + "\n", encoding="utf-8")
    text = load_file_text(parts.out, parts.source)
    if text:
        (folder / LOAD).write_text(text, encoding="utf-8")
    (folder / CARD).write_text(card(parts, licence, has_loader=bool(text)), encoding="utf-8")
