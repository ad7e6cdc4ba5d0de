"""Settings are checked once and parts are built once, in a fresh run and in a resumed one."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nearfar as nf
from nearfar.config import building, resolving


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was called, wherever it was imported to; the real ones are called through."""
    counter: Counter[str] = Counter()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **keywords: Any) -> Any:
            counter[function.__name__] += 1
            return function(*arguments, **keywords)

        return count

    for function in (resolving.resolve, resolving.check, building.build_method):
        wrapper = counted(function)
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
