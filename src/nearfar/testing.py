"""A check for anybody's loss: under several processes it must be the loss of one process with the whole batch.

    from nearfar.testing import assert_ranks_equal

    assert_ranks_equal(loss, (anchors, keys))           # a module or function, and the whole batch
    assert_ranks_equal(lambda z: my_loss(z, labels), z, world=4)

Training with `DistributedDataParallel` averages gradients over ranks. So the average over ranks of the loss, and
of its gradient, must be those of one process. Typical mistakes: a gather that drops the gradient, a factor of the
world size, targets that do not count the rows of earlier ranks. Each is named in the AssertionError.
"""

import copy
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.errors import UserError, counted, error_reason

Loss = Callable[..., Tensor]
TIMEOUT = 120.0  # seconds that a rank waits for another
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative; half precision: 1e-2
STEPS = {torch.float64: 1e-4, torch.float32: 1e-2}  # of differences that stand for derivatives
DERIVATIVE_TOLERANCES = {torch.float64: 1e-4, torch.float32: 0.02}  # relative, of those differences


def assert_ranks_equal(
    loss: Loss, inputs: Tensor | Sequence[Any], world: int = 2, *, rtol: float | None = None
) -> None:
    """Raises AssertionError unless `loss(*inputs)` and its gradient are the same in one process and in `world`
    processes that communicate by gloo, each with its part of the rows.

    Tensors are split along their first dimension, as evenly as possible; numbers and tensors without dimensions
    (a learnt scale) are passed to every rank as they are. Compared are the average over ranks of the loss, of the
    gradient at every floating-point tensor, and of that at the parameters of a module. Each must be that of one
    process without a process group, up to `rtol` (default 1e-4, 1e-9 for float64) of the largest value. A loss that
    takes `rank` and `world_size` reads them inside a function, from `torch.distributed` if it is initialised.

    `loss` may be a lambda or a local function: it is sent to the processes by cloudpickle, so what it refers to
    must be picklable. The processes need no `if __name__ == "__main__"`.
    """
    batch = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    floats = [one for one in batch if _is_differentiable(one) and one.ndim]
    if world < 2 or not floats or any(_is_rows(one) and len(one) < world for one in batch):
        raise UserError(
            f"world was {world}, and {len(floats)} of the {counted(len(batch), 'inputs')} are floating-point tensors "
            "with rows. Expected at least 2 ranks, and a row of every tensor for each rank."
        )
    dtype = max((one.dtype for one in floats), key=lambda kind: torch.finfo(kind).eps)
    comparison = RankComparison(
        one=_evaluate(loss, batch),
        rolled=_evaluate(loss, [_rolled(one, world) for one in batch]).value,
        unsynchronised=_values_alone(loss, batch, world),
        ranks=_run_ranks(loss, batch, world),
        rtol=TOLERANCES.get(dtype, 1e-2) if rtol is None else rtol,
    )
    findings = comparison.findings()
    if findings:
        raise AssertionError(f"{world} ranks differ from one process: {'; '.join(findings)}")


# ------------------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class LossEvaluation:
    """A loss, its gradients at tensors with rows, and its gradients at what all ranks share."""

    value: Tensor
    rows: list[Tensor]
    shared: list[Tensor]


@dataclass(frozen=True)
class RankResult:
    """What one rank measured: the loss of its own part of the rows, and that of the next rank's part.

    `change`: how much its loss changes when the rows of rank 0 move by one unit along a direction.
    """

    evaluation: LossEvaluation
    next_value: Tensor
    change: Tensor


def _is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _parts(value: Any, world: int) -> list[Any]:
    return list(value.tensor_split(world)) if _is_rows(value) else [value] * world


def _rolled(value: Any, world: int) -> Any:
    """The parts of rank 1, 2, ..., 0 one below the other."""
    parts = _parts(value, world)
    return torch.cat([*parts[1:], parts[0]]) if _is_rows(value) else value


def _evaluate(loss: Loss, inputs: Sequence[Any]) -> LossEvaluation:
    loss = copy.deepcopy(loss)  # some losses change their state
    leaves = [one.detach().clone().requires_grad_() if _is_differentiable(one) else one for one in inputs]
    torch.manual_seed(0)
    value = loss(*leaves)
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
        raise UserError(f"loss returned a value of {kind}; expected a tensor with one number")
    rows = [one for one in leaves if _is_differentiable(one) and one.ndim]
    shared = [one for one in leaves if _is_differentiable(one) and not one.ndim]
    if isinstance(loss, nn.Module):
        shared += [parameter for parameter in loss.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(value, [*rows, *shared], allow_unused=True, materialize_grads=True)
    return LossEvaluation(value.detach().double(), list(gradients[: len(rows)]), list(gradients[len(rows) :]))


def _values_alone(loss: Loss, inputs: Sequence[Any], world: int) -> list[Tensor | None]:
    """The loss of each rank's part without the others; None where it has none."""
    values: list[Tensor | None] = []
    for part in zip(*(_parts(one, world) for one in inputs), strict=True):
        try:
            values.append(_evaluate(loss, part).value)
        except Exception:  # some losses refuse a batch that is as small
            values.append(None)
    return values


def _direction(rows: Tensor) -> Tensor:
    """A fixed direction of length 1."""
    values = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (values / values.norm()).to(rows)


def _change(loss: Loss, inputs: Sequence[Any], moves: bool) -> Tensor:
    """The derivative of this rank's loss by a movement of the rows of rank 0, which every rank computes."""
    values = []
    step = min(STEPS.get(one.dtype, 1e-1) for one in inputs if _is_differentiable(one))
    for sign in (1, -1):
        moved = [
            one + sign * step * _direction(one) if moves and _is_differentiable(one) and one.ndim else one
            for one in inputs
        ]
        torch.manual_seed(0)
        values.append(copy.deepcopy(loss)(*moved).detach().double())
    return (values[0] - values[1]) / (2 * step)


# -------------------------------------------------------------------------------------------------- ranks


def _run_ranks(loss: Loss, inputs: Sequence[Any], world: int) -> list[RankResult]:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loss").write_bytes(cloudpickle.dumps((loss, list(inputs))))
        processes = [context.Process(target=_run_rank, args=(name, rank, world)) for rank in range(world)]
        try:
            with _without_main():
                for process in processes:
                    process.start()
            _wait(processes, folder)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
        return [_read_result(folder / f"result-{rank}") for rank in range(world)]


@contextmanager
def _without_main() -> Iterator[None]:
    """New processes then do not import the caller's script, which may call the check without a guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _wait(processes: Sequence[Any], folder: Path) -> None:
    """Until all have ended. The first that fails is reported: the others would wait for it."""
    while not all(process.exitcode == 0 for process in processes):
        for rank, process in enumerate(processes):
            if process.exitcode:
                error = folder / f"error-{rank}"
                reason = error.read_text() if error.exists() else f"exit code {process.exitcode}"
                raise AssertionError(f"rank {rank} failed: {reason}")
        multiprocessing.connection.wait(
            [process.sentinel for process in processes if process.exitcode is None]
        )


def _run_rank(folder: str, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=TIMEOUT),
        )
        loss, inputs = cloudpickle.loads(Path(folder, "loss").read_bytes())
        rows, following = (
            [_parts(one, world)[place % world] for one in inputs] for place in (rank, rank + 1)
        )
        own, next_value = _evaluate(loss, rows), _evaluate(loss, following).value
        change = _change(loss, rows, moves=rank == 0)
        torch.save((own.value, own.rows, own.shared, next_value, change), Path(folder, f"result-{rank}"))
        dist.destroy_process_group()
    except Exception as error:
        Path(folder, f"error-{rank}").write_text(f"{type(error).__name__}: {error_reason(error)}")
        sys.exit(1)


def _read_result(path: Path) -> RankResult:
    value, rows, shared, next_value, change = torch.load(path, weights_only=True)
    return RankResult(LossEvaluation(value, rows, shared), next_value, change)


# ----------------------------------------------------------------------------------------------- findings


@dataclass(frozen=True)
class RankComparison:
    """One process and several. `rolled`: the loss of one process with the parts in another order; `unsynchronised`: of
    each part without the others."""

    one: LossEvaluation
    rolled: Tensor
    unsynchronised: list[Tensor | None]
    ranks: list[RankResult]
    rtol: float

    def findings(self) -> list[str]:
        """What differs, then why; nothing if all is equal."""
        value = torch.stack([rank.evaluation.value for rank in self.ranks]).mean()
        differences = [self._difference("loss", value.reshape(1), self.one.value.reshape(1))]
        for place, expected in enumerate(self.one.rows):
            rows = torch.cat([rank.evaluation.rows[place] for rank in self.ranks]) / len(self.ranks)
            differences.append(self._difference(f"gradient at floating-point input {place}", rows, expected))
        for place, expected in enumerate(self.one.shared):
            shared = torch.stack([rank.evaluation.shared[place] for rank in self.ranks]).mean(dim=0)
            name = f"gradient at shared input or parameter {place}"
            differences.append(self._difference(name, shared, expected))
        reported = [text for text in differences if text]
        return [*reported, *self._causes()] if reported else []

    def _difference(self, name: str, value: Tensor, expected: Tensor) -> str | None:
        value, expected = value.double(), expected.double()
        if not (value.isfinite().all() and expected.isfinite().all()):
            return f"the {name} is not finite"
        scale = float(expected.abs().max())
        if float((value - expected).abs().max()) <= self.rtol * scale + self.rtol**2:
            return None
        square = float(expected.square().sum())
        factor = float((value * expected).sum()) / square if square else 0.0
        remainder = float((value - factor * expected).norm()) / max(float(value.norm()), 1e-30)
        if remainder > 1e-3 or not factor:
            relative = float((value - expected).norm()) / max(float(expected.norm()), 1e-30)
            return f"the {name} differs by {relative:.1%}"
        return f"the {name} is {factor:.4g} times that of one process{self._of_world(factor)}"

    def _of_world(self, factor: float) -> str:
        world = len(self.ranks)
        if abs(factor * world - 1) < 1e-3:
            return ": missing factor world size"
        return ": one factor world size too many" if abs(factor / world - 1) < 1e-3 else ""

    def _causes(self) -> list[str]:
        values = [rank.evaluation.value for rank in self.ranks]
        if not torch.stack(values).isfinite().all():
            return []
        is_sum = self._close(torch.stack(values).sum(), self.one.value)  # needs nothing of other ranks
        if not is_sum and all(
            value_alone is not None and self._close(v, value_alone)
            for v, value_alone in zip(values, self.unsynchronised, strict=True)
        ):
            return ["each rank computes the loss of its own rows alone: nothing is gathered"]
        causes = []
        # the loss of the same rows on the rank that holds them and on the one before it
        previous = [self.ranks[place - 1].next_value for place in range(len(values))]
        moved = [place for place, value in enumerate(values) if not self._close(value, previous[place])]
        if moved and self._close(self.rolled, self.one.value):
            place = moved[0]
            causes.append(
                f"the same rows have the loss {float(values[place]):.4g} on rank {place} and "
                f"{float(previous[place]):.4g} on rank {(place - 1) % len(values)}: targets are misplaced, add the "
                "number of the rank's first row"
            )
        if self._is_gradient_missing():
            causes.append(
                "no gradient flows back through the rows that other ranks gathered: gather with gradient "
                "(torch.distributed.nn.functional.all_gather)"
            )
        return causes

    def _is_gradient_missing(self) -> bool:
        """Whether the gradient at the rows of rank 0 is that of its own loss, and other losses depend on them."""
        first, *later = (float(rank.change) for rank in self.ranks)
        gradients = self.ranks[0].evaluation.rows
        reported = sum(float((rows * _direction(rows)).sum()) for rows in gradients)
        tolerance = max(DERIVATIVE_TOLERANCES.get(rows.dtype, 0.1) for rows in gradients)
        scale = tolerance * max(abs(first), *map(abs, later))
        return abs(sum(later)) > scale and abs(reported - first) <= scale < abs(reported - first - sum(later))

    def _close(self, value: Tensor, expected: Tensor) -> bool:
        return abs(float(value - expected)) <= max(self.rtol, 1e-6) * (1 + abs(float(expected)))
