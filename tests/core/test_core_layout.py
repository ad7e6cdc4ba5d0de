"""Strided 1x1 convolutions of few channels: their channels-last gradient crashes torch 2.15.0."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nearfar.cli import main
from nearfar.core.networks import is_unsafe, to_channels_last
from nearfar.parts.encoders import backbone
from nearfar.system.machine import try_strided_convolution
from tests.forked import run_command

GRADIENT = """
import sys, torch
from nearfar.core.networks import to_channels_last
torch.manual_seed(0)
for channels in map(int, sys.argv[1:]):
    print(channels, flush=True)
    layer = to_channels_last(torch.nn.Conv2d(channels, 16, 1, stride=2, bias=False))
    for _ in range(3):
        layer.zero_grad()
        view = torch.randn(8, channels, 96, 96).contiguous(memory_format=torch.channels_last)
        weight = torch.randn(8, 16, 48, 48)
        (layer(view) * weight).sum().backward()
        expected = torch.einsum("nohw,nchw->oc", weight.double(), view[:, :, ::2, ::2].double())
        assert torch.allclose(layer.weight.grad[:, :, 0, 0].double(), expected, rtol=1e-3, atol=1e-2)
"""


def test_gradient_of_a_strided_pointwise_convolution() -> None:
    """In a process that may crash; it prints the number of channels first."""
    process = run_command(2, 4, 8, 12, 15, 16, 24, code=GRADIENT)
    assert process.returncode == 0, (process.returncode, process.stdout, process.stderr)


def test_only_unsafe_layers_stay_contiguous() -> None:
    network = to_channels_last(to_channels_last(backbone("resnet8-w8", image_size=96)))
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    unsafe = [layer for layer in layers if is_unsafe(layer)]
    assert unsafe
    for layer in layers:
        last = layer.weight.stride()[1] == 1 and layer.weight.stride()[3] == layer.in_channels
        assert last != (layer in unsafe)
        assert len(layer._forward_pre_hooks) == (layer in unsafe)
    assert not any(
        is_unsafe(layer) for layer in backbone("resnet18").modules() if isinstance(layer, nn.Conv2d)
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (root / label).mkdir()
        for number in range(4):
            pixels = rng.integers(0, 255, (96, 96, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.png")
    return root


def test_training_and_fine_tuning_survive(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("backbone=resnet8-w8", "epochs=2", "image_size=96", "batch_size=8", "precision=fp32")
    process = run_command("train", photos, "--out", run, *settings)
    assert process.returncode == 0, (process.returncode, process.stderr)
    process = run_command("evaluate", run, "--protocol", "finetune", "--lr", "1e-4", "--no-baselines")
    assert process.returncode == 0, (process.returncode, process.stderr)


def test_doctor_tries_the_convolution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["strided_convolution"] in ("works", "crashes")
    assert main(["doctor"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "strided 1x1 convolution" in line]
    assert len(lines) == 1
    # damaged memory need not end a process, so two attempts may differ
    assert ("works" in lines[0]) != ("crashes" in lines[0])
    assert ("keeps such layers contiguous" in lines[0]) == ("crashes" in lines[0])


def test_a_missing_torch_is_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert try_strided_convolution() == "not tried"


def test_inputs_without_gradient_keep_their_layout() -> None:
    layer = to_channels_last(nn.Conv2d(8, 16, 1, stride=2))
    layouts = []
    layer.register_forward_hook(lambda _, inputs, __: layouts.append(inputs[0].is_contiguous()))
    view = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        layer(view)
    layer(view)
    assert layouts == [False, True]
