"""Weights files: tensors by name, from safetensors or `.pth` files; code in a pickle is never run."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from nearfar.errors import UserError
from nearfar.system.untrusted import check_memory, check_regular, check_zip, open_regular_file, read_bytes

# prefixes of names in other people's files, and ours before the names of timm
PREFIXES = ("", "net.", "module.", "model.", "backbone.", "encoder.", "module.encoder_q.")


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, which is mapped while they are copied.

    Raises OSError for anything but a regular file that fits the memory, SafetensorError for other content.
    """
    size = check_regular(path)
    check_memory(path, size)
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:  # safetensors maps no file of such a name
        return load(read_bytes(path, size))
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def read_weights(path: Path, key: str = "init") -> dict[str, Tensor]:
    """The tensors of a file by name; code in a pickle is never run."""
    try:
        if path.suffix == ".safetensors":
            return load_tensors(path)
        check_zip(path)
        check_memory(path, check_regular(path))
        with open_regular_file(path) as file:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except OSError as problem:
        raise UserError(f"{key} was {path}, which cannot be read: {problem.strerror or problem}") from None
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        raise UserError(
            f"{key} was {path}, which is not a weights file; expected tensors by name, as .safetensors "
            "or as .pth of plain tensors"
        ) from None
    for section in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(section), Mapping):
            loaded = loaded[section]
    if not isinstance(loaded, Mapping) or not any(isinstance(t, Tensor) for t in loaded.values()):
        raise UserError(f"{key} was {path}, which holds no tensors by name")
    return {str(name): tensor for name, tensor in loaded.items() if isinstance(tensor, Tensor)}


def renamed(
    weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], source: str, key: str = "init"
) -> dict[str, Tensor]:
    """The weights under our names; stops at the first that is missing or has another shape."""
    candidates = []
    for ours in PREFIXES[:2]:
        for theirs in PREFIXES:
            names = {name: theirs + name.removeprefix(ours) for name in shapes}
            candidates.append(({n: weights[t] for n, t in names.items() if t in weights}, names))
    matches, names = max(candidates, key=lambda candidate: len(candidate[0]))
    # older files lack the batch counts, which nothing reads
    missing = [name for name in shapes if name not in matches and not name.endswith("num_batches_tracked")]
    if missing:
        raise UserError(
            f"{key} was {source}, which has {len(matches)} of the backbone's {len(shapes)} tensors and "
            f"lacks {names[missing[0]]}; "
            "choose the backbone it was made for"
        )
    for name, shape in shapes.items():
        if name in matches and tuple(matches[name].shape) != shape:
            raise UserError(
                f"{key} was {source}, whose {names[name]} is {list(matches[name].shape)} where the "
                f"backbone's is {list(shape)}; "
                "choose the backbone, the channels and the image_size (up to 64 the stem is smaller) it "
                "was made for"
            )
    return matches


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
