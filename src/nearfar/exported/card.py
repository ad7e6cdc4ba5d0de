"""The model card: the encoder, its training data, certificate, evaluation and how to load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nearfar.core.results import Result, SetFacts, display_name
from nearfar.core.tables import markdown_table
from nearfar.errors import UserError, counted
from nearfar.evaluate.table import in_order
from nearfar.exported.load import libraries
from nearfar.run.folder import RunFolder
from nearfar.run.trained import trains_on_labels
from nearfar.system.untrusted import is_number

if TYPE_CHECKING:
    from nearfar.exported.write import ExportParts

_CHOICES = ("views", "encoders", "negatives", "selection", "bound", "critic", "prior")


def card(parts: ExportParts, licence: str | None, *, has_loader: bool) -> str:
    """Returns README.md with the YAML header of the Hugging Face hub."""
    blocks = [
        _header(parts, licence),
        f"# {_escape(parts.run.path.resolve().name)}",
        "\n".join(_summary(parts)),
        "## Load it\n\n" + "\n".join(_loading(parts, has_loader)),
        "## How it was trained\n\n" + "\n".join(_training(parts)),
        "## What is proven\n\n" + "\n".join(_certificate(parts)),
        "## Evaluation\n\n" + "\n".join(_evaluation(parts)),
        "## Intended use\n\n" + _use(parts),
        "## Licence\n\n" + _licence(licence),
    ]
    return "\n\n".join(blocks) + "\n"


def _header(parts: ExportParts, licence: str | None) -> str:
    library = parts.config["architecture"]["library"]
    header: dict[str, Any] = {
        "license": licence or "unknown",
        "library_name": library if library in ("timm", "nearfar") else "pytorch",
        "pipeline_tag": "feature-extraction",
        "tags": [
            "nearfar",
            "supervised" if _labelled(parts) else "self-supervised",
            str(parts.run.settings.recipe),
        ],
    }
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---"


def _summary(parts: ExportParts) -> Iterator[str]:
    built, data = parts.config["architecture"], parts.config["training"]["data"]
    width = parts.config["features"]
    yield (
        f"A frozen encoder, `{_escape(built['name'])}` with {built['parameters']:,} weights, trained "
        f"{'with' if _labelled(parts) else 'without'} labels by `{_escape(parts.run.settings.recipe)}` on "
        f"{counted(data['instances'], parts.run.modality.unit)} of {_escape(data['name'])}."
    )
    yield f"It takes {_shape(parts.shape)} and gives {width or 'its'} features. Written by nearfar {parts.config['nearfar']}."
    if parts.run.unfinished:
        yield f"\n**Unfinished**: training had reached step {parts.run.facts['step']:,} when this was written."


def _labelled(parts: ExportParts) -> bool:
    return trains_on_labels(parts.run.method(trained=False))


def _shape(shape: tuple[int, ...]) -> str:
    return f"a batch of shape (n, {', '.join(map(str, shape))})"


def _loading(parts: ExportParts, has_loader: bool) -> Iterator[str]:
    built = parts.config["architecture"]
    if has_loader:
        yield f"With {', '.join(libraries(parts.out))} and without nearfar; no key is missing or unused:\n"
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
        yield f"The weights have the keys of the module they were trained in ({_escape(built['name'])}):\n"
        yield "```python\nfrom safetensors.torch import load_file\n"
        yield 'my_module.load_state_dict(load_file("model.safetensors"))\n```\n'
    yield (
        "With nearfar:\n"
        if has_loader or built["library"] == "own"
        else "With nearfar, whose network it is:\n"
    )
    argument = ", backbone=my_module" if built["library"] == "own" else ""
    yield f'```python\nimport nearfar as nf\n\nencoder = nf.Encoder.from_pretrained("."{argument})  # this folder, or owner/name on the hub\n```'


def _training(parts: ExportParts) -> Iterator[str]:
    settings, data = parts.run.settings, parts.config["training"]["data"]
    choices = parts.run.choices()
    rows = [[kind, f"`{_cell(choices[kind])}`"] for kind in _CHOICES if choices.get(kind, "none") != "none"]
    yield from markdown_table([["choice", ""], *rows])
    yield (
        f"\n{counted(settings.epochs, 'epochs')} of batches of {settings.batch_size}, seed {settings.seed}, "
        f"`{settings.optimizer}`; step {parts.run.facts['step']:,}. All settings are in `config.json`."
    )
    yield f"\nData: {_escape(data['name'])}, {counted(data['instances'], parts.run.modality.unit)} trained on, fingerprint `{data['fingerprint']}`."
    notes = RunFolder(parts.run.path).notes()
    if notes is not None and notes.set_aside:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in notes.set_aside.items())
        yield f"Set aside as unusable: {_escape(reasons)}."


def _certificate(parts: ExportParts) -> Iterator[str]:
    try:
        claim = parts.run.certificate()
        yield f"Training objective: **{claim['status']}**. {_escape(claim['condition'])}."
        if is_number(claim.get("ceiling")) and f"{claim['ceiling']:.4g} nats" not in claim["condition"]:
            yield f"Its ceiling is {claim['ceiling']:.4g} nats."
    except UserError as problem:
        yield f"The certificate could not be computed: {_escape(str(problem))}."
    rows = [row for row in parts.run.metrics if row.get("kind") == "held-out" and is_number(row.get("nats"))]
    if not rows:
        yield "\nNo instances were held out, so there is no proven estimate of mutual information."
        return
    last = max(rows, key=lambda row: row["step"])
    error = f" ± {last['error']:.3g}" if is_number(last.get("error")) else ""
    yield (
        f"\nOn {last.get('instances', '?')} instances kept out of training, two views share "
        f"{last['nats']:.4g}{error} nats by the "
        f"method's bound: **{_escape(str(last.get('status')))}**. {_escape(str(last.get('condition')))}."
    )


def _evaluation(parts: ExportParts) -> Iterator[str]:
    weights = parts.config["weights"]["encoder"]
    results = [result for result in parts.run.results if result.encoder in ("", weights)]
    if not results:
        yield "Not evaluated. `nearfar evaluate RUN` does it; export again afterwards."
    for result in results:
        train, test = result.train, result.test
        yield (
            f"Tested on **{_escape(_set_name(test, result))}** ({test.samples:,} {_escape(test.unit)}, "
            f"fingerprint `{_escape(test.fingerprint[:16])}`), fitted on {_escape(_set_name(train, result))} "
            f"({train.samples:,}), {_settings_line(result)}:\n"
        )
        head = ["protocol", "features", "figure", "with 95 % interval or ± deviation"]
        rows = [
            [_cell(display_name(path)), _cell(kind), title, figures[path].text(figure)]
            for kind, figures in {"learned": result.figures, **result.baselines}.items()
            for path in in_order(figures)
            for figure, title in figures[path].titles().items()
        ]
        yield from markdown_table([head, *rows])
        yield from _told_of_labels(result)
        yield ""
    if results:
        yield (
            "Intervals of accuracies are Wilson's, for test sets of this size; how much other seeds of "
            "training would differ is not in them."
        )


def _settings_line(result: Result) -> str:
    """The settings of an evaluation."""
    items = [f"{_escape(key)} {_escape(value)}" for key, value in result.settings.items()]
    return ", ".join(["frozen features, except for fine-tuning protocols", *items])


def _told_of_labels(result: Result) -> Iterator[str]:
    """What is proven of the label, if it was computed."""
    information = result.figures.get("information")
    lower = None if information is None else information.details.get("at_least")
    claim = lower.get("certificate") if isinstance(lower, Mapping) else None
    if isinstance(lower, Mapping) and isinstance(claim, Mapping) and is_number(lower.get("nats")):
        yield (
            f"\nThe features tell at least {lower['nats']:.3f} nats about the label: "
            f"**{_escape(claim.get('status'))}**. {_escape(claim.get('condition'))}."
        )


def _set_name(data_set: SetFacts, result: Result) -> str:
    """A set by its last name, or as a part of one: no path of a home folder goes out into the world."""
    split = result.notes.get("split")
    source = str(split["of"]) if isinstance(split, Mapping) and "of" in split else ""
    if source and source in data_set.name:
        return data_set.name.replace(source, public_name(source))
    return public_name(data_set.name)


def _use(parts: ExportParts) -> str:
    unit, name = parts.run.modality.unit, _escape(parts.config["training"]["data"]["name"])
    return (
        f"Features for search, clustering, classification with few labels and transfer, on {unit} like those "
        f"of {name}. It has learned what its views keep: differences that they remove (such as crops or "
        f"colours, see above) may be missing from the features. On other {unit} evaluate before you rely on "
        "it. It was not tested for decisions about people."
    )


def _licence(licence: str | None) -> str:
    if licence:
        return f"{_escape(licence)}, as stated at export. The licence of the training data may restrict use further."
    return "Not stated: set `license:` in the header above, or export with `--license ID`, before you publish this."


def _escape(value: Any) -> str:
    """Escapes Markdown and HTML markup."""
    text = " ".join(str(value).split())[:500]
    return "".join(f"\\{sign}" if sign in r"\`*_[]<>#|" else sign for sign in text)


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|").replace("`", "'")[:300]


def public_name(data: str) -> str:
    """Returns the last component of a path, so that a card does not reveal local folders."""
    return Path(data).name if "/" in data or "\\" in data else data
