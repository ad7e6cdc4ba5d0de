"""The complete, checked settings of a run.

The choices (`views`, `encoders`, `critic`, `negatives`, `selection`, `bound`, `prior`) are mappings with the
`name` of a part and that part's settings. All settings are declared in fields.py; how they are read, merged and
checked is in resolving.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from nearfar.config.fields import CHOICES, FIELDS, KEYS, LOGGERS, SettingValues
from nearfar.config.reading import dump_yaml, memory_bytes, seconds
from nearfar.config.schema import convert, expecting, none_to_null, plain, unknown
from nearfar.core.optimisers import OPTIMISERS
from nearfar.core.schedules import Adaptive, Schedule, Value, ends, parse_value
from nearfar.errors import UserError, not_one_of
from nearfar.modalities import Modality, modality_of_views

PROBES = KNN, LINEAR, QUALITY = ("knn", "linear", "quality")
# settings that cannot change a result
MAY_CHANGE = (
    "max_time",
    "workers",
    "probe_every",
    "probe",
    "probe_data",
    "checkpoint_every",
    "checkpoint_minutes",
    "keep",
    "log_every",
    "logger",
    "exchange",
    "sharding",
    "checkpoint_activations",
)


@dataclass(frozen=True, kw_only=True)
class Settings(SettingValues):
    """A run's settings, complete and checked.

    `parts`: the part of each choice as its settings describe it, without weights and memories; None and
    missing: Python objects. They were made once, when the settings were checked. A method is made of copies
    (building.py).
    """

    parts: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    __hash__ = None  # type: ignore[assignment]

    @property
    def modality(self) -> Modality:
        return modality_of_views(self.views)

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.probe.split(","))

    def sections(self) -> dict[str, dict[str, Any]]:
        """The choices by name: each a mapping with the name of a part and its settings."""
        return {choice: getattr(self, choice) for choice in CHOICES}

    def schedules(self) -> dict[str, Schedule]:
        """Every setting of the choices that is a schedule, by its dotted name."""
        return {
            f"{choice}.{key}": value
            for choice, section in self.sections().items()
            for key, value in section.items()
            if isinstance(value, Schedule)
        }

    def adaptive_on(self, kind: str) -> str | None:
        """The first setting that is an adaptive schedule of this kind (`score`, `bound`, …), as written."""
        scheduled = {"lr": self.lr, **self.schedules()}
        return next(
            (
                f"{name}={value.written()}"
                for name, value in scheduled.items()
                if isinstance(value, Adaptive) and value.monitors == kind
            ),
            None,
        )

    def as_yaml(self) -> str:
        return dump_yaml(self.as_plain())

    def as_plain(self) -> dict[str, Any]:
        """Numbers, words and mappings only: what config.yaml and checkpoints hold."""
        return {key: plain(getattr(self, key)) for key in KEYS}


# ---------------------------------------------------------------------------------------------- checking


def checked_settings(raw: Mapping[str, Any], parts: Mapping[str, Any]) -> Settings:
    """Settings of known keys, converted to their types, or an error about the first that is wrong."""
    values = {key: _checked(key, raw[key]) for key in KEYS if key in raw}
    missing = [key for key in KEYS if key not in FIELDS and key not in values]
    if missing:
        raise UserError(f"{missing[0]} was missing; the settings of a run have it")
    _check_statistics(values.get("mean"), values.get("std"))
    return Settings(**values, parts=parts)


def _checked(key: str, raw: Any) -> Any:
    if key in FIELDS and FIELDS[key].default is None:
        raw = none_to_null(raw)
        if raw is None:
            return None
    return convert(raw, _annotation(key), key)


@cache
def _annotation(key: str) -> Any:
    """The type of a setting with its limits."""
    kind = next(one.type for one in fields(SettingValues) if one.name == key)
    inner = tuple(one for one in get_args(kind) if one is not type(None))
    if len(inner) < len(get_args(kind)):  # None is checked before
        kind = inner[0] if len(inner) == 1 else int | float
    limits = {} if key not in FIELDS else FIELDS[key].limits
    constraints = Field(**limits).metadata
    return Annotated[(kind, *_CHECKS.get(key, ()), *constraints, key)]


def _check_lr(raw: Any) -> Value:
    value = parse_value(raw, "lr")
    if min(ends(value)) < 0 or max(ends(value)) <= 0:
        raise UserError(f"lr was {raw!r}; it must be above 0")
    return value


def _check_optimizer(name: str) -> str:
    if name not in OPTIMISERS:
        raise unknown(name, OPTIMISERS, "optimizers")
    return name


def _check_logger(names: str) -> str:
    for name in names.split(","):
        if names not in ("auto", "none") and name.strip() not in LOGGERS:
            if name.strip() in ("auto", "none"):
                raise UserError(f"logger was {names!r}; {name.strip()} cannot be combined with other loggers")
            raise not_one_of("logger", name.strip(), [*LOGGERS, "auto", "none"])
    return names


def _check_statistics(mean: list[float] | None, std: list[float] | None) -> None:
    for key, values, low in (("mean", mean, -1.0), ("std", std, 0.0)):
        if values is not None and not all(low <= v <= 2 and (v > 0 or key == "mean") for v in values):
            limit = "from -1 to 2" if key == "mean" else "above 0 and at most 2"
            raise UserError(f"{key} was {values}; bytes are divided by 255, so expected numbers {limit}")
    if (mean is None) != (std is None):
        key, missing = ("std", "mean") if mean is None else ("mean", "std")
        raise UserError(f"{key} was given without {missing}; set both, or none of them")
    if mean is not None and std is not None and len(mean) != len(std):
        raise UserError(f"mean has {len(mean)} numbers and std {len(std)}; each has one for each channel")


_CHECKS: dict[str, tuple[Any, ...]] = {
    "lr": (AfterValidator(_check_lr),),
    "optimizer": (AfterValidator(_check_optimizer),),
    "logger": (AfterValidator(_check_logger),),
    "memory": (BeforeValidator(lambda raw: memory_bytes(raw) if isinstance(raw, str) else raw),),
    "max_time": (BeforeValidator(lambda raw: seconds(raw) if isinstance(raw, str) else raw),),
    "device": (
        expecting(
            lambda name: re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name), "auto, cpu, cuda, cuda:N or mps"
        ),
    ),
    "probe": (
        expecting(
            lambda names: {name.strip() for name in names.split(",")} <= {*PROBES},
            f"{', '.join(PROBES)}, separated by commas",
        ),
    ),
    "labels": (
        expecting(
            lambda amount: amount < 1 or float(amount).is_integer(),
            "a fraction below 1, or a whole number of each class",
        ),
    ),
}
TEXTS = tuple(one.name for one in fields(SettingValues) if one.type in (str, str | None))
