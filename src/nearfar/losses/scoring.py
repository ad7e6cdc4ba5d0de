"""What the losses share: checked embeddings, and inner products with many keys as `Negatives`."""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.kernels import SummedLogSumExp, checkpoint_tile, inside_transform
from nearfar.core.scores import Candidates, Negatives, inner_product_negatives, tile_size
from nearfar.errors import UserError

EmbeddingRows = Float[Tensor, "n dim"]


def check_gather(gather: bool) -> bool:
    """The argument `gather_distributed`, refused where torch was built without `torch.distributed`."""
    if gather and not dist.is_available():
        raise UserError("gather_distributed was True, but this torch was built without torch.distributed")
    return gather


def check_embeddings(**named: Tensor) -> list[Float[Tensor, "row dim"]]:
    """The named embeddings in float32 at least, or a sentence about the first that does not fit the others.

    Scores are differences of large numbers and do not survive half precision, whatever the network ran in.
    """
    width = None
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor) or tensor.ndim != 2 or not tensor.is_floating_point():
            has_labels = isinstance(tensor, Tensor) and tensor.ndim == 1 and not tensor.is_floating_point()
            hint = "; SupConLoss and LabelledNTXentLoss take labels" if has_labels else ""
            raise UserError(
                f"{name} was {described(tensor)}; expected floating-point embeddings of shape (n, dim){hint}"
            )
        if len(tensor) == 0:
            raise UserError(f"{name} has no rows; a loss needs at least one")
        width = width or tensor.shape[1]
        if tensor.shape[1] != width:
            raise UserError(f"{name} has {tensor.shape[1]} dimensions and {next(iter(named))} has {width}")
    double = any(tensor.dtype == torch.float64 for tensor in named.values())
    return [tensor.to(torch.float64 if double else torch.float32) for tensor in named.values()]


def described(value: object) -> str:
    """A tensor by its type and shape, anything else by its class."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__


def check_paired(**named: Tensor) -> list[Float[Tensor, "row dim"]]:
    """The same for embeddings of which row i belongs to row i."""
    ready = check_embeddings(**named)
    first, *rest = named
    for name in rest:
        if len(named[name]) != len(named[first]):
            raise UserError(f"{name} has {len(named[name])} rows and {first} has {len(named[first])}")
    return ready


def positive_number(name: str, value: float) -> float:
    if not (isinstance(value, (int, float)) and 0 < value < float("inf")):
        raise UserError(f"{name} was {value!r}; it must be a number above 0")
    return float(value)


def unit(rows: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
    return F.normalize(rows, dim=1)


def negatives(
    anchors: Float[Tensor, "anchor dim"],
    keys: Float[Tensor, "candidate dim"],
    anchor_ids: Int[Tensor, "anchor"],
    key_ids: Int[Tensor, "candidate"],
) -> Negatives:
    """Inner products with the keys of another id than the anchor's."""
    return inner_product_negatives(anchors, anchor_ids, Candidates(keys, key_ids), all_tiled=True)


def summed_logsumexp(
    anchors: Float[Tensor, "anchor dim"], keys: Float[Tensor, "key dim"]
) -> Float[Tensor, ""]:
    """sum_i log sum_j e^(u_i . v_j)."""
    # inside torch.func.vmap `requires_grad` is False for every tensor
    needed = anchors.requires_grad or keys.requires_grad or inside_transform()
    with_gradient = torch.is_grad_enabled() and needed
    return SummedLogSumExp(tile_size(anchors, keys), with_gradient)(anchors, keys)[0]


def distances(
    anchors: Float[Tensor, "anchor dim"], keys: Float[Tensor, "key dim"]
) -> Float[Tensor, "anchor key"]:
    """Euclidean distances. Inside transforms of `torch.func` they are elementary operations: `torch.cdist` has
    no forward-mode derivative there, and a wrong second derivative."""
    if not inside_transform():
        return torch.cdist(anchors, keys)
    squares = (anchors[:, None] - keys).square().sum(dim=2)
    is_positive = squares > 0
    return torch.where(is_positive, squares, 1.0).sqrt() * is_positive


def by_tiles(
    function: Callable[..., Tensor], keys: Tensor, *per_anchor: Tensor
) -> Float[Tensor, "anchor ..."]:
    """`function(keys, *block)` for blocks of anchors; of many blocks none is kept for the backward pass."""
    tile = tile_size(per_anchor[0], keys)
    if len(per_anchor[0]) <= tile:
        return function(keys, *per_anchor)
    blocks = zip(*(rows.split(tile) for rows in per_anchor), strict=True)
    return torch.cat([checkpoint_tile(function, keys, *block) for block in blocks])
