"""What the algorithm needs from the processes that train together; here for a single process.

`Method`, the optimisers, the training step, checkpoints and evaluation hold a `Strategy`, and everything they
exchange goes through it. `nearfar.distributed.strategy` has the ones for several processes; a new one is one
subclass that overrides what differs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Rows:
    """How many rows each rank holds. This class is for one rank; `distributed.gather` has the other."""

    sizes: tuple[int, ...]
    rank: int = 0

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def start(self) -> int:
        """The number of this rank's first row among the rows of all ranks."""
        return sum(self.sizes[: self.rank])

    @property
    def part(self) -> slice:
        """The position of this rank's rows among the rows of all ranks."""
        return slice(self.start, self.start + self.sizes[self.rank])

    def numbers(self, device: torch.device) -> Int[Tensor, "row"]:
        """The numbers of this rank's rows among the rows of all ranks."""
        return torch.arange(self.part.start, self.part.stop, device=device)

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks in rank order, with gradient."""
        return rows

    def pass_on(self, *tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        """Starts to send tensors to the next rank; the result waits for the previous rank's."""
        return lambda: tensors

    @property
    def mean_weight(self) -> float:
        """Factor that turns a sum over this rank's rows into its share of the mean over all rows."""
        return len(self.sizes) / self.total

    def mean(self, values: Float[Tensor, "row"]) -> Float[Tensor, ""]:
        """This rank's share of the mean: the average of the shares over ranks is the mean over all rows."""
        return values.sum() * self.mean_weight


class Strategy:
    """How processes share one run. This class is the strategy of a single process."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0  # number of this process on its machine, which selects the GPU

    @property
    def is_first(self) -> bool:
        """Whether this process writes, prints and decides."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world > 1

    def share(self, count: int) -> slice:
        """Which of `count` pieces of work belong to this rank: a contiguous range."""
        return slice(self.rank * count // self.world, (self.rank + 1) * count // self.world)

    # ------------------------------------------------------------------------------------ exchange of values

    def rows(self, count: int, total: int | None = None) -> Rows:
        """The layout of a tensor of which this rank has `count` rows. `total`: the number of rows of all
        ranks, where each has its `share`; None: ranks exchange their counts."""
        return Rows((count,))

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks in rank order, with gradient. Ranks may have different numbers of rows."""
        return self.rows(len(rows)).all_gather(rows)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its mean over ranks."""

    def average_gradients(self, parameters: Iterable[Tensor], *numbers: Tensor) -> None:
        """Replaces gradients, and further numbers, by their means over ranks."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by that of rank 0."""

    def broadcast_buffers(self, part: object) -> None:
        """Replaces the buffers of a module by those of rank 0, whatever their shape."""

    def broadcast_json(self, value: Any) -> Any:
        """The value of rank 0, which must be plain JSON."""
        return value

    def all_gather_json(self, value: Any) -> list[Any]:
        """The values of all ranks in rank order, which must be plain JSON."""
        return [value]

    def keep_alive(self) -> AbstractContextManager[None]:
        """Inside, rank 0 works as long as it takes while the others wait in `broadcast_json`."""
        return nullcontext()

    def on_first(self, function: Callable[[], Any]) -> Any:
        """Calls `function` on rank 0 only and returns its result, plain JSON, on all ranks."""
        with self.keep_alive():
            result = function() if self.is_first else None
        return self.broadcast_json(result)

    def first_reasons(self, reasons: Sequence[str | None]) -> list[str | None]:
        """For each question the reason of the first rank that has one, on all ranks; None if none has."""
        return list(reasons)

    def first_reason(self, reason: str | None) -> str | None:
        """`first_reasons` of a single question."""
        return self.first_reasons([reason])[0]

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        self.first_reason(None)

    # -------------------------------------------------------------------------------------------- encoding

    def rank_randomness(self) -> AbstractContextManager[None]:
        """Inside, each rank draws its own random numbers (dropout); afterwards all draw the same again."""
        return nullcontext()

    def synchronised_batch_norm(self) -> AbstractContextManager[None]:
        """Inside, batch norms use the statistics of the batch of all ranks."""
        return nullcontext()

    # ------------------------------------------------------------------------------ weights and their state

    def place_weights(self, encoders: nn.Module, device: torch.device) -> None:
        """Prepares the encoders' weights for training, for example spreads them over ranks."""

    def is_sharded(self, tensor: Tensor) -> bool:
        """Whether this rank holds only a part of the tensor."""
        return False

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """All of a tensor. Every rank must call this."""
        return tensor

    def local_tensor(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that this rank holds."""
        return tensor

    def full_state(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a checkpoint: full on rank 0, which writes them. Every rank must call this."""
        return tensors

    def shard_like(self, reference: Tensor, value: Tensor) -> Tensor:
        """`value`, full on every rank, laid out as `reference` is."""
        return value

    def shard_state(self, module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state of full tensors as `module.load_state_dict` takes it."""
        current = module.state_dict()
        return {
            name: self.shard_like(current[name], value) if name in current else value
            for name, value in state.items()
        }

    def total_norm(self, gradients: Iterable[Tensor]) -> Tensor:
        """The norm of all gradients together."""
        return nn.utils.get_total_norm(list(gradients))

    def agree_on_failure(self, failed: bool) -> bool:
        """Whether any rank failed by itself. Ranks with equal weights need no exchange."""
        return failed

    def full_weights(self, module: nn.Module) -> AbstractContextManager[None]:
        """Inside, every rank has all weights and may work by itself."""
        return nullcontext()

    def explained_errors(self) -> AbstractContextManager[None]:
        """Replaces errors that this strategy causes inside a network by messages that name the setting."""
        return nullcontext()


SINGLE = Strategy()
