"""`init=pretrained`, weights files with their configuration, `mean`, `std` and `freeze`, with files that timm,
torchvision and transformers wrote. The networks are tiny and their weights random."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file
from torch import nn

import nearfar as nf
from nearfar.cli import main
from nearfar.config.resolving import resolve
from nearfar.data import Limits, locate
from nearfar.errors import UserError
from nearfar.modalities.image import ImageDescription
from nearfar.modalities.image.networks import describe_weights, find_pretrained, torchvision_name
from nearfar.parts.encoders.backbones import backbone
from nearfar.parts.encoders.libraries import HFBackbone, check_hf_config
from nearfar.parts.encoders.stages import named_stages
from nearfar.report import write_report
from nearfar.run.trained import backbones_of, copies_of, fresh_method
from nearfar.run.weights import fitted
from nearfar.system.hardware import pick_device
from nearfar.train.defaults import resolve_here
from nearfar.train.init import start_from
from nearfar.train.memory import bytes_per_instance
from nearfar.train.session import Session
from tests.helpers import QUICK, newest_tensors

TIMM = "test_vit.r160_in1k"  # its input size is 160
PICTURES = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(24) % 2
QUICK_SETTINGS = {key: value for key, value in QUICK.items() if key != "quiet"}
VIT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Empty caches of the hub and of torch; every connection is an error."""
    root = tmp_path_factory.mktemp("caches")

    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"a connection was tried: {arguments[1:]}")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(root / "torch"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield root
    shutil.rmtree(root)


def hub_folder(caches: Path, repository: str) -> Path:
    """A folder of the hub's cache, as its own client lays it out."""
    root = caches / "hub" / f"models--{repository.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0123")
    (root / "snapshots" / "0123").mkdir(parents=True)
    return root / "snapshots" / "0123"


def write_timm(folder: Path, name: str = TIMM, **options: Any) -> nn.Module:
    torch.manual_seed(1)
    net = timm.create_model(name, **options)
    timm.models.save_for_hf(net, folder, safe_serialization=True)
    return net.eval()


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network for classification, as transformers saves it, with its preprocessing."""
    torch.manual_seed(2)
    folder = tmp_path_factory.mktemp("hf") / "vit"
    config = transformers.ViTConfig(**VIT, image_size=32, patch_size=8)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    shown = {"size": {"height": 32, "width": 32}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    transformers.ViTImageProcessor(**shown).save_pretrained(folder)
    return folder


def method_for(backbone: str, recipe: str = "simclr", size: int = 32, channels: int = 3) -> Any:
    settings = resolve(recipe, "x", {"backbone": backbone, "init": "pretrained"})
    data = ImageDescription(
        "", 64, channels=channels, size=size, mean=(0.5,) * channels, std=(0.25,) * channels
    )
    return settings, fresh_method(settings, data)


def settings_for(**settings: Any) -> tuple[Any, str]:
    resolved, note = resolve_here(
        "simclr", "x", None, {"device": "cpu", **settings}, located=locate(PICTURES)
    )
    return resolved, str(note)


# ---------------------------------------------------------------------------------------- weights by name


def test_timm_weights_come_from_the_hubs_cache(caches: Path) -> None:
    """At another image size the features are those of timm's own loader."""
    folder = hub_folder(caches, f"timm/{TIMM}")
    write_timm(folder)
    settings, method = method_for(f"timm/{TIMM}", "moco", 64)
    message = start_from(method, "pretrained", settings=settings)
    assert message.startswith(f"started from the weights of timm/{TIMM}")
    overlay = {"file": str(folder / "model.safetensors")}
    theirs = timm.create_model(
        TIMM, pretrained=True, num_classes=0, img_size=64, pretrained_cfg_overlay=overlay
    )
    views = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs.eval()(views)
        for body in (method.encoders.network.backbone, method.encoders.slow.backbone):
            torch.testing.assert_close(body.eval()(views), expected, rtol=0, atol=0)


def test_timm_adapts_the_first_layer_to_grey_pictures(caches: Path) -> None:
    net = write_timm(hub_folder(caches, f"timm/{TIMM}"))
    settings, method = method_for(f"timm/{TIMM}", size=160, channels=1)
    start_from(method, "pretrained", settings=settings)
    kernel = method.encoders.backbone().state_dict()["net.patch_embed.proj.weight"]
    torch.testing.assert_close(kernel, net.patch_embed.proj.weight.sum(dim=1, keepdim=True).detach())  # type: ignore[union-attr,operator]


def test_torchvision_weights_come_from_torchs_cache(caches: Path) -> None:
    """Also into networks of one channel and of two (cmc), of the same sum over channels."""
    weights = torchvision.models.ResNet18_Weights.DEFAULT
    path = caches / "torch" / "hub" / "checkpoints" / weights.url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    state = torchvision.models.resnet18(weights=None).state_dict()
    torch.save(state, path)
    found = find_pretrained("resnet18")
    shown = weights.transforms()
    assert (found.size, found.mean, found.std) == (shown.crop_size[0], tuple(shown.mean), tuple(shown.std))
    settings, method = method_for("resnet18", "cmc", 72)
    assert "ResNet18_Weights.IMAGENET1K_V1" in start_from(method, "pretrained", settings=settings)
    bodies = backbones_of(method)
    assert [body.conv1.in_channels for body in bodies] == [1, 2]  # type: ignore[union-attr]
    for body in bodies:
        ours = body.state_dict()
        assert torch.equal(ours["layer4.1.bn2.running_var"], state["layer4.1.bn2.running_var"])
        kernel = ours["conv1.weight"].sum(dim=1)
        if len(ours["conv1.weight"][0]) == 1:
            torch.testing.assert_close(kernel, state["conv1.weight"].sum(dim=1))
        else:
            torch.testing.assert_close(kernel, 1.5 * state["conv1.weight"][:, :2].sum(dim=1))


@pytest.mark.parametrize(
    "name", ["resnet50", "vgg16", "mobilenetv2", "shufflenetv2", "shufflenetv2x0.5", "shufflenetv2x1.5"]
)
def test_torchvisions_networks_have_the_tensors_of_ours(name: str) -> None:
    """So that a file of the one fits the other."""
    models = torchvision.models
    assert models.get_model_weights(torchvision_name(name)).DEFAULT.url
    with torch.device("meta"):
        theirs = models.get_model(torchvision_name(name), weights=None).state_dict()
        ours = backbone(name, 3, 224)
    assert fitted(theirs, ours, "theirs").keys() == ours.state_dict().keys()


def test_transformers_weights_come_from_a_folder_or_the_cache(hf: Path, caches: Path) -> None:
    """Also in names of earlier versions, and without the classifier."""
    cached = hub_folder(caches, "someone/vit")
    for file in hf.iterdir():
        shutil.copy(file, cached)
    net = transformers.ViTForImageClassification.from_pretrained(hf).eval()
    views = torch.randn(2, 3, 48, 48)
    for name in (f"hf/{hf}", "hf/someone/vit"):
        settings, method = method_for(name, size=32)
        assert start_from(method, "pretrained", settings=settings) == f"started from the weights of {name}"
        with torch.no_grad():
            expected = net.vit(views, interpolate_pos_encoding=True).last_hidden_state[:, 0]
            torch.testing.assert_close(method.encoders.backbone().eval()(views), expected)
    method = method_for(f"hf/{hf}")[1]  # the same file by its path
    start_from(method, str(hf / "model.safetensors"))
    assert torch.equal(
        method.encoders.backbone().state_dict()["net.layernorm.weight"], net.vit.layernorm.weight
    )


def test_networks_of_transformers_give_their_own_features() -> None:
    """Pooled features, the class token, or the mean over places."""
    maps: dict[str, Any] = {
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "embedding_size": 8,
        "layer_type": "basic",
    }
    for kind, config in {"dinov2": VIT, "ijepa": VIT, "resnet": maps}.items():
        sides = {"image_size": 32, "patch_size": 8} if kind != "resnet" else {}
        body = HFBackbone({"model_type": kind, **config, **sides}).eval()
        views = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            output = body.net(pixel_values=views)
            places = output.last_hidden_state
            expected = {"dinov2": places[:, 0], "ijepa": places.mean(dim=1)}.get(
                kind, places.mean(dim=(-1, -2))
            )
            torch.testing.assert_close(body(views), expected)


MISSING: dict[str, tuple[str, ...]] = {
    f"timm/{TIMM}": ("model.safetensors", f"hf download timm/{TIMM} model.safetensors", "init=FILE"),
    "resnet18": ("resnet18-f37072fd.pth", "download http", "init=FILE"),
    "hf/someone/vit": ("config.json", "hf download someone/vit", "backbone=hf/FOLDER"),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_weights_end_in_a_sentence(
    name: str, caches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the file, where it comes from, and where to put it; nothing is downloaded or written."""
    out = tmp_path / "run"
    code = main(["pretrain", "simclr", "digits", "--out", str(out), f"backbone={name}", "init=pretrained"])
    message = capsys.readouterr().err
    assert (code, message.count("\n"), out.exists()) == (2, 1, False)
    for part in (*MISSING[name], "nothing is downloaded", str(caches)):
        assert part in message


def test_mistakes_get_a_sentence(hf: Path, tmp_path: Path, caches: Path) -> None:
    def fails(message: str, **settings: Any) -> None:
        with pytest.raises(UserError, match=message):
            settings_for(**settings)

    fails("init was pretrained without a backbone", init="pretrained")
    fails("resnet8-w8, of which there are no pretrained", init="pretrained", backbone="resnet8-w8")
    fails("of which timm has no pretrained", init="pretrained", backbone="timm/convnext_atto_rms")
    fails("timm does not have; near it are test_vit", init="pretrained", backbone="timm/test_vitt")
    fails("std was given without mean", std=[0.5])
    fails("mean has 3 numbers and std 1", mean=[0.5] * 3, std=[0.5])
    fails(r"std was \[0.0\]", mean=[0.5], std=[0.0])
    shutil.copy(hf / "config.json", hub_folder(caches, "no/weights"))
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        find_pretrained("hf/no/weights")
    with pytest.raises(UserError, match=r"timm has no weights 'other' of it; expected test_vit\.r160_in1k"):
        backbone("timm/test_vit.other", 3, 32)
    with pytest.raises(UserError, match="does not take views of 20 pixels"):
        backbone("timm/test_vit", 3, 32, (32, 20))
    with pytest.raises(UserError, match="cut was 1 with init=pretrained"):
        start_from(method_for(f"hf/{hf}")[1], "pretrained", 1)
    with pytest.raises(UserError, match="the images have 3 channels"):
        nf.pretrain(
            "simclr", PICTURES, tmp_path / "run", mean=[0.5], std=[0.5], backbone="resnet8-w8", **QUICK
        )


def test_configurations_of_strangers_run_no_code(hf: Path) -> None:
    """A config.json names a class of the repository: of what is built, nothing knows it."""
    raw = json.loads((hf / "config.json").read_text())
    hostile = {**raw, "auto_map": {"AutoModel": "evil.Model"}, "_attn_implementation": "evil/kernels"}
    assert check_hf_config(hostile, "hf/x") == check_hf_config(raw, "hf/x")
    with pytest.raises(UserError, match="of type evil; expected one of beit"):
        check_hf_config({**raw, "model_type": "evil"}, "hf/x")
    wrong = check_hf_config({**raw, "hidden_size": "wide"}, "hf/x")
    with pytest.raises(UserError, match="transformers does not accept"):
        backbone("hf/x", 3, 32, (), wrong)


# ------------------------------------------------------------------------------------ statistics and size


def test_size_and_statistics_are_those_of_the_weights(hf: Path, caches: Path, tmp_path: Path) -> None:
    """And are said in one line; what the user sets stays."""
    write_timm(hub_folder(caches, f"timm/{TIMM}"))
    config = timm.get_pretrained_cfg(TIMM)
    settings, note = settings_for(backbone=f"timm/{TIMM}", init="pretrained")
    assert (settings.image_size, settings.mean, settings.std) == (160, [*config.mean], [*config.std])
    line = f"image_size=160 mean={[*config.mean]} std={[*config.std]}, as in the weights of timm/{TIMM}"
    assert note.splitlines()[0] == line
    chosen = {"image_size": 32, "mean": "none", "std": "none"}
    settings, note = settings_for(backbone=f"timm/{TIMM}", init="pretrained", **chosen)
    assert (settings.image_size, settings.mean, settings.std) == (32, None, None)
    assert "as in" not in note
    settings, _ = settings_for(backbone=f"hf/{hf}", init="pretrained")
    assert (settings.image_size, settings.mean, settings.std) == (32, [0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    # weights of colour pictures have no statistics for grey ones
    grey = locate(PICTURES[..., :1])
    layer = {"device": "cpu", "backbone": f"hf/{hf}", "init": "pretrained"}
    assert resolve_here("simclr", "x", None, layer, located=grey)[0].mean is None


def test_the_configuration_beside_a_file_counts(hf: Path, tmp_path: Path) -> None:
    overlay = {"input_size": (3, 48, 48), "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    write_timm(tmp_path, "test_resnet", pretrained_cfg_overlay=overlay)
    shown = {"image_size": 48, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    assert describe_weights(tmp_path / "model.safetensors").settings() == shown
    assert describe_weights(hf / "model.safetensors").settings() == {**shown, "image_size": 32}
    for init in (tmp_path, tmp_path / "model.safetensors"):
        settings, _ = settings_for(backbone="timm/test_resnet", init=str(init))
        assert {key: getattr(settings, key) for key in shown} == shown
    (tmp_path / "config.json").write_text('{"mean": "x", "std": [1], "input_size": 5}')
    assert describe_weights(tmp_path / "model.safetensors").settings() == {}


# -------------------------------------------------------------------------------------------------- freeze


def families() -> dict[str, Any]:
    from torchvision.models import ConvNeXt, SwinTransformer, VisionTransformer
    from torchvision.models.convnext import CNBlockConfig

    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 24, 1), CNBlockConfig(24, None, 1)]
    swin = {"depths": (1, 1, 1, 1), "embed_dim": 24, "num_heads": (1, 1, 1, 1), "num_classes": 0}
    hf_vit = {"model_type": "dinov2", **VIT, "image_size": 64, "patch_size": 16}
    hf_maps = {"model_type": "convnext", "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
    return {
        "torchvision resnet": (lambda: backbone("resnet18", 3, 32), "layer1"),
        "resnet8": (lambda: backbone("resnet8-w8", 3, 32), "blocks.0"),
        "wrn": (lambda: backbone("wrn-16-2", 3, 32), "stages.0"),
        "timm resnet": (lambda: backbone("timm/test_resnet", 3, 64), "net.layer1"),
        "timm vit": (lambda: backbone("timm/test_vit", 3, 64), "net.blocks.0"),
        "timm convnext": (lambda: backbone("timm/test_convnext", 3, 64), "net.stages.0"),
        "timm efficientnet": (lambda: backbone("timm/test_efficientnet", 3, 64), "net.blocks.0"),
        "timm swin": (
            lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=64, **swin),
            "layers.0",
        ),
        "torchvision vit": (
            lambda: VisionTransformer(64, 16, 4, 2, 16, 32),
            "encoder.layers.encoder_layer_0",
        ),
        "torchvision convnext": (lambda: ConvNeXt(blocks), "features.1"),
        "torchvision swin": (lambda: SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4]), "features.1"),
        "transformers vit": (lambda: HFBackbone(hf_vit), "net.encoder.layer.0"),
        "transformers convnext": (lambda: HFBackbone(hf_maps), "net.encoder.stages.0"),
    }


@pytest.mark.parametrize("family", families())
def test_stages_divide_a_network(family: str) -> None:
    """No weight is in two stages. With stem and stage1 frozen no gradient flows before stage2; without the
    stem it does."""
    make, first = families()[family]
    torch.manual_seed(0)
    body: nn.Module = make()
    stages = named_stages(body)
    assert list(stages) == ["stem", *(f"stage{k}" for k in range(1, len(stages)))]
    assert len(stages) >= 3
    assert stages["stage1"][1][0] is body.get_submodule(first)
    numbers = {
        name: {id(p) for p in (*weights, *(p for part in parts for p in part.parameters()))}
        for name, (weights, parts) in stages.items()
    }
    assert sum(map(len, numbers.values())) == len(set.union(*numbers.values()))
    reached = []
    stages["stage2"][1][0].register_forward_pre_hook(
        lambda _, inputs: reached.append(inputs[0].requires_grad)
    )
    for frozen in (("stage1",), ("stage1", "stem")):
        for parameter in body.parameters():
            parameter.requires_grad_(not any(id(parameter) in numbers[name] for name in frozen))
        body(torch.randn(2, 3, 64, 64))
    assert reached == [True, False]


def train(out: Path, **settings: Any) -> nf.Run:
    options = {**QUICK_SETTINGS, "epochs": 2, "batch_size": 8, "checkpoint_every": 2, "keep": 9, **settings}
    config = {"views.crops": "2x32,1x16", "negatives.size": 16, **options}
    return nf.pretrain("moco", PICTURES, out, quiet=True, config=config)


@pytest.mark.parametrize("name", ["timm/test_vit", "timm/test_resnet"])
def test_frozen_stages_stay_and_resume_bit_equal(name: str, tmp_path: Path) -> None:
    """In the network and its slow copy: weights and batch-norm statistics. They have no optimiser state.
    Views of two sizes go through both networks."""
    options = {"num_classes": 0, "img_size": 32} if name.endswith("vit") else {"num_classes": 0}
    write_timm(tmp_path / "weights", name.removeprefix("timm/"), **options)
    file = tmp_path / "weights" / "model.safetensors"
    settings = {"backbone": name, "init": str(file), "image_size": 32, "freeze": "stem,stage1"}
    run = train(tmp_path / "whole", **settings)
    start, method = load_file(file), run.method()
    fresh = backbone(name, 3, 32)
    is_frozen = {
        key
        for stage in ("stem", "stage1")
        for weights, parts in [named_stages(fresh)[stage]]
        for key, tensor in fresh.state_dict(keep_vars=True).items()
        if any(tensor is w for w in weights)
        or any(tensor is t for part in parts for t in part.state_dict(keep_vars=True).values())
    }
    assert {key.rpartition(".")[2] for key in is_frozen} >= (
        {"pos_embed"} if name.endswith("vit") else {"running_mean", "num_batches_tracked"}
    )
    bodies = copies_of(method, backbones_of(method)[0])
    assert len(bodies) == 2
    for body in bodies:
        moved = {k for k, t in body.state_dict().items() if not torch.equal(t, start[k.removeprefix("net.")])}
        assert moved
        assert not moved & is_frozen
    tensors = newest_tensors(run.path)
    trained = {
        key.partition("network.backbone.")[2] for key in tensors if key.startswith("optimizer/exp_avg/")
    }
    weights = {key for key, _ in fresh.named_parameters()}
    assert trained - {""} == weights - is_frozen

    cut = tmp_path / "cut"
    shutil.copytree(run.path, cut)
    for step in (6, 4):
        shutil.rmtree(cut / "ckpt" / f"step-{step:08d}", ignore_errors=True)
    steps = nf.Run.open(cut).steps
    assert steps[-1] < 6
    file.unlink()  # a run that has begun does not need it
    shutil.rmtree(tmp_path / "weights")
    train(cut, **settings)
    resumed = newest_tensors(cut)
    assert [key for key in tensors if not torch.equal(tensors[key], resumed[key])] == []


def test_frozen_stages_cost_no_gradient_memory() -> None:
    """Autograd stores nothing of what they compute, so most of what a ResNet stores is gone."""
    stored = []
    for freeze in (None, "stem,stage1,stage2,stage3"):
        settings = resolve("simclr", "x", {**QUICK_SETTINGS, "backbone": "resnet8-w8", "freeze": freeze})
        data = locate(PICTURES).open(Limits())
        description = settings.modality.reader.describe(data, 32)
        session = Session(settings, data, description, pick_device("cpu"), torch.float32)
        stored.append(bytes_per_instance(session, session.stream.sample(4)))
    views, head = 2, 64 + 3 * 512 + 2 * 128  # at most: features, layers of the head, its output
    assert stored[1] <= 4 * views * head < stored[0] / 10


def test_unknown_stages_get_a_sentence(tmp_path: Path) -> None:
    for name, message in (
        ("resnet8-w8", "expected stem, stage1, stage2, stage3"),
        ("vgg8", "has no stages known"),
    ):
        with pytest.raises(UserError, match=message):
            nf.pretrain("simclr", PICTURES, tmp_path / "run", backbone=name, freeze="stem,stage9", **QUICK)


# ---------------------------------------------------------------------------------- what runs are used for


@pytest.fixture(scope="module")
def run(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> nf.Run:
    """A run from weights of transformers. The folder they came from is named by a copy that is gone."""
    root = tmp_path_factory.mktemp("use")
    shutil.copytree(hf, root / "vit")
    options = {"backbone": f"hf/{root / 'vit'}", "init": "pretrained", "freeze": "stem", **QUICK}
    trained = nf.pretrain("simclr", (PICTURES, LABELS), root / "run", **options)
    shutil.rmtree(root / "vit")
    return nf.Run.open(trained.path, data=PICTURES, labels=LABELS)


def test_a_run_needs_no_cache_afterwards(run: nf.Run, tmp_path: Path) -> None:
    """Features by `embed`, by the exported loader without nearfar, and by `Encoder` are the same; another
    run starts from it."""
    features = run.embed(PICTURES)
    assert features.shape == (24, 16)
    nf.export(run, tmp_path / "exported")
    names: dict[str, Any] = {"__file__": str(tmp_path / "exported" / "load.py"), "__name__": "load"}
    exec((tmp_path / "exported" / "load.py").read_text(), names)
    pictures = torch.from_numpy(PICTURES).permute(0, 3, 1, 2)
    views = torch.cat([names["preprocess"](picture) for picture in pictures])
    with torch.no_grad():
        torch.testing.assert_close(names["encoder"]()(views), features, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            nf.Encoder.from_pretrained(tmp_path / "exported")(views), features, rtol=1e-4, atol=1e-5
        )
    following, note = settings_for(init=str(run.path))
    assert (following.backbone, following.mean, following.image_size) == (
        run.settings.backbone,
        [0.1, 0.2, 0.3],
        32,
    )
    assert following.backbone_config == run.settings.backbone_config
    assert "model_type" not in note
    again = describe_weights(tmp_path / "exported" / "model.safetensors").settings()
    assert again == {"image_size": 32, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}


def test_evaluation_on_other_data_keeps_the_statistics_of_the_weights(run: nf.Run) -> None:
    others = np.random.default_rng(1).integers(0, 99, (20, 32, 32, 3), dtype=np.uint8), np.arange(20) % 2
    result = nf.evaluate(run, train=others, data=(PICTURES, LABELS), protocols=["knn"], same_labels=True)
    shown = result.notes["input"]
    assert (shown["mean"], shown["statistics"]) == ([0.1, 0.2, 0.3], "the run's settings")


def test_reports_and_students_of_such_a_run(run: nf.Run, tmp_path: Path) -> None:
    """The report is written; a student learns from it, and another starts from pretrained weights itself."""
    assert write_report([run], tmp_path / "report.html").is_file()
    write_timm(tmp_path / "weights", "test_resnet")
    student = nf.distill(
        run,
        PICTURES,
        tmp_path / "student",
        objective="cosine",
        backbone="timm/test_resnet",
        init=str(tmp_path / "weights"),
        image_size=32,
        **QUICK,
    )
    assert student.settings.mean == [*timm.get_pretrained_cfg("test_resnet").mean]
    assert student.facts["step"] == 1
