"""What a checkpoint's facts and tensors must be to be used: types and ranges, whoever wrote them.

The manifest's hashes find damage. They do not tell whether a folder was made by us: a mean of the wrong length, a step that is
text or weights that are integers would be noticed far from here, or never.
"""

from dataclasses import replace
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
    taken: Count


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
    AdaptiveSchedules: _AdaptiveSchedules


class _Checkpoint(_Facts):
    step: Count
    optimizer: str  # one of another version is left aside with its moments
    seconds: Annotated[FiniteFloat, Field(ge=0)]
    hooks: _Hooks
    ended: str | None = None  # why a hook stopped the run early
    unbounded: list[str] = []
    encode_chunk: Annotated[int, Field(ge=1)] | None = None  # instances encoded at a time
    unseen: bool | None = None  # that what was kept aside was never trained on
    data: dict[str, Any]  # its modality knows what must be in it


def checked(loaded: checkpoints.Loaded) -> checkpoints.Loaded:
    """A run's checkpoint, if its facts are of the types and in the ranges that we write."""
    try:
        _Checkpoint(**loaded.facts)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "facts"
        raise UserError(
            f"{loaded.path}: not a usable checkpoint, its {where} makes no sense ({first['msg'][0].lower()}{first['msg'][1:]})"
        ) from None
    if loaded.facts["step"] != checkpoints.step_of(loaded.path):
        raise UserError(
            f"{loaded.path}: not a usable checkpoint, its facts are those of step {loaded.facts['step']}"
        )
    # where Deep InfoMax kept its discriminator before there were priors
    renamed = {name.replace("/encoders.match.", "/prior."): held for name, held in loaded.tensors.items()}
    return replace(loaded, tensors=renamed)


def fits(described: nn.Module, tensors: dict[str, Tensor]) -> bool:
    """Whether these are the tensors of a module: the same names, sizes and kinds of numbers. The module may be on torch's
    meta device, where a network of any size costs nothing. What is empty in it has no size yet and takes any."""
    wanted = described.state_dict()
    held = {name: value for name, value in wanted.items() if isinstance(value, torch.Tensor)}
    return (
        wanted.keys() == tensors.keys()
        and all(tensors[name].numel() == value.numel() or not value.numel() for name, value in held.items())
        and all(tensors[name].dtype is value.dtype for name, value in held.items())
    )
