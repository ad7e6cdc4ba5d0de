"""Randomness as a pure function of what it is for.

Two functions feed the whole library: the order of an epoch is `order(seed, epoch, size)` (`windowed_order`
where rows are read by blocks), and the random numbers that augment one view of one image are `uniforms(seed,
epoch, index, view, slots)`. Neither has state, so batch size, worker count, rank and interruption cannot
change what a run sees; resuming needs one integer.
"""

import hashlib
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(word: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser (Steele et al. 2014): every input bit reaches every output bit."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def uniforms(
    seed: int, epoch: int, index: Int[np.ndarray, "image"], view: int, slots: int, operation: str = ""
) -> Float[np.ndarray, "image slots"]:
    """`slots` numbers in [0, 1) for one view of each image: the same for the same arguments, always. Each
    `operation` has numbers of its own; without a name they are those of the kernel's pipeline."""
    with np.errstate(over="ignore"):
        word = np.full(len(index), seed % 2**64, dtype=np.uint64)
        for part in (epoch, index, view):
            word = _mix(word + _GOLDEN) ^ _mix(np.asarray(part).astype(np.uint64) + _GOLDEN)
        if operation:
            name_words = np.frombuffer(hashlib.sha256(operation.encode()).digest()[:8], dtype="<u8").astype(
                np.uint64
            )
            word = _mix(word + _GOLDEN) ^ _mix(name_words + _GOLDEN)
        counters = np.arange(1, slots + 1, dtype=np.uint64) * _GOLDEN
        words = _mix(word[:, None] + counters[None, :])
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def short_seed(seed: int) -> int:
    """A seed of 32 bits, for what takes no more; one that has no more is itself."""
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])


def order(seed: int, epoch: int, size: int) -> Int[np.ndarray, "image"]:
    """The order in which epoch `epoch` visits `size` images."""
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch])).permutation(size)


def windowed_order(
    seed: int, epoch: int, block: Int[np.ndarray, "row"], window: int
) -> Int[np.ndarray, "row"]:
    """The order of an epoch of rows that are read by blocks; `block` is the number of each row's block.

    Blocks are shuffled, and row r of the block at place p goes to (p + window u_r) mod blocks, u_r uniform in
    [0, 1): at any moment rows of `window` blocks are mixed, new blocks come in one at a time, and the last
    `window` of them, which also fill the beginning, are read twice. With no more blocks than that it is a
    uniform shuffle.
    """
    return np.argsort(_places(seed, epoch, block, window), kind="stable")


def first_of_windowed_order(
    seed: int, epoch: int, block: Int[np.ndarray, "row"], window: int, count: int
) -> Int[np.ndarray, "row"]:
    """The first `count` rows of `windowed_order`, without sorting the others."""
    places = _places(seed, epoch, block, window)
    if count < len(places):
        # with those as far as the last
        nearest = np.flatnonzero(places <= np.partition(places, count)[count])
    else:
        nearest = np.arange(len(places))
    return nearest[np.argsort(places[nearest], kind="stable")][:count]


def _places(seed: int, epoch: int, block: Int[np.ndarray, "row"], window: int) -> Float[np.ndarray, "row"]:
    """What an epoch's order rises by."""
    draws = np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch]))
    if np.all(block[1:] >= block[:-1]):  # as blocks are met: no need to sort them
        numbers = np.cumsum(np.diff(block, prepend=block[:1]) != 0)
    else:
        numbers = np.unique(block, return_inverse=True)[1]
    blocks = int(numbers.max()) + 1 if len(numbers) else 0
    keys = draws.permutation(blocks)[numbers] + min(window, blocks) * draws.random(len(numbers))
    return keys % max(1, blocks)


def word_grid(seed: int, rows: Int[Tensor, "row"], columns: int) -> Int[Tensor, "row column"]:
    """53 random bits for every (row, column), whichever rows are requested together."""
    words = _mixed(_mixed(rows + seed)[:, None] + torch.arange(columns, device=rows.device))
    return (words >> 11) & (2**53 - 1)


def uniform_grid(seed: int, rows: Int[Tensor, "row"], columns: int) -> Float[Tensor, "row column"]:
    """`word_grid` as float64 in [0, 1), on the CPU where the device of `rows` has no float64."""
    words = word_grid(seed, rows, columns)
    return (words if _has_float64(words.device) else words.cpu()).double() * 2.0**-53


@cache
def _has_float64(device: torch.device) -> bool:
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def words_at(seed: int, row: int, columns: Int[np.ndarray, "place"]) -> Int[np.ndarray, "place"]:
    """`word_grid` at some columns of one row."""
    with np.errstate(over="ignore"):
        word = _mix(np.asarray((row + seed) % 2**64, dtype=np.uint64) + _GOLDEN)
        return _mix(columns.astype(np.uint64) + (word + _GOLDEN)) >> np.uint64(11)


def _mixed(word: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """The splitmix64 finaliser in torch's signed integers, which wrap; shifts lose copies of the sign."""
    word = word + _signed(0x9E3779B97F4A7C15)
    word = (word ^ ((word >> 30) & (2**34 - 1))) * _signed(0xBF58476D1CE4E5B9)
    word = (word ^ ((word >> 27) & (2**37 - 1))) * _signed(0x94D049BB133111EB)
    return word ^ ((word >> 31) & (2**33 - 1))


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
