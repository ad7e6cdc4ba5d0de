"""Optional packages, and the error message when one is missing.

The core (losses, bounds, methods, mutual information) needs torch, numpy, scipy, scikit-learn, joblib,
jaxtyping, safetensors, pyyaml, threadpoolctl and cloudpickle only.
"""

from importlib import import_module
from typing import Any

from nearfar.errors import UserError

# module -> extra in pyproject.toml
EXTRAS = {
    "PIL": "train",
    "faiss": "train",
    "fsspec": "train",
    "numba": "train",
    "pyarrow": "train",
    "pydantic": "train",
    "rich": "train",
    "soundfile": "train",
    "torchvision": "train",
    "faster_coco_eval": "detect",
    "huggingface_hub": "export",
    "jinja2": "report",
    "markupsafe": "report",
    "matplotlib": "report",
    "mlflow": "mlflow",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "optuna": "sweep",
    "tensorboard": "tensorboard",
    "timm": "timm",
    "torch_geometric": "graph",
    "trackio": "trackio",
    "transformers": "hf",
    "wandb": "wandb",
}


class MissingExtra(UserError, ImportError):
    """A package of an extra is not installed."""


def missing_extra(problem: ModuleNotFoundError) -> MissingExtra | None:
    """Returns the error for a failed import, or None if the module belongs to no extra."""
    module = (problem.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return MissingExtra(f"{module} is not installed; pip install 'nearfar[{EXTRAS[module]}]'")


def need(module: str) -> Any:
    """Imports a module of an extra, for functions that need it only sometimes."""
    try:
        return import_module(module)
    except ModuleNotFoundError as problem:
        raise missing_extra(problem) or problem from None
