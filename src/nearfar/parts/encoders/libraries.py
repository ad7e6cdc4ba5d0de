"""Backbones of other libraries by name: any network of timm, and image encoders of transformers.

    timm/vit_small_patch14_dinov2.lvd142m    timm's registry; a tag behind the dot names its pretrained weights
    hf/facebook/dinov2-small                 a repository in the local cache of the Hugging Face hub
    hf/models/mine                           a folder that transformers' `save_pretrained` wrote

Nothing is downloaded, and no code from a repository is run: of transformers, these types of networks are
taken from the installed package, and their configuration is plain JSON.
"""

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.errors import UserError, error_reason
from nearfar.system.extras import need

# `model_type` of networks that take pictures alone and give features of each
HF_TYPES = (
    "beit",
    "clip_vision_model",
    "convnext",
    "convnextv2",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_convnext",
    "dinov3_vit",
    "ijepa",
    "regnet",
    "resnet",
    "siglip_vision_model",
    "swin",
    "swinv2",
    "vit",
    "vit_msn",
)
# keys of a config.json that describe no layer, such as names of classes or code; nor does a mapping
_NOT_ARCHITECTURE = (
    "architectures",
    "attn_implementation",
    "dtype",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_return_dict",
)


# --------------------------------------------------------------------------------------------------- timm


class TimmBackbone(nn.Module):
    """A timm model as a backbone: its pooled features."""

    def __init__(self, net: nn.Module, dim: int, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.dim = net, dim
        self.name, self.options = name, options  # with which timm makes it again

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def adapted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of this network for pictures of another size or other channels, as timm converts them:
        position embeddings are interpolated, the kernels of the first layer are summed or repeated."""
        state = {name.removeprefix("net."): tensor for name, tensor in weights.items()}
        options = {**self.options, "pretrained": True, "pretrained_cfg_overlay": {"state_dict": state}}
        with torch.random.fork_rng(devices=[]):
            net = need("timm").create_model(self.name, **options)
        return {f"net.{name}": tensor for name, tensor in net.state_dict().items()}


def check_timm_name(name: str) -> None:
    """Stops unless timm has the network, and weights with the tag if the name has one."""
    timm = need("timm")
    architecture, _, tag = name.partition(".")
    if architecture not in timm.list_models():
        similar = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; near it are {', '.join(similar)}" if similar else ""
        raise UserError(f"backbone was 'timm/{name}', which timm does not have{hint}")
    tagged = timm.list_pretrained(f"{architecture}.*")
    if tag and name not in tagged:
        expected = f"; expected {', '.join(sorted(tagged))}" if tagged else ""
        raise UserError(f"backbone was 'timm/{name}', but timm has no weights {tag!r} of it{expected}")


def timm_backbone(name: str, channels: int, image_size: int, sides: Sequence[int] = ()) -> nn.Module:
    """The timm model of that name for pictures of `image_size` pixels, and of `sides` too."""
    timm = need("timm")
    check_timm_name(name)
    options = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    # transformers have a size, and most take others too; convolutional models take any size and no options
    sized: list[dict[str, Any]] = [
        {"img_size": image_size, "strict_img_size": False},  # first: Swin accepts any option
        {"img_size": image_size, "dynamic_img_size": True},
        {"img_size": image_size},
        {},
    ]
    for extra in sized:
        try:
            net = timm.create_model(name, **options, **extra)
        except TypeError:
            if not extra:
                raise
            continue
        options |= extra
        break
    # num_features is not the width of every model's output, so it is measured on one picture
    dim = measured_width(net, f"timm/{name}", channels, (image_size, *sides))
    return TimmBackbone(net, dim, name, options)


def measured_width(net: nn.Module, name: str, channels: int, sides: Sequence[int]) -> int:
    """How many features a network gives of one picture of these sides; leaves it in training mode."""
    widths = []
    for side in dict.fromkeys(sides):
        try:
            with torch.no_grad():
                widths.append(net.eval()(torch.zeros(1, channels, side, side)).shape[1])
        except (RuntimeError, AssertionError, ValueError) as problem:
            raise UserError(
                f"backbone was {name!r}, which does not take views of {side} pixels "
                f"({error_reason(problem)}); change image_size or views.crops"
            ) from None
    net.train()
    return int(widths[0])


# ------------------------------------------------------------------------------------------- transformers


class HFBackbone(nn.Module):
    """An image encoder of transformers: its pooled features, else class token, else mean over places."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        make, settings, options = self.constructor(config)
        self.config, self.net = config, make(settings, **options)
        self.interpolates = "interpolate_pos_encoding" in inspect.signature(self.net.forward).parameters
        self.has_class_token = any(name.endswith("cls_token") for name, _ in self.net.named_parameters())

    @staticmethod
    def constructor(config: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The class of a network, its configuration, and further arguments."""
        transformers = need("transformers")
        settings = transformers.AutoConfig.for_model(**config)
        make = transformers.MODEL_MAPPING[type(settings)]
        # a pooler of ViT is a layer that was trained for another task, or never
        with_pooler = "add_pooling_layer" in inspect.signature(make).parameters
        return make, settings, {"add_pooling_layer": False} if with_pooler else {}

    def forward(self, x: Tensor) -> Tensor:
        output = self.net(pixel_values=x, **({"interpolate_pos_encoding": True} if self.interpolates else {}))
        pooled = output.get("pooler_output")
        if pooled is not None:
            return pooled.flatten(1)
        places = output.last_hidden_state  # (image, place, dim) or (image, dim, height, width)
        if places.ndim == 4:
            return places.mean(dim=(2, 3))
        return places[:, 0] if self.has_class_token else places.mean(dim=1)


def hf_backbone(
    config: Mapping[str, Any], name: str, channels: int, image_size: int, sides: Sequence[int] = ()
) -> nn.Module:
    """The network that a configuration of transformers describes, for pictures with this many channels."""
    need("transformers")
    try:
        net = HFBackbone({**config, "num_channels": channels})
    except Exception as problem:  # a stranger's configuration may fail anywhere
        raise UserError(
            f"backbone was {name!r}, whose configuration transformers does not accept: {error_reason(problem)}"
        ) from None
    net.dim = measured_width(net, name, channels, (image_size, *sides))  # type: ignore[assignment]
    return net


def check_hf_config(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of a configuration that describes layers; of pictures, if it is for pictures and text."""
    kind = raw.get("model_type")
    if isinstance(raw.get("vision_config"), Mapping) and f"{kind}_vision_model" in HF_TYPES:
        raw, kind = raw["vision_config"], f"{kind}_vision_model"
    if kind not in HF_TYPES:
        raise UserError(
            f"backbone was {name!r}, a network of type {kind}; expected one of {', '.join(HF_TYPES)}"
        )
    layers = {
        key: value
        for key, value in raw.items()
        if key not in _NOT_ARCHITECTURE and not key.startswith("_") and not isinstance(value, Mapping)
    }
    return {**layers, "model_type": kind}


def hf_converted(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a file for a network of this configuration under the names that the installed version of
    transformers has for them; those that the file lacks are left out."""
    prefix = "net." if all(name.startswith("net.") for name in weights) else ""  # of our own exports
    state = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    for channels in (config["num_channels"], 3):  # a first layer for other channels is adapted later
        make, settings, options = HFBackbone.constructor({**config, "num_channels": channels})
        with suppress(RuntimeError), _without_progress(), torch.random.fork_rng(devices=[]):
            net, loading = make.from_pretrained(
                None,
                config=settings,
                state_dict=dict(state),
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
            missing = loading["missing_keys"]
            return {f"net.{key}": tensor for key, tensor in net.state_dict().items() if key not in missing}
    raise UserError("the tensors of the file do not have the shapes of its configuration")


@contextmanager
def _without_progress() -> Iterator[None]:
    """Inside, transformers reports only errors: a file may hold more than the network."""
    logs = need("transformers.utils.logging")
    level, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(level)
        if bars:
            logs.enable_progress_bar()
