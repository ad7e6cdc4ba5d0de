"""Settings are checked once, and every part is constructed once: in a fresh run, in a resumed one, and for each
run that a command opens."""

import functools
import inspect
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nearfar as nf
import nearfar.evaluate.run
import nearfar.train.distill  # before functions are replaced by those that count
from nearfar.config import building, recipes, resolving
from nearfar.config.recipes import RECIPES
from nearfar.config.recipes.distillation import contrast
from nearfar.config.recipes.images import IMAGES as IMAGE_RECIPES
from nearfar.config.recipes.images import moco, simclr
from nearfar.config.recipes.recipe import method_template
from nearfar.config.resolving import resolve
from nearfar.config.schema import plain
from nearfar.config.sections import PARTS_BY_CHOICE, section_of
from nearfar.core.abstract import AbstractPart, settable
from nearfar.modalities import MODALITIES
from nearfar.parts.encoders import HeadConfig
from nearfar.run import folder
from nearfar.run.trained import fresh_method

IMAGES = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), dtype=np.uint8)
LABELS = np.arange(48) % 3
OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "quiet": True, "probe_every": 0}
SMALL: dict[str, Any] = {**OPTIONS, "backbone": "resnet8-w8"}
STEPS = {"resolve", "check", "build_method"}
MOCO = Counter(["SimCLRViews", "Momentum", "Cosine", "Queue", "Everyone", "InfoNCE"])
SUPERVISED = Counter(["CropFlipViews", "Prototypes", "Dot", "Dictionary", "Everyone", "InfoNCE"])
REPLACED = ("Everyone", "InfoNCE")
PART_CLASSES = {
    kind
    for kinds in (
        *map(dict, PARTS_BY_CHOICE.values()),
        *(modality.views.kinds for modality in MODALITIES.values()),
    )
    for kind in kinds.values()
    if inspect.isclass(kind)
}


class Calls(Counter[str]):
    """How often functions and constructors of parts were called since `start`."""

    def start(self) -> None:
        """Forgets what was counted, and what a new process would not know."""
        method_template.cache_clear()
        contrast.cache_clear()
        folder._checked_settings.cache_clear()
        self.clear()

    @property
    def steps(self) -> dict[str, int]:
        return {name: count for name, count in self.items() if name in STEPS}

    @property
    def parts(self) -> dict[str, int]:
        return {name: count for name, count in self.items() if name not in STEPS}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Counts calls wherever a function was imported to; the real ones are called through."""
    counter = Calls()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def count(*arguments: Any, **keywords: Any) -> Any:
            counter[function.__name__] += 1
            return function(*arguments, **keywords)

        return count

    def constructing(kind: type) -> Callable[..., Any]:
        construct = kind.__init__  # type: ignore[misc]

        @functools.wraps(construct)
        def count(self: Any, *arguments: Any, **keywords: Any) -> None:
            # parts inside of parts (the queue of a support set) are not choices
            if type(self) is kind and sys._getframe(1).f_globals["__name__"] not in inner_modules:
                counter[kind.__name__] += 1
            construct(self, *arguments, **keywords)

        return count

    inner_modules = {kind.__module__ for kind in PART_CLASSES}
    for function in (resolving.resolve, resolving.check, building.build_method):
        wrapper = counting(function)
        for name, module in list(sys.modules.items()):
            if name.startswith("nearfar") and vars(module).get(function.__name__) is function:
                monkeypatch.setattr(module, function.__name__, wrapper)
    for kind in PART_CLASSES:
        monkeypatch.setattr(kind, "__init__", constructing(kind))
    return counter


@pytest.mark.parametrize(
    ("recipe", "parts"),
    [
        ("moco", MOCO),
        ("simclr-ring", ["SimCLRViews", "Shared", "Cosine", "InBatch", "Everyone", "Ring", "InfoNCE"]),
        # supcon is simclr with two parts replaced
        (
            "supcon-cave",
            ["SimCLRViews", "Shared", "Cosine", "InBatch", *REPLACED, "Labelled", "Cave", "SupCon"],
        ),
    ],
)
def test_a_fresh_and_a_resumed_run_construct_each_part_once(
    tmp_path: Path, calls: Calls, recipe: str, parts: list[str]
) -> None:
    """The selection that a variant of a recipe replaces is constructed by the recipe, and once too."""
    for max_time in (1e-3, None):
        calls.start()
        try:
            nf.pretrain(recipe, IMAGES, tmp_path / "run", labels=LABELS, max_time=max_time, **SMALL)
        except nf.Stopped:
            assert max_time is not None
        assert calls.steps == {"resolve": 1, "check": 1, "build_method": 1}
        assert calls.parts == Counter(parts)


def test_importing_the_recipes_constructs_no_part(calls: Calls) -> None:
    """Every file is executed again; `start` has dropped the methods of earlier commands."""
    calls.start()
    for file in Path(recipes.__file__).parent.glob("*.py"):
        assert "__doc__" in runpy.run_path(str(file))
    assert calls == {}


@pytest.mark.parametrize("name", IMAGE_RECIPES)
def test_recipes_with_negatives_have_variants(name: str) -> None:
    """Ring, ball, cave and neighbours; an annulus for a memory bank; none without candidates or with codes."""
    recipe = IMAGE_RECIPES[name]
    negatives = recipe.template(1).negatives
    expected = {"ring", "ball", "cave", "neighbours"} if negatives.has_candidates else set()
    expected |= {"annulus"} if isinstance(negatives, nf.Bank) else set()
    assert set(recipe.variants) == (set() if negatives.gives_codes else expected)
    assert {f"{name}-{suffix}" for suffix in recipe.variants} <= RECIPES.keys()


def test_a_part_that_settings_change_is_one_part_more(tmp_path: Path, calls: Calls) -> None:
    """The recipe's queue and the caller's queue are two parts; nothing else is made for the change."""
    calls.start()
    nf.pretrain("moco", IMAGES, tmp_path, **{**SMALL, "negatives": {"size": 64}})
    assert calls.steps == {"resolve": 1, "check": 1, "build_method": 1}
    assert calls.parts == MOCO + Counter(["Queue"])


def test_commands_check_and_build_each_run_once(tmp_path: Path, calls: Calls) -> None:
    """`train init=`, `distill` and `evaluate` check the settings of every run they open once, construct its
    parts once and build its method once."""
    nf.pretrain("moco", IMAGES, tmp_path / "moco", **SMALL)
    both_runs = {"resolve": 1, "check": 2, "build_method": 2}

    calls.start()
    nf.train(IMAGES, tmp_path / "train", labels=LABELS, init=str(tmp_path / "moco"), **OPTIONS)
    assert calls.steps == both_runs
    assert calls.parts == MOCO + SUPERVISED

    for student in (True, False):  # fresh and resumed, where the run is complete
        calls.start()
        nf.distill(tmp_path / "train", IMAGES, tmp_path / "student", labels=LABELS, **SMALL)
        assert calls.steps == both_runs
        recipe = Counter(
            ["CropFlipViews", "Distilled", "Cosine", "Bank", "Others", "ConstantNCE", "Distillation"]
        )
        settings = Counter(["Distilled", "Distillation"])  # the teacher's name and the objective's weights
        assert calls.parts == SUPERVISED + recipe + settings, student

    calls.start()
    run = nf.Run.open(tmp_path / "moco", data=IMAGES, labels=LABELS)
    nf.evaluate(run, protocols=["knn", "linear"], baselines=False)
    assert calls.steps == {"check": 1, "build_method": 1}
    nf.evaluate(run, protocols=["knn", "finetune"], baselines=["untrained"])
    # the trained and the untrained method; fine-tuning is a method of its own, and resolved for each
    assert calls.steps == {"resolve": 2, "check": 3, "build_method": 4}
    assert calls.parts == MOCO + SUPERVISED


def test_a_sweep_resolves_each_cell_once(tmp_path: Path, calls: Calls) -> None:
    """Cells share what the recipe made; each makes its own critic, because that is what differs."""
    np.savez(tmp_path / "images.npz", images=IMAGES, labels=LABELS)
    calls.start()
    settings: dict[str, Any] = {
        "temperature": [0.3, 0.4],
        "epochs": 1,
        "batch_size": 16,
        "backbone": "resnet8-w8",
    }
    nf.sweep("simclr", tmp_path / "images.npz", tmp_path / "sweep", quiet=True, **settings)
    assert (calls["resolve"], calls["check"]) == (2, 2)
    recipe = Counter(["SimCLRViews", "Shared", "Cosine", "InBatch", "Everyone", "InfoNCE"])
    assert calls.parts == recipe + Counter(["Cosine", "Cosine"])


def test_each_stage_of_semi_is_resolved_once(tmp_path: Path, calls: Calls) -> None:
    """Pretraining, scratch, fine-tuning and distilling: once each, also with several draws of the labels."""
    np.savez(tmp_path / "images.npz", images=IMAGES, labels=LABELS)
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 16, "backbone": "resnet8-w8"}
    stages: dict[str, Any] = {"finetune": {"epochs": 1}, "distil": {"epochs": 1}, "draws": 2}
    calls.start()
    nf.semi("simclr", tmp_path / "images.npz", 4, tmp_path / "out", quiet=True, **stages, **settings)
    assert calls["resolve"] == 4


def test_settings_draw_nothing_from_the_callers_generator() -> None:
    """A part with weights that need no data draws them when settings are checked, and again by the seed."""
    state = torch.get_rng_state()
    methods = []
    for _ in range(2):
        settings = resolve("simclr", "data", {"selection": "accept", "backbone": "resnet8-w8"})
        methods.append(fresh_method(settings, settings.modality.reader.example_description(8)))
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(1)
        state = torch.get_rng_state()
    first, second = (method.selection.state_dict() for method in methods)  # type: ignore[attr-defined]
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_what_the_data_decide_is_made_when_they_are_met() -> None:
    """A constructor that takes sizes by keyword makes nothing without them, so the part must implement
    `meet`."""
    with_sizes: set[Any] = {
        kind
        for kinds in PARTS_BY_CHOICE.values()
        for kind in dict(kinds).values()
        if inspect.isclass(kind)
        and any(p.kind is p.KEYWORD_ONLY for p in inspect.signature(kind).parameters.values())
    }
    assert with_sizes
    assert [kind for kind in with_sizes if kind.meet is AbstractPart.meet] == []


def test_settings_of_any_size_take_no_memory_until_data_are_met() -> None:
    settings = resolve("instdisc", "data", {"negatives": {"size": 2**50}})
    assert settings.parts["negatives"].size == 2**50
    assert resolve("moco", "data", {"negatives": {"size": 2**26}}).parts["negatives"].index.shape == (2**26,)


def test_networks_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh or resumed, encoders are built around a network once; no network is built to check settings."""
    builds: list[bool] = []
    make = HeadConfig.network

    def count(self: HeadConfig, *arguments: Any, **keywords: Any) -> nn.Module:
        network = make(self, *arguments, **keywords)
        builds.append(any(weight.is_meta for weight in network.parameters()))
        return network

    monkeypatch.setattr(HeadConfig, "network", count)
    images = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), dtype=np.uint8)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 16, "quiet": True, "backbone": "resnet8-w8"}
    for max_time in (1e-3, None):
        builds.clear()
        try:
            nf.pretrain("simclr", images, tmp_path / "run", max_time=max_time, **options)
        except nf.Stopped:
            assert max_time is not None
        assert builds == [False]


@pytest.mark.parametrize("name", RECIPES)
def test_parts_hold_the_settings_they_were_made_with(name: str) -> None:
    """Words to parts and back: the method that a recipe's settings build has the settings of the recipe."""
    settings = resolve(name, "data")
    method = fresh_method(settings, settings.modality.reader.example_description(8).labelled(2))
    for choice, section in settings.sections().items():
        part = getattr(method, choice)
        if choice == "encoders":
            head = set(section) - set(part.settings) - {"name"}
            assert {key: plain(section[key]) for key in part.settings} == plain(part.settings)
            assert head == (set() if part.built_in_backbone else set(settable(HeadConfig)))
        else:
            assert plain(section_of(choice, part)) == plain(section)


def test_a_method_of_planned_parts_trains_like_its_recipe(tmp_path: Path) -> None:
    """`moco(size=64)` is a method: it trains like the recipe with that setting, and its run opens without
    it."""
    images = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), dtype=np.uint8)
    options: dict[str, Any] = {"epochs": 1, "batch_size": 16, "quiet": True, "backbone": "resnet8-w8"}
    from_settings = nf.pretrain("moco", images, tmp_path / "named", negatives={"size": 64}, **options)
    typed = nf.pretrain(moco(size=64), images, tmp_path / "typed", **options)
    opened = nf.Run.open(tmp_path / "typed")
    assert typed.settings.recipe == "own"
    assert {**typed.settings.as_plain(), "recipe": "moco"} == from_settings.settings.as_plain()
    first, second = (run.method().state_dict() for run in (from_settings, opened))
    assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize("recipe", ["moco", "instdisc", "la"])
def test_the_run_of_a_built_method_opens_without_it(tmp_path: Path, recipe: str) -> None:
    """Settings describe what `nf.recipe` built, so the run needs no object; its weights are the trained
    ones."""
    method = nf.recipe(recipe, data=IMAGES, backbone="resnet8-w8", encoders={"dim": 16})
    trained = nf.pretrain(method, IMAGES, tmp_path, **OPTIONS).method().state_dict()
    opened = nf.Run.open(tmp_path).method()
    assert all(torch.equal(value, trained[key]) for key, value in opened.state_dict().items())
    assert section_of("negatives", opened.negatives) == section_of("negatives", method.negatives)


def test_a_planned_method_takes_a_bound_from_the_caller(tmp_path: Path) -> None:
    class Doubled(nf.InfoNCE):
        def __call__(self, scores: nf.Scores, progress: Any = None) -> torch.Tensor:
            return 2 * super().__call__(scores, progress)

    images = np.random.default_rng(0).integers(0, 255, (32, 16, 16, 3), dtype=np.uint8)
    method = simclr().replace(bound=Doubled())
    nf.pretrain(method, images, tmp_path, epochs=1, batch_size=16, quiet=True, backbone="resnet8-w8")
    with pytest.raises(nf.UserError, match=r"was created with Python objects: bound \(.*Doubled\)"):
        nf.Run.open(tmp_path).method()
    assert nf.Run.open(tmp_path, bound=Doubled()).method().bound == Doubled()
