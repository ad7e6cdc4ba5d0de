"""The scalar settings of a run: name, default and description.

`Settings` (settings.py) adds types and limits. Nothing heavy is imported, so `--help` is fast.
"""

from dataclasses import dataclass
from typing import Any

CHOICES = ("views", "encoders", "critic", "negatives", "selection", "bound", "prior")
LOGGERS = ["tensorboard", "wandb", "mlflow", "trackio"]  # names for `logger=`, see train/loggers.py
CHOSEN_LATER = "chosen by data and machine"


@dataclass(frozen=True)
class SettingField:
    """A setting's default and description; `shown_default` where the default depends on the data."""

    default: Any
    description: str
    shown_default: str | None = None

    def default_text(self) -> str:
        if self.shown_default is not None:
            return self.shown_default
        if self.default in (None, {}):
            return "none"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


_F = SettingField
FIELDS: dict[str, SettingField] = {
    "epochs": _F(100, "passes over the data", "100; fewer on a CPU, by the size of the data"),
    "batch_size": _F(256, "instances per step, over all processes", "256; fewer for small data"),
    "seed": _F(0, "random seed of order, augmentation and initial weights"),
    "init": _F(
        None,
        "weights to start from: another run, a weights file, or pretrained (published weights of a timm/, hf/ or "
        "torchvision backbone, from the local cache)",
    ),
    "freeze": _F(
        None, "stages of the backbone that are not trained, comma-separated: stem, stage1, stage2, …"
    ),
    "preset": _F(
        None,
        "a paper's settings for the recipe, which all other settings override; nearfar recipes NAME lists them",
    ),
    "backbone": _F(
        None,
        "resnet8-w16 (also -w8, -w32), resnet6-w48 (also -w32, -w64), resnet18 to resnet152, resnet50x2, resnet20, wrn-16-2, vgg8, "
        "mobilenetv2, shufflenetv1 and more (see `nearfar recipes --markdown`), timm/NAME, or hf/NAME (of "
        "transformers); data other than images have networks of their own",
        CHOSEN_LATER,
    ),
    "image_size": _F(
        None, "side of a view in pixels; none: that of the data, at most 224", "none; on a CPU at most 64"
    ),
    "mean": _F(
        None,
        "mean of each channel, to normalise views, in [0, 1], e.g. [0.5,0.5,0.5]; none: that of the data",
        "none; with init=pretrained, that of the weights",
    ),
    "std": _F(None, "standard deviation of each channel, as mean", "none; as mean"),
    "backbone_config": _F(None, "configuration of backbone=hf/NAME", "its config.json"),
    "optimizer": _F("adamw", "sgd, adamw, lars or muon", "adamw; muon of simclr on a CPU"),
    "optimizer_options": _F(
        {}, "options of the optimizer, written optimizer.nesterov=true, optimizer.betas=[0.9,0.95]"
    ),
    "momentum": _F(None, "momentum of sgd, lars and muon, first beta of adamw; none: 0.9"),
    "lr": _F(
        2e-3,
        "learning rate: a number (warm-up, then cosine to 0) or a schedule",
        "0.002; with that muon 0.02",
    ),
    "warmup": _F(1.0, "epochs of linear warm-up when lr is a number"),
    "weight_decay": _F(1e-4, "weight decay; norms and biases have none"),
    "layer_decay": _F(1.0, "each stage of the backbone learns at this multiple of the next stage's rate"),
    "clip": _F(None, "largest gradient norm; larger ones are scaled down; none: no limit"),
    "precision": _F(
        "auto",
        "fp32, bf16, fp16 (with loss scaling), or auto: bf16 where the hardware has it, else fp16 on GPUs "
        "from Volta on",
    ),
    "compile": _F(False, "compile the backbones with torch.compile; needs a C++ compiler"),
    "device": _F("auto", "auto, cpu, cuda, cuda:N or mps"),
    "workers": _F(2, "threads that prepare views"),
    "chunk": _F(None, "score this many anchors at a time instead of the whole matrix; none: the fastest"),
    "encode_chunk": _F(
        None,
        "encode this many instances at a time, which costs a second forward pass; none: all, if they fit in memory",
    ),
    "checkpoint_activations": _F(
        False,
        "store only the inputs of the networks' blocks, and recompute other activations for the gradient",
    ),
    "memory": _F(
        None, "memory limit of the process, e.g. 2GB or 800MB; sets encode_chunk; none: the free memory"
    ),
    "batch_norm": _F(
        "synchronised",
        "batch statistics with several processes: synchronised (over the global batch), per-rank, or shuffled "
        "(per rank, with shuffled keys, as in MoCo)",
    ),
    "exchange": _F(
        "gather",
        "keys of other processes: gather (each process collects all), or ring (blocks pass from process to process, "
        "which needs less memory)",
    ),
    "sharding": _F(
        "none", "none (each process holds all weights), or fsdp (each holds a part of them, FSDP2)"
    ),
    "log_every": _F(10, "steps between rows of metrics.jsonl"),
    "logger": _F(
        "auto",
        f"where rows go beside metrics.jsonl: {', '.join(LOGGERS)}, comma-separated, or none; auto: tensorboard "
        "if installed",
    ),
    "checkpoint_every": _F(200, "steps between checkpoints"),
    "checkpoint_minutes": _F(10.0, "longest time between checkpoints, in minutes"),
    "keep": _F(2, "number of checkpoints kept"),
    "max_time": _F(None, "stop, resumable, after this time: seconds, or 90m, 2h"),
    "probe_every": _F(1.0, "epochs between probes; 0: never; kNN and linear probes need labels"),
    "probe": _F(
        "knn",
        "metrics computed at each probe, comma-separated: knn, linear, quality (RankMe, LiDAR and more, "
        "without labels)",
    ),
    "probe_data": _F(None, "labelled data to probe on; none: a part of the run's data"),
    "skip_steps": _F(10, "consecutive non-finite steps to skip before stopping"),
    "held_out": _F(
        None,
        "fraction of the data held out for estimates of information; none: 5 %, at most 2,048 instances, of data "
        "with at least 1,000",
    ),
    "image_column": _F(
        None, "image column of a Parquet file; none: image, img, jpg, jpeg, png, webp, tif or tiff"
    ),
    "label_column": _F(
        None, "label column of a Parquet or .csv file; none: label, labels, fine_label, cls, class or target"
    ),
    "labels": _F(
        None,
        "train on this fraction of the labelled data (0.01), or on this many of each class (10); none: all",
    ),
    "labels_seed": _F(0, "random seed of the labels that labels= draws"),
    "max_bad_share": _F(0.05, "largest tolerated fraction of unreadable files"),
}
