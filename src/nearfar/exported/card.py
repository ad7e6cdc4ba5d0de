"""The model card: what the encoder is, what it was trained on, what is proven and measured of it, how to load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nearfar.errors import UserError
from nearfar.evaluate.table import FIGURES, cell, measured
from nearfar.run.folder import RunFolder
from nearfar.run.results import results_of
from nearfar.run.trained import trains_on_labels
from nearfar.system.untrusted import is_number

if TYPE_CHECKING:
    from nearfar.exported.write import Parts

_ROOMS = ("views", "encoders", "negatives", "selection", "bound", "critic", "prior")


def card(parts: Parts, licence: str | None, *, has_loader: bool) -> str:
    """README.md with the hub's YAML header."""
    blocks = [
        _header(parts, licence),
        f"# {_text(parts.run.path.resolve().name)}",
        "\n".join(_what(parts)),
        "## Load it\n\n" + "\n".join(_loading(parts, has_loader)),
        "## How it was trained\n\n" + "\n".join(_trained(parts)),
        "## What is proven\n\n" + "\n".join(_proven(parts)),
        "## Evaluation\n\n" + "\n".join(_evaluated(parts)),
        "## Intended use\n\n" + _use(parts),
        "## Licence\n\n" + _licence(licence),
    ]
    return "\n\n".join(blocks) + "\n"


def _header(parts: Parts, licence: str | None) -> str:
    library = parts.config["architecture"]["library"]
    told: dict[str, Any] = {
        "license": licence or "unknown",
        "library_name": library if library in ("timm", "nearfar") else "pytorch",
        "pipeline_tag": "feature-extraction",
        "tags": [
            "nearfar",
            "supervised" if _labelled(parts) else "self-supervised",
            str(parts.run.settings.recipe),
        ],
    }
    return f"---\n{yaml.safe_dump(told, sort_keys=False)}---"


def _what(parts: Parts) -> Iterator[str]:
    built, data = parts.config["architecture"], parts.config["training"]["data"]
    width = parts.config["features"]
    yield (
        f"A frozen encoder, `{_text(built['name'])}` with {built['parameters']:,} weights, trained {'with' if _labelled(parts) else 'without'} labels by "
        f"`{_text(parts.run.settings.recipe)}` on {data['instances']:,} {parts.run.modality.unit} of {_text(data['name'])}."
    )
    yield f"It takes {_shape(parts.shape)} and gives {width or 'its'} features. Written by nearfar {parts.config['nearfar']}."
    if parts.run.unfinished:
        yield f"\n**Unfinished**: training had reached step {parts.run.facts['step']:,} when this was written."


def _labelled(parts: Parts) -> bool:
    return trains_on_labels(parts.run.method(trained=False))


def _shape(shape: tuple[int, ...]) -> str:
    return f"a batch of shape (n, {', '.join(map(str, shape))})"


def _loading(parts: Parts, has_loader: bool) -> Iterator[str]:
    built = parts.config["architecture"]
    if has_loader:
        yield f"With {', '.join(_needs(parts))} and without nearfar; no key is missing and none is left over:\n"
        yield "```python\nfrom load import encoder, preprocess  # load.py of this folder\n"
        yield "features = encoder()(preprocess(image))  # image: a PIL image, or bytes (channel, height, width)\n```\n"
        if built["differs"]:
            yield f"The network is `{built['python']}`: {built['library']}'s, where {built['differs']}. The classifier that "
            yield "ImageNet models end with was never part of training, so the file has no `fc` or `head` keys.\n"
        yield "Preprocessing, as `config.json` has it under `input`:\n"
        yield (
            "\n".join(
                f"{place}. {step}" for place, step in enumerate(parts.config["input"]["steps"], start=1)
            )
            + "\n"
        )
    elif built["library"] == "own":
        yield f"The weights have the keys of the module they were trained in ({_text(built['name'])}):\n"
        yield "```python\nfrom safetensors.torch import load_file\n"
        yield 'my_module.load_state_dict(load_file("model.safetensors"))\n```\n'
    yield (
        "With nearfar:\n"
        if has_loader or built["library"] == "own"
        else "With nearfar, whose network it is:\n"
    )
    own = ", backbone=my_module" if built["library"] == "own" else ""
    yield f'```python\nimport nearfar as nf\n\nencoder = nf.Encoder.from_pretrained("."{own})  # this folder, or owner/name on the hub\n```'


def _needs(parts: Parts) -> list[str]:
    extra = [line.split()[-1] for line in parts.out.imports if line != "import torchvision"]
    return ["torch", "torchvision", *extra, "safetensors"]


def _trained(parts: Parts) -> Iterator[str]:
    settings, data = parts.run.settings, parts.config["training"]["data"]
    choices = parts.run.choices()
    yield "| choice | |\n|---|---|"
    for room in _ROOMS:
        if choices.get(room, "none") != "none":
            yield f"| {room} | `{_cell(choices[room])}` |"
    yield (
        f"\n{settings.epochs} epochs of batches of {settings.batch_size}, seed {settings.seed}, `{settings.optimizer}`; "
        f"step {parts.run.facts['step']:,}. All settings are in `config.json`."
    )
    yield f"\nData: {_text(data['name'])}, {data['instances']:,} {parts.run.modality.unit} trained on, fingerprint `{data['fingerprint']}`."
    notes = RunFolder(parts.run.path).notes()
    if notes is not None and notes.set_aside:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in notes.set_aside.items())
        yield f"Set aside as unusable: {_text(reasons)}."


def _proven(parts: Parts) -> Iterator[str]:
    try:
        claim = parts.run.certificate()
        yield f"Training objective: **{claim['status']}**. {_text(claim['condition'])}."
        if is_number(claim.get("ceiling")) and f"{claim['ceiling']:.4g} nats" not in claim["condition"]:
            yield f"It can say at most {claim['ceiling']:.4g} nats."
    except UserError as problem:
        yield f"What the objective proves could not be said: {_text(str(problem))}."
    rows = [row for row in parts.run.metrics if row.get("kind") == "held-out" and is_number(row.get("nats"))]
    if not rows:
        yield "\nNo instances were kept out of training, so no estimate of mutual information is proven of it."
        return
    last = max(rows, key=lambda row: row["step"])
    error = f" ± {last['error']:.3g}" if is_number(last.get("error")) else ""
    yield (
        f"\nOn {last.get('instances', '?')} instances kept out of training, two views share {last['nats']:.4g}{error} nats by the "
        f"method's bound: **{_text(str(last.get('status')))}**. {_text(str(last.get('condition')))}."
    )


def _evaluated(parts: Parts) -> Iterator[str]:
    weights = parts.config["weights"]["encoder"]
    found = [one for one in results_of(parts.run.evaluation) if one.get("encoder", weights) == weights]
    if not found:
        yield "Not evaluated. `nearfar evaluate RUN` does it; export again afterwards."
    for result in found:
        train, test = result["train"], result["test"]
        yield (
            f"Tested on **{_text(_set_name(test, result))}** ({test['samples']:,} {test.get('unit', 'items')}, fingerprint "
            f"`{test['fingerprint'][:16]}`), fitted on {_text(_set_name(train, result))} ({train['samples']:,}), "
            f"{_how(result)}:\n"
        )
        yield "| protocol | features | figure | with 95 % interval or ± deviation |\n|---|---|---|---|"
        kinds = {"learned": result, **(result.get("baselines") or {})}
        for kind, figures in kinds.items():
            for protocol, told in measured(figures).items() if isinstance(figures, Mapping) else ():
                for figure, title in FIGURES.items():
                    if is_number(told.get(figure)):
                        yield f"| {_cell(protocol)} | {_cell(kind)} | {title} | {cell(figure, told)} |"
        yield from _told_of_labels(result)
        yield ""
    if found:
        yield (
            "Intervals of accuracies are Wilson's, for test sets of this size; how much other seeds of training would differ is not in "
            "them."
        )


def _how(result: Mapping[str, Any]) -> str:
    """Under which settings, where they are not the usual ones."""
    told = result.get("settings")
    said = (
        [f"{_text(key)} {_text(value)}" for key, value in told.items()] if isinstance(told, Mapping) else []
    )
    return ", ".join(["frozen features but where a protocol fine-tunes", *said])


def _told_of_labels(result: Mapping[str, Any]) -> Iterator[str]:
    """What is proven of the label, where it was asked."""
    found = result.get("information")
    least = found.get("at_least") if isinstance(found, Mapping) else None
    claim = least.get("certificate") if isinstance(least, Mapping) else None
    if isinstance(least, Mapping) and isinstance(claim, Mapping) and is_number(least.get("nats")):
        yield (
            f"\nThe features tell at least {least['nats']:.3f} nats about the label: **{_text(claim.get('status'))}**. "
            f"{_text(claim.get('condition'))}."
        )


def _set_name(told: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """A set by its last name, or as a part of one: no path of a home folder goes out into the world."""
    split = result.get("split")
    whole = str(split["of"]) if isinstance(split, Mapping) and "of" in split else ""
    if whole and whole in told["name"]:
        return str(told["name"]).replace(whole, public_name(whole))
    return public_name(str(told["name"]))


def _use(parts: Parts) -> str:
    unit, name = parts.run.modality.unit, _text(parts.config["training"]["data"]["name"])
    return (
        f"Features for search, clustering, classification with few labels and transfer, on {unit} like those of {name}. It has learned what its "
        f"views keep: differences that they hide (such as crops or colours, see above) may be absent from the features. On other {unit} "
        "evaluate before you rely on it. It makes no decisions about people, and was tested for none."
    )


def _licence(licence: str | None) -> str:
    if licence:
        return f"{_text(licence)}, as stated by whoever exported this. The licence of the training data may restrict use further."
    return "Not stated: set `license:` in the header above, or export with `--license ID`, before you publish this."


def _text(said: Any) -> str:
    """Names as text: what Markdown or HTML would take for markup is escaped."""
    plain = " ".join(str(said).split())[:500]
    return "".join(f"\\{sign}" if sign in r"\`*_[]<>#|" else sign for sign in plain)


def _cell(said: Any) -> str:
    return " ".join(str(said).split()).replace("|", "\\|").replace("`", "'")[:300]


def public_name(data: str) -> str:
    """Data by their last name: a card goes out into the world, a home folder does not."""
    return Path(data).name if "/" in data or "\\" in data else data
