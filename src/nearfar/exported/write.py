"""The files of an exported encoder, written together or not at all."""

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
from nearfar.config.objects import wanted
from nearfar.errors import UserError
from nearfar.exported.card import card, public_name
from nearfar.exported.load import load_file_text
from nearfar.parts.encoders.portable import Portable, portable
from nearfar.run.features import encoder_digest
from nearfar.run.trained import Run
from nearfar.system.files import as_path, recover_folder, replace_folder, temporary_name

WEIGHTS, CONFIG, CARD, LOAD = "model.safetensors", "config.json", "README.md", "load.py"
FORMAT = "nearfar encoder"


@dataclass(frozen=True)
class Parts:
    """What is known of an encoder before a file is written."""

    run: Run
    encoder: nn.Module
    out: Portable
    shape: tuple[int, ...]  # of one instance as the encoder is shown it
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

    `licence` is an identifier such as `apache-2.0`, for the model card. `onnx` and `torch_export` add the network in those formats,
    each compared with the encoder before it is kept. `projector` are data whose features are added as files for TensorBoard's
    projector. An earlier export in the folder is replaced in one step; a folder with anything else in it is refused.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    to = as_path("to", to)
    target = Path(os.path.realpath(to))  # a link goes on pointing to the export
    try:
        recover_folder(target)
        _check_folder(to)
    except OSError as problem:
        raise UserError(f"--to {to} could not be read: {problem.strerror or problem}") from None
    parts = _parts(run)
    fresh = temporary_name(target)
    try:
        fresh.mkdir(parents=True)
        _write(parts, fresh, licence)
        if onnx or torch_export:
            from nearfar.exported.runtimes import write_onnx, write_program

            for asked, write in ((onnx, write_onnx), (torch_export, write_program)):
                if asked:
                    write(parts.encoder, parts.shape, fresh)
        if projector is not None:
            from nearfar.exported.projector import write_projector

            write_projector(run, projector, fresh / "projector")
        replace_folder(fresh, target)
    except OSError as problem:
        raise UserError(f"--to {to} could not be written: {problem.strerror or problem}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return to


def is_export(folder: Path) -> bool:
    """Whether this is a folder that `export` wrote."""
    try:
        told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("format") == FORMAT


def _check_folder(to: Path) -> None:
    if to.is_file():
        raise UserError(f"--to was the file {to}; export writes a folder")
    if to.is_dir() and any(to.iterdir()) and not is_export(to):
        raise UserError(f"--to {to} holds other files than an exported encoder; name a new folder")


def _parts(run: Run) -> Parts:
    settings, known = run.settings, run.description
    encoder = run.encoder().cpu().eval()
    own = [key for key in wanted(settings) if key in ("method", "backbone", "encoders")]
    network = run.modality.smallest_network if own else settings.backbone
    shapes = run.modality.inputs(network, settings.views, known).shapes
    out = portable(encoder, settings.backbone, shapes)
    preprocessing, source = run.modality.portable(settings.views, known)
    channels = getattr(encoder, "channels", ())
    # networks side by side that see channels of their own are shown all of them at once
    shape = (sum(channels), *shapes[0][1:]) if len({*channels}) > 1 else shapes[0]
    config = {
        "format": FORMAT,
        "version": 1,
        "nearfar": __version__,
        "architecture": {
            "library": out.library if out.expression or own else "nearfar",
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
            "data": {"name": public_name(settings.data), **known.as_plain()},
            "settings": {**settings.as_plain(), "data": public_name(settings.data), "init": None},
        },
    }
    return Parts(run, encoder, out, shape, config, source)


def _width(encoder: nn.Module, shape: tuple[int, ...]) -> int | None:
    known = getattr(encoder, "dim", None)
    if isinstance(known, int):
        return known
    try:
        with torch.no_grad():
            return int(encoder(torch.zeros(2, *shape)).shape[1])
    except Exception:  # anything may happen in somebody's network; the width is only told
        return None


def _write(parts: Parts, folder: Path, licence: str | None) -> None:
    weights = save(parts.out.weights, metadata={"format": "pt"})
    parts.config["weights"]["sha256"] = hashlib.sha256(weights).hexdigest()
    (folder / WEIGHTS).write_bytes(weights)
    (folder / CONFIG).write_text(json.dumps(parts.config, indent=1) + "\n", encoding="utf-8")
    text = load_file_text(parts.out, parts.source)
    if text:
        (folder / LOAD).write_text(text, encoding="utf-8")
    (folder / CARD).write_text(card(parts, licence, has_loader=bool(text)), encoding="utf-8")
