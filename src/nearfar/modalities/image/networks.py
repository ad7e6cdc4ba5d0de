"""Backbones of images by name (torchvision's, timm's and small ResNets), and their pretrained weights.

    timm/NAME              model.safetensors of the repository that timm names, in the hub's cache
    hf/NAME                the folder of a repository in the hub's cache, or one that transformers wrote
    resnet18, vgg16, …     the file of torchvision's default weights, in torch hub's cache
    FILE                   size and statistics of the configuration in its folder, if there is one

Weights are looked up on this machine: a missing file ends in a sentence with its name, its source and where to
put it.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlparse

import torch
from torch import Tensor
from torch.nn import functional

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractNetworks, Choice, Pretrained, ViewFamily
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.image.data import ImageDescription, Images
from nearfar.modalities.image.views.settings import large_count, view_channels, view_sizes
from nearfar.parts.encoders import BACKBONES, InputSpec, check_backbone, pictured
from nearfar.parts.encoders.libraries import check_hf_config, check_timm_name
from nearfar.system.extras import need
from nearfar.system.untrusted import is_number, read_json

# nearfar's names that are networks of torchvision with another name there; its ResNets have the same
TORCHVISION_NAMES = {
    "mobilenetv2": "mobilenet_v2",
    "shufflenetv2": "shufflenet_v2_x1_0",
    "shufflenetv2x0.5": "shufflenet_v2_x0_5",
    "shufflenetv2x1.5": "shufflenet_v2_x1_5",
    "shufflenetv2x2": "shufflenet_v2_x2_0",
}
_TIMM_FILES = ("model.safetensors", "pytorch_model.bin")


def find_pretrained(name: str) -> Pretrained:
    """The weights that timm, transformers or torchvision have for a backbone of this name."""
    if name.startswith("timm/"):
        return _of_timm(name.removeprefix("timm/"))
    if name.startswith("hf/"):
        folder = check_hf_weights(name, hf_folder(name))
        return Pretrained(folder, f"the weights of {name}", **_hf_input(folder))
    if torchvision_name(name):
        return _of_torchvision(name)
    raise UserError(
        f"init was pretrained with backbone={name}, of which there are no pretrained weights; use "
        "backbone=timm/NAME, hf/NAME, resnet18 to resnet152, vgg11 to vgg19, mobilenetv2 or shufflenetv2, or "
        "init=FILE"
    )


def torchvision_name(name: str) -> str:
    """The name in torchvision of a network that has pretrained weights there; empty if it has none."""
    if re.fullmatch(r"resnet(18|34|50|101|152)", name):
        return name
    if re.fullmatch(r"vgg(11|13|16|19)", name):
        return f"{name}_bn"
    return TORCHVISION_NAMES.get(name, "")


def _of_timm(name: str) -> Pretrained:
    check_timm_name(name)
    config = need("timm").get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise UserError(
            f"init was pretrained with backbone=timm/{name}, of which timm has no pretrained weights; "
            "timm.list_pretrained() lists those it has, and init=FILE takes weights of your own"
        )
    repository = config.hf_hub_id
    files = (config.hf_hub_filename,) if config.hf_hub_filename else _TIMM_FILES
    paths = [cached_file(repository, file) for file in files] if repository else []
    url = config.url[0] if isinstance(config.url, tuple) else config.url
    if url:
        paths.append(_torch_cache(url))
    for path in paths:
        if path is not None and path.is_file():
            statistics = tuple(config.mean), tuple(config.std)
            return Pretrained(path, f"the weights of timm/{name}", config.input_size[-1], *statistics)
    if repository:
        raise UserError(
            f"init was pretrained, but the cache {hub_cache()} has no {files[0]} of {repository}, and nothing "
            f"is downloaded here; with a network, run `hf download {repository} {files[0]}`, or copy that file "
            "here and set init=FILE"
        )
    raise _not_cached(f"timm/{name}", str(url))


def _of_torchvision(name: str) -> Pretrained:
    models = need("torchvision.models")
    weights = models.get_model_weights(torchvision_name(name)).DEFAULT
    path = _torch_cache(weights.url)
    if not path.is_file():
        raise _not_cached(name, weights.url)
    transforms = weights.transforms()
    origin = f"torchvision's {type(weights).__name__}.{weights.name}"
    return Pretrained(path, origin, transforms.crop_size[0], tuple(transforms.mean), tuple(transforms.std))


def _torch_cache(url: str) -> Path:
    """Where torch hub puts the file of an address."""
    return Path(need("torch.hub").get_dir()) / "checkpoints" / os.path.basename(urlparse(url).path)


def _not_cached(name: str, url: str) -> UserError:
    path = _torch_cache(url)
    return UserError(
        f"init was pretrained, but the weights of {name} are not at {path}, and nothing is downloaded here; "
        f"with a network, download {url} to that place, or copy the file here and set init=FILE"
    )


# ------------------------------------------------------------------------------------------- the hub's cache


def read_hf_config(name: str) -> dict[str, Any]:
    """The layers of backbone=hf/NAME, as its config.json describes them."""
    folder = hf_folder(name)
    raw = read_json(folder / "config.json")
    if not isinstance(raw, dict):
        raise UserError(f"backbone was {name!r}, but {folder / 'config.json'} is not a configuration")
    return check_hf_config(raw, name)


def hf_folder(name: str) -> Path:
    """The folder of backbone=hf/NAME: a local one, or the hub's in the cache."""
    repository = name.removeprefix("hf/")
    if (Path(repository) / "config.json").is_file():
        return Path(repository)
    cached = cached_file(repository, "config.json")
    if cached is None:
        raise UserError(
            f"backbone was {name!r}, but the cache {hub_cache()} has no config.json of {repository}, and "
            f"nothing is downloaded here; with a network, run `hf download {repository}`, or copy its files "
            "(config.json, preprocessor_config.json, model.safetensors) into a folder and set "
            "backbone=hf/FOLDER"
        )
    return cached.parent


def check_hf_weights(name: str, folder: Path) -> Path:
    """The folder, if it has weights."""
    if any((folder / file).is_file() for file in ("model.safetensors", "model.safetensors.index.json")):
        return folder
    raise UserError(
        f"init was pretrained, but {folder} has no model.safetensors of {name}, and nothing is downloaded here; "
        f"with a network, run `hf download {name.removeprefix('hf/')}`, or copy the file into that folder"
    )


def cached_file(repository: str, file: str) -> Path | None:
    """A file of a repository in the hub's local cache; None if it is not there."""
    hub = need("huggingface_hub")
    try:
        path = hub.try_to_load_from_cache(repository, file)
    except hub.errors.HFValidationError:  # no name of a repository
        return None
    return Path(path) if isinstance(path, str) else None


def hub_cache() -> str:
    return str(need("huggingface_hub.constants").HF_HUB_CACHE)


# ------------------------------------------------------------------------------------ how pictures were shown


def describe_weights(file: Path) -> Pretrained:
    """A weights file with the facts in its folder's configuration: one of timm (`save_for_hf`), of
    transformers (`save_pretrained`), or of `nearfar export`."""
    config = read_json(file.parent / "config.json")
    view_facts: dict[str, Any] = {}
    if isinstance(config, Mapping):
        own_input, of_timm = config.get("input"), config.get("pretrained_cfg", config)
        if config.get("format") == "nearfar encoder" and isinstance(own_input, Mapping):
            view_facts = {
                "size": _side(own_input.get("size")),
                **_statistics(own_input.get("mean"), own_input.get("std")),
            }
        elif "model_type" in config:
            view_facts = _hf_input(file.parent)
        elif isinstance(of_timm, Mapping):
            sides = of_timm.get("input_size")
            side = _side(sides[-1]) if isinstance(sides, list) and sides else None
            view_facts = {"size": side, **_statistics(of_timm.get("mean"), of_timm.get("std"))}
    return Pretrained(file, f"{file.parent / 'config.json'}", **view_facts)


def _hf_input(folder: Path) -> dict[str, Any]:
    """Size and statistics of transformers' preprocessor_config.json, else the size of its config.json."""
    stored, config = (read_json(folder / file) for file in ("preprocessor_config.json", "config.json"))
    stored = stored if isinstance(stored, Mapping) else {}
    size = stored.get("crop_size" if stored.get("do_center_crop") and stored.get("crop_size") else "size")
    if isinstance(size, Mapping):
        size = size.get("height") or size.get("shortest_edge")
    if _side(size) is None and isinstance(config, Mapping):
        size = config.get("image_size")
    if stored.get("do_normalize") is False:
        return {"size": _side(size), "mean": (0.0,) * 3, "std": (1.0,) * 3}
    return {"size": _side(size), **_statistics(stored.get("image_mean"), stored.get("image_std"))}


def _side(value: Any) -> int | None:
    return value if type(value) is int and 8 <= value <= 4096 else None


def _statistics(mean: Any, std: Any) -> dict[str, Any]:
    are_lists = isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) > 0
    if not are_lists or not all(map(is_number, [*mean, *std])):
        return {}
    return {"mean": tuple(mean), "std": tuple(std)}


LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R 601)


class ImageNetworks(AbstractNetworks):
    names: ClassVar[tuple[str, ...]] = tuple(BACKBONES)
    default = "resnet18"
    small = "resnet8-w16"
    smallest = "resnet8-w16"

    def check(self, name: str, plural: str) -> str:
        return check_backbone(name)

    def config(self, name: str, stored: Any = None) -> dict[str, Any] | None:
        if not name.startswith("hf/"):
            return None
        if stored in (None, "none"):
            return read_hf_config(name)
        if not isinstance(stored, Mapping):
            raise UserError(f"backbone_config was {stored!r}; expected a mapping such as {{model_type: vit}}")
        return check_hf_config(stored, name)

    def pretrained(self, name: str) -> Pretrained:
        return find_pretrained(name)

    def describe_weights(self, file: Path) -> Pretrained:
        return describe_weights(file)

    def start_settings(self, weights: Pretrained, data: DataSet | None) -> dict[str, Any]:
        """Without statistics where the images have other channels."""
        settings = weights.settings()
        if not isinstance(data, Images) or data.channels == len(settings.get("mean", ())):
            return settings
        return {key: value for key, value in settings.items() if key not in ("mean", "std")}

    def inputs(self, network: str, choice: Choice, description: ImageDescription) -> InputSpec:
        channels, sizes = view_channels(choice, description.channels), view_sizes(choice, description.size)
        context = {"instances": description.instances, "key_views": large_count(choice)}
        return pictured(network, channels, description.size, context, sizes, lambda: self.config(network))

    def view_converter(
        self, views: ViewFamily, description: ImageDescription, target: ImageDescription, network_name: str
    ) -> Callable[[Tensor], Tensor]:
        """Converts grey to colour and back, normalisation, and size."""
        ours, theirs = description, target
        if ours.channels != theirs.channels and {ours.channels, theirs.channels} != {1, 3}:
            raise UserError(
                f"{network_name} takes {theirs.channels} channels, but the pictures have {ours.channels}"
            )
        if ours.values != theirs.values:
            raise UserError(
                f"{network_name} takes images of {theirs.values}, but the pictures are {ours.values}"
            )
        (mean, std), (their_mean, their_std) = ours.in_values(), theirs.in_values()
        same = (ours.channels, mean, std) == (theirs.channels, their_mean, their_std)

        def convert(view: Tensor) -> Tensor:
            if not same:
                view = view * _per_channel(std, view) + _per_channel(mean, view)
                if ours.channels < theirs.channels:
                    view = view.expand(-1, theirs.channels, -1, -1)
                elif ours.channels > theirs.channels:
                    view = (view * _per_channel(LUMINANCE, view)).sum(dim=1, keepdim=True)
                view = (view - _per_channel(their_mean, view)) / _per_channel(their_std, view)
            if view.shape[-1] != theirs.size:
                view = functional.interpolate(
                    view, (theirs.size, theirs.size), mode="bilinear", antialias=True, align_corners=False
                )
            return view

        return convert


def _per_channel(numbers: tuple[float, ...], view: Tensor) -> Tensor:
    return torch.tensor(numbers, device=view.device, dtype=view.dtype)[:, None, None]
