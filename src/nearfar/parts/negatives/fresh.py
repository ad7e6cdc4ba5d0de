"""What sources without a memory of positives share."""

from collections.abc import Callable, Mapping

from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.schedules import Progress


def rows_of(
    keys: Float[Tensor, "*row dim"], index: Int[Tensor, "item"]
) -> tuple[Float[Tensor, "key dim"], Int[Tensor, "key"]]:
    """Keys one below the other with the identity of each: the places of an instance all have its own."""
    flat = keys.reshape(-1, keys.shape[-1])
    return flat, index if len(index) == len(flat) else index.repeat_interleave(len(flat) // len(index))


GROUPED = "the places of one instance are not independent draws, so negatives come in groups"


class Fresh:
    """A source that pulls anchors towards the keys of this very step and remembers nothing."""

    def setup(
        self, key_groups: int, group_of: Callable[[int], int], prepare: Callable[[Tensor], Tensor]
    ) -> None:
        """Nothing is kept."""

    def prefill_size(self) -> int:
        return 0

    def positive(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Tensor:
        return keys[which]

    def advance(self, keys: Mapping[int, Tensor], index: Tensor, progress: Progress) -> None:
        """Nothing to remember."""
