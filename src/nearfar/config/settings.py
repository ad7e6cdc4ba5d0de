"""The complete, checked settings of a run.

The choices (`views`, `encoders`, `critic`, `negatives`, `selection`, `bound`, `prior`) are mappings with the
`name` of a part and that part's settings. Defaults and descriptions of the other settings are in fields.py;
how settings are read, merged and checked is in resolving.py.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from nearfar.config.fields import CHOICES, FIELDS, LOGGERS
from nearfar.config.reading import dump_yaml, memory_bytes, seconds
from nearfar.config.schema import STRICT, Integer, expecting, none_to_null, plain, unknown
from nearfar.core.optimisers import OPTIMISERS
from nearfar.core.schedules import Adaptive, Schedule, Value, ends, parse_value
from nearfar.errors import UserError, not_one_of
from nearfar.modalities import MODALITIES, Modality, modality_of_views
from nearfar.system.prefetch import MAX_WORKERS

MAX_EPOCHS = 1_000_000
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
DEFAULT_BACKBONE = next(iter(MODALITIES.values())).networks.default  # most recipes are written for images


def described(name: str, *, default: Any = ..., **limits: Any) -> Any:
    """The pydantic field of a setting of fields.py, with its limits."""
    default = FIELDS[name].default if default is ... else default
    return Field(default, description=FIELDS[name].description, **limits)


def _memory(raw: Any) -> Any:
    return memory_bytes(raw) if isinstance(raw, str) and raw != "none" else raw


def _duration(raw: Any) -> Any:
    return seconds(raw) if isinstance(raw, str) and raw != "none" else raw


Device = Annotated[
    str,
    expecting(lambda name: re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name), "auto, cpu, cuda, cuda:N or mps"),
]
Probes = Annotated[
    str,
    expecting(
        lambda names: {name.strip() for name in names.split(",")} <= {*PROBES},
        f"{', '.join(PROBES)}, separated by commas",
    ),
]
Labels = Annotated[
    int | float,
    expecting(
        lambda amount: amount < 1 or float(amount).is_integer(),
        "a fraction below 1, or a whole number of each class",
    ),
]


class Settings(BaseModel):
    """A run's settings, complete and checked."""

    model_config = ConfigDict(**STRICT, extra="forbid", frozen=True)

    recipe: str
    data: str
    epochs: Integer = described("epochs", ge=1, le=MAX_EPOCHS)
    batch_size: Integer = described("batch_size", ge=1, le=2**31)
    seed: Integer = described("seed", ge=0, lt=2**63)
    init: str | None = described("init")
    freeze: str | None = described("freeze")
    preset: str | None = described("preset")
    backbone: str = described("backbone", default=DEFAULT_BACKBONE)
    image_size: Integer | None = described("image_size", ge=8, le=4096)
    mean: list[float] | None = described("mean", min_length=1)
    std: list[float] | None = described("std", min_length=1)
    backbone_config: dict[str, Any] | None = described("backbone_config")
    optimizer: str = described("optimizer")
    optimizer_options: dict[str, Any] = described("optimizer_options")
    momentum: float | None = described("momentum", ge=0, lt=1)
    lr: Any = described("lr")
    warmup: float = described("warmup", ge=0)
    weight_decay: float = described("weight_decay", ge=0)
    layer_decay: float = described("layer_decay", gt=0, le=1)
    clip: float | None = described("clip", gt=0)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = described("precision")
    compile: bool = described("compile")
    device: Device = described("device")
    workers: Integer = described("workers", ge=0, le=MAX_WORKERS)
    chunk: Integer | None = described("chunk", ge=1)
    encode_chunk: Integer | None = described("encode_chunk", ge=1)
    checkpoint_activations: bool = described("checkpoint_activations")
    memory: Annotated[Integer | None, BeforeValidator(_memory)] = described("memory", gt=0)
    batch_norm: Literal["synchronised", "per-rank", "shuffled"] = described("batch_norm")
    exchange: Literal["gather", "ring"] = described("exchange")
    sharding: Literal["none", "fsdp"] = described("sharding")
    log_every: Integer = described("log_every", ge=1, le=2**31)
    logger: str = described("logger")
    checkpoint_every: Integer = described("checkpoint_every", ge=1, le=2**31)
    checkpoint_minutes: float = described("checkpoint_minutes", gt=0)
    keep: Integer = described("keep", ge=1, le=10_000)
    max_time: Annotated[float | None, BeforeValidator(_duration)] = described("max_time", gt=0)
    probe_every: float = described("probe_every", ge=0)
    probe: Probes = described("probe")
    probe_data: str | None = described("probe_data")
    skip_steps: Integer = described("skip_steps", ge=0, le=2**31)
    held_out: float | None = described("held_out", ge=0, lt=0.5)
    image_column: str | None = described("image_column")
    label_column: str | None = described("label_column")
    labels: Labels | None = described("labels", gt=0)
    labels_seed: Integer = described("labels_seed", ge=0, lt=2**62)
    max_bad_share: float = described("max_bad_share", ge=0, le=1)
    views: dict[str, Any]
    encoders: dict[str, Any]
    critic: dict[str, Any]
    negatives: dict[str, Any]
    selection: dict[str, Any]
    bound: dict[str, Any]
    prior: dict[str, Any]

    @field_validator("*", mode="before")
    @classmethod
    def _none(cls, raw: Any, info: ValidationInfo) -> Any:
        """`none` is written for None."""
        optional = cls.model_fields[info.field_name or ""].default is None
        return none_to_null(raw) if optional else raw

    @field_validator("lr")
    @classmethod
    def _lr(cls, raw: Any) -> Value:
        value = parse_value(raw, "lr")
        if min(ends(value)) < 0 or max(ends(value)) <= 0:
            raise UserError(f"lr was {raw!r}; it must be above 0")
        return value

    @field_validator("optimizer")
    @classmethod
    def _optimizer(cls, name: str) -> str:
        if name not in OPTIMISERS:
            raise unknown(name, OPTIMISERS, "optimizers")
        return name

    @field_validator("mean", "std")
    @classmethod
    def _statistics(cls, values: list[float] | None, info: ValidationInfo) -> list[float] | None:
        is_std = info.field_name == "std"
        if values is not None and not all(-1 <= v <= 2 and (v > 0 or not is_std) for v in values):
            limit = "above 0 and at most 2" if is_std else "from -1 to 2"
            raise UserError(
                f"{info.field_name} was {values}; bytes are divided by 255, so expected numbers {limit}"
            )
        other = info.data.get("mean")
        if is_std and (other is None) != (values is None):
            key, missing = ("std", "mean") if other is None else ("mean", "std")
            raise UserError(f"{key} was given without {missing}; set both, or none of them")
        if is_std and other is not None and values is not None and len(other) != len(values):
            raise UserError(
                f"mean has {len(other)} numbers and std {len(values)}; each has one for each channel"
            )
        return values

    @field_validator("logger")
    @classmethod
    def _logger(cls, names: str) -> str:
        for name in names.split(","):
            if names not in ("auto", "none") and name.strip() not in LOGGERS:
                if name.strip() in ("auto", "none"):
                    raise UserError(
                        f"logger was {names!r}; {name.strip()} cannot be combined with other loggers"
                    )
                raise not_one_of("logger", name.strip(), [*LOGGERS, "auto", "none"])
        return names

    # the parts that the sections describe, without weights and memories; None and missing: Python objects
    _parts: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def parts(self) -> Mapping[str, Any]:
        """The part of each choice as its settings describe it: made once, when the settings were checked.
        A method is made of copies (building.py)."""
        return self._parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and dict(self) == dict(other)

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
        return {key: plain(value) for key, value in self}


TEXTS = tuple(key for key, field in Settings.model_fields.items() if field.annotation in (str, str | None))
