"""The recipes as one page of Markdown, rewritten whenever the site is built, so it cannot drift.

Certificates come from the methods themselves, built on torch's meta device (shapes without memory).
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nearfar.config.building import build_method
from nearfar.config.presets import PRESETS, words_of
from nearfar.config.recipes import RECIPES, Recipe
from nearfar.config.resolving import resolve
from nearfar.config.schema import plain
from nearfar.config.sections import PARTS_BY_CHOICE, PartSettings, Sections, describe
from nearfar.config.settings import Settings
from nearfar.core.tables import markdown_table, text_table
from nearfar.core.types import Certificate, Remark
from nearfar.modalities import Modality
from nearfar.parts.encoders import BACKBONES, HeadConfig

PULLED = "f(u, v+) becomes log( e^f(u, v+) + sum over C of e^f(u, v) )"
PULLED_AS_MEAN = "f(u, v+) becomes the mean of f over v+ and C"
SYMBOLS = {
    "bound": "objective",
    "critic": "f(u, v)",
    "encoders": "u, v",
    "negatives": "v_k",
    "selection": "who counts",
    "prior": "beside it",
}


def equation_of(sections: Sections) -> dict[str, str]:
    """A method's equation, line by line, by the symbol each line explains (`AbstractPart.equation`).

    u is an anchor, v+ its positive, v_k its K candidates or, in the bound, those of them that count; x and x'
    are views of one instance. Braces are replaced by the part's settings.
    """
    parts = {choice: PARTS_BY_CHOICE[choice][sections[choice]["name"]] for choice in SYMBOLS}
    pulled = PULLED_AS_MEAN if parts["bound"].distance_scores else PULLED
    lines = {
        symbol: "; ".join(_clauses(parts[choice], sections[choice], pulled))
        for choice, symbol in SYMBOLS.items()
    }
    if not parts["negatives"].has_candidates:
        del lines["v_k"], lines["who counts"]
    if not lines["beside it"]:
        del lines["beside it"]
    return lines


def template(part: Any) -> str:
    """A part's line with its settings in braces; without one, the first line of its docstring."""
    line = part.equation
    return line if line is not None else (inspect.getdoc(part) or "").partition("\n")[0]


def _clauses(part: Any, section: PartSettings, pulled: str) -> list[str]:
    """The part's line with its settings filled in, and the remarks that apply to them."""
    settings = {key: "all" if value is None else plain(value) for key, value in section.items()}
    clauses = [_fill(template(part), settings)]
    # the encoders' section holds the head's settings too
    remarks: tuple[Remark, ...] = (*HeadConfig.remarks, *part.remarks)
    for key, condition, text in remarks:
        if _applies(condition, section.get(key)):
            clauses.append(text.format(**settings, pulled=pulled))
    return clauses


def _applies(condition: Any, setting: Any) -> bool:
    if callable(condition):
        return bool(condition(setting))
    return setting is not None if condition is ... else setting == condition


def _fill(line: str, settings: Mapping[str, Any]) -> str:
    try:
        return line.format(**settings)
    except (KeyError, IndexError, ValueError):  # a docstring may use braces otherwise
        return line


INSTANCES, CLASSES = 10_000, 10


@dataclass(frozen=True)
class CompleteRecipe:
    """A recipe with its settings complete and checked."""

    name: str
    recipe: Recipe
    settings: Settings

    @classmethod
    def of(cls, name: str) -> "CompleteRecipe":
        settings = resolve(name, "DATA")  # refuses an unknown name
        return cls(name, RECIPES[name], settings)

    @property
    def choices(self) -> Sections:
        return self.settings.sections()

    @property
    def modality(self) -> Modality:
        return self.settings.modality

    @property
    def command(self) -> str:
        words = self.recipe.command.format(name=self.name, data=self.modality.example)
        return f"nearfar {words} --out runs/{self.name}"

    def certificate(self) -> Certificate:
        """What the method's number proves on instances nothing was fitted to, networks in evaluation mode,
        for its batch size and INSTANCES instances; while it trains, it proves nothing."""
        settings = replace(self.settings, backbone=self.modality.networks.smallest)
        with torch.device("meta"):
            method = build_method(
                settings, self.modality.reader.example_description(INSTANCES).labelled(CLASSES)
            )
            return method.eval().certificate(
                settings.batch_size,
                self.choices["views"]["count"],
                held_out=True,
                dependent=self.modality.reader.dependence,
            )

    def claims(self) -> str:
        """The certificate in a short line."""
        certificate = self.certificate()
        return f"{certificate.status}: {certificate.summary}"


def base_of(name: str, entries: Mapping[str, Any]) -> str | None:
    """The recipe of which this one differs by its selection alone; None if there is none. Variants of Local
    Aggregation, which is a selection itself, are separate methods."""
    base, _, suffix = name.rpartition("-")
    if base not in entries:
        return None
    base_selection = entries[base].recipe.choices["selection"]["name"]
    selection = entries[name].recipe.choices["selection"]["name"]
    joined = {f"{base_selection}+{suffix}", f"{suffix}+{base_selection}"}
    by_rule = selection in ({suffix} if base_selection == "everyone" else joined)
    return base if by_rule and base_selection != "neighbours" else None


def methods_page(entries: Mapping[str, CompleteRecipe]) -> str:
    """The reference of all methods; its links are relative to docs/."""
    methods = [entry for name, entry in entries.items() if base_of(name, entries) is None]
    variants = [entry for name, entry in entries.items() if base_of(name, entries) is not None]
    overview = [[f"[{m.name}](#{m.name})", m.recipe.about, m.certificate().status] for m in methods]
    blocks = [*_opening(), _table(["method", "what it does", "certificate"], *overview)]
    for entry in methods:
        blocks += _section(entry)
    blocks += [*_variants(variants), *_presets(), *_networks(), *_parts()]
    return "\n\n".join(blocks) + "\n"


def _table(*rows: Sequence[str]) -> str:
    """A table whose first row is its head."""
    return "\n".join(markdown_table([[cell.replace("|", "\\|") for cell in row] for row in rows]))


def _opening() -> Iterator[str]:
    yield "# Methods: reference"
    yield (
        "Every method is one algorithm with five choices: views, encoders, negatives, selection and bound. "
        "A critic scores pairs. `nearfar recipes NAME` shows one method. Any choice can be changed: "
        "`bound=ml-cpc bound.alpha='geometric(10,0.1)'` or `selection=ring selection.lower='linear(0,0.9)'`. "
        "[Choose a method](methods.md) compares them."
    )
    yield (
        "**Symbols.** u is an anchor and v+ its positive. v_k are its K candidates; in the objective, those "
        "that count. x and x' are views of one instance. E is the mean over anchors and pairs of views. "
        "The loss is the ceiling minus the objective. Without a ceiling it is minus the objective."
    )
    yield (
        "**Certificates** say what a method's own number proves about mutual information. They are for "
        f"held-out instances, networks in evaluation mode and data of {INSTANCES:,} instances. A training "
        "value is fitted to its own batches and proves nothing. *Proven*: a lower bound under the condition. "
        "*Measured*: a condition of the proof was measured on some anchors. *Not covered*: there is no "
        "proof. *Objective only*: not an estimate of information. Every run also logs a held-out estimate "
        "that is proven, whatever the method. [Certificates](certificates.md) has the reasons."
    )
    yield "Epochs in schedules are those of a run of 100."


def _section(entry: CompleteRecipe) -> Iterator[str]:
    yield f"## {entry.name}"
    yield entry.recipe.about
    choices = [[choice, f"`{line}`"] for choice, line in describe(entry.choices).items()]
    yield _table(["choice", ""], *choices)
    yield "\n".join(["```text", *equation_lines(equation_of(entry.choices)), "```"])
    certificate = entry.certificate()
    yield f"**{certificate.status.capitalize()}** with batches of {entry.settings.batch_size:,}:"
    clauses = certificate.condition.split("; ")
    clauses += [] if certificate.ceiling is None else [f"ceiling {certificate.ceiling:.4g} nats"]
    yield "\n".join(f"- {clause}" for clause in clauses)
    yield f"```\n{entry.command}\n```"


def equation_lines(equation: Mapping[str, str]) -> list[str]:
    """An equation's lines, what they explain in a column before them."""
    return text_table(list(equation.items()))


def _variants(entries: list[CompleteRecipe]) -> Iterator[str]:
    yield "## Other negatives for any of them"
    yield (
        "Each method with negatives also exists with another selection: `nearfar pretrain moco-ring "
        "photos/ --out runs/moco-ring`. Only the selection differs."
    )
    for selection in dict.fromkeys(entry.name.rpartition("-")[2] for entry in entries):
        variants = [entry for entry in entries if entry.name.endswith(f"-{selection}")]
        yield f"### -{selection}"
        yield f"{variants[0].recipe.about.rpartition(' (on ')[0]}."
        line = describe({"selection": variants[0].choices["selection"]})["selection"]
        yield f"`{line}`, in the equation: {equation_of(variants[0].choices)['who counts']}."
        yield _claims(variants)


def _claims(variants: list[CompleteRecipe]) -> str:
    """What methods under one selection claim, and the settings in which their selections differ."""
    first = variants[0].choices["selection"]
    varying = [key for key in first if len({str(entry.choices["selection"][key]) for entry in variants}) > 1]
    titles = ["selection" if key == "name" else key for key in varying]
    rows = []
    for entry in variants:
        settings, certificate = entry.choices["selection"], entry.certificate()
        claim = f"{certificate.status}: {certificate.condition}"
        rows.append([f"`{entry.name}`", *(str(settings[key]) for key in varying), claim])
    return _table(["method", *titles, "certificate"], *rows)


def _presets() -> Iterator[str]:
    yield "## Presets: the papers' own settings"
    yield (
        "The settings above are ours, for small images and a CPU. `preset=NAME` replaces them by those of a "
        "paper. Your own settings come after the preset: `nearfar pretrain moco-ring photos/ --out runs/a "
        "preset=wu2021 epochs=50`. What a paper does not say stays ours."
    )
    rows = []
    for name, methods in PRESETS.items():
        for method, preset in methods.items():
            rest = "".join(
                f"; {f'`-{suffix}`: ' if suffix else ''}`{words_of(more)}`"
                for suffix, more in preset.by_variant.items()
            )
            settings = f"`{words_of(preset.choices)}`{rest}"
            rows.append([f"`{name}`", f"`{method}`", settings, preset.source])
    yield _table(["preset", "method", "settings", "source"], *rows)


def _networks() -> Iterator[str]:
    yield "## Networks for images"
    yield (
        "`backbone=NAME`, in every recipe. For images of up to 64 pixels the first layer is a 3x3 convolution "
        "with stride 1, without pooling. Weights and features are counted for colour images of 32 pixels."
    )
    yield (
        "torchvision provides `resnet18` to `resnet152`, `resnet50x2` (every layer twice as wide), `vgg11` to "
        "`vgg19`, `mobilenetv2` and `shufflenetv2`. `timm/NAME` is any network of timm, and "
        "`hf/NAME` an image encoder of transformers. The others are "
        "written here: ResNets for CIFAR of 6n + 2 layers (He et al. 2016, sec. 4.2), with `x4` for stages "
        "four times as wide (Tian et al. 2020b). WRN-d-w has 6n + 4 layers (Zagoruyko & Komodakis 2016). "
        "ShuffleNet is that of Zhang et al. 2018. VGG-8 uses torchvision's layers. `resnet8-w16` and `resnet6-w48` are our own."
    )
    yield _table(["name", ""], *([f"`{name}`", about] for name, about in BACKBONES.items()))


def _parts() -> Iterator[str]:
    yield "## Parts"
    yield "The parts of each kind, with their line of the equation. Settings are in braces."
    for choice, parts in PARTS_BY_CHOICE.items():
        yield _table([choice, ""], *([f"`{name}`", f"`{template(part)}`"] for name, part in parts.items()))
