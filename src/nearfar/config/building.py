"""From settings to a `Method`: copies of the parts meet the data, and parts are checked against one another.

A part is its settings until its method meets the data. Then `meet` makes its weights and memories: encoders
get what they are shown (`InputSpec`), the other parts the sizes of data and embeddings (`Sizes`).
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from nearfar.config.sections import PARTS_BY_CHOICE, EncoderOrigin, Sections, head_of, structure_of
from nearfar.config.settings import Settings
from nearfar.core.abstract import AbstractEncoders, AbstractViews
from nearfar.core.method import Method
from nearfar.core.types import Sizes
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Description, Modality, modality_of_views
from nearfar.parts.encoders import InputSpec, Network, backbone

NO_OBJECTS: Mapping[str, Any] = {}
Parts = Mapping[str, Any]


def build_method(settings: Settings, data: Description, objects: Parts = NO_OBJECTS) -> Method:
    """The method that settings describe, for data of this description. `objects` are the caller's parts by
    choice, and a `backbone`; they are used as they are, not copied."""
    parts = copy.deepcopy({choice: part for choice, part in settings.parts.items() if choice not in objects})
    encoders = objects.get("encoders")
    width = None
    if encoders is None:
        encoders = parts["encoders"]
        encoders.meet(_inputs(settings, data, objects.get("backbone")))
        width = _scored_width(encoders, settings.encoders)
        if "backbone" not in objects:
            # encoders with their own network have no head, and their settings may have the same names
            head = None if encoders.built_in_backbone else head_of(settings.encoders)
            encoders.origin = EncoderOrigin(settings.backbone, head, structure_of(encoders))
    views = settings.views
    own_views = objects.get("views")
    view_part = own_views if isinstance(own_views, AbstractViews) else settings.parts["views"]
    keys = [pair.key for pair in encoders.pairs(views["count"], views["symmetric"], view_part.key_views)]
    sizes = Sizes(
        instances=data.instances,
        dim=width,
        views=1 + max(keys, default=0),
        classes=data.class_count,
        symbols=encoders.vocabulary_size or 0,
        teacher_width=encoders.teacher_width or 0,
    )
    # in the order of random draws: a prior last, so that it does not change the initial weights of the others
    for choice in ("critic", "negatives", "selection", "bound"):
        if choice not in objects:
            parts[choice].meet(sizes)
    prior = objects.get("prior", parts.get("prior"))
    if prior is not None and "prior" not in objects:
        # a prior reads embeddings before encoders make them wider for scoring
        prior.meet(replace(sizes, dim=encoders.embedding_width or width))
    return Method(
        **{choice: objects.get(choice, parts.get(choice)) for choice in PARTS_BY_CHOICE},
        views=view_part,
        symmetric=views["symmetric"],
        chunk=settings.chunk,
    )


def _inputs(settings: Settings, data: Description, module: nn.Module | None) -> InputSpec:
    """What the networks receive, and how a backbone is made: by this name, or as a copy of the caller's."""
    networks = settings.modality.networks
    inputs = networks.inputs(
        networks.smallest if module is not None else settings.backbone, settings.views, data
    )
    if module is not None:
        inputs = replace(inputs, body=lambda view: copy.deepcopy(module), measure_width=True)
    elif settings.backbone_config is not None:
        shapes, size, name, config = (
            inputs.shapes,
            data.side() or 0,
            settings.backbone,
            settings.backbone_config,
        )
        sides = [shape[1] for shape in shapes]
        inputs = replace(inputs, body=lambda view: backbone(name, shapes[view][0], size, sides, config))
    return replace(
        inputs, context={"classes": data.class_count, "instances": data.instances, **inputs.context}
    )


def _scored_width(encoders: AbstractEncoders, section: Mapping[str, Any]) -> int:
    """The width of anchors and keys: of the encoders, of their network, or as the settings say."""
    if encoders.scored_width is not None:
        return encoders.scored_width
    for network in encoders.view_networks():
        if isinstance(network, Network) and network.dim is not None:
            return network.dim
    return section[encoders.width_setting]


# ---------------------------------------------------------------------------------------------- checking


def check_together(sections: Sections, objects: Parts = NO_OBJECTS) -> None:
    """Refuses parts that would learn nothing together, by what they declare, then by their `conflict`."""
    parts = {
        choice: objects[choice] if choice in objects else kinds[sections[choice]["name"]]
        for choice, kinds in PARTS_BY_CHOICE.items()
    }
    modality = modality_of_views(sections["views"])
    _check_views_fit(sections, parts["encoders"], modality)
    _check_memories(sections, parts)
    _check_prototypes(sections, parts)
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


def _check_prototypes(sections: Sections, parts: Parts) -> None:
    """Some heads have prototypes, and some negatives read them."""
    role, source = sections["encoders"]["name"], sections["negatives"]["name"]
    count, reads = sections["encoders"].get("prototypes", 0), parts["negatives"].gives_codes
    if count and not (reads and parts["encoders"].has_prototypes):
        raise UserError(
            f"encoders.prototypes was {count} with encoders={role} and negatives={source}; prototypes are of "
            "encoders=shared or momentum, and are read by negatives=sinkhorn or centred"
        )
    if reads and not count and "object" not in sections["encoders"]:
        raise UserError(
            f"negatives was {source} without prototypes; set encoders.prototypes, with encoders=shared or momentum"
        )


def _check_scores_bounded(sections: Sections, parts: Parts) -> None:
    """A bound that reads positives alone needs scores that cannot grow without limit."""
    if parts["bound"].needs_bounded_scores and not parts["critic"].bounded_above:
        allowed = [name for name, critic in PARTS_BY_CHOICE["critic"].items() if critic.bounded_above]
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
