"""A recipe as a function that returns its `Method`, for a loop of one's own."""

from typing import Any

import torch

from nearfar.config.objects import split_objects
from nearfar.config.resolving import resolve
from nearfar.core.method import Method
from nearfar.data import Limits, locate
from nearfar.run.trained import fresh_method

INSTANCES, CLASSES = 1024, 10


def recipe(
    name: str, data: Any = None, *, instances: int = INSTANCES, classes: int = CLASSES, **settings: Any
) -> Method:
    """The method that a recipe names, before its first step: what `pretrain` would train with these settings and objects.

        method = nf.recipe("moco", data=images, backbone=my_module, negatives={"size": 512})
        outcome = method(nf.Batch((view, other), index), progress)    then outcome.loss.backward(), and after the optimiser's step
        method.advance(outcome, progress)

    `data` are anything `open_data` takes, and say what networks are shown; without them, it is small colour pictures (`image_size` or 32
    pixels a side) or what else the recipe is written for, `instances` of them in `classes` classes. Initial weights are a function of `seed`.
    """
    located = None if data is None else locate(data)
    asked = split_objects(name, settings)
    modality = None if located is None else located.modality
    chosen = resolve(asked.recipe, "data", *asked.layers, modality=modality, objects=asked.objects)
    if located is None:
        known = (
            chosen.modality.reader.example_description(instances).resized(chosen.image_size).labelled(classes)
        )
    else:
        options = chosen.modality.reader.options_for(chosen.views, chosen.image_size, None)
        opened = located.open(Limits(), **options)
        known = chosen.modality.reader.describe(opened, chosen.image_size).labelled(*opened.label_range)
    with torch.random.fork_rng(devices=[]):
        return fresh_method(chosen, known, asked.objects)
