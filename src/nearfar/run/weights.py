"""Weights files: tensors by name, from safetensors or `.pth` files; code in a pickle is never run."""

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.parts.encoders.libraries import HFBackbone, TimmBackbone, hf_converted
from nearfar.system.untrusted import (
    check_memory,
    check_regular,
    check_zip,
    open_regular_file,
    read_bytes,
    read_json,
)

PRETRAINED = "pretrained"  # as the setting `init`: the weights that a library has for the backbone
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
            loaded: Any = load_tensors(path)
        else:
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
    tensors = {str(name): tensor for name, tensor in loaded.items() if isinstance(tensor, Tensor)}
    for name, tensor in tensors.items():
        if not _is_plain(tensor):
            raise UserError(
                f"{key} was {path}, whose {name} is not a plain tensor with a value for each place"
            )
    return tensors


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is dense, real and has its values in memory; one that repeats a value may have any size."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    if tensor.is_quantized or tensor.is_complex():
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of a transformers folder: of model.safetensors, or of its index's files."""
    index = read_json(folder / "model.safetensors.index.json")
    files = index.get("weight_map") if isinstance(index, Mapping) else None
    names = {*files.values()} if isinstance(files, Mapping) else {"model.safetensors"}
    weights: dict[str, Tensor] = {}
    for name in sorted(map(str, names)):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"the index in {folder} names {name!r}; expected safetensors files of that folder"
            )
        weights |= read_weights(folder / name)
    return weights


def fitted(
    weights: Mapping[str, Tensor], body: nn.Module, source: str, key: str = "init"
) -> dict[str, Tensor]:
    """The weights under the names of a backbone; stops at the first that is missing or has another shape.
    Those for another picture size or other channels are adapted, where the network's library can."""
    shapes = shapes_of(body.state_dict())
    if isinstance(body, HFBackbone):
        weights = hf_converted(body.config, weights)
    candidates = []
    for ours in PREFIXES[:2]:
        for theirs in PREFIXES:
            names = {name: theirs + name.removeprefix(ours) for name in shapes}
            candidates.append(({n: weights[t] for n, t in names.items() if t in weights}, names))
    matches, names = max(candidates, key=lambda candidate: len(candidate[0]))
    # files of torch before 0.4.1 lack the batch counts, which nothing reads
    missing = [name for name in shapes if name not in matches and not name.endswith("num_batches_tracked")]
    if missing:
        raise UserError(
            f"{key} was {source}, which has {len(matches)} of the backbone's {len(shapes)} tensors and "
            f"lacks {names[missing[0]]}; choose the backbone it was made for"
        )
    if any(tuple(tensor.shape) != shapes[name] for name, tensor in matches.items()):
        matches = _adapted(matches, body)
    for name, shape in shapes.items():
        if name in matches and tuple(matches[name].shape) != shape:
            raise UserError(
                f"{key} was {source}, whose {names[name]} is {list(matches[name].shape)} where the "
                f"backbone's is {list(shape)}; choose the backbone, the channels and the image_size (up to "
                "64 the stem is smaller) it was made for"
            )
    return matches


def _adapted(weights: dict[str, Tensor], body: nn.Module) -> dict[str, Tensor]:
    """Weights with the shapes of the body, as far as that is possible."""
    if isinstance(body, TimmBackbone):
        with suppress(RuntimeError):  # other shapes are reported by name
            return body.adapted(weights)
    state = body.state_dict()
    return {name: _with_channels(tensor, state[name].shape) for name, tensor in weights.items()}


def _with_channels(kernel: Tensor, shape: torch.Size) -> Tensor:
    """A first layer for another number of channels, as timm adapts it: the kernels of colours are summed for
    grey pictures, else repeated, with the same sum."""
    same_otherwise = kernel.ndim == len(shape) == 4 and kernel.shape[::2] == shape[::2]
    if not same_otherwise or kernel.shape[1] != 3 or kernel.shape[1:] == shape[1:]:
        return kernel
    if shape[1] == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [channel % 3 for channel in range(shape[1])]] * (3 / shape[1])


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
