"""Every setting of a run: read from defaults, a recipe, a YAML file and `key=value` words, in that order.

    nearfar pretrain moco photos/ --out runs/a epochs=50 negatives.size=8192 encoders.momentum=cosine(0.99,1)

The choices (`views`, `encoders`, `critic`, `negatives`, `selection`, `bound`, `prior`) are mappings with a `name` and
the settings of that part; `bound=infonce` is short for `bound: {name: infonce}`, and naming another part drops
the settings of the one it replaces. Nothing here imports or runs what a file names: parts come from the rooms' own lists.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from nearfar.config.choices import (
    CHOICES,
    ROOMS,
)
from nearfar.config.schema import load_yaml, numbers, plain, settable, unknown
from nearfar.core.optimisers import OPTIMISERS
from nearfar.core.schedules import Adaptive, Schedule, Value, ends, parse_value
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality, modality_of_views
from nearfar.parts.encoders import HeadConfig
from nearfar.system.prefetch import MOST_WORKERS
from nearfar.system.untrusted import read_text

ALIASES = {"temperature": "critic.temperature"}  # names the contract keeps at the top
LONGEST = 1_000_000  # epochs
PROBES = KNN, LINEAR, QUALITY = ("knn", "linear", "quality")
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
    "sharding",
)  # cannot change a result


_FIRST = next(iter(MODALITIES.values()))  # which most recipes are written for


class _Written(yaml.SafeDumper):
    """Text that would be read as a number stands in quotation marks."""


def _quoted(dumper: _Written, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if numbers(text) is not text else None)


_Written.add_representer(str, _quoted)


class Settings(BaseModel):
    """A run's settings, complete and checked."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    recipe: str
    data: str
    epochs: int = Field(100, ge=1, le=LONGEST, description="passes over the data")
    batch_size: int = Field(256, ge=2, le=2**31, description="images per step")
    seed: int = Field(0, ge=0, lt=2**63, description="of order, augmentation and initial weights")
    init: str | None = Field(
        None, description="weights to start from: another run, or a torchvision or timm weights file"
    )
    preset: str | None = Field(
        None,
        description="a paper's own settings for the recipe, under all others; nearfar recipes NAME lists them",
    )
    backbone: str = Field(
        _FIRST.default_network,
        description="resnet8-w16 (also -w8, -w32), resnet18 to resnet152, resnet50x2, resnet20, wrn-16-2, vgg8, mobilenetv2, shufflenetv1 and more "
        "(docs/methods.md), or timm/NAME; other data have their own",
    )
    image_size: int | None = Field(
        None, ge=8, le=4096, description="side of a view; none: the data's, up to 224"
    )
    optimizer: str = Field("adamw", description="sgd, adamw or lars")
    optimizer_options: dict[str, Any] = Field(
        {}, description="of the optimizer, written optimizer.nesterov=true, optimizer.betas=[0.9,0.95]"
    )
    momentum: float | None = Field(
        None, ge=0, lt=1, description="of sgd and lars, and adamw's first beta; none: 0.9"
    )
    lr: Any = Field(2e-3, description="a number (warm-up, then cosine to 0) or a schedule, taken as it is")
    warmup: float = Field(1.0, ge=0, description="epochs of linear rise when lr is a number")
    weight_decay: float = Field(1e-4, ge=0, description="leaves out norms and biases")
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="each stage of the backbone learns at this multiple of the next one's rate",
    )
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 where the hardware has it"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N or mps")
    workers: int = Field(2, ge=0, le=MOST_WORKERS, description="threads that prepare views")
    chunk: int | None = Field(
        None,
        ge=1,
        description="score this many anchors at a time, never the whole matrix; none: as is fastest",
    )
    encode_chunk: int | None = Field(
        None,
        ge=1,
        description="encode this many instances at a time, and again for the gradient; none: all, if they fit the memory",
    )
    memory: int | None = Field(
        None,
        gt=0,
        description="what the process may take, written 2GB or 800MB: encode_chunk is chosen for it; none: what is free",
    )
    batch_norm: Literal["synchronised", "per-rank", "shuffled"] = Field(
        "synchronised",
        description="with several processes: over the batch of all, of each, or of each with keys shuffled among them (MoCo)",
    )
    sharding: Literal["none", "fsdp"] = Field(
        "none", description="with several processes: each holds all weights, or a part of each (FSDP2)"
    )
    log_every: int = Field(10, ge=1, le=2**31, description="steps between rows of metrics.jsonl")
    checkpoint_every: int = Field(200, ge=1, le=2**31, description="steps between checkpoints")
    checkpoint_minutes: float = Field(
        10.0, gt=0, description="minutes after which there is one, whatever the steps"
    )
    keep: int = Field(2, ge=1, le=10_000, description="checkpoints kept")
    max_time: float | None = Field(None, gt=0, description="stop, resumable, after this: seconds, or 90m, 2h")
    probe_every: float = Field(
        1.0, ge=0, description="epochs between kNN probes when there are labels; 0: never"
    )
    probe: str = Field(
        "knn",
        description="what is asked then, separated by commas: knn, linear, quality (RankMe, LiDAR and more, without labels)",
    )
    probe_data: str | None = Field(
        None, description="other labelled data to probe on; none: a part of the run's own"
    )
    skip_steps: int = Field(
        10, ge=0, le=2**31, description="non-finite steps in a row to skip before stopping"
    )
    held_out: float | None = Field(
        None,
        ge=0,
        lt=0.5,
        description="share of the data kept aside to estimate information on; none: 5 %, up to 2,048, if there are 1,000",
    )
    image_column: str | None = Field(
        None, description="of a Parquet file, where pictures are in none of image, img, jpg, png, webp"
    )
    label_column: str | None = Field(
        None, description="of a Parquet or .csv file; none: label, labels, fine_label, cls, class or target"
    )
    labels: int | float | None = Field(
        None,
        gt=0,
        description="train on this share of the labelled data (0.01), or so many of each class (10); none: all",
    )
    labels_seed: int = Field(0, ge=0, lt=2**62, description="of the draw that labels= makes")
    max_bad_share: float = Field(0.05, ge=0, le=1, description="share of unusable files to go on with")
    views: dict[str, Any]
    encoders: dict[str, Any]
    critic: dict[str, Any]
    negatives: dict[str, Any]
    selection: dict[str, Any]
    bound: dict[str, Any]
    prior: dict[str, Any]

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, raw: Any, info: ValidationInfo) -> Any:
        """A whole number may be written 1e3, which Python takes for a float."""
        wanted = cls.model_fields[info.field_name or ""].annotation
        whole = isinstance(raw, float) and raw.is_integer() and wanted in (int, int | None)
        return int(raw) if whole else raw

    @field_validator("lr")
    @classmethod
    def _lr(cls, raw: Any) -> Value:
        value = parse_value(raw, "lr")
        if min(ends(value)) < 0 or max(ends(value)) <= 0:
            raise UserError(f"lr was {raw!r}; it must be above 0")
        return value

    @field_validator("max_time", mode="before")
    @classmethod
    def _max_time(cls, raw: Any) -> Any:
        return seconds(raw) if isinstance(raw, str) else raw

    @field_validator("memory", mode="before")
    @classmethod
    def _memory(cls, raw: Any) -> Any:
        return memory_bytes(raw) if isinstance(raw, str) else raw

    @field_validator("optimizer")
    @classmethod
    def _optimizer(cls, name: str) -> str:
        if name not in OPTIMISERS:
            raise unknown(name, OPTIMISERS, "optimizers")
        return name

    @field_validator("labels")
    @classmethod
    def _labels(cls, asked: float | None) -> float | None:
        if isinstance(asked, float) and asked >= 1 and not asked.is_integer():
            raise UserError(
                f"labels was {asked!r}; expected a share below 1, or a whole number of each class"
            )
        return asked

    @field_validator("probe")
    @classmethod
    def _probe(cls, asked: str) -> str:
        for name in asked.split(","):
            if name.strip() not in PROBES:
                raise UserError(f"probe was {asked!r}; expected {', '.join(PROBES)}, separated by commas")
        return asked

    @field_validator("device")
    @classmethod
    def _device(cls, name: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
            raise UserError(f"device was {name!r}; expected auto, cpu, cuda, cuda:N or mps")
        return name

    @property
    def modality(self) -> Modality:
        return modality_of_views(self.views)

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.probe.split(","))

    def schedules(self) -> dict[str, Schedule]:
        """Every setting of the five choices that moves over the run, by its dotted name."""
        return {
            f"{room}.{key}": value
            for room in CHOICES
            for key, value in getattr(self, room).items()
            if isinstance(value, Schedule)
        }

    def listens_to(self, kind: str) -> str | None:
        """The first setting that is an adaptive schedule of this kind (`score` or `loss`), as it is written."""
        moving = {"lr": self.lr, **self.schedules()}
        return next(
            (
                f"{name}={value.written()}"
                for name, value in moving.items()
                if isinstance(value, Adaptive) and value.hears == kind
            ),
            None,
        )

    def as_yaml(self) -> str:
        return yaml.dump(self.as_plain(), Dumper=_Written, sort_keys=False)

    def as_plain(self) -> dict[str, Any]:
        """Numbers, words and mappings only: what config.yaml and checkpoints hold."""
        return {key: plain(value) for key, value in self}


TEXTS = tuple(key for key, field in Settings.model_fields.items() if field.annotation in (str, str | None))


def seconds(text: str) -> float:
    """`90`, `90s`, `15m` or `2h` in seconds."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match:
        raise UserError(f"max_time was {text!r}; expected a number of seconds, or 30s, 90m, 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def memory_bytes(text: str) -> int:
    """`2GB`, `800MB`, `1.5GiB` or a number, in bytes."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if not match:
        raise UserError(f"memory was {text!r}; expected a number of bytes, or 800MB, 2GB")
    unit = UNITS[match[2].upper()]
    return int(float(match[1]) * (unit if not match[3] else 1024 ** (len(str(unit)) // 3)))


def in_units(count: int) -> str:
    """Bytes as people write them."""
    for unit in ("T", "G", "M", "K"):
        if abs(count) >= UNITS[unit]:
            return f"{count / UNITS[unit]:.3g} {unit}B"
    return f"{count} B"


def read_words(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words as nested settings; values are YAML scalars or lists."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{word!r} is not a setting; write key=value, for instance epochs=50")
        try:
            value = load_yaml(text)
        except yaml.YAMLError:
            value = text
        if key in TEXTS and isinstance(value, int | float):
            value = text  # a folder may be called 2026, and a column 7
        put(settings, key, value if text.strip() else "")
    return settings


def read_file(path: Path) -> dict[str, Any]:
    """Settings from a YAML file."""
    settings: dict[str, Any] = {}
    for key, value in load_file(path).items():
        put(settings, key, value)
    return settings


def load_file(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file of `--config` holds."""
    try:
        loaded = load_yaml(read_text(path))
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(
            f"--config {path} cannot be read: {getattr(problem, 'strerror', None) or 'not text'}"
        ) from None
    except yaml.YAMLError as problem:
        where = getattr(problem, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise UserError(f"--config {path} is not YAML of the plain kind{line}") from None
    if not isinstance(loaded, Mapping):
        raise UserError(f"--config {path} holds {type(loaded).__name__}; it must be a mapping of settings")
    return {str(key): value for key, value in loaded.items()}


def put(settings: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key, a number written as text as that number. A bare choice (`bound=x`, `bound: {…}`) is kept with what was already set inside it."""
    head, _, rest = ALIASES.get(key, key).partition(".")
    value = value if key in TEXTS and isinstance(value, str) else numbers(value)
    if head == "optimizer" and (rest or isinstance(value, Mapping)):
        options = settings.setdefault("optimizer_options", {})
        if not isinstance(options, dict):
            raise UserError(
                f"optimizer_options was {options!r}; expected a mapping such as {{nesterov: true}}, or optimizer.nesterov=true alone"
            )
        options.update({rest: value} if rest else {str(k): v for k, v in value.items()})
        if "name" in options:
            settings["optimizer"] = options.pop("name")
        return
    if head not in CHOICES:
        if rest:
            raise unknown(key, all_keys())
        settings[head] = value
        return
    inside = settings.setdefault(head, {})
    if rest:
        first, _, second = rest.partition(".")
        if second:
            side = inside.setdefault(first, {})
            if not isinstance(side, dict):
                raise unknown(key, all_keys())
            side[second] = value
        else:
            inside[first] = value
    elif isinstance(value, Mapping):
        inside.update({str(k): v for k, v in value.items()})
    else:
        inside["name"] = value


def all_keys() -> list[str]:
    """Every key there is, for suggestions."""
    parts = (
        f"{room}.{key}" for room, named in ROOMS.items() for part in named.values() for key in settable(part)
    )
    options = (f"optimizer.{key}" for builder in OPTIMISERS.values() for key in settable(builder))
    heads = (f"encoders.{key}" for key in settable(HeadConfig))
    return sorted({*Settings.model_fields, *ALIASES, *parts, *options, *heads})
