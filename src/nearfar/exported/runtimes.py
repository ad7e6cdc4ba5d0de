"""The encoder as ONNX and as a program of `torch.export`; neither is kept unless it says what the encoder says."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.extras import need

ONNX, PROGRAM = "model.onnx", "model.pt2"
TOLERANCE = 1e-4  # absolute and relative, between one runtime and another


def write_onnx(encoder: nn.Module, shape: tuple[int, ...], folder: Path) -> None:
    """model.onnx: input `view` (n, …), output `features` (n, d), any n; compared in onnxruntime."""
    need("onnx"), need("onnxscript")
    runtime = need("onnxruntime")
    path = folder / ONNX

    def export(views: Tensor) -> None:
        torch.onnx.export(
            encoder,
            (views,),
            path,
            input_names=["view"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )

    _try("--onnx", encoder, shape, export)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    _compare(
        "--onnx",
        encoder,
        shape,
        lambda views: torch.from_numpy(session.run(None, {"view": views.numpy()})[0]),
    )


def write_program(encoder: nn.Module, shape: tuple[int, ...], folder: Path) -> None:
    """model.pt2: `torch.export.load("model.pt2").module()(views)`, any number of views."""
    path = folder / PROGRAM

    def export(views: Tensor) -> None:
        program = torch.export.export(encoder, (views,), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(program, path)

    _try("--torch-export", encoder, shape, export)
    _compare("--torch-export", encoder, shape, torch.export.load(path).module())


def _views(shape: tuple[int, ...], count: int) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


def _try(flag: str, encoder: nn.Module, shape: tuple[int, ...], export: Callable[[Tensor], None]) -> None:
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter about its own parts
            encoder(_views(shape, 2))
            export(_views(shape, 2))
    except Exception as problem:  # what cannot be traced fails in many ways
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise UserError(
            f"{flag}: this encoder ({type(encoder).__name__}) could not be exported ({first}); leave {flag} out"
        ) from problem


@torch.no_grad()
def _compare(
    flag: str, encoder: nn.Module, shape: tuple[int, ...], other: Callable[[Tensor], Tensor]
) -> None:
    """On other numbers, and another number of them, than the export saw."""
    views = _views(shape, 5)
    ours, theirs = encoder(views), other(views)
    if not torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE):
        most = float((ours - theirs).abs().max())
        raise UserError(
            f"{flag}: the exported network differs from the encoder by {most:.2g}, more than {TOLERANCE:g} allows; leave {flag} out"
        )
