"""fp16 follows torch's loss scaling, counts what it skips and resumes through it; compiled and checkpointed
networks compute what plain ones do; several processes agree."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearfar.config.resolving import resolve
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data import open_data
from nearfar.distributed.strategy import join
from nearfar.errors import UserError
from nearfar.run import checkpoints
from nearfar.run.metrics import read_metrics
from nearfar.system import machine
from nearfar.system.hardware import pick_precision
from nearfar.train import compiling, loss_scale
from nearfar.train.compiling import compiler_message
from nearfar.train.equality import CASES, make_data, start, trajectory
from nearfar.train.loss_scale import LossScale
from nearfar.train.memory import bytes_per_instance
from nearfar.train.monitors import Diverged, FiniteMonitor
from nearfar.train.pretrain import pretrain
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from nearfar.train.step import seed_step, take_step
from tests.helpers import IMAGES, QUICK

HALF_ROUNDING = 2.0**-10  # of float16
SMALL = {
    **{key: value for key, value in QUICK.items() if key != "quiet"},
    "backbone": "resnet8-w8",
    "epochs": 4,
}


def session_of(recipe: str, precision: torch.dtype = torch.float32, **overrides: Any) -> Session:
    data = open_data(IMAGES)
    config = resolve(recipe, data.name, {**SMALL, "precision": "auto", **overrides})
    session = Session(config, data, describe_data(data, config, None, False), torch.device("cpu"), precision)
    session.prefill()
    return session


def trained(session: Session, steps: int) -> list[float]:
    """The losses of the first steps."""
    return [take_step(session, batch).loss for batch in session.stream.batches(0, steps)]


def weights(session: Session) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in session.method.parameters()])


def state_of(session: Session) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in session.tensors().items()}


def assert_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


# ------------------------------------------------------------------------------------------------------- fp16


@given(st.lists(st.booleans(), max_size=40))
@settings(deadline=None, max_examples=40)
def test_the_scale_is_that_of_torchs_scaler(taken: list[bool]) -> None:
    weight = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    reference, ours = torch.amp.GradScaler("cpu", growth_interval=3), LossScale()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "GROWTH_STEPS", 3)
        for is_finite in taken:
            optimizer.zero_grad()
            reference.scale(weight * (1.0 if is_finite else math.inf)).backward()
            reference.step(optimizer)
            reference.update()
            ours.update(is_finite)
            assert (ours.value, ours.streak) == (reference.get_scale(), reference._get_growth_tracker())


def test_fp16_is_bit_equal_to_a_plain_loop_with_torchs_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipped after unscaling, with steps that are skipped and a scale that rises and falls. `advance` (momentum
    network, queue) is called where the optimiser steps."""
    monkeypatch.setattr(loss_scale, "INITIAL_SCALE", 2.0**22)
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 2)
    options = {"clip": 0.5, "negatives": {"size": 64}}
    session, plain = (session_of("moco", torch.float16, **options) for _ in range(2))
    method, optimizer = plain.method, plain.optimizer
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=2)
    scales, skipped = [], 0
    for batch in session.stream.batches(0, session.steps):
        outcome = take_step(session, batch)
        assert session.loss_scale is not None
        scales.append(session.loss_scale.value)
        progress = outcome.progress
        for group in optimizer.param_groups:
            group["lr"] = session.optimizer.param_groups[0]["lr"]
        method.train()
        seed_step(plain.settings.seed, progress.step)
        with torch.autocast("cpu", dtype=torch.float16):
            computed = method(batch, progress)
        optimizer.zero_grad()
        scaler.scale(computed.loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(method.parameters(), 0.5)
        scaler.step(optimizer)
        previous = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= previous:
            method.advance(computed, progress)
        else:
            skipped += 1
        assert scaler.get_scale() == scales[-1]
        assert outcome.taken == (scaler.get_scale() >= previous)
    changes = np.sign(np.diff([2.0**22, *scales]))
    assert {-1.0, 0.0, 1.0} <= set(changes)  # the scale fell, stayed and rose
    assert session.finite.skipped_steps == skipped > 1
    assert_equal(dict(session.method.state_dict()), dict(method.state_dict()))


def test_a_run_counts_skipped_steps_and_resumes_through_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scale, "INITIAL_SCALE", 2.0**24)
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 2)
    quick = {**SMALL, "precision": "fp16", "log_every": 1, "checkpoint_every": 1, "keep": 99, "quiet": True}
    options = {**quick, "negatives": {"size": 64}, "encoders": {"dropout": 0.2}}
    uninterrupted = tmp_path / "uninterrupted"
    pretrain("moco", IMAGES, uninterrupted, **options)
    rows = [row for row in read_metrics(uninterrupted / "metrics.jsonl") if row["kind"] == "train"]
    counts = [0, *(row["skipped_steps"] for row in rows)]
    skipped = [step for step in range(1, len(counts)) if counts[step] > counts[step - 1]]
    assert len(skipped) == counts[-1] > 1
    scales = [2.0**24, *(row["loss_scale"] for row in rows)]
    assert skipped == [step for step in range(1, len(scales)) if scales[step] == scales[step - 1] / 2]
    assert any(scales[step] == 2 * scales[step - 1] for step in range(1, len(scales)))
    saved = {
        step: checkpoints.load(uninterrupted / "ckpt" / f"step-{step:08d}") for step in range(len(scales))
    }
    last = max(saved)
    for step in skipped:  # weights, moments, momentum network and queue are those of before
        assert_equal(saved[step][0], saved[step - 1][0])
    half_way = [step for step in saved if saved[step][1]["hooks"]["LossScale"]["streak"] == 1]
    for step in (skipped[-1], half_way[0]):
        resumed = tmp_path / f"resumed-{step}"
        shutil.copytree(uninterrupted, resumed)
        for later in range(step + 1, last + 1):
            shutil.rmtree(resumed / "ckpt" / f"step-{later:08d}")
        pretrain("moco", IMAGES, resumed, **options)
        tensors, facts = checkpoints.load(resumed / "ckpt" / f"step-{last:08d}")
        assert_equal(tensors, saved[last][0])
        assert facts["hooks"] == saved[last][1]["hooks"]


def test_an_overflow_of_a_scaled_loss_is_no_divergence() -> None:
    finite, scale = FiniteMonitor(allowed=0), LossScale()
    for _ in range(16):
        assert not finite.accept(1.0, math.inf, 1, scale.value)
        assert finite.steady
        scale.update(False)
    assert scale.value == 1.0
    assert finite.skipped_steps == 16
    with pytest.raises(Diverged):  # the scale is not the cause
        finite.accept(1.0, math.inf, 1, scale.value)
    with pytest.raises(Diverged):
        FiniteMonitor(allowed=0).accept(math.nan, math.nan, 1, 2.0)


def test_fp16_takes_half_the_memory_and_works_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "INITIAL_SCALE", 2.0**8)
    options = {"backbone": "resnet8-w8+group", "encoders": {"head": "linear"}}  # batch norm would see chunks
    half, full = (session_of("simclr", dtype, **options) for dtype in (torch.float16, torch.float32))
    sample = full.stream.sample(4)
    assert bytes_per_instance(half, sample) < 0.75 * bytes_per_instance(full, sample)
    chunked = session_of("simclr", torch.float16, encode_chunk=5, **options)
    expected = trained(full, 3)
    for session in (half, chunked):
        assert trained(session, 3) == pytest.approx(expected, rel=8 * HALF_ROUNDING)
        assert session.finite.skipped_steps == 0


@pytest.mark.parametrize(
    ("native_bf16", "capability", "expected"),
    [(True, (8, 0), "bf16"), (False, (7, 5), "fp16"), (False, (7, 0), "fp16"), (False, (6, 1), "fp32")],
)
def test_auto_is_fp16_on_gpus_that_have_no_bf16(
    monkeypatch: pytest.MonkeyPatch, native_bf16: bool, capability: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native_bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[expected]
    assert pick_precision("auto", torch.device("cuda")) is dtype
    assert pick_precision("fp16", torch.device("cpu")) is torch.float16
    monkeypatch.setattr(machine, "gpu_capability", lambda: capability)
    assert machine.auto_precision("cuda", ()) == expected  # what doctor prints
    assert machine.auto_precision("cpu", ("avx512_bf16",)) == "bf16"
    assert machine.auto_precision("cpu", ("avx2",)) == machine.auto_precision("mps", ()) == "fp32"


# -------------------------------------------------------------------------------------------------- compiling


@pytest.fixture
def cheap_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces and differentiates as the real one does, but generates no C++."""
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def has_compiler() -> bool:
    """Whether torch finds a C++ compiler that works."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return shutil.which(get_cpp_compiler()) is not None
    except InvalidCxxCompiler:
        return False


def graph_counts() -> tuple[int, int]:
    """(graphs, graph breaks) since the counters were cleared."""
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.parametrize(
    ("recipe", "options", "graphs"),
    [
        ("moco", {"negatives": {"size": 64}}, 2),  # the network and its slow copy
        ("simclr", {"views": {"crops": "2x12,1x8"}}, 2),  # a graph for each size
        ("simclr", {"encode_chunk": 6}, 2),  # chunks of 5 and of 6 instances
    ],
)
def test_compiled_backbones_compute_what_plain_ones_do(
    cheap_backend: None, recipe: str, options: dict[str, Any], graphs: int
) -> None:
    plain, compiled = (session_of(recipe, compile=flag, **options) for flag in (False, True))
    losses = trained(plain, 3)
    assert graph_counts() == (0, 0)
    assert trained(compiled, 3) == pytest.approx(losses, rel=1e-4)
    assert graph_counts() == (graphs, 0)
    names = list(plain.method.state_dict())
    assert list(compiled.method.state_dict()) == names
    for first, second in zip(plain.method.parameters(), compiled.method.parameters(), strict=True):
        assert torch.allclose(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_default_compiler_computes_what_plain_networks_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As users have it: C++ is generated and built, not only traced. Later losses depend on earlier
    gradients."""
    assert compiling.BACKEND == "inductor"
    if not has_compiler():
        pytest.skip("no C++ compiler on this machine")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # nothing is taken from an earlier run
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain, compiled = (session_of("simclr", compile=flag) for flag in (False, True))
    start = weights(plain)
    losses = trained(plain, 3)
    assert trained(compiled, 3) == pytest.approx(losses, rel=1e-4)
    assert graph_counts() == (1, 0)
    assert [*tmp_path.rglob("*.so")]
    assert (weights(compiled) - weights(plain)).norm() < 0.01 * (weights(plain) - start).norm()


def test_a_compiled_run_resumes_as_such_and_from_a_plain_one(cheap_backend: None, tmp_path: Path) -> None:
    options = {**SMALL, "epochs": 1, "checkpoint_every": 1, "keep": 9, "quiet": True}
    outs = [tmp_path / name for name in ("compiled", "resumed", "plain")]
    pretrain("simclr", IMAGES, outs[0], compile=True, **options)
    pretrain("simclr", IMAGES, outs[2], **options)
    shutil.copytree(outs[0], outs[1])
    for out in outs[1:]:
        shutil.rmtree(out / "ckpt" / "step-00000003")
    pretrain("simclr", IMAGES, outs[1], compile=True, **options)
    pretrain("simclr", IMAGES, outs[2], compile=True, allow_change=True, **options)
    compiled, resumed, changed = (checkpoints.load(out / "ckpt" / "step-00000003")[0] for out in outs)
    assert_equal(resumed, compiled)
    assert changed.keys() == compiled.keys()
    assert not any("_orig_mod" in name for name in compiled)
    for name, tensor in changed.items():
        assert torch.allclose(tensor.double(), compiled[name].double(), rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("simclr", {"checkpoint_activations": True}, "does not work with checkpoint_activations=true"),
        ("dim", {}, "take the backbone apart"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    cheap_backend: None, recipe: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        trained(session_of(recipe, compile=True, **options), 1)


class Tiny(nn.Module):
    dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x.mean(dim=(2, 3))))


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own error, which it raises when it compiles."""
    from torch._inductor import config

    torch._dynamo.reset()
    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    network = nn.Module()
    network.backbone = Tiny()
    compiled = compiling.CompiledNetworks(nn.ModuleList([network]))
    with pytest.raises(UserError, match="needs a working C\\+\\+ compiler; install"), compiled.active():
        network.backbone(torch.randn(2, 3, 4, 4)).sum().backward()
    torch._dynamo.reset()
    assert "no triton; use compile=false" in compiler_message(RuntimeError("no triton\nmore")).replace(
        ")", ""
    )


# ------------------------------------------------------------------------------------- activations, processes


def test_checkpointed_activations_change_no_bit_and_take_less_memory() -> None:
    options: dict[str, Any] = {"backbone": "resnet20", "encoders": {"dropout": 0.3}}
    plain, checkpointed = (
        session_of("moco", checkpoint_activations=flag, negatives={"size": 64}, **options)
        for flag in (False, True)
    )
    sample = plain.stream.sample(4)
    assert bytes_per_instance(checkpointed, sample) < 0.5 * bytes_per_instance(plain, sample)
    assert trained(checkpointed, 2) == trained(plain, 2)
    assert_equal(state_of(checkpointed), state_of(plain))


def test_networks_without_blocks_cannot_be_checkpointed() -> None:
    with pytest.raises(UserError, match="checkpoint_activations was true, but the networks have no blocks"):
        session_of("simclr", backbone="vgg8", checkpoint_activations=True)


FLOAT64_CASES: dict[str, dict[str, Any]] = {
    "compiled": {"recipe": "simclr", "compile": True},
    "checkpointed": {"recipe": "simclr", "checkpoint_activations": True},
    "checkpointed, sharded": {"recipe": "moco", "checkpoint_activations": True, "sharding": "fsdp"},
}
FP16_CASES: dict[str, dict[str, Any]] = {
    "moco": {"recipe": "moco", "clip": 0.5},
    "sharded": {"recipe": "moco", "clip": 0.5, "sharding": "fsdp"},
    "distilled": CASES["distill"],
}


def train_as_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    compiling.BACKEND = "aot_eager"
    loss_scale.INITIAL_SCALE, loss_scale.GROWTH_STEPS = 2.0**8, 2
    strategies: dict[str, Strategy] = {name: join(name) for name in ("none", "fsdp")}
    differences = {}
    for precision, cases in ((torch.float64, FLOAT64_CASES), (torch.float16, FP16_CASES)):
        for name, case in cases.items():
            strategy = strategies[case.get("sharding", "none")]
            result = trajectory(case, Path(folder), strategy, 3, precision, 16)
            if rank == 0:
                reference = trajectory({**case, "compile": False}, Path(folder), SINGLE, 3, precision, 16)
                differences[f"{name} {precision}"] = result.differences(reference)
    decisions = {name: poisoned(strategy) for name, strategy in strategies.items()}
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps([differences, decisions]))
    strategies["none"].barrier()
    dist.destroy_process_group()


def poisoned(strategy: Strategy) -> list[tuple[bool, float]]:
    """Whether each of four steps was taken, and the scale after it; the second is poisoned on rank 1 alone."""
    data = open_data(IMAGES)
    config = resolve("simclr", data.name, SMALL)
    description = describe_data(data, config, None, False)
    session = Session(config, data, description, torch.device("cpu"), torch.float16, strategy=strategy)
    average = strategy.average_gradients
    decisions = []
    for batch in session.stream.batches(0, 4):

        def average_poisoned(parameters: Any, *numbers: Tensor) -> None:
            weights = list(parameters)
            if session.step == 1 and strategy.rank == 1:
                strategy.local_tensor(weights[0].grad).fill_(math.inf)
            average(weights, *numbers)

        strategy.average_gradients = average_poisoned  # type: ignore[method-assign]
        outcome = take_step(session, batch)
        assert session.loss_scale is not None
        decisions.append((outcome.taken, session.loss_scale.value))
    return decisions


def test_two_processes_equal_one_and_skip_together(tmp_path: Path) -> None:
    """float64: up to rounding. float16: up to its rounding, in sums of some hundred terms, over three steps."""
    make_data(tmp_path)
    start(2, train_as_rank, str(tmp_path))
    (differences, decisions), (_, others) = (
        json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)
    )
    for name, by_kind in differences.items():
        assert max(by_kind.values()) < (1e-11 if "float64" in name else 32 * HALF_ROUNDING), (name, by_kind)
    assert decisions == others
    for taken in decisions.values():
        # taken, skipped by both, taken twice: the scale is halved and doubled
        assert taken == [[True, 2.0**8], [False, 2.0**7], [True, 2.0**7], [True, 2.0**8]]
