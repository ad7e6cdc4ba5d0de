"""What sources without a memory of positives share."""

from collections.abc import Mapping

from torch import Tensor

from nearfar.schedules import Progress


class Fresh:
    """A source that pulls anchors towards the keys of this very step and remembers nothing."""

    def wanted(self) -> int:
        return 0

    def positive(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Tensor:
        return keys[which]

    def advance(self, keys: Mapping[int, Tensor], index: Tensor, progress: Progress) -> None:
        """Nothing to remember."""
