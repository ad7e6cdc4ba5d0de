"""Objects instead of names: they train, resume, are recognised, and are requested by name when missing."""

import os
import random
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

import nearfar as nf
from nearfar.config.objects import as_section, describe_object, split_objects
from nearfar.errors import Stopped
from nearfar.modalities.image.views.functions import _as_tensor
from nearfar.run import checkpoints
from tests.helpers import IMAGES, LABELS, QUICK


class Tiny(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).mean(dim=(2, 3))


def tiny(seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny()


def own_method(**changes: Any) -> nf.Method:
    parts: dict[str, Any] = {
        "encoders": nf.Shared(tiny()),
        "critic": nf.Cosine(0.2),
        "negatives": nf.InBatch(),
        "selection": nf.Ring(0.5, 0.99),
        "bound": nf.InfoNCE(),
    }
    return nf.Method(**{**parts, **changes})


class Pictures(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.from_numpy(IMAGES[place]).permute(2, 0, 1), int(LABELS[place])


def state(run: nf.Run) -> dict[str, Tensor]:
    return checkpoints.load(run.checkpoint)[0]


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_parts_that_settings_describe_become_settings(tmp_path: Path) -> None:
    """A part of ours becomes its name and numbers: the run equals the one from settings and needs no
    object."""
    by_object = nf.pretrain(
        "moco", IMAGES, tmp_path / "a", backbone="resnet8-w16", bound=nf.MultiLabelCPC(0.5),
        negatives=nf.Queue(64), selection=nf.Ball(0.25), critic=nf.Cosine(0.3), **QUICK,
    )  # fmt: skip
    by_name = nf.pretrain(
        "moco", IMAGES, tmp_path / "b", backbone="resnet8-w16", bound={"name": "ml-cpc", "alpha": 0.5},
        negatives={"size": 64}, selection={"name": "ball", "lower": 0.25}, temperature=0.3, **QUICK,
    )  # fmt: skip
    assert by_object.settings == by_name.settings
    assert equal(state(by_object), state(by_name))
    assert nf.Run.open(tmp_path / "a").encoder() is not None


@pytest.mark.parametrize(
    ("room", "part"),
    [
        ("bound", nf.AlphaCPC(nf.linear(1.0, 2.0))),
        ("selection", nf.Ring(nf.linear(0.0, 0.9), 0.99)),
        ("negatives", nf.InBatch("one")),
        ("negatives", nf.Bank(7, momentum=0.25, sample=3)),
        ("critic", nf.Distance(2.0, unit=False)),
    ],
)
def test_settings_describe_a_part_completely(room: str, part: Any) -> None:
    section = as_section(room, part)
    assert section is not None
    assert all(getattr(part, key) == value for key, value in section.items() if key != "name")


def test_a_part_with_an_object_inside_stays_an_object() -> None:
    filled = nf.Queue(8, dim=2)
    filled.advance({0: torch.ones(4, 2)}, torch.arange(4), nf.Progress(0, 1, 1))
    assert as_section("negatives", filled) is None
    assert as_section("critic", nf.Bilinear(dim=4)) is None  # weights are no setting

    class Mine(nf.InfoNCE):
        pass

    assert as_section("bound", Mine()) is None  # another class, whatever it inherits


def test_a_module_and_a_torch_dataset(tmp_path: Path) -> None:
    module = tiny()
    initial = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = nf.pretrain("simclr", data=Pictures(), out=tmp_path / "run", backbone=module, **QUICK)
    assert equal(initial, module.state_dict())  # yours stays as it was
    encoder = run.encoder()
    assert isinstance(encoder, Tiny)
    assert not torch.equal(encoder.conv.weight, module.conv.weight)
    result = nf.evaluate(run, protocols=["knn"], baselines=True)
    assert set(result["baselines"]) == {"pixels", "untrained"}
    assert run.embed(IMAGES[:5]).shape == (5, 8)
    reopened = nf.Run.open(
        tmp_path / "run", backbone=tiny(1), data=Pictures()
    )  # weights come from the checkpoint
    assert equal(reopened.encoder().state_dict(), encoder.state_dict())
    assert nf.evaluate(reopened, protocols=["knn"])["knn"] == result["knn"]
    nf.write_report([reopened], tmp_path / "report.html")


def test_a_method_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Stopped after some steps and called again with equal objects: as if never stopped."""
    parts = {"encoders": nf.Momentum(tiny(), 0.9), "negatives": nf.Queue(32)}
    uninterrupted = nf.pretrain(own_method(**parts), IMAGES, tmp_path / "whole", **{**QUICK, "epochs": 3})
    cut = {**QUICK, "epochs": 3, "checkpoint_every": 2}
    with pytest.raises(nf.Stopped):
        nf.pretrain(own_method(**parts), IMAGES, tmp_path / "cut", max_time=1e-9, **cut)
    parts = {
        "encoders": nf.Momentum(tiny(5), 0.9),
        "negatives": nf.Queue(32),
    }  # other initial weights do not matter now
    rest = nf.pretrain(own_method(**parts), IMAGES, tmp_path / "cut", **cut)
    assert equal(state(rest), state(uninterrupted))


def test_other_objects_are_refused_with_what_differs(tmp_path: Path) -> None:
    nf.pretrain(own_method(), IMAGES, tmp_path, **QUICK)
    with pytest.raises(nf.UserError, match=r"critic.temperature: 0.2, now 0.5"):
        nf.pretrain(own_method(critic=nf.Cosine(0.5)), IMAGES, tmp_path, **QUICK)
    with pytest.raises(nf.UserError, match=r"bound.name: infonce, now nwj"):
        nf.pretrain(own_method(bound=nf.NWJ()), IMAGES, tmp_path, **QUICK)
    with pytest.raises(nf.UserError, match=r"encoders.tensors"):
        nf.Run.open(tmp_path, method=own_method(encoders=nf.Shared(Tiny(4))))
    with pytest.raises(nf.UserError, match="it needs method"):
        nf.Run.open(tmp_path, bound=nf.NWJ())


def test_missing_objects_are_named(tmp_path: Path) -> None:
    nf.pretrain("simclr", IMAGES, tmp_path, labels=LABELS, backbone=tiny(), **QUICK)
    run = nf.Run.open(tmp_path)  # settings, metrics and the like need no object
    assert run.metrics
    assert run.choices()["bound"] == "infonce"
    with pytest.raises(nf.UserError, match=r"Tiny \(240 weights.*Run.open\(.*backbone=…\)"):
        run.encoder()
    reopened = nf.Run.open(tmp_path, backbone=tiny())
    with pytest.raises(nf.UserError, match=r"Run.open\(.*data=…\)"):
        nf.evaluate(reopened, protocols=["knn"])
    assert nf.evaluate(reopened, train=(IMAGES, LABELS), protocols=["knn"])["test"]["samples"] > 0
    with pytest.raises(nf.UserError, match="bound was given"):
        nf.Run.open(tmp_path, backbone=tiny(), bound=nf.NWJ())


class Shifts:
    """Views of one's own: each image rolled sideways, by numbers that (seed, epoch, index) give."""

    count = 3

    def __call__(self, loaded: Any, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        pixels = torch.from_numpy(loaded.data).permute(0, 3, 1, 2).float() / 255
        by = [int(seed + epoch + i) % 5 for i in index]
        return tuple(
            torch.stack([image.roll(view * shift, dims=2) for image, shift in zip(pixels, by, strict=True)])
            for view in range(self.count)
        )


def test_custom_views_train_and_resume(tmp_path: Path) -> None:
    run = nf.pretrain("simclr", IMAGES, tmp_path / "a", backbone=tiny(), views=Shifts(), **QUICK)
    assert run.settings.views["object"] == "Shifts"
    assert run.settings.views["count"] == 3
    nf.pretrain("simclr", IMAGES, tmp_path / "a", backbone=tiny(), views=Shifts(), **QUICK)
    with pytest.raises(nf.UserError, match=r"views=…"):
        nf.Run.open(tmp_path / "a", backbone=tiny()).views()

    class Fewer(Shifts):
        count = 2

        def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
            return super().__call__(*arguments)[:1]

    class Random(Shifts):
        def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
            return tuple(view + torch.rand(()) for view in super().__call__(*arguments))

    for views, sentence in ((Fewer(), "expected 2 tensors"), (Random(), "not deterministic for the same")):
        with pytest.raises(nf.UserError, match=sentence):
            nf.pretrain("simclr", IMAGES, tmp_path / "b", backbone=tiny(), views=views, **QUICK)
        assert not (tmp_path / "b" / "config.yaml").exists()


def test_augments_are_settings(tmp_path: Path) -> None:
    first, second = nf.Augment(blur=0.0), nf.Augment(jitter=0.0, solarise=0.3)
    run = nf.pretrain("simclr", IMAGES, tmp_path, backbone="resnet8-w16", views=(first, second), **QUICK)
    assert nf.Run.open(tmp_path).views().pipelines == (first, second)
    assert "object" not in run.settings.views


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"backbone": nn.Conv2d(3, 4, 3)}, r"gave a tensor of shape .* expected features \(2, d\)"),
        ({"backbone": nn.Linear(7, 3)}, "could not take a batch of shape"),
        ({"backbone": 3}, "expected a name or an nn.Module"),
        ({"bound": len}, "which has no certificate"),
        ({"views": 3}, "views was 3"),
        ({"encoders": nf.Shared(tiny()), "backbone": tiny()}, "pass one of them"),
        ({"backbone": tiny(), "encoders": {"name": "infomax"}}, "needs a map from inside"),
    ],
)
def test_unusable_objects_get_a_sentence(tmp_path: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        nf.pretrain("simclr", IMAGES, tmp_path / "run", **arguments, **QUICK)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_prior_may_be_an_object(tmp_path: Path) -> None:
    run = nf.pretrain(
        "simclr", IMAGES, tmp_path / "a", backbone=tiny(), prior=nf.VarianceCovariance(0.5), **QUICK
    )
    assert run.settings.prior["name"] == "variance-covariance"
    assert "object" not in run.settings.prior
    custom = nf.pretrain(own_method(prior=nf.SIGReg()), IMAGES, tmp_path / "b", **QUICK)
    assert custom.settings.prior["object"] == "SIGReg"
    with pytest.raises(nf.UserError, match=r"prior.name: sigreg, now none"):
        nf.pretrain(own_method(), IMAGES, tmp_path / "b", **QUICK)


def test_a_method_takes_no_further_parts() -> None:
    with pytest.raises(nf.UserError, match="together with a Method"):
        split_objects(own_method(), {"bound": "nwj"})
    for key, choice in {"bound.alpha": "bound", "temperature": "critic"}.items():
        with pytest.raises(nf.UserError, match=f"{key} was given together with an object for {choice}"):
            split_objects(own_method(), {key: 0.5})
    with pytest.raises(nf.UserError, match=r"views\.crops was given together with an object for views"):
        split_objects("simclr", {"views": cut, "views.crops": "2x16,2x8"})
    assert split_objects("simclr", {"views": cut, "views.count": 3}).layers == ({"views.count": 3},)
    with pytest.raises(nf.UserError, match="expected the name of a recipe"):
        split_objects(3)


def test_a_description_identifies_an_object() -> None:
    description = describe_object(nf.Separable(hidden=4, layers=1, out=2, dim=3))
    assert description["name"] == "separable"
    assert len(description["tensors"]) == 12
    changed = describe_object(nf.Separable(hidden=5, layers=1, out=2, dim=3))
    assert description["tensors"] != changed["tensors"]
    assert (
        describe_object(nf.Separable(hidden=4, layers=1, out=2, dim=3)) == description
    )  # weights are no part of it


def test_sources_take_the_width_of_their_keys() -> None:
    queue, bank = nf.Queue(64), nf.Bank(4, views=2)
    batch = nf.Batch((torch.randn(4, 3, 12, 12), torch.randn(4, 3, 12, 12)), torch.arange(4))
    for source, empty, filled in ((queue, (64, 0), (64, 8)), (bank, (2, 4, 0), (2, 4, 8))):
        method = nf.Method(tiny(), nf.Cosine(), source, nf.Everyone(), nf.InfoNCE())
        outcome = method(batch)
        remembered = next(iter(source.buffers()))
        assert remembered.shape == empty  # computing changes nothing
        outcome.loss.backward()
        method.advance(outcome)
        assert next(iter(source.buffers())).shape == filled
        new_source = nf.Queue(64) if source is queue else nf.Bank(4, views=2)
        new_source.load_state_dict(source.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(new_source.buffers(), source.buffers(), strict=True))
        assert isinstance(method.encoders.backbone(), Tiny)
    with pytest.raises(nf.UserError, match="needs a row for each instance"):
        nf.Bank(2, dim=8).advance({0: torch.zeros(4, 8)}, torch.arange(4), nf.Progress(0, 1, 1))


def test_a_recipe_returns_its_method() -> None:
    """As `pretrain` would build it; torch's generator is left alone, and any loop can train it."""
    network = tiny()
    random_state = torch.random.get_rng_state()
    method = nf.recipe("moco-ring", data=IMAGES, backbone=network, negatives=nf.Queue(64), seed=3)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    repeated = nf.recipe("moco-ring", data=IMAGES, backbone=tiny(), negatives=nf.Queue(64), seed=3)
    assert equal(method.state_dict(), repeated.state_dict())
    batch = nf.Batch((torch.randn(8, 3, 12, 12), torch.randn(8, 3, 12, 12)), torch.arange(8))
    optimiser = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    for step in range(3):
        progress = nf.Progress(step, 3, 1)
        outcome = method(batch, progress)
        optimiser.zero_grad()
        outcome.loss.backward()
        optimiser.step()
        method.advance(outcome, progress)
    assert torch.isfinite(outcome.loss)
    assert int((method.state_dict()["negatives.index"] >= 0).sum()) == 24
    assert (
        nf.recipe("instdisc", instances=77, backbone="resnet8-w16").state_dict()["negatives.rows"].shape[1]
        == 77
    )


def test_a_bare_network_becomes_encoders(tmp_path: Path) -> None:
    bare = nf.pretrain("simclr", IMAGES, tmp_path / "a", encoders=tiny(), **QUICK)
    shared = nf.pretrain("simclr", IMAGES, tmp_path / "b", encoders=nf.Shared(tiny()), **QUICK)
    assert equal(state(bare), state(shared))


@pytest.mark.parametrize("key", ["bound", "backbone", "views"])
def test_a_class_instead_of_an_object_is_refused(key: str, tmp_path: Path) -> None:
    value: Any = {"bound": nf.InfoNCE, "backbone": Tiny, "views": nf.Augment}[key]
    with pytest.raises(
        nf.UserError, match=rf"{key} was the class {value.__name__}; expected an object of it"
    ):
        nf.pretrain("simclr", IMAGES, tmp_path / "a", **{key: value}, **QUICK)


# ------------------------------------------------------------------------------- functions of one picture

PHOTOS = np.random.default_rng(3).integers(0, 256, (12, 40, 56, 3), dtype=np.uint8)
CROP = [v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()]


def albumentations_pipeline() -> Any:
    """New each time, as in another process: its transforms have generators and seeds of their own."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would look for a newer version on the network
    import albumentations

    return albumentations.Compose([albumentations.RandomCrop(16, 16), albumentations.HorizontalFlip()])


def cut(picture: Image.Image) -> Image.Image:
    corner = random.randrange(16)
    return picture.crop((corner, corner, corner + 16, corner + 16))


OWN_VIEWS: dict[str, Callable[[], Any]] = {
    "PIL": lambda: v2.Compose(CROP),
    "tensor": lambda: v2.Compose(
        [*CROP, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    ),
    "image": lambda: v2.Compose([v2.ToImage(), *CROP, v2.ToDtype(torch.float32, scale=True)]),
    "albumentations": albumentations_pipeline,
    "function": lambda: cut,
    "one for each view": lambda: [cut, v2.Compose(CROP)],
}


@pytest.mark.parametrize("kind", OWN_VIEWS)
def test_functions_of_one_picture_are_views(kind: str, tmp_path: Path) -> None:
    """They are used as they are, their draws are a function of (seed, epoch, index, view) alone, and a
    stopped run resumes to the same weights; the encoder opens without them."""
    views, settings = OWN_VIEWS[kind], {**QUICK, "backbone": "resnet8-w16", "batch_size": 4}
    run = nf.pretrain("simclr", PHOTOS, tmp_path / "a", views=views(), **settings)
    assert run.settings.image_size == 16
    views_of_run = run.views()
    rows = np.array([7, 2])
    pair = views_of_run(run.open_data(PHOTOS).load(rows), 0, 1, rows)
    (single, _) = views_of_run(run.open_data(PHOTOS).load(rows[1:]), 0, 1, rows[1:])
    assert torch.equal(pair[0][1:], single)
    assert not torch.equal(pair[0], pair[1])
    torch.manual_seed(9)
    random.seed(9)
    with pytest.raises(Stopped):
        nf.pretrain("simclr", PHOTOS, tmp_path / "b", views=views(), hooks=[StopAfter(1)], **settings)
    resumed = nf.pretrain("simclr", PHOTOS, tmp_path / "b", views=views(), **settings)
    expected = run.weights()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in resumed.weights().items())
    assert torch.equal(nf.Run.open(tmp_path / "a").embed(PHOTOS), run.embed(PHOTOS))


def test_a_grey_picture_of_a_function_gives_no_warning() -> None:
    """Its array is read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _as_tensor(Image.new("L", (4, 3))).shape == (1, 3, 4)


class StopAfter(nf.Hook):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, session: Any, outcome: Any) -> None:
        if session.step == self.step:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("views", "sentence"),
    [
        (v2.RandomHorizontalFlip(), r"views returned a picture of shape \(3, 40, 56\).*set image_size"),
        (lambda picture: picture.nothing, "failed on a picture .AttributeError"),
        (lambda picture: 3, "failed on a picture .TypeError: it returned int"),
        ([cut, 3], "views was "),
        (lambda picture: [picture, picture], "returned list; pass several views as a list of functions"),
        (lambda picture: torch.full((3, 16, 16), torch.nan), "numbers that are not finite"),
    ],
)
def test_functions_that_make_no_views_are_refused(views: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        nf.pretrain("simclr", PHOTOS, tmp_path / "a", views=views, backbone="resnet8-w16", **QUICK)
