"""Fifteen additions, each done once: a file of `examples/extending` and the one line that names it.
docs/extending.md has the table.

A part named in its room's `PARTS` must then be complete: settings checked, trained with, resumed, in `nearfar
recipes`, on the page of methods, in a report."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nearfar as nf
from nearfar.cli import main
from nearfar.config.fields import CHOICES
from nearfar.config.methods_page import CompleteRecipe, equation_of, methods_page
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.config.schema import plain
from nearfar.config.sections import PARTS_BY_CHOICE
from nearfar.run import checkpoints
from tests import helpers

FOLDER = Path(__file__).parents[2] / "examples" / "extending"
QUICK = {**helpers.QUICK, "epochs": 2}
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(64, 6)).astype(np.float32)
LABELS = np.arange(64) % 4
IMAGES = RNG.integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)


def addition(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"added_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def losses(run: nf.Run) -> list[float]:
    return [row["loss"] for row in run.metrics if row["kind"] == "train"]


def state(run: nf.Run) -> dict[str, Tensor]:
    return checkpoints.load(run.checkpoint)[0]


# room, file, name, class, settings
PARTS = [
    ("bound", "bound", "cpc-t", "TemperedCPC", {"power": "linear(1,0.5)"}),
    ("selection", "selection", "every-other", "EveryOther", {"stride": 3}),
    ("negatives", "source", "prototypes", "LearnedVectors", {"size": 24}),
    ("critic", "critic", "student-t", "StudentT", {"freedom": 3.0}),
    ("prior", "prior", "mean-zero", "MeanZero", {"weight": 0.25}),
]


@pytest.fixture(params=PARTS, ids=lambda row: row[1])
def added(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, dict[str, Any]]:
    room, file, name, factory, settings = request.param
    monkeypatch.setitem(PARTS_BY_CHOICE[room], name, getattr(addition(file), factory))  # the one line
    return room, name, settings


def test_part_needs_one_file_and_one_line(added: tuple[str, str, dict[str, Any]], tmp_path: Path) -> None:
    room, name, settings_of_part = added
    choice: dict[str, Any] = {room: {"name": name, **settings_of_part}}
    run = nf.pretrain("simclr", TABLE, tmp_path / "run", labels=LABELS, **choice, **QUICK)
    assert all(np.isfinite(losses(run)))
    with pytest.raises(nf.Stopped):
        nf.pretrain("simclr", TABLE, tmp_path / "cut", labels=LABELS, max_time=1e-9, **choice, **QUICK)
    rest = nf.pretrain("simclr", TABLE, tmp_path / "cut", labels=LABELS, **choice, **QUICK)
    assert all(torch.equal(state(run)[key], value) for key, value in state(rest).items())
    assert run.choices()[room].startswith(f"{name}(")
    first, second = (nf.evaluate(one, protocols=["knn"])["knn"] for one in (run, rest))
    assert first == second
    nf.write_report([run], tmp_path / "report.html")
    assert name in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_new_part_appears_in_equations_and_docs(added: tuple[str, str, dict[str, Any]]) -> None:
    room, name, settings_of_part = added
    settings = resolve("simclr", "DATA", {room: {"name": name, **settings_of_part}})
    choices = {r: getattr(settings, r) for r in CHOICES}
    written = "; ".join(equation_of(choices).values())
    assert all(str(plain(choices[room][key])) in written for key in settings_of_part)
    page = methods_page({"simclr": CompleteRecipe("simclr", RECIPES["simclr"], settings)})
    line = str(getattr(PARTS_BY_CHOICE[room][name], "equation", "")).replace(
        "|", "\\|"
    )  # as a table's cell can hold it
    assert line
    assert f"| `{name}` | `{line}` |" in page
    key = next(iter(settings_of_part))
    with pytest.raises(nf.UserError, match=rf"{room}\.{key}"):
        resolve("simclr", "DATA", {room: {"name": name, key: "many"}})


def test_recipe_needs_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(RECIPES, "moco-tuple", addition("recipe").MOCO_TUPLE)
    run = nf.pretrain("moco-tuple", TABLE, tmp_path, negatives={"size": 64}, **QUICK)
    assert run.settings.bound["name"] == "tuple"
    assert main(["recipes", "moco-tuple"]) == 0
    assert "(N+1)-tuple loss" in capsys.readouterr().out


def test_new_augmentation_keeps_existing_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are keyed by the operation's name: runs without it, and draws of other operations, do not
    change."""
    from nearfar.modalities.image.views import OPERATIONS, Augment, Views
    from nearfar.modalities.image.views.operations import Erase

    settings = {**QUICK, "epochs": 1, "backbone": "resnet8-w16"}
    baseline = nf.pretrain("simclr", IMAGES, tmp_path / "before", **settings)
    posterise = addition("augmentation").Posterise
    monkeypatch.setitem(OPERATIONS, "posterise", posterise)
    extended = nf.pretrain("simclr", IMAGES, tmp_path / "after", **settings)
    assert losses(extended) == losses(baseline)
    assert all(torch.equal(state(baseline)[key], value) for key, value in state(extended).items())
    views = {"posterise": {"probability": 0.7}}
    changed = nf.pretrain("simclr", IMAGES, tmp_path / "with", views=views, **settings)
    assert losses(changed) != losses(baseline)

    pixels, index = nf.open_data(IMAGES).load(np.arange(32)), np.arange(32)

    def view_with(*also: Any) -> Tensor:
        augment = Augment(also=also)
        return Views([augment], 16, (0.5,) * 3, (0.25,) * 3)(pixels, 3, 1, index)[0]

    erase = Erase(0.5)
    untouched = view_with() == view_with(erase)  # pixels that erasing leaves alone
    assert untouched.flatten(1).all(dim=1).any()  # chance spares some images, bit for bit
    assert not untouched.flatten(1).all(dim=1).all()
    same = view_with(posterise(0.0), erase) == view_with(erase)  # other operations do not change its draws
    assert same.all()


def test_erasing_removes_the_drawn_rectangle() -> None:
    """Zhong et al. 2020: area scale · s², ratio log-uniform, a uniform place; compared with loops over
    pixels."""
    from nearfar.modalities.image.views.operations import Erase

    numbers = torch.rand(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = torch.full((20, 1, 11, 9), 0.25, dtype=torch.float64)
    erased = Erase(1.0, (0.05, 0.6), (0.5, 2.0), 0.75)(images, numbers)
    for (a, r, y, x), image in zip(numbers.tolist(), erased[:, 0], strict=True):
        area, ratio = (0.05 + 0.55 * a) * 99, 0.5 * 4**r
        tall = min(11, max(1, round((area / ratio) ** 0.5)))
        broad = min(9, max(1, round((area * ratio) ** 0.5)))
        top, first_column = int(y * (11 - tall + 1)), int(x * (9 - broad + 1))
        expected = torch.full((11, 9), 0.25, dtype=torch.float64)
        expected[top : top + tall, first_column : first_column + broad] = 0.75
        assert torch.equal(image, expected)


def test_reader_needs_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.data.open import FORMATS, ArrayFormat

    monkeypatch.setitem(FORMATS, ".idx", ArrayFormat(3, addition("reader").read))
    grey = IMAGES[..., 0]
    file = tmp_path / "pictures.idx"
    file.write_bytes(b"\0\0\x08\x03" + np.array(grey.shape, dtype=">u4").tobytes() + grey.tobytes())
    data = nf.open_data(file)
    assert np.array_equal(data.load(np.arange(32)).data[..., 0], grey)
    nf.pretrain("simclr", file, tmp_path / "run", **{**QUICK, "epochs": 1, "backbone": "resnet8-w16"})
    file.write_bytes(b"\0\0\x08\x03")
    with pytest.raises(nf.UserError, match=r"expected \(images, height, width\)"):
        nf.open_data(file)


def test_modality_needs_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.modalities import MODALITIES

    monkeypatch.setitem(MODALITIES, "angles", addition("modality").ANGLES)
    angles = RNG.uniform(-np.pi, np.pi, 64)
    run = nf.pretrain("simclr", angles, tmp_path / "run", labels=(angles > 0).astype(int), **QUICK)
    assert run.settings.views == {"name": "turn", "by": 0.3, "count": 2, "symmetric": True}
    assert nf.evaluate(run, protocols=["knn"], baselines=True)["baselines"]["numbers"]["knn"]["top1"] > 0.8
    nf.write_report([run], tmp_path / "report.html")


def test_protocol_can_use_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.evaluate import NETWORK_PROTOCOLS

    monkeypatch.setitem(NETWORK_PROTOCOLS, "mirror", addition("protocol").mirror)

    class Widths(nn.Module):
        """Means over rows: an image and its mirror image look alike to it."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x.mean(dim=3) * self.scale[:, None]).flatten(1)

    labels = np.arange(32) % 2
    run = nf.pretrain("simclr", IMAGES, tmp_path, labels=labels, backbone=Widths(), **{**QUICK, "epochs": 1})
    result = nf.evaluate(run, protocols=["knn", "mirror"], baselines=True)
    assert result["mirror"]["top1"] == result["baselines"]["untrained"]["mirror"]["top1"] == 1.0
    assert "mirror" not in result["baselines"]["pixels"]
    assert "knn" in result["baselines"]["pixels"]
    with pytest.raises(nf.UserError, match="mirror"):
        nf.evaluate(run, protocols=["miror"])


def test_optimiser_needs_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.core.optimisers import OPTIMISERS

    monkeypatch.setitem(OPTIMISERS, "lion", addition("optimiser").lion)
    settings = {**QUICK, "optimizer": {"name": "lion", "second": 0.9}, "lr": 1e-3}
    uninterrupted = nf.pretrain("simclr", TABLE, tmp_path / "a", **settings)
    with pytest.raises(nf.Stopped):
        nf.pretrain("simclr", TABLE, tmp_path / "b", max_time=1e-9, **settings)
    rest = nf.pretrain("simclr", TABLE, tmp_path / "b", **settings)
    assert all(torch.equal(state(uninterrupted)[key], value) for key, value in state(rest).items())
    assert any(key.startswith("optimizer/mean/") for key in state(uninterrupted))


def test_teacher_needs_one_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    student, teacher = (
        nn.Sequential(nn.Linear(6, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16)),
    )
    encoders = addition("teacher").Taught(student, teacher, 4).with_widths_of(torch.zeros(2, 6))
    method = nf.Method(encoders, nf.Cosine(0.2), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE())
    run = nf.pretrain(method, TABLE, tmp_path, **QUICK)
    trained, first = run.method().state_dict(), method.state_dict()
    assert torch.equal(trained["encoders.teacher.0.weight"], first["encoders.teacher.0.weight"])
    assert not torch.equal(trained["encoders.network.0.weight"], first["encoders.network.0.weight"])
    assert run.embed(TABLE).shape == (64, 8)


def test_report_section_needs_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.report.sections import SECTIONS

    run = nf.pretrain("simclr", TABLE, tmp_path, **QUICK)
    nf.write_report([run], tmp_path / "without.html")
    monkeypatch.setitem(SECTIONS, "Pace", addition("section").pace)
    nf.write_report([run], tmp_path / "with.html")
    first = f"{losses(run)[0]:.4f}"
    assert "<h2>Pace</h2>" in (tmp_path / "with.html").read_text(encoding="utf-8")
    assert f"<td>{first}</td>" in (tmp_path / "with.html").read_text(encoding="utf-8")
    assert "Pace" not in (tmp_path / "without.html").read_text(encoding="utf-8")


def test_command_needs_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nearfar.cli

    run = nf.pretrain("simclr", TABLE, tmp_path, backbone="mlp-small", **QUICK)
    monkeypatch.setitem(sys.modules, "nearfar.cli.weights", addition("command"))
    monkeypatch.setattr(nearfar.cli, "COMMANDS", (*nearfar.cli.COMMANDS, "weights"))
    assert main(["weights", str(tmp_path)]) == 0
    expected = sum(weight.numel() for weight in run.encoder().parameters())
    assert capsys.readouterr().out.strip() == f"{expected:,}"


def test_learned_view_trains_its_weights_and_resumes(tmp_path: Path) -> None:
    """Weights of views are trained against the encoders and saved; a resumed run equals an uninterrupted
    one."""
    viewmaker = addition("learned_view").Viewmaker
    torch.manual_seed(0)
    views = viewmaker(size=16)
    initial = {key: value.clone() for key, value in views.state_dict().items()}
    settings = {**QUICK, "epochs": 3, "backbone": "resnet8-w8", "device": "cpu"}
    run = nf.pretrain("simclr", IMAGES, tmp_path / "run", views=views, **settings)
    assert all(torch.equal(value, initial[key]) for key, value in views.state_dict().items())
    trained = {
        key.removeprefix("method/views."): value
        for key, value in state(run).items()
        if key.startswith("method/views.")
    }
    assert set(trained) == set(initial)
    assert not any(torch.equal(trained[key], initial[key]) for key in initial)
    with pytest.raises(nf.Stopped):
        nf.pretrain("simclr", IMAGES, tmp_path / "cut", views=views, max_time=1e-9, **settings)
    cut = nf.pretrain("simclr", IMAGES, tmp_path / "cut", views=views, **settings)
    assert all(torch.equal(value, state(cut)[key]) for key, value in state(run).items())


class Brightness(nn.Module):
    """Views without a base class: one weight changes the brightness of every view."""

    count = 2

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.crops = nf.Views((nf.Augment(), nf.Augment()), 16, (0.5,) * 3, (0.25,) * 3)

    def forward(self, instances: Any, seed: int, epoch: int, index: Any) -> tuple[torch.Tensor, ...]:
        return self.crops(instances, seed, epoch, index)

    def transform(self, views: tuple[torch.Tensor, ...], progress: Any) -> tuple[torch.Tensor, ...]:
        return tuple(self.gain * view + 1 for view in views)


def test_views_without_a_base_class_are_transformed(tmp_path: Path) -> None:
    """`transform` of any object that makes views runs in `forward`, and its weights are trained and saved."""
    settings = {**QUICK, "epochs": 1, "backbone": "resnet8-w8", "device": "cpu"}
    run = nf.pretrain("simclr", IMAGES, tmp_path, views=Brightness(), **settings)
    assert state(run)["method/views.wrapped.gain"] != 1
    seen: list[torch.Tensor] = []

    class Network(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return x.flatten(1)

    duck: Any = Brightness()
    method = nf.Method(
        nf.Shared(Network()), nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE(), views=duck
    )
    views = tuple(torch.randn(2, 4, 3, 16, 16))
    method(nf.Batch(views, torch.arange(4)))
    assert torch.equal(torch.cat(seen), torch.cat(views) + 1)


def test_learned_view_lowers_what_the_encoders_raise() -> None:
    """The gradient of its weights is minus that of the loss."""
    torch.manual_seed(0)
    views = addition("learned_view").Viewmaker(size=16).double()
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)).double()
    method = nf.Method(
        nf.Shared(network), nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE(), views=views
    )
    batch = nf.Batch(tuple(torch.randn(2, 6, 3, 16, 16, dtype=torch.float64)), torch.arange(6))
    weight = next(views.network.parameters())
    (gradient,) = torch.autograd.grad(method(batch).loss, weight)
    with torch.no_grad():
        step = 1e-6 * gradient / gradient.norm()
        weight += step
        raised = method(batch).loss
        weight -= 2 * step
        lowered = method(batch).loss
    assert (raised - lowered).item() / 2e-6 == pytest.approx(-gradient.norm().item(), rel=1e-4)
