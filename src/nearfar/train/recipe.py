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
    """The untrained method of a recipe: what `pretrain` would train with these settings and objects.

        method = nf.recipe("moco", data=images, backbone=my_module, negatives={"size": 512})
        outcome = method(nf.Batch((view, other), index), progress)    then outcome.loss.backward(), and after the optimiser's step
        method.advance(outcome, progress)

    `data` are anything `open_data` takes, and say what networks are shown; without them, it is small colour
    pictures (`image_size` or 32 pixels a side) or what else the recipe is written for, `instances` of them in
    `classes` classes. Initial weights are a function of `seed`.
    """
    located = None if data is None else locate(data)
    request = split_objects(name, settings)
    modality = None if located is None else located.modality
    resolved = resolve(request.recipe, "data", *request.layers, modality=modality, objects=request.objects)
    if located is None:
        description = (
            resolved.modality.reader.example_description(instances)
            .resized(resolved.image_size)
            .labelled(classes)
        )
    else:
        options = resolved.modality.reader.options_for(resolved.views, resolved.image_size, None)
        data_set = located.open(Limits(), **options)
        description = resolved.modality.reader.describe(data_set, resolved.image_size).labelled(
            *data_set.label_range
        )
    with torch.random.fork_rng(devices=[]):
        return fresh_method(resolved, description, request.objects)
