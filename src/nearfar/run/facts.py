"""Checks of a checkpoint's facts and tensors: types and ranges, wherever they come from.

The hashes of the manifest find damage. They do not show who wrote a folder: a mean of the wrong length, a
step that is text, or weights that are integers would fail far from here, or never.
"""

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.run import checkpoints

Count = Annotated[int, Field(ge=0, lt=2**62)]


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _CollapseMonitor(_Facts):
    bad_readings: Count
    warned: bool


class _FiniteMonitor(_Facts):
    skipped: Count
    taken_steps: Count
    skipped_steps: Count


class _LossScale(_Facts):
    scale: Annotated[FiniteFloat, Field(gt=0, le=2.0**127)]
    streak: Count


class _GradientMonitor(_Facts):
    zero_steps: Count | None


class _AdaptiveSchedules(_Facts):
    moves: dict[str, Count]
    previous: dict[str, FiniteFloat]


class _Hooks(_Facts):
    """States of hooks by class name. A user's hook may add any."""

    CollapseMonitor: _CollapseMonitor | None = None
    FiniteMonitor: _FiniteMonitor
    GradientMonitor: _GradientMonitor | None = None
    LossScale: _LossScale | None = None
    AdaptiveSchedules: _AdaptiveSchedules


class _Checkpoint(_Facts):
    step: Count
    optimizer: str
    seconds: Annotated[FiniteFloat, Field(ge=0)]
    hooks: _Hooks
    ended: str | None = None  # why a hook stopped the run early
    unbounded: list[str] = []
    encode_chunk: Annotated[int, Field(ge=1)] | None = None  # instances encoded at a time
    unseen: bool | None = None  # whether the held-out part was never trained on
    data: dict[str, Any]  # its modality knows what must be in it


def checked(loaded: checkpoints.Loaded) -> checkpoints.Loaded:
    """The same checkpoint; stops if its facts have other types or ranges than we write."""
    try:
        _Checkpoint(**loaded.facts)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(map(str, first["loc"])) or "facts"
        raise UserError(
            f"{loaded.path}: not a usable checkpoint, its {key} is invalid "
            f"({first['msg'][0].lower()}{first['msg'][1:]})"
        ) from None
    if loaded.facts["step"] != checkpoints.step_of(loaded.path):
        raise UserError(
            f"{loaded.path}: not a usable checkpoint, its facts are those of step {loaded.facts['step']}"
        )
    return loaded


def fits(described: nn.Module, tensors: dict[str, Tensor]) -> bool:
    """Whether the tensors fit a module: the same names, sizes and dtypes. The module may be on the meta
    device. Its empty tensors have no size yet and fit any."""
    state = described.state_dict()
    expected = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return state.keys() == tensors.keys() and all(
        (tensors[name].numel() == value.numel() or not value.numel()) and tensors[name].dtype is value.dtype
        for name, value in expected.items()
    )
