"""The papers' own settings, by paper and method: `nearfar pretrain moco-ring photos/ preset=wu2021`.

A recipe's defaults are ours, for small pictures and a CPU. A preset is what its paper trained with:
optimiser, rates, temperature, queue or bank, head, epochs. It goes over the recipe and under everything that
is set, so `preset=wu2021 epochs=50` is the paper's with fewer epochs. What a paper does not say stays the
recipe's. A method's variants (`moco-ring`) take its preset; what is a variant's own stands apart.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from nearfar.config.recipes.recipe import SUFFIXES, OptimizerName
from nearfar.config.schema import unknown
from nearfar.core.schedules import Schedule, Value, cosine, linear, plateau, steps
from nearfar.errors import UserError

# settings that presets have, so that a type checker sees a misspelt one
PresetSettings = TypedDict(
    "PresetSettings",
    {
        "optimizer": OptimizerName,
        "lr": Value,
        "momentum": float,
        "weight_decay": float,
        "warmup": float,
        "epochs": int,
        "batch_size": int,
        "backbone": str,
        "image_size": int,
        "temperature": float,
        "views.crops": str,
        "views.crop": float,
        "views.crop_scale": list[float],
        "views.small": dict[str, Any],
        "views.second": dict[str, Any],
        "views.pad": float,
        "views.flip": float,
        "views.jitter": float,
        "views.greyscale": float,
        "views.blur": float,
        "views.strength": float,
        "encoders.head": str,
        "encoders.layers": int,
        "encoders.hidden": int,
        "encoders.dim": int,
        "encoders.prototypes": int,
        "encoders.momentum": Value,
        "negatives.size": int,
        "negatives.momentum": float,
        "selection.lower": Value,
        "selection.nearest": int,
        "selection.background": int,
        "selection.clusters": int,
        "selection.runs": int,
        "selection.after": float,
        "selection.sample": int,
        "bound.weight": float,
        "prior.redundancy": float,
    },
    total=False,
)


@dataclass(frozen=True)
class Preset:
    """One method's settings in one paper, and their place in it. `by_variant` holds what a selection
    adds, by its suffix ("": the method itself); `objective` is that of a distillation."""

    source: str
    settings: PresetSettings
    by_variant: Mapping[str, PresetSettings] = field(default_factory=dict)
    objective: str | None = None

    @property
    def choices(self) -> dict[str, Any]:
        """The settings as a command takes them: the objective is one of its words."""
        return {**({"objective": self.objective} if self.objective else {}), **self.settings}


_SGD: PresetSettings = {"optimizer": "sgd", "momentum": 0.9}
_RATE_30: PresetSettings = {
    "lr": steps(0.03, 0.1, 200, 250),
    "weight_decay": 1e-4,
    "epochs": 300,
    "warmup": 0,
}
_WU_2021: PresetSettings = {
    **_SGD,
    **_RATE_30,
    "backbone": "resnet18",
    "batch_size": 256,
    "encoders.head": "linear",
    "encoders.dim": 128,
    "temperature": 0.07,
    "image_size": 224,
}
_BANK: PresetSettings = {"negatives.momentum": 0.5}
_QUEUE: PresetSettings = {"encoders.momentum": 0.999}
# both directions are averaged here and summed there: twice the rate and half the decay are the same steps
_SUMMED: PresetSettings = {"lr": steps(0.06, 0.1, 200, 250), "weight_decay": 5e-5}
_NARROWING: PresetSettings = {
    "selection.lower": linear(0, 0.9, 100)
}  # from 100 to 10 % in 100 epochs (App. E)
_RINGS: dict[str, PresetSettings] = {"ring": _NARROWING, "ball": _NARROWING, "neighbours": _NARROWING}
_RING_SOURCE = "Wu et al. 2021, sec. 5 and App. E; its inner edge is not stated"
_VINCE: PresetSettings = {
    **_SGD,
    "lr": plateau(0.03, 0.1, 10, 2),
    "weight_decay": 1e-4,
    "warmup": 0,
    "backbone": "resnet18",
    "batch_size": 256,
    "encoders.head": "linear",
    "encoders.dim": 128,
    "temperature": 0.07,
    **_BANK,
}
_BALL: PresetSettings = {"selection.lower": 0.0, "selection.nearest": 4096}
_NEAREST: PresetSettings = {"selection.lower": 0.0, "selection.background": 4096}
_CLOSE: PresetSettings = {
    **_NEAREST,
    "selection.clusters": 30_000,
    "selection.runs": 10,
    "selection.after": 10,
}
_VINCE_SOURCE = "Wu et al. 2020, App. D; plateau of the training loss, where the paper has a validation loss"
_MOCO_V2: PresetSettings = {
    **_SGD,
    "lr": cosine(0.03, 0),
    "weight_decay": 1e-4,
    "epochs": 200,
    "batch_size": 256,
    "backbone": "resnet50",
    "encoders.head": "mlp-plain",
    "encoders.hidden": 2048,
    "encoders.dim": 128,
    "encoders.momentum": 0.999,
    "negatives.size": 65_536,
    "temperature": 0.2,
}
_LARGE: PresetSettings = {
    "optimizer": "lars",
    "momentum": 0.9,
    "warmup": 10,
    "batch_size": 4096,
    "backbone": "resnet50",
}

# 4 pixels of border, then a random crop of 32: CIFAR's usual views
_PADDED: PresetSettings = {"image_size": 32, "views.crop": 0.0, "views.pad": 1.0, "views.flip": 0.5}

PRESETS: dict[str, dict[str, Preset]] = {
    "wu2021": {
        "instdisc": Preset(_RING_SOURCE, {**_WU_2021, **_BANK}, _RINGS),
        "cmc": Preset(
            f"{_RING_SOURCE}; lr 0.03 and decay 1e-4 of a loss that sums both directions",
            {**_WU_2021, **_BANK, **_SUMMED, "batch_size": 128},
            _RINGS,
        ),
        "moco-v1": Preset(_RING_SOURCE, {**_WU_2021, **_QUEUE}, _RINGS),
        "moco": Preset(_RING_SOURCE, {**_WU_2021, **_QUEUE}, _RINGS),
    },
    "wu2020": {
        "instdisc": Preset(_VINCE_SOURCE, _VINCE, {"ball": _BALL, "annulus": _CLOSE, "neighbours": _CLOSE}),
        "la": Preset(_VINCE_SOURCE, _VINCE, {"": _CLOSE, "neighbours": _CLOSE}),
    },
    "song2020": {
        "moco": Preset(
            "Song & Ermon 2020, App. C (CIFAR-10), else MoCo v2's; its backbone has 3 x 3 kernels at the "
            "entrance",
            {**_MOCO_V2, "lr": cosine(0.3, 0), "temperature": 0.07},
        ),
        "distill": Preset(
            "Song & Ermon 2020, App. C.3 and sec. 5.2, its J_0.05 without KD, and the views of CIFAR that it "
            "takes over",
            {
                **_SGD,
                "lr": steps(0.1, 0.1, 150, 180, 210),
                "weight_decay": 5e-4,
                "warmup": 0,
                "epochs": 240,
                "batch_size": 64,
                "temperature": 0.07,
                "selection.sample": 16_384,
                **_PADDED,
            },
            objective="ml-cpc",
        ),
    },
    "he2020": {
        "moco-v1": Preset(
            "He et al. 2020, sec. 3.3 and 4",
            {
                **_SGD,
                "lr": steps(0.03, 0.1, 120, 160),
                "weight_decay": 1e-4,
                "epochs": 200,
                "batch_size": 256,
                "backbone": "resnet50",
                "encoders.dim": 128,
                "encoders.momentum": 0.999,
                "negatives.size": 65_536,
                "temperature": 0.07,
            },
        ),
        "moco": Preset("Chen, Fan et al. 2020, its model of 200 epochs", _MOCO_V2),
    },
    "chen2020": {
        "simclr": Preset(
            "Chen et al. 2020, sec. 2.1, 2.2 and B.1, its model of 1,000 epochs",
            {
                **_LARGE,
                "lr": 4.8,  # 0.3 x batch / 256
                "weight_decay": 1e-6,
                "epochs": 1000,
                "encoders.hidden": 2048,
                "encoders.dim": 128,
                "temperature": 0.1,
            },
        )
    },
    "grill2020": {
        "byol": Preset(
            "Grill et al. 2020, sec. 3.3; its loss sums both directions, ours is their mean",
            {
                "bound.weight": 2.0,
                **_LARGE,
                "lr": 3.2,  # 0.2 x batch / 256
                "weight_decay": 1.5e-6,
                "epochs": 1000,
                "encoders.hidden": 4096,
                "encoders.dim": 256,
                "encoders.momentum": cosine(0.996, 1.0),
            },
        )
    },
    "saez2021": {
        "simclr": Preset(
            "Sáez Maldonado 2021, sec. 10.1, its best model (Table 11); optimiser and rate are not stated",
            {
                "backbone": "resnet50",
                "image_size": 32,
                "batch_size": 256,
                "epochs": 100,
                "temperature": 0.25,
                "views.strength": 0.65,
            },
        ),
        "byol": Preset(
            "Sáez Maldonado 2021, sec. 10.2.1; its loss (Eq. 25) sums both directions, ours is their mean",
            {
                "bound.weight": 2.0,
                "image_size": 32,
                "views.jitter": 0.8,
                "views.greyscale": 0.2,
                "views.blur": 1.0,
                "views.second": {"solarise": 0.2},
            },
        ),
    },
    "chenhe2021": {
        "simsiam": Preset(
            "Chen & He 2021, sec. 3 (baseline settings); its predictor is 512 wide inside, here as wide as "
            "the head",
            {
                **_SGD,
                "lr": cosine(0.1, 0),  # 0.05 x batch / 256
                "weight_decay": 1e-4,
                "epochs": 100,
                "batch_size": 512,
                "backbone": "resnet50",
                "encoders.layers": 3,
                "encoders.hidden": 2048,
                "encoders.dim": 2048,
            },
        )
    },
    "zbontar2021": {
        "barlow": Preset(
            "Zbontar et al. 2021, sec. 2.2",
            {
                **_LARGE,
                "batch_size": 2048,
                "lr": 1.6,  # 0.2 x batch / 256
                "weight_decay": 1.5e-6,
                "epochs": 1000,
                "encoders.layers": 3,
                "encoders.hidden": 8192,
                "encoders.dim": 8192,
                "prior.redundancy": 0.005,
            },
        )
    },
    "caron2020": {
        "swav": Preset(
            "Caron et al. 2020, App. A, its model of 200 epochs; its prototypes do not move in the first epoch",
            {
                **_LARGE,
                "lr": 4.8,
                "weight_decay": 1e-6,
                "epochs": 200,
                "encoders.hidden": 2048,
                "encoders.dim": 128,
                "encoders.prototypes": 3000,
                "image_size": 224,
                "views.crops": "2x224,6x96",
                "views.crop_scale": [0.14, 1.0],
                "views.small": {"crop_scale": [0.05, 0.14]},
            },
        )
    },
    "bardes2022": {
        "vicreg": Preset(
            "Bardes et al. 2022, sec. 4.2",
            {
                **_LARGE,
                "batch_size": 2048,
                "lr": 1.6,  # 0.2 x batch / 256
                "weight_decay": 1e-6,
                "epochs": 1000,
                "encoders.layers": 3,
                "encoders.hidden": 8192,
                "encoders.dim": 8192,
            },
        )
    },
}


def preset_for(name: Any, recipe: str) -> dict[str, Any]:
    """The settings that a preset has for a recipe: those of its method, and what its selection adds."""
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown(str(name), PRESETS, "presets")
    method = method_of(name, recipe)
    if method is None:
        raise UserError(
            f"preset was {name} with the recipe {recipe}; it has settings for {', '.join(PRESETS[name])} and "
            "their variants"
        )
    preset = PRESETS[name][method]
    return {**preset.settings, **preset.by_variant.get(recipe[len(method) + 1 :], {}), "preset": name}


def preset_named(layers: Iterable[Mapping[str, Any]]) -> Any:
    """The preset of the last layer that names one, not yet checked; None without."""
    names = [layer["preset"] for layer in layers if layer.get("preset") not in (None, "none")]
    return names[-1] if names else None


def method_of(name: str, recipe: str) -> str | None:
    """The method of a preset that a recipe is, or is under some selection."""
    if recipe in PRESETS[name]:
        return recipe
    method, _, selection = recipe.rpartition("-")
    return method if selection in SUFFIXES and method in PRESETS[name] else None


def presets_of(recipe: str) -> dict[str, Preset]:
    """Every preset for a recipe, by name."""
    methods = {name: method_of(name, recipe) for name in PRESETS}
    return {name: PRESETS[name][method] for name, method in methods.items() if method is not None}


def words_of(settings: Mapping[str, Any]) -> str:
    """Settings of a preset as words of a command."""
    texts = {
        # 200.0 epochs are shown as 200
        key: re.sub(r"\.0(?=[,)])", "", value.written()) if isinstance(value, Schedule) else value
        for key, value in settings.items()
    }
    return " ".join(f"{key}={text}" for key, text in texts.items() if key != "preset")
