"""The settings of a run, declared once: name, type, default, description and limits.

Nothing heavy is imported, so `--help` is fast. `Settings` (settings.py) are these values, checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

CHOICES = ("views", "encoders", "critic", "negatives", "selection", "bound", "prior")
LOGGERS = ["tensorboard", "wandb", "mlflow", "trackio"]  # names for `logger=`, see train/loggers.py
CHOSEN_LATER = "chosen by data and machine"
MAX_EPOCHS = 1_000_000
MAX_WORKERS = 256


@dataclass(frozen=True)
class SettingField:
    """A setting's default, description and limits; `shown_default` where the default depends on the data."""

    default: Any
    description: str
    shown_default: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)  # ge, gt, le, lt, min_length

    def default_text(self) -> str:
        if self.shown_default is not None:
            return self.shown_default
        if self.default in (None, {}):
            return "none"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def _setting(default: Any, description: str, shown_default: str | None = None, **limits: Any) -> Any:
    metadata = {"setting": SettingField(default, description, shown_default, limits)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class SettingValues:
    """The value of every setting. `views` to `prior`: the name of a part and that part's settings."""

    recipe: str
    data: str
    epochs: int = _setting(
        100, "passes over the data", "100; fewer on a CPU, by the size of the data", ge=1, le=MAX_EPOCHS
    )
    batch_size: int = _setting(
        256, "instances per step, over all processes", "256; fewer for small data", ge=1, le=2**31
    )
    seed: int = _setting(0, "random seed of order, augmentation and initial weights", ge=0, lt=2**63)
    init: str | None = _setting(
        None,
        "weights to start from: another run, a weights file, or pretrained (published weights of a timm/, hf/ or "
        "torchvision backbone, from the local cache)",
    )
    freeze: str | None = _setting(
        None, "stages of the backbone that are not trained, comma-separated: stem, stage1, stage2, …"
    )
    preset: str | None = _setting(
        None,
        "a paper's settings for the recipe, which all other settings override; nearfar recipes NAME lists them",
    )
    backbone: str = _setting(
        "",
        "resnet8-w16 (also -w8, -w32), resnet6-w48 (also -w32, -w64), resnet18 to resnet152, resnet50x2, resnet20, wrn-16-2, vgg8, "
        "mobilenetv2, shufflenetv1 and more (see `nearfar recipes --markdown`), timm/NAME, or hf/NAME (of "
        "transformers); data other than images have networks of their own",
        CHOSEN_LATER,
    )
    image_size: int | None = _setting(
        None,
        "side of a view in pixels; none: that of the data, at most 224",
        "none; on a CPU at most 64",
        ge=8,
        le=4096,
    )
    mean: list[float] | None = _setting(
        None,
        "mean of each channel, to normalise views, in [0, 1], e.g. [0.5,0.5,0.5]; none: that of the data",
        "none; with init=pretrained, that of the weights",
        min_length=1,
    )
    std: list[float] | None = _setting(
        None, "standard deviation of each channel, as mean", "none; as mean", min_length=1
    )
    backbone_config: dict[str, Any] | None = _setting(
        None, "configuration of backbone=hf/NAME", "its config.json"
    )
    optimizer: str = _setting("adamw", "sgd, adamw, lars or muon", "adamw; muon of simclr on a CPU")
    optimizer_options: dict[str, Any] = _setting(
        {}, "options of the optimizer, written optimizer.nesterov=true, optimizer.betas=[0.9,0.95]"
    )
    momentum: float | None = _setting(
        None, "momentum of sgd, lars and muon, first beta of adamw; none: 0.9", ge=0, lt=1
    )
    lr: Any = _setting(
        2e-3,
        "learning rate: a number (warm-up, then cosine to 0) or a schedule",
        "0.002; with that muon 0.02",
    )
    warmup: float = _setting(1.0, "epochs of linear warm-up when lr is a number", ge=0)
    weight_decay: float = _setting(1e-4, "weight decay; norms and biases have none", ge=0)
    layer_decay: float = _setting(
        1.0, "each stage of the backbone learns at this multiple of the next stage's rate", gt=0, le=1
    )
    clip: float | None = _setting(
        None, "largest gradient norm; larger ones are scaled down; none: no limit", gt=0
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _setting(
        "auto",
        "fp32, bf16, fp16 (with loss scaling), or auto: bf16 where the hardware has it, else fp16 on GPUs "
        "from Volta on",
    )
    compile: bool = _setting(False, "compile the backbones with torch.compile; needs a C++ compiler")
    device: str = _setting("auto", "auto, cpu, cuda, cuda:N or mps")
    workers: int = _setting(2, "threads that prepare views", ge=0, le=MAX_WORKERS)
    chunk: int | None = _setting(
        None, "score this many anchors at a time instead of the whole matrix; none: the fastest", ge=1
    )
    encode_chunk: int | None = _setting(
        None,
        "encode this many instances at a time, which costs a second forward pass; none: all, if they fit in memory",
        ge=1,
    )
    checkpoint_activations: bool = _setting(
        False,
        "store only the inputs of the networks' blocks, and recompute other activations for the gradient",
    )
    memory: int | None = _setting(
        None, "memory limit of the process, e.g. 2GB or 800MB; sets encode_chunk; none: the free memory", gt=0
    )
    batch_norm: Literal["synchronised", "per-rank", "shuffled"] = _setting(
        "synchronised",
        "batch statistics with several processes: synchronised (over the global batch), per-rank, or shuffled "
        "(per rank, with shuffled keys, as in MoCo)",
    )
    exchange: Literal["gather", "ring"] = _setting(
        "gather",
        "keys of other processes: gather (each process collects all), or ring (blocks pass from process to process, "
        "which needs less memory)",
    )
    sharding: Literal["none", "fsdp"] = _setting(
        "none", "none (each process holds all weights), or fsdp (each holds a part of them, FSDP2)"
    )
    log_every: int = _setting(10, "steps between rows of metrics.jsonl", ge=1, le=2**31)
    logger: str = _setting(
        "auto",
        f"where rows go beside metrics.jsonl: {', '.join(LOGGERS)}, comma-separated, or none; auto: tensorboard "
        "if installed",
    )
    checkpoint_every: int = _setting(200, "steps between checkpoints", ge=1, le=2**31)
    checkpoint_minutes: float = _setting(10.0, "longest time between checkpoints, in minutes", gt=0)
    keep: int = _setting(2, "number of checkpoints kept", ge=1, le=10000)
    max_time: float | None = _setting(None, "stop, resumable, after this time: seconds, or 90m, 2h", gt=0)
    probe_every: float = _setting(
        1.0, "epochs between probes; 0: never; kNN and linear probes need labels", ge=0
    )
    probe: str = _setting(
        "knn",
        "metrics computed at each probe, comma-separated: knn, linear, quality (RankMe, LiDAR and more, "
        "without labels)",
    )
    probe_data: str | None = _setting(None, "labelled data to probe on; none: a part of the run's data")
    skip_steps: int = _setting(10, "consecutive non-finite steps to skip before stopping", ge=0, le=2**31)
    held_out: float | None = _setting(
        None,
        "fraction of the data held out for estimates of information; none: 5 %, at most 2,048 instances, of data "
        "with at least 1,000",
        ge=0,
        lt=0.5,
    )
    image_column: str | None = _setting(
        None, "image column of a Parquet file; none: image, img, jpg, jpeg, png, webp, tif or tiff"
    )
    label_column: str | None = _setting(
        None,
        "label column of a Parquet or .csv file; none: label; in Parquet also labels, fine_label, cls, class or target",
    )
    labels: int | float | None = _setting(
        None,
        "train on this fraction of the labelled data (0.01), or on this many of each class (10); none: all",
        gt=0,
    )
    labels_seed: int = _setting(0, "random seed of the labels that labels= draws", ge=0, lt=2**62)
    max_bad_share: float = _setting(0.05, "largest tolerated fraction of unreadable files", ge=0, le=1)
    views: dict[str, Any]
    encoders: dict[str, Any]
    critic: dict[str, Any]
    negatives: dict[str, Any]
    selection: dict[str, Any]
    bound: dict[str, Any]
    prior: dict[str, Any]


KEYS = tuple(one.name for one in fields(SettingValues))
FIELDS: dict[str, SettingField] = {
    one.name: one.metadata["setting"] for one in fields(SettingValues) if one.metadata
}
