"""`init`, `momentum`, options of the optimiser, and defaults for the machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torchvision
from PIL import Image
from torch import nn

import nearfar as nf
from nearfar.config.resolving import read_words, resolve
from nearfar.config.schema import convert
from nearfar.core.optimisers import build
from nearfar.data import locate
from nearfar.errors import UserError
from nearfar.modalities.image import ImageDescription
from nearfar.run.folder import RunFolder
from nearfar.run.trained import fresh_method
from nearfar.train.defaults import expectation, resolve_here
from nearfar.train.display import Display
from nearfar.train.init import start_from

SMALL: dict[str, Any] = {"backbone": "resnet8-w16", "epochs": 1, "batch_size": 32, "probe_every": 0}


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def simclr(pictures: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> nf.Run:
    return nf.pretrain("simclr", pictures, tmp_path_factory.mktemp("init") / "simclr", quiet=True, **SMALL)


def untrained(recipe: str, settings: dict[str, Any], size: int) -> nf.Method:
    data = ImageDescription("", 64, channels=3, size=size, mean=(0.5,) * 3, std=(0.25,) * 3)
    return fresh_method(resolve(recipe, "x", settings), data)


def equal(first: nn.Module, second: nn.Module) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_same_method_starts_from_all_networks(
    simclr: nf.Run, pictures: np.ndarray, tmp_path: Path
) -> None:
    """With a learning rate of nothing, the run ends where it started: at the other's weights."""
    # weights move by lr; statistics of batch norm move in every step
    run = nf.pretrain(
        "simclr", pictures, tmp_path / "run", quiet=True, init=str(simclr.path), lr=1e-30, warmup=0, **SMALL
    )
    for ours, theirs in zip(run.method().parameters(), simclr.method().parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_another_method_starts_from_the_backbone_and_its_slow_copy_too(simclr: nf.Run) -> None:
    method = untrained("moco", SMALL, 16)
    message = start_from(method, str(simclr.path))
    assert message == f"started from the backbone of {simclr.path}"
    assert equal(method.encoders.network.backbone, simclr.encoder())  # type: ignore[attr-defined]
    assert equal(method.encoders.slow.backbone, simclr.encoder())  # type: ignore[attr-defined]
    assert not equal(method.encoders.network.head, simclr.method().encoders.network.head)  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrapped", ["plain", "DataParallel", "safetensors", "without counts"])
def test_a_torchvision_file_is_a_start(tmp_path: Path, wrapped: str) -> None:
    torch.manual_seed(0)
    net = torchvision.models.resnet18(weights=None)
    state, path = net.state_dict(), tmp_path / "resnet18.pth"
    if wrapped == "DataParallel":
        torch.save({"state_dict": {f"module.{name}": t for name, t in state.items()}}, path)
    elif wrapped == "safetensors":
        path = path.with_suffix(".safetensors")
        safetensors.torch.save_file(state, path)
    else:
        torch.save({n: t for n, t in state.items() if wrapped == "plain" or "tracked" not in n}, path)
    method = untrained("simclr", {**SMALL, "backbone": "resnet18"}, 96)
    assert "resnet18" in start_from(method, str(path))
    backbone = method.encoders.backbone()
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_a_timm_file_is_a_start(tmp_path: Path) -> None:
    net = timm.create_model("resnet10t", pretrained=False)
    torch.save(net.state_dict(), tmp_path / "timm.pth")
    method = untrained("simclr", {**SMALL, "backbone": "timm/resnet10t"}, 32)
    start_from(method, str(tmp_path / "timm.pth"))
    state = net.state_dict()
    for name, tensor in method.encoders.backbone().state_dict().items():
        assert torch.equal(tensor, state[name.removeprefix("net.")]), name


def test_unsuitable_weights_get_a_sentence(simclr: nf.Run, tmp_path: Path) -> None:
    method = untrained("simclr", {**SMALL, "backbone": "resnet18"}, 32)
    with pytest.raises(UserError, match="was not found"):
        start_from(method, str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"lacks .*; choose the backbone it was made for"):
        start_from(method, str(simclr.path))
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "r.pth")
    with pytest.raises(
        UserError, match=r"conv1.weight is \[64, 3, 7, 7\] where the backbone's is \[64, 3, 3, 3\]"
    ):
        start_from(method, str(tmp_path / "r.pth"))
    one, shape = torch.zeros(1), (64, 3, 3, 3)
    no_plain_tensors = {
        "repeats one value": one.expand(10**9, 3),
        "has no values": torch.zeros(shape, device="meta"),
        "is complex": torch.zeros(shape, dtype=torch.complex64),
    }
    for name, tensor in no_plain_tensors.items():
        torch.save(
            {**torchvision.models.resnet18(weights=None).state_dict(), name: tensor}, tmp_path / "o.pth"
        )
        with pytest.raises(UserError, match=f"whose {name} is not a plain tensor"):
            start_from(method, str(tmp_path / "o.pth"))
    (tmp_path / "text.pth").write_text("not weights")
    with pytest.raises(UserError, match="is not a weights file"):
        start_from(method, str(tmp_path / "text.pth"))


OPTIMISERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": (
        {"optimizer": "sgd", "momentum": 0.7, "optimizer.nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.7, nesterov=True),
    ),
    "sgd plain": ({"optimizer": "sgd", "momentum": 0}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "adamw": (
        {"optimizer": {"name": "adamw", "betas": [0.8, 0.95], "eps": 1e-4}},
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.0),
    ),
    "adamw momentum": (
        {"momentum": 0.5},
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.5, 0.999), weight_decay=0.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMISERS)
def test_options_reach_the_optimiser(name: str) -> None:
    """Settings as text, then as a file, then three steps: those of torch's own with these arguments."""
    options, theirs = OPTIMISERS[name]
    settings = resolve("simclr", "x", options)
    restored = resolve(
        "simclr", "x", {k: v for k, v in settings.as_plain().items() if k not in ("recipe", "data")}
    )
    assert restored == settings
    ends = []
    for make in (
        lambda net: build(
            settings.optimizer, net, lr=0.1, weight_decay=0.0, momentum=settings.momentum,
            options=settings.optimizer_options
        ),
        lambda net: theirs(net.parameters()),
    ):  # fmt: skip
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = make(net)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
        ends.append(net.weight.detach())
    torch.testing.assert_close(*ends)


MISTAKES = [
    ({"optimizer.nesterow": True, "optimizer": "sgd"}, "did you mean optimizer.nesterov"),
    ({"optimizer.betas": [0.9]}, "optimizer.betas was"),
    ({"optimizer.betas": [0.9, 2.0]}, "optimizer.betas="),
    ({"optimizer": "sgd", "optimizer.nesterov": True, "momentum": 0}, "Nesterov"),
    ({"optimizer": "lars", "optimizer.trust": 0}, "trust must be above 0"),
    ({"optimizer.betas": [0.8, 0.9], "momentum": 0.9}, "first beta"),
    ({"momentum": 1.0}, "momentum was 1.0"),
    ({"log_every": 0}, "log_every was 0"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_a_bad_option_is_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("simclr", "x", options)


def test_another_optimiser_drops_the_previous_options() -> None:
    settings = resolve(
        "simclr", "x", {"optimizer": "sgd", "optimizer.nesterov": True}, {"optimizer": "adamw"}
    )
    assert settings.optimizer_options == {}


def test_a_list_of_numbers_is_a_setting() -> None:
    assert convert([1, "1e-2", 3.5], list[float], "views.scales") == [1.0, 0.01, 3.5]
    with pytest.raises(UserError, match=r"views.scales was 3; expected a list"):
        convert(3, list[float], "views.scales")


def test_log_every(pictures: np.ndarray, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "batch_size": 8, "log_every": 3}
    run = nf.pretrain("simclr", pictures, tmp_path / "run", quiet=True, **options)
    assert [row["step"] for row in run.metrics if row["kind"] == "train"] == [1, 3, 6, 8]


def defaults_for(recipe: str, data: Any, out: Path | None = None, **settings: Any) -> tuple[object, ...]:
    located = None if data is None else locate(data)
    resolved, note = resolve_here(recipe, "x", out, {"device": "cpu", **settings}, located=located)
    return resolved.backbone, resolved.image_size, resolved.batch_size, resolved.epochs, note


def test_defaults_suit_the_machine_and_give_way(tmp_path: Path, simclr: nf.Run) -> None:
    note = "backbone=resnet8-w16 epochs=20 chosen for a CPU; set them to change this"
    assert defaults_for("simclr", None) == ("resnet8-w16", None, 256, 20, note)
    assert defaults_for("simclr", None, device="cuda") == ("resnet18", None, 256, 100, None)
    explicit = defaults_for("simclr", None, epochs=3)
    assert explicit == ("resnet8-w16", None, 256, 3, note.replace(" epochs=20", "").replace("them", "it"))
    assert defaults_for("cpc", None)[-1] is None
    # a run that was begun keeps its own
    assert defaults_for("simclr", None, simclr.path) == ("resnet8-w16", None, 32, 1, None)


def test_first_run_on_photos_is_short_and_visits_most_of_them(tmp_path: Path) -> None:
    """490 large photos on a CPU: views of 64 pixels, at most a seventh dropped per epoch, and 100 epochs."""
    rng = np.random.default_rng(0)
    for number in range(490):
        pixels = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((400, 300)).save(tmp_path / f"{number}.jpg")
    words = "backbone=resnet8-w16 image_size=64 batch_size=64 epochs=100"
    note = f"{words} chosen for a CPU and 490 images; set them to change this"
    assert defaults_for("simclr", tmp_path) == ("resnet8-w16", 64, 64, 100, note)
    assert defaults_for("simclr", tmp_path, image_size="none")[1:4] == (
        None,
        64,
        42,
    )  # 224 px cost 49 times 32 px


SMALL_IMAGES = np.zeros((2000, 32, 32, 3), np.uint8), np.arange(2000) % 2


def test_simclr_on_a_cpu_gets_the_settings_that_were_measured_together(tmp_path: Path) -> None:
    data = locate(SMALL_IMAGES)
    settings, note = resolve_here("simclr", "x", None, {"device": "cpu"}, located=data)
    assert (settings.backbone, settings.optimizer, settings.lr) == ("resnet6-w48", "muon", 2e-2)
    assert settings.views["crops"] == "2x24"
    words = "backbone=resnet6-w48 epochs=100 optimizer=muon lr=0.02 views.crops=2x24"
    assert note == f"{words} chosen for a CPU and 2,000 images; set them to change this"
    typed, _ = resolve_here("simclr", "x", None, read_words([*words.split(), "device=cpu"]), located=data)
    assert typed == settings
    # a run that trained with them keeps them, and one that trained without keeps its own
    (RunFolder(tmp_path).checkpoints / "step-00000001").mkdir(parents=True)
    RunFolder(tmp_path).config.write_text(settings.as_yaml())
    resumed = resolve_here("simclr", "x", tmp_path, {"device": "cuda"}, located=data)[0]
    assert replace(resumed, device="cpu") == settings
    RunFolder(tmp_path).config.write_text(replace(typed, lr=1e-3).as_yaml())
    assert resolve_here("simclr", "x", tmp_path, {"backbone": "resnet18"}, located=data)[0].lr == 2e-3


def test_accuracy_is_expected_only_where_it_was_measured() -> None:
    """On CIFAR-10: 50,000 images, 10 epochs, the settings of simclr on a CPU."""

    def of(*words: str, count: int = 50_000) -> str:
        layer = {"device": "cpu", "epochs": 10, **read_words(words)}
        return expectation(resolve_here("simclr", "x", None, layer, located=locate(SMALL_IMAGES))[0], count)

    measured = "on this CPU; 71 % linear accuracy expected on images like CIFAR-10, where it was measured"
    assert of() == f"{measured} after 10 epochs"
    assert of("epochs=20", "seed=3", "workers=1", "held_out=0", count=49_000) == of()
    assert of(count=40_000) == of("epochs=9") == of("optimizer=sgd") == of("views.flip=0.1") == "on this CPU"
    assert of("critic.temperature=0.5") == of("weight_decay=0.1") == of("encoders.dim=64") == "on this CPU"


def test_a_run_with_settings_for_a_cpu_says_how_long_it_takes(
    pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Display, "MIN_SECONDS", 1e-9)
    common: dict[str, Any] = {"batch_size": 16, "image_size": 16, "workers": 0, "held_out": 0, "log_every": 1}
    named: dict[str, Any] = {"backbone": "resnet8-w8", "lr": 1e-3}
    for out, more in (("chosen", {}), ("named", named)):
        nf.pretrain("simclr", pictures, tmp_path / out, epochs=2, device="cpu", **common, **more)
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("about ")]
        assert lines == (["about 1 minute on this CPU"] if out == "chosen" else [])


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        ("simclr", {"backbone": "resnet8-w16"}),
        ("simclr", {"optimizer": "sgd"}),
        ("simclr", {"optimizer.nesterov": True, "optimizer.name": "sgd"}),
        ("simclr", {"momentum": 0.8}),
        ("simclr", {"lr": 1e-3}),
        ("simclr", {"views": {"flip": 0.1}}),
        ("simclr", {"views.flip": 0.1}),
        ("simclr", {"sharding": "fsdp"}),
        ("simclr", {"image_size": 16}),
        ("simclr", {"device": "cuda"}),
        ("simclr-ring", {}),
        ("moco", {}),
    ],
)
def test_settings_measured_together_are_not_chosen_in_part(recipe: str, named: dict[str, Any]) -> None:
    layer = {"device": "cpu", **named}
    settings, note = resolve_here(recipe, "x", None, layer, located=locate(SMALL_IMAGES))
    assert settings.backbone != "resnet6-w48"
    assert settings.optimizer != "muon"
    assert settings.views["crops"] is None
    assert "muon" not in (note or "")


@pytest.mark.parametrize(("count", "side"), [(1000, 32), (2000, 16), (2000, 64)])
def test_settings_measured_together_are_for_images_like_those_of_the_measurement(
    count: int, side: int
) -> None:
    """Their learning rate is for the usual batch, their crops are for small images."""
    data = locate(np.zeros((count, side, side, 3), np.uint8))
    assert resolve_here("simclr", "x", None, {"device": "cpu"}, located=data)[0].optimizer == "adamw"


@pytest.mark.parametrize(
    ("count", "labels", "batch"),
    [(1792, None, 256), (1791, None, 128), (30, None, 8), (3, None, 3), (1792, 0.1, 16)],
)
def test_batch_size_suits_the_number_of_instances(count: int, labels: float | None, batch: int) -> None:
    data = np.zeros((count, 8, 8, 3), np.uint8), np.arange(count) % 3
    assert defaults_for("supervised", data, device="cuda", labels=labels)[2] == batch


def test_preset_is_not_replaced_by_defaults_of_the_machine() -> None:
    assert defaults_for("moco", None, preset="wu2021") == ("resnet18", 224, 256, 300, None)


def test_run_that_starts_from_another_has_its_network_and_size(simclr: nf.Run) -> None:
    data = np.zeros((600, 40, 40, 3), np.uint8), np.arange(600) % 2
    backbone, size, _, _, note = defaults_for("supervised", data, init=str(simclr.path))
    assert (backbone, size) == ("resnet8-w16", 16)
    assert str(note).startswith(f"backbone=resnet8-w16 image_size=16, as in {simclr.path}\n")
    assert defaults_for("supervised", data, init=str(simclr.path), image_size=32)[1] == 32


def test_choosing_defaults_does_not_judge_bad_files(tmp_path: Path) -> None:
    """`max_bad_share` of the run decides, also where the size of views is chosen from a few images."""
    for number, pixels in enumerate(
        np.random.default_rng(0).integers(0, 256, (4, 20, 20, 3), dtype=np.uint8)
    ):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"none")
    assert defaults_for("simclr", tmp_path, max_bad_share=0.5)[1:4] == (None, 5, 100)
