"""What the core install leaves out, and the sentence a user reads who needs it.

The core (losses, bounds, methods, mutual information) needs torch, numpy, scipy, jaxtyping, safetensors, pyyaml and threadpoolctl alone.
"""

from importlib import import_module
from typing import Any

from nearfar.errors import UserError

# module: the extra of pyproject.toml that installs it
EXTRAS = {
    "PIL": "train",
    "faiss": "train",
    "numba": "train",
    "pyarrow": "train",
    "pydantic": "train",
    "rich": "train",
    "sklearn": "train",
    "soundfile": "train",
    "torchvision": "train",
    "faster_coco_eval": "detect",
    "huggingface_hub": "export",
    "jinja2": "report",
    "matplotlib": "report",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "optuna": "sweep",
    "tensorboard": "tensorboard",
    "timm": "timm",
    "torch_geometric": "graph",
    "torchmetrics": "detect",
}


class MissingExtra(UserError, ImportError):
    """A package of an extra is not installed."""


def missing_extra(problem: ModuleNotFoundError) -> MissingExtra | None:
    """The sentence for a failed import, or None if the module belongs to no extra."""
    module = (problem.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return MissingExtra(f"{module} is not installed; pip install 'nearfar[{EXTRAS[module]}]'")


def need(module: str) -> Any:
    """The module of an extra, where only some uses of a function need it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as problem:
        raise missing_extra(problem) or problem from None
