"""Hooks: the order of calls, state that survives any interruption, and `session.stop`, which ends a run."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nearfar as nf
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.run import checkpoints
from nearfar.train.equality import start
from nearfar.train.saving import pack_states, unpack_states

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 32,
    "epochs": 3,
    "probe_every": 0,
    "workers": 0,
    "held_out": 0.0,
    "quiet": True,
    "logger": "none",
}
PER_EPOCH = 3


def digits() -> Any:
    return open_data("digits").subset(np.arange(32 * PER_EPOCH))


class Recorder(nf.Hook):
    """Records every call; its state has what JSON alone cannot hold."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.best, self.total = math.inf, torch.zeros(2, dtype=torch.float64)

    def on_start(self, session: Any) -> None:
        self.calls.append(("start", session.step))

    def on_step(self, session: Any, outcome: Any) -> None:
        self.calls.append(("step", session.step))
        self.best = min(self.best, outcome.loss)
        self.total += torch.tensor([outcome.loss, math.nan])

    def on_epoch(self, session: Any) -> None:
        self.calls.append(("epoch", session.step))

    def on_end(self, session: Any) -> None:
        self.calls.append(("end", session.step))

    def state(self) -> dict[str, Any]:
        return {"calls": self.calls, "best": self.best, "total": self.total}

    def restore(self, state: dict[str, Any]) -> None:
        self.calls = [(name, step) for name, step in state["calls"]]
        self.best, self.total = state["best"], state["total"]


class StopAt(nf.Hook):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, session: Any, outcome: Any) -> None:
        if session.step == self.step:
            session.stop(f"step {self.step} is enough")


def tensors_of(folder: Path, step: int) -> dict[str, Tensor]:
    loaded = checkpoints.load_step(folder / "ckpt", step)
    assert loaded is not None
    return {name: tensor for name, tensor in loaded.tensors.items() if not name.startswith("hooks/")}


def test_calls_in_order(tmp_path: Path) -> None:
    hook = Recorder()
    nf.pretrain("simclr", digits(), tmp_path, hooks=[hook], **SMALL)
    expected = [("start", 0)]
    for step in range(1, 3 * PER_EPOCH + 1):
        expected += [("step", step), *([("epoch", step)] if step % PER_EPOCH == 0 else [])]
    assert hook.calls == [*expected, ("end", 3 * PER_EPOCH)]


def test_numbers_of_numpy_and_torch_are_logged(tmp_path: Path) -> None:
    class LogNumbers(nf.Hook):
        def on_start(self, session: Any) -> None:
            session.log(
                {"a": np.float32(0.5), "b": np.int64(3), "c": torch.tensor(2.0), "d": np.arange(2), "e": "x"}
            )

    run = nf.pretrain("simclr", digits(), tmp_path, hooks=[LogNumbers()], **{**SMALL, "epochs": 1})
    (row,) = [row for row in run.metrics if row["kind"] == "hook"]
    assert [row[key] for key in "abcde"] == [0.5, 3, 2.0, [0, 1], "x"]


def test_the_state_survives_an_interruption_after_every_step(tmp_path: Path) -> None:
    uninterrupted, last = Recorder(), Recorder()
    nf.pretrain("moco", digits(), tmp_path / "whole", hooks=[uninterrupted], **SMALL)
    for _ in range(3 * PER_EPOCH):
        last = Recorder()
        try:
            nf.pretrain("moco", digits(), tmp_path / "parts", hooks=[last], **SMALL, max_time=1e-9)
        except nf.Stopped:
            continue
    assert [call for call in last.calls if call[0] != "start"] == uninterrupted.calls[1:]
    assert last.best == uninterrupted.best
    assert torch.equal(last.total.nan_to_num(), uninterrupted.total.nan_to_num())
    assert math.isnan(last.total[1])


@pytest.mark.parametrize("stop", [1, 4, 3 * PER_EPOCH])
def test_stop_saves_the_state_of_that_step_and_the_run_counts_as_finished(stop: int, tmp_path: Path) -> None:
    """Weights equal an uninterrupted run at that step. The same call does nothing; continued, it ends
    equal."""
    config = {"checkpoint_every": 1, "keep": 100}
    nf.pretrain("moco", digits(), tmp_path / "whole", config=config, **SMALL)
    hook = Recorder()
    run = nf.pretrain("moco", digits(), tmp_path / "run", hooks=[StopAt(stop), hook], **SMALL)
    assert run.facts["step"] == stop
    assert run.facts["ended"] == f"step {stop} is enough"
    assert hook.calls[-1] == ("end", stop)
    ours, theirs = tensors_of(run.path, stop), tensors_of(tmp_path / "whole", stop)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert run.embed(digits()).shape[0] == len(digits())
    assert run.unfinished == ""  # a run that a hook ended is finished
    if stop < 3 * PER_EPOCH:
        assert any("is enough" in row.get("message", "") for row in run.metrics)
    assert nf.pretrain("moco", digits(), tmp_path / "run", **SMALL).facts["step"] == stop
    rest = nf.pretrain("moco", digits(), tmp_path / "run", allow_change=True, **SMALL)
    assert rest.facts["step"] == 3 * PER_EPOCH
    end = 3 * PER_EPOCH
    ours, theirs = tensors_of(run.path, end), tensors_of(tmp_path / "whole", end)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_hooks_change_no_weight(tmp_path: Path) -> None:
    for name, hooks in (("plain", []), ("hooked", [Recorder(), Recorder()])):
        nf.pretrain("simclr", digits(), tmp_path / name, hooks=hooks, **SMALL)
    without_hooks, hooked = (tensors_of(tmp_path / name, 3 * PER_EPOCH) for name in ("plain", "hooked"))
    assert without_hooks.keys() == hooked.keys()
    assert all(torch.equal(without_hooks[name], hooked[name]) for name in without_hooks)


def test_hooks_of_train_and_distill(tmp_path: Path) -> None:
    data = digits()
    teacher = nf.train(data, tmp_path / "teacher", hooks=[StopAt(2)], **SMALL)
    assert teacher.facts["ended"] == "step 2 is enough"
    assert not any("unfinished" in line for line in nf.evaluate(teacher, protocols=["knn"]).warnings)
    hook = Recorder()
    student = nf.distill(
        teacher, data, tmp_path / "student", objective="kd", hooks=[hook, StopAt(3)], **SMALL
    )
    assert (student.facts["step"], hook.calls[-1]) == (3, ("end", 3))


class Holder(nf.Hook):
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state(self) -> dict[str, Any]:
        return {"value": self.value}

    def restore(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(trees, trees)
@settings(max_examples=200, deadline=None)
def test_any_json_state_comes_back(first: Any, second: Any) -> None:
    """Also NaN and infinities, which JSON lacks, and for two hooks of one class."""
    tensors, states = pack_states([Holder(first), Holder(second)])
    stored = json.loads(json.dumps(states, allow_nan=False))
    restored = [Holder(), Holder()]
    unpack_states(restored, tensors, stored)
    assert repr([hook.value for hook in restored]) == repr([first, second])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_any_tensor_comes_back(dtype: torch.dtype) -> None:
    values = [torch.ones(2, 3), torch.tensor(math.inf), torch.zeros(0, 4), torch.arange(6.0).view(2, 3).T]
    values = [
        value.nan_to_num().to(dtype) if not dtype.is_floating_point else value.to(dtype) for value in values
    ]
    tensors, states = pack_states([Holder([{"inner": value} for value in values])])
    restored = Holder()
    unpack_states([restored], tensors, json.loads(json.dumps(states)))
    for entry, value in zip(restored.value, values, strict=True):
        assert entry["inner"].dtype is dtype
        assert torch.equal(entry["inner"], value)


@pytest.mark.parametrize("value", [nn.Linear(1, 1), {1: 2}, {1, 2}, b"bytes"])
def test_a_state_that_cannot_be_saved_names_the_hook(value: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the state of hook hooks/Holder"):
        nf.pretrain("simclr", digits(), tmp_path, hooks=[Holder(value)], **SMALL)


class StopOnSecondRank(nf.Hook):
    def on_step(self, session: Any, outcome: Any) -> None:
        if session.strategy.rank == 1 and session.step == 2:
            session.stop("the second rank has seen enough")


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    hook = Recorder()
    run = nf.pretrain("simclr", digits(), Path(folder) / "run", hooks=[hook, StopOnSecondRank()], **SMALL)
    (Path(folder) / f"rank-{rank}").write_text(json.dumps([run.facts["ended"], hook.calls[-1]]))
    dist.destroy_process_group()


@pytest.mark.slow
def test_one_rank_stops_all(tmp_path: Path) -> None:
    start(2, one_rank, str(tmp_path))
    for rank in range(2):
        ended, last = json.loads((tmp_path / f"rank-{rank}").read_text())
        assert ended == "the second rank has seen enough"
        assert last == ["end", 2]


def test_objects_without_the_base_classes_are_adapted(tmp_path: Path) -> None:
    """The contract names four hook methods, `log` and `close`; state and restore are optional."""

    class PlainHook:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def on_start(self, session: Any) -> None:
            self.calls.append("start")

        def on_step(self, session: Any, outcome: Any) -> None:
            self.calls.append("step")

    class PlainLogger:
        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []
            self.closed = 0

        def log(self, row: dict[str, Any]) -> None:
            self.rows.append(row)

        def close(self) -> None:
            self.closed += 1

    hook, logger = PlainHook(), PlainLogger()
    hooks, loggers = cast(Any, [hook]), cast(Any, [logger])
    nf.pretrain("simclr", digits(), tmp_path / "run", **{**SMALL, "epochs": 1}, hooks=hooks, loggers=loggers)
    assert hook.calls == ["start"] + ["step"] * PER_EPOCH
    assert [row["step"] for row in logger.rows if row["kind"] == "train"] == [1, PER_EPOCH]
    assert logger.closed == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hooks": [3]}, "hooks has an object of type int without on_start"),
        ({"hooks": nf.Hook()}, "hooks was of type Hook; expected a list"),
        ({"hooks": [nf.Hook]}, "hooks has the class Hook; expected an object of it"),
        (
            {"hooks": [SimpleNamespace(on_step=print, state=dict)]},
            "SimpleNamespace with only one of state and restore",
        ),
        ({"loggers": [object()]}, "loggers has an object of type object without log;"),
        ({"loggers": [nf.Logger]}, "loggers has the class Logger; expected an object of it"),
        ({"strategy": "single"}, "strategy was 'single'; expected an object of nearfar.Strategy"),
    ],
)
def test_unusable_hooks_are_refused_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        nf.pretrain("simclr", digits(), tmp_path / "run", **SMALL, **arguments)
    assert not (tmp_path / "run").exists()
