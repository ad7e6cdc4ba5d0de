"""What a protocol answered for each test instance, in few bytes: kept beside the figures, so that two runs can be compared pair by
pair on the same instances, and class by class.

    {"answers": {"said": "eNpj…", "true": "eNpj…"}}      zlib of little-endian int32, as base64
"""

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor

KEY = "answers"
MOST = 2**26  # bytes: more test instances than this in one file are nobody's


@dataclass(frozen=True, eq=False)
class Answers:
    """The class said and the true one, in the order of the test set."""

    said: Int[np.ndarray, "instance"]
    true: Int[np.ndarray, "instance"]

    @property
    def right(self) -> Bool[np.ndarray, "instance"]:
        return self.said == self.true


def packed(said: Int[Tensor, "instance"], true: Int[Tensor, "instance"]) -> dict[str, dict[str, str]]:
    """As a figure beside others."""
    return {KEY: {"said": _text(said), "true": _text(true)}}


def unpacked(figures: Mapping[str, Any]) -> Answers | None:
    """The answers among a protocol's figures; None where there are none, or what is there makes no sense."""
    held = figures.get(KEY)
    if not isinstance(held, Mapping):
        return None
    said, true = _numbers(held.get("said")), _numbers(held.get("true"))
    if said is None or true is None or len(said) != len(true) or not len(said):
        return None
    return Answers(said, true)


def without_answers(tree: Any) -> Any:
    """A result for people and for `--json`: the figures alone."""
    if not isinstance(tree, Mapping):
        return tree
    return {key: without_answers(value) for key, value in tree.items() if key != KEY}


def _text(values: Int[Tensor, "instance"]) -> str:
    raw = values.cpu().numpy().astype("<i4").tobytes()
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def _numbers(text: Any) -> Int[np.ndarray, "instance"] | None:
    if not isinstance(text, str):
        return None
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST)
        return np.frombuffer(raw, "<i4").astype(np.int64)
    except (binascii.Error, zlib.error, ValueError):
        return None
