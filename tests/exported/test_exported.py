"""An exported encoder gives the same features in torch, onnxruntime, torch.export and from the hub's
folder."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as operations

import nearfar as nf
from nearfar.cli import main
from nearfar.core.types import Pixels
from nearfar.modalities import MODALITIES
from nearfar.modalities.image.decode import decode
from nearfar.modalities.image.views import PlainImages
from nearfar.modalities.image.views.portable import plain_view, source

# imports torch, torchvision and safetensors (and what load.py does) and nothing of ours: that would fail
LOAD_SCRIPT = """
import importlib, sys
sys.modules["nearfar"] = None
import torch
from torchvision.io import decode_image
for folder in sys.argv[1].split(","):
    sys.path.insert(0, folder)
    sys.modules.pop("load", None)
    load = importlib.import_module("load")
    views = torch.cat([load.preprocess(decode_image(path)) for path in sys.argv[2:]])
    with torch.no_grad():
        torch.save(load.encoder()(views), f"{folder}.pt")
    sys.path.remove(folder)
"""


def pictures(folder: Path, count: int = 24) -> Path:
    """PNG files of several sizes, some above and some below 256/224 of the encoder's 16 pixels."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for place in range(count):
        height, width = [(16, 16), (17, 30), (31, 20), (18, 18)][place % 4]
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(
            folder / f"{place:02}.png"
        )
    return folder


def trained(data: Path, out: Path, recipe: str = "simclr", **settings: Any) -> nf.Run:
    small = {"epochs": 1, "batch_size": 8, "image_size": 16, "device": "cpu", "workers": 0, "probe_every": 0}
    return nf.pretrain(recipe, data=str(data), out=out, quiet=True, **{**small, **settings})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("exported") / "photos")


@pytest.fixture(scope="module")
def small(data: Path) -> nf.Run:
    return trained(data, data.parent / "small", backbone="resnet8-w16")


BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "small": ("simclr", {"backbone": "resnet8-w16"}),
    "patches": ("simclr", {"backbone": "resnet6-w32"}),
    "torchvision": ("simclr", {"backbone": "resnet18"}),
    "cmc": ("cmc", {"backbone": "resnet8-w16"}),
    "wrn": ("simclr", {"backbone": "wrn-10-1"}),
    "vgg": ("simclr", {"backbone": "vgg8"}),
}


def test_load_script_without_nearfar_equals_embed(data: Path, tmp_path: Path) -> None:
    """Equal to 1e-5 for any picture size: the same filter, rounding and weights."""
    expected = {}
    for kind, (recipe, choices) in BACKBONES.items():
        run = trained(data, tmp_path / f"run-{kind}", recipe, **choices)
        nf.export(run, tmp_path / kind)
        expected[kind] = run.embed(str(data))
    files = sorted(data.iterdir())
    assert [str(file) for file in files] == [str(data / path) for path in nf.open_data(str(data)).paths]
    (tmp_path / "plain.py").write_text(LOAD_SCRIPT)
    folders = ",".join(str(tmp_path / kind) for kind in BACKBONES)
    subprocess.run([sys.executable, tmp_path / "plain.py", folders, *files], check=True)
    for kind, features in expected.items():
        loaded = torch.load(tmp_path / f"{kind}.pt", weights_only=True)
        torch.testing.assert_close(loaded, features, rtol=1e-5, atol=1e-5)


def test_weights_load_into_torchvision_and_timm(data: Path, tmp_path: Path) -> None:
    """No missing keys, no unexpected ones, by the libraries' own constructors."""
    import timm
    import torchvision

    nf.export(trained(data, tmp_path / "a", backbone="resnet18", image_size=72), tmp_path / "resnet")
    weights = load_file(tmp_path / "resnet/model.safetensors")
    net = torchvision.models.resnet18(weights=None)
    keys = net.load_state_dict(weights, strict=False)
    assert (set(keys.missing_keys), keys.unexpected_keys) == ({"fc.weight", "fc.bias"}, [])
    name = (
        "timm/test_resnet.r160_in1k" if "test_resnet.r160_in1k" in timm.list_models() else "timm/test_resnet"
    )
    run = trained(data, tmp_path / "b", backbone=name, image_size=32)
    nf.export(run, tmp_path / "timm")
    timm_network = timm.create_model(name.removeprefix("timm/"), pretrained=False, num_classes=0)
    timm_network.load_state_dict(load_file(tmp_path / "timm/model.safetensors"), strict=True)
    views = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(timm_network.eval()(views), run.encoder()(views))
    reloaded = nf.Encoder.from_pretrained(tmp_path / "timm")
    with torch.no_grad():
        torch.testing.assert_close(reloaded(views), run.encoder()(views))


@settings(max_examples=40, deadline=None)
@given(st.integers(8, 40), st.integers(4, 90), st.integers(4, 90), st.sampled_from(["rgb", "lab"]))
def test_exported_preprocessing_equals_the_plain_view(
    size: int, height: int, width: int, colours: Any
) -> None:
    """views.portable, of torchvision's operations, against views.PlainImages, the compiled kernel."""
    pixels = np.random.default_rng(size * height + width).integers(
        0, 256, (1, height, width, 3), dtype=np.uint8
    )
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    ours = PlainImages(size, mean, std, "cpu", colours)(
        Pixels(pixels, np.array([[height, width]], dtype=np.int32))
    )[0]
    theirs = plain_view(torch.from_numpy(pixels[0]).permute(2, 0, 1), size, mean, std, colours)
    # float32: a resize sums at most a few dozen products; lab's cube root is steep near black
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=2e-5 if colours == "rgb" else 5e-4)


@pytest.mark.parametrize("side", [20, 100])  # 100: shrunk while it is opened
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_transparent_pictures_are_laid_on_white_everywhere(mode: str, side: int) -> None:
    """By `embed`, by the source that is exported (run alone), and as items of a data set."""
    rgba = Image.fromarray(np.random.default_rng(side).integers(0, 256, (side, side, 4), dtype=np.uint8))
    picture = rgba if mode == "RGBA" else rgba.convert(mode)
    keys: dict[str, Any] = {"RGB": (1, 2, 3), "L": 77, "P": 3}
    out = io.BytesIO()
    picture.save(out, "PNG", **({"transparency": keys[mode]} if mode in keys else {}))
    pixels = decode(out.getvalue(), 16)
    height, width = pixels.shape[:2]
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    sizes = np.array([[height, width]], dtype=np.int32)
    ours = PlainImages(16, mean, std, "cpu", "rgb")(Pixels(pixels[None], sizes))[0]
    names: dict[str, Any] = {
        "torch": torch,
        "Tensor": torch.Tensor,
        "pictures": operations,
        "Any": Any,
        "Sequence": Sequence,
    }
    exec(source("rgb"), names)  # as load.py of an export has it
    theirs = names["plain_view"](Image.open(io.BytesIO(out.getvalue())), 16, mean, std)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=2e-5)
    item = MODALITIES["image"].reader.convert(Image.open(io.BytesIO(out.getvalue())), {"image_size": None})
    assert item is not None
    np.testing.assert_array_equal(item.content, decode(out.getvalue(), None))
    if mode == "RGBA":
        colours, opacity = np.split(np.asarray(rgba) / 255, [3], axis=2)
        white = 255 * (colours * opacity + 1 - opacity)
        np.testing.assert_allclose(item.content, white, atol=1)  # a byte of rounding


def test_onnx_and_torch_export_equal_the_encoder(small: nf.Run, tmp_path: Path) -> None:
    import onnxruntime

    nf.export(small, tmp_path / "out", onnx=True, torch_export=True)
    views = torch.randn(7, 3, 16, 16)
    with torch.no_grad():
        ours = small.encoder()(views)
        program = torch.export.load(tmp_path / "out/model.pt2").module()(views)
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
    torch.testing.assert_close(
        torch.from_numpy(session.run(None, {"pixels": views.numpy()})[0]), ours, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(program, ours, rtol=1e-4, atol=1e-4)


def tiny_networks() -> dict[str, nn.Module]:
    """Networks of torchvision and timm that call `view`, or have called it, in their forward pass."""
    import timm
    from torchvision.models import ConvNeXt, SwinTransformer, VisionTransformer
    from torchvision.models.convnext import CNBlockConfig

    return {
        "vit": VisionTransformer(32, 16, 2, 2, 16, 32, num_classes=8),
        "swin": SwinTransformer([4, 4], 8, [2, 1], [2, 2], [4, 4], num_classes=8),
        "convnext": ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=8),
        "deit": timm.models.deit.VisionTransformerDistilled(
            img_size=32, patch_size=16, embed_dim=16, depth=1, num_heads=2, num_classes=0
        ),
    }


@pytest.mark.parametrize("name", ["vit", "swin", "convnext", "deit"])
def test_networks_that_call_view_are_exported_as_onnx(name: str, tmp_path: Path) -> None:
    import onnxruntime

    from nearfar.exported.runtimes import write_onnx

    network = tiny_networks()[name].eval()
    write_onnx(network, (3, 32, 32), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    views = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = network(views)
    exported = torch.from_numpy(session.run(["features"], {"pixels": views.numpy()})[0])
    torch.testing.assert_close(exported, expected, rtol=1e-4, atol=1e-5)


def test_failed_onnx_export_keeps_the_previous_export(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parameter called like the input gives a model that onnxruntime refuses to load."""

    class Colliding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pixels = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3)) @ self.pixels

    run = trained(data, tmp_path / "run", backbone=Colliding())
    nf.export(run, tmp_path / "out")
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(nf.UserError, match=r"^onnx: .*Colliding.*leave onnx out$"):
        nf.export(run, tmp_path / "out", onnx=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files


def test_untraceable_network_leaves_the_folder_unchanged(data: Path, tmp_path: Path) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            pooled = x.mean((2, 3))
            return pooled @ self.weight if float(pooled.sum()) > -1e9 else pooled

    module = Branching()
    run = trained(data, tmp_path / "run", backbone=module)
    nf.export(run, tmp_path / "out")
    assert load_file(tmp_path / "out/model.safetensors").keys() == module.state_dict().keys()
    previous = (tmp_path / "out/README.md").read_text()
    with pytest.raises(nf.UserError, match=r"^torch_export: this encoder .Branching. could not be exported"):
        nf.export(run, tmp_path / "out", torch_export=True)
    assert (tmp_path / "out/README.md").read_text() == previous
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    with pytest.raises(nf.UserError, match="backbone=my_module"):
        nf.Encoder.from_pretrained(tmp_path / "out")
    reloaded = nf.Encoder.from_pretrained(tmp_path / "out", backbone=Branching())
    views = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(reloaded(views), run.encoder()(views))


def test_model_card_has_all_sections(small: nf.Run, tmp_path: Path) -> None:
    labels = np.arange(24) % 2
    images = np.random.default_rng(1).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
    result = nf.evaluate(small, train=nf.open_data(images, labels=labels), protocols=["knn"], baselines=True)
    nf.export(small, tmp_path / "out", licence="cc-by-4.0")
    card = (tmp_path / "out/README.md").read_text()
    _, header, text = card.split("---\n", 2)
    assert yaml.safe_load(header)["license"] == "cc-by-4.0"
    low, high = result["knn"]["interval"]
    for words in (
        small.description.fingerprint,
        "infonce",
        "in-batch",
        "not covered",
        result["test"]["name"].replace("#", "\\#"),
        f"| knn | learned | top-1 | {100 * result['knn']['top1']:.1f} % ({100 * low:.1f}–{100 * high:.1f}) |",
        "untrained",
        "## Intended use",
        "from load import encoder, preprocess",
    ):
        assert words in text, words
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["training"]["data"]["name"] == "photos"
    assert str(small.settings.data) not in card + json.dumps(config), "a home folder goes out into the world"
    nf.export(small, tmp_path / "out")
    assert "license: unknown" in (tmp_path / "out/README.md").read_text()


def test_model_card_has_every_figure_and_no_local_path(data: Path, tmp_path: Path) -> None:
    """Nested figures and proven bounds are listed, training with labels is stated; sets are named without
    paths."""
    rng = np.random.default_rng(2)
    for name, count in (("train", 48), ("test", 24)):
        pixels, labels = rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8), np.arange(count) % 2
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=labels, classes=np.array(["ant", "bee"]))
    small: dict[str, Any] = {"epochs": 1, "batch_size": 8, "device": "cpu", "workers": 0, "probe_every": 0}
    run = nf.train(
        str(tmp_path / "train.npz"), out=tmp_path / "run", backbone="resnet8-w8", quiet=True, **small
    )
    protocols = ["few-shot", "retrieval", "information", "clustering"]
    shots: dict[str, Any] = {"ways": 2, "shots": (1,), "episodes": 4}
    result = nf.evaluate(run, str(tmp_path / "test.npz"), protocols=protocols, **shots)
    nf.evaluate(run, protocols=["knn"])
    nf.export(run, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "trained with labels by `supervised`" in card
    assert "| few-shot 2-way 1-shot | learned | top-1 |" in card
    assert "| retrieval | learned | mAP |" in card
    assert "| clustering | learned | NMI |" in card
    assert f"at least {result['information']['at_least']['nats']:.3f} nats about the label" in card
    assert "a held-out 20% of train.npz" in card
    assert str(tmp_path) not in card


def test_unreachable_hub_prints_one_sentence(
    small: nf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A closed port of this machine: nothing answers, and the folder is complete all the same."""
    import huggingface_hub

    api = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9", token="hf_none")
    monkeypatch.setattr(huggingface_hub, "create_repo", api.create_repo)
    assert main(["export", str(small.path), "--to", str(tmp_path / "out"), "--push", "owner/name"]) == 2
    assert "--push owner/name failed" in capsys.readouterr().err
    assert (tmp_path / "out/model.safetensors").is_file()


def test_push_uploads_the_folder_unchanged(
    small: nf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be uploaded is looked at; the hub itself is not there."""
    import huggingface_hub

    folder = nf.export(small, tmp_path / "out")
    encoder = nf.Encoder.from_pretrained(folder)
    encoder.save_pretrained(tmp_path / "saved")
    names = sorted(path.name for path in folder.iterdir())
    assert [(tmp_path / "saved" / name).read_bytes() for name in names] == [
        (folder / name).read_bytes() for name in names
    ]
    views = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(
            nf.Encoder.from_pretrained(tmp_path / "saved")(views), small.encoder()(views)
        )
    sent: dict[str, Any] = {}

    def upload(**asked: Any) -> str:
        sent.update(asked)
        return "sent"

    monkeypatch.setattr(huggingface_hub, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "upload_folder", upload)
    assert main(["export", str(small.path), "--to", str(folder), "--push", "owner/name"]) == 0
    assert (sent["repo_id"], sent["folder_path"]) == ("owner/name", folder)


def test_pushed_folder_can_be_loaded(small: nf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub's `push_to_hub` with a folder in place of the server uploads the export, which
    opens."""
    import shutil
    from types import SimpleNamespace

    import huggingface_hub

    hub = tmp_path / "hub"

    def upload(self: Any, *, repo_id: str, folder_path: Path, **_: Any) -> str:
        shutil.copytree(folder_path, hub / repo_id)
        return repo_id

    monkeypatch.setattr(
        huggingface_hub.HfApi, "create_repo", lambda self, repo_id, **_: SimpleNamespace(repo_id=repo_id)
    )
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    folder = nf.export(small, tmp_path / "out")
    nf.Encoder.from_pretrained(folder).push_to_hub("owner/name")
    arrived = hub / "owner/name"
    for path in folder.iterdir():
        assert (arrived / path.name).read_bytes() == path.read_bytes(), path.name
    views = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(nf.Encoder.from_pretrained(arrived)(views), small.encoder()(views))


def test_projector_files_are_readable(small: nf.Run, data: Path, tmp_path: Path) -> None:
    from google.protobuf import text_format
    from tensorboard.plugins.projector import ProjectorConfig

    nf.export(small, tmp_path / "out", projector=str(data))
    folder = tmp_path / "out/projector"
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig()).embeddings[
        0
    ]
    vectors = np.loadtxt(folder / config.tensor_path, delimiter="\t")
    np.testing.assert_allclose(vectors, small.embed(str(data)).numpy(), rtol=1e-5, atol=1e-5)
    assert len((folder / config.metadata_path).read_text().splitlines()) == len(vectors)
    side = config.sprite.single_image_dim[0]
    with Image.open(folder / config.sprite.image_path) as sheet:
        assert sheet.size == (5 * side, 5 * side)  # 24 pictures in a square


def test_ignored_files_of_the_projector_are_reported(
    small: nf.Run, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, tmp_path / "photos")
    (tmp_path / "photos" / "a.heic").write_bytes(b"not read")
    words = ["--to", str(tmp_path / "out"), "--projector", str(tmp_path / "photos")]
    assert main(["export", str(small.path), *words]) == 0
    assert f"{tmp_path / 'photos'}: 1 file ignored: HEIC (.heic) is not read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "make",
    [lambda path: path.write_text("x"), lambda path: (path.mkdir(), (path / "thesis.tex").write_text("x"))],
)
def test_export_refuses_a_folder_with_other_files(
    make: Callable[[Path], Any], small: nf.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "out")
    assert main(["export", str(small.path), "--to", str(tmp_path / "out")]) == 2
    assert "--to" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in (["out"], ["thesis.tex"])


def test_vector_encoder_round_trips(tmp_path: Path) -> None:
    """A modality whose network no other library has: nearfar itself reads it back."""
    table = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    run = nf.pretrain(
        "simclr", data=table, out=tmp_path / "run", quiet=True, epochs=1, batch_size=16, device="cpu"
    )
    nf.export(run, tmp_path / "out", onnx=True)
    assert not (tmp_path / "out/load.py").exists()
    views = torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(nf.Encoder.from_pretrained(tmp_path / "out")(views), run.encoder()(views))
