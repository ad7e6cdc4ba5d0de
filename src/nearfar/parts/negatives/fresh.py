"""Keys as rows, which all sources share."""

from jaxtyping import Float, Int
from torch import Tensor


def rows_of(
    keys: Float[Tensor, "*row dim"], index: Int[Tensor, "item"]
) -> tuple[Float[Tensor, "key dim"], Int[Tensor, "key"]]:
    """Keys one below the other with the identity of each: the places of an instance all have its own."""
    flat = keys.reshape(-1, keys.shape[-1])
    return flat, index if len(index) == len(flat) else index.repeat_interleave(len(flat) // len(index))


GROUPED = "the places of one instance are not independent draws, so negatives come in groups"
