"""From sections to a `Method`: parts are built here, and checked against one another.

A part's constructor gets its settings, and by name what else it takes from the context: `dim` (width of what
is scored), `instances`, `classes` (where there are labels), `data` (their description), `views` (groups of
keys), and what the modality knows (`samples`, `symbols`, …).
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nearfar.config.schema import settable
from nearfar.config.sections import (
    ROOMS,
    EncoderOrigin,
    Section,
    Sections,
    head_of,
    role_settings,
    structure_of,
)
from nearfar.core.abstract import AbstractEncoders, AbstractViews
from nearfar.core.method import Method
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Description, Modality, modality_of_views
from nearfar.parts.encoders import InputSpec, Network

NONE: Mapping[str, Any] = {}
Parts = Mapping[str, Any]


def build_method(
    sections: Sections,
    *,
    backbone: str,
    data: Description,
    chunk: int | None = None,
    objects: Parts = NONE,
) -> Method:
    """The method that checked sections describe, for data of this description. `objects` are the caller's
    parts by choice, and a `backbone`; they are used as they are, not copied."""
    views, section = objects.get("views"), sections["views"]
    if not isinstance(views, AbstractViews):
        views = modality_of_views(section).views.of(section)
    parts = _build_parts(sections, backbone, data, objects)
    return Method(**parts, views=views, symmetric=section["symmetric"], chunk=chunk)


def _build_parts(sections: Sections, backbone: str, data: Description, objects: Parts) -> dict[str, Any]:
    inputs = _inputs(sections, backbone, data, objects.get("backbone"))
    context = {"data": data, "instances": data.instances, **inputs.context}
    encoders = objects.get("encoders")
    if encoders is None:
        encoders = _build_encoders(sections["encoders"], inputs, context)
        if "backbone" not in objects:
            # encoders with their own network have no head, and their settings may have the same names
            head = None if encoders.built_in_backbone else head_of(sections["encoders"])
            encoders.origin = EncoderOrigin(backbone, head, structure_of(encoders))
        context["dim"] = _scored_width(encoders, sections["encoders"])
    if encoders.vocabulary_size is not None:
        context["symbols"] = encoders.vocabulary_size
    if encoders.teacher_width is not None:
        context["teacher_width"] = encoders.teacher_width
    views = sections["views"]
    keys = [pair.key for pair in encoders.pairs(views["count"], views["symmetric"])]
    context["views"] = 1 + max(keys, default=0)
    # a prior reads embeddings before encoders make them wider for scoring
    prior_width = {} if encoders.embedding_width is None else {"dim": encoders.embedding_width}
    parts = {"encoders": encoders}
    # in the order of random draws: a prior last, so that it does not change the initial weights of the others
    for choice in ("critic", "negatives", "selection", "bound", "prior"):
        if choice in objects:
            parts[choice] = objects[choice]
        else:
            part = ROOMS[choice][sections[choice]["name"]]
            parts[choice] = build_part(
                part, sections[choice], {**context, **prior_width} if choice == "prior" else context
            )
    return parts


def _inputs(sections: Sections, backbone: str, data: Description, module: nn.Module | None) -> InputSpec:
    """What the networks receive, and how a backbone is made: of this name, or a copy of the caller's
    module."""
    networks, views = modality_of_views(sections["views"]).networks, sections["views"]
    inputs = networks.inputs(networks.smallest if module is not None else backbone, views, data)
    if module is not None:
        inputs = replace(inputs, body=lambda view: copy.deepcopy(module), measure_width=True)
    return replace(inputs, context={"classes": data.class_count, **inputs.context})


def _build_encoders(section: Section, inputs: InputSpec, context: Mapping[str, Any]) -> AbstractEncoders:
    encoders = ROOMS["encoders"][section["name"]]
    if encoders.built_in_backbone is not None:
        return build_part(encoders, section, context)
    return encoders.from_config(head_of(section), inputs, **role_settings(section))


def _scored_width(encoders: AbstractEncoders, section: Section) -> int:
    """The width of anchors and keys: that of the encoders, of their network, or of the setting that says
    it."""
    if encoders.scored_width is not None:
        return encoders.scored_width
    for network in encoders.view_networks():
        if isinstance(network, Network) and network.dim is not None:
            return network.dim
    return section[encoders.width_setting]


def build_part(part: Callable[..., Any], section: Section, context: Mapping[str, Any]) -> Any:
    """A part with its settings and what else its constructor takes from the context."""
    settings = {key: section[key] for key in settable(part)}
    for name in _required(part):
        if name not in context:
            raise UserError(
                f"{section['name']} needs `{name}`, which is not available; available: {', '.join(context)}"
            )
    names = [name for name in inspect.signature(part).parameters if name not in settings]
    return part(**settings, **{name: context[name] for name in names if name in context})


def _required(part: Callable[..., Any]) -> list[str]:
    """The parameters of a part without a default: what the context must hold."""
    parameters = inspect.signature(part).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


# ---------------------------------------------------------------------------------------------- checking


def check_parts(sections: Sections, objects: Parts = NONE) -> None:
    """Lets every part check its settings. Networks and memories are not made; a part that needs sizes gets
    small ones, on torch's meta device."""
    example = modality_of_views(sections["views"]).reader.example_description(instances=1)
    sizes = {"dim": 2, "instances": 1, "views": 1, "symbols": 2, "classes": 2, "data": example}
    with torch.device("meta"):
        for choice, kinds in ROOMS.items():
            if choice in objects:
                continue
            part, section = kinds[sections[choice]["name"]], sections[choice]
            if choice == "encoders" and part.built_in_backbone is None:
                part(head_of(section), **role_settings(section))
            else:
                build_part(part, section, {name: sizes[name] for name in _required(part) if name in sizes})


def check_together(sections: Sections, objects: Parts = NONE) -> None:
    """Refuses parts that would learn nothing together: by what parts declare, then by each part's
    `conflict`."""
    parts = {
        choice: objects[choice] if choice in objects else kinds[sections[choice]["name"]]
        for choice, kinds in ROOMS.items()
    }
    modality = modality_of_views(sections["views"])
    _check_views_fit(sections, parts["encoders"], modality)
    _check_memories(sections, parts)
    _check_scores_bounded(sections, parts)
    _check_directions(sections, parts)
    for part in (modality.views, *(part for part in parts.values() if part is not None)):
        reason = part.conflict(sections, parts)
        if reason:
            raise UserError(reason)
    _check_positives_differ(sections, parts)  # last: its remedy assumes that all else fits


def _check_views_fit(sections: Sections, encoders: Any, modality: Modality) -> None:
    """Some encoders are made for certain views; the others take several views of one instance."""
    views, expected = sections["views"], encoders.view_names
    pair = f"encoders was {sections['encoders']['name']} with views={views['name']}"
    if expected:
        if views["name"] not in expected:
            raise UserError(f"{pair}; it takes views={' or '.join(expected)}")
        if encoders.view_count not in (None, views["count"]):
            raise UserError(
                f"views.count was {views['count']}; with encoders={sections['encoders']['name']} it is "
                f"{encoders.view_count}"
            )
        return
    names = {*(modality.networks.names if encoders.backbone_names is None else encoders.backbone_names)}
    if not names & {*modality.networks.names}:
        homes = [home.plural for home in MODALITIES.values() if names & {*home.networks.names}]
        raise UserError(f"{pair}; it is for {' and '.join(homes)}, and these views are for {modality.plural}")
    if not modality.views.several:
        raise UserError(
            f"{pair}; it takes several views of one instance, and there is one view of {modality.plural}"
        )


def _check_positives_differ(sections: Sections, parts: Parts) -> None:
    """A positive is another view, or what a bank or the encoders remember of the instance."""
    one_view = parts["negatives"].remembers_positives or parts["encoders"].works_with_one_view
    if sections["views"]["count"] == 1 and not one_view:
        raise UserError(
            f"views.count was 1 with negatives={sections['negatives']['name']}: a view's positive would be "
            "itself; use views.count=2 or negatives=bank"
        )


def _check_memories(sections: Sections, parts: Parts) -> None:
    """A memory of each instance needs encoders whose rows are instances."""
    if not parts["encoders"].keys_are_symbols:
        return
    for choice in ("negatives", "selection"):
        if parts[choice].remembers_instances:
            raise UserError(
                f"{choice}={sections[choice]['name']} remembers something of each instance, but the keys of "
                f"encoders={sections['encoders']['name']} are symbols or classes, which belong to none; use "
                "negatives=in-batch, queue or dictionary with selection=everyone, ring or ball"
            )


def _check_scores_bounded(sections: Sections, parts: Parts) -> None:
    """A bound that reads positives alone needs scores that cannot grow without limit."""
    if parts["bound"].needs_bounded_scores and not parts["critic"].bounded_above:
        allowed = [name for name, critic in ROOMS["critic"].items() if critic.bounded_above]
        raise UserError(
            f"bound was {sections['bound']['name']} with critic={sections['critic']['name']}: it reads "
            "positives alone, and these scores grow without limit as the embeddings do; use "
            f"critic={' or '.join(allowed)}, or a bound with negatives"
        )


def _check_directions(sections: Sections, parts: Parts) -> None:
    """Directions need two dimensions."""
    unit = sections["critic"].get("unit", parts["critic"].unit)
    if unit is True and sections["encoders"].get("dim") == 1:
        raise UserError(
            f"encoders.dim was 1 with critic={sections['critic']['name']}: vectors of unit length on a line "
            "are 1 and -1, and no gradient moves them; use encoders.dim from 2, or critic=dot"
        )
