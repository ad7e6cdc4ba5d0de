"""The encoder as ONNX and as a `torch.export` program, each checked against the encoder."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from nearfar.errors import UserError, error_reason
from nearfar.system.extras import need

ONNX, PROGRAM = "model.onnx", "model.pt2"
ONNX_INPUT = "pixels"
TOLERANCE = 1e-4  # absolute and relative, between one runtime and another


def write_onnx(encoder: nn.Module, shape: tuple[int, ...], folder: Path) -> None:
    """Writes model.onnx: input `pixels` (n, …), output `features` (n, d), any n; compared in onnxruntime.

    The exporter names nodes after operations, so the input must not be called like one (`view`).
    """
    need("onnx"), need("onnxscript")
    runtime = need("onnxruntime")
    path = folder / ONNX

    def export(views: Tensor) -> Callable[[Tensor], Tensor]:
        torch.onnx.export(
            encoder,
            (views,),
            path,
            input_names=[ONNX_INPUT],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda views: torch.from_numpy(session.run(None, {ONNX_INPUT: views.numpy()})[0])

    _export_and_compare("--onnx", encoder, shape, export)


def write_program(encoder: nn.Module, shape: tuple[int, ...], folder: Path) -> None:
    """Writes model.pt2: `torch.export.load("model.pt2").module()(views)`, any number of views."""
    path = folder / PROGRAM

    def export(views: Tensor) -> Callable[[Tensor], Tensor]:
        program = torch.export.export(encoder, (views,), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(program, path)
        return torch.export.load(path).module()

    _export_and_compare("--torch-export", encoder, shape, export)


def _views(shape: tuple[int, ...], count: int) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


def _export_and_compare(
    flag: str,
    encoder: nn.Module,
    shape: tuple[int, ...],
    export: Callable[[Tensor], Callable[[Tensor], Tensor]],
) -> None:
    """Exports the encoder and compares both on new inputs with another batch size."""
    views = _views(shape, 5)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter
            encoder(_views(shape, 2))
            exported = export(_views(shape, 2))
            ours, theirs = encoder(views), exported(views)
    except Exception as problem:  # tracing, loading and running raise many kinds of errors
        name, reason = type(encoder).__name__, error_reason(problem)
        raise UserError(
            f"{flag}: this encoder ({name}) could not be exported ({reason}); leave {flag} out"
        ) from problem
    if not torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE):
        difference = float((ours - theirs).abs().max())
        raise UserError(
            f"{flag}: the exported network differs from the encoder by {difference:.2g}, more than "
            f"{TOLERANCE:g} allows; leave {flag} out"
        )
