"""Settings are checked once and parts are built once, in a fresh run and in a resumed one."""

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
from nearfar.config import building, resolving
from nearfar.config.recipes import RECIPES
from nearfar.config.recipes.images import moco, simclr
from nearfar.config.resolving import resolve
from nearfar.config.schema import plain
from nearfar.config.sections import section_of
from nearfar.core.abstract import settable
from nearfar.parts.encoders import HeadConfig
from nearfar.run.trained import fresh_method


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was called, wherever it was imported to; the real ones are called through."""
    counter: Counter[str] = Counter()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **keywords: Any) -> Any:
            counter[function.__name__] += 1
            return function(*arguments, **keywords)

        return count

    for function in (resolving.resolve, resolving.check, building.build_method):
        wrapper = counting(function)
        for name, module in list(sys.modules.items()):
            if name.startswith("nearfar") and vars(module).get(function.__name__) is function:
                monkeypatch.setattr(module, function.__name__, wrapper)
    return counter


def test_a_fresh_and_a_resumed_run_check_and_build_once(tmp_path: Path, calls: Counter[str]) -> None:
    images = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), dtype=np.uint8)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 16, "quiet": True, "negatives": {"size": 64}}
    for max_time in (1e-3, None):
        calls.clear()
        try:
            nf.pretrain("moco", images, tmp_path / "run", max_time=max_time, **options)
        except nf.Stopped:
            assert max_time is not None
        assert calls == {"resolve": 1, "check": 1, "build_method": 1}


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
