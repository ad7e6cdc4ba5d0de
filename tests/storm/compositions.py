"""Random compositions of parts on every kind of data: refused in a sentence, or finite, the same bits when
resumed, the same numbers tile by tile (`chunk`) and by two ranks.

Chunks and ranks are compared in float64, where rounding is some 1e-15 and a mistake of order one.
"""

import functools
import math
import random
from pathlib import Path
from typing import Any

import torch

from nearfar.config.resolving import resolve
from nearfar.core.strategy import SINGLE
from nearfar.data.open import Located, locate
from nearfar.errors import UserError
from nearfar.modalities import DataSet
from nearfar.run.trained import check_kind
from nearfar.train.equality import compare, make_data, trajectory
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from nearfar.train.step import take_step
from tests.core.test_core_compositions import WRITERS, draw_composition
from tests.storm.places import lasting

KINDS = ("images", "images", "images", "recordings", "vectors", "texts")
ROUNDING = 1e-8  # relative, after a step of a small network
BY_RANKS = 12  # compositions that one pair of processes tries


@functools.cache
def located(kind: str) -> Located:
    return locate(WRITERS[kind](lasting("data")))


@functools.cache
def opened(kind: str, options: tuple[tuple[str, Any], ...]) -> DataSet:
    from nearfar.data.source import Limits

    return located(kind).open(Limits(), **dict(options))


def open_session(recipe: str, layer: dict[str, Any], kind: str, precision: torch.dtype) -> Session:
    settings = resolve(recipe, located(kind).name, layer, modality=located(kind).modality)
    check_kind(settings, located(kind))
    options = settings.modality.reader.options_for(settings.views, settings.image_size, None)
    data = opened(kind, tuple(options.items()))
    description = describe_data(data, settings, None, False)
    session = Session(settings, data, description, torch.device("cpu"), precision)
    session.prefill()
    return session


def losses_of(session: Session, first: int, last: int) -> list[float]:
    batches = session.stream.batches(first, last)
    return [take_step(session, session.to_device(batch)).loss for batch in batches]


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    torch.set_num_threads(1)
    if rng.random() < 0.02:
        return by_ranks(rng, place)
    kind = rng.choice(KINDS)
    recipe, layer = draw_composition(rng, kind)
    one = {"compositions": 1}
    session = open_session(recipe, layer, kind, torch.float32)
    losses = losses_of(session, 0, 2)
    if not all(map(math.isfinite, losses)):
        raise AssertionError(f"{recipe} {layer}: {losses}")
    tensors, facts = session.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    third = losses_of(session, 2, 3)
    resumed = open_session(recipe, layer, kind, torch.float32)
    resumed.restore(tensors, facts)
    resumed.restore_hooks(tensors, facts)
    assert losses_of(resumed, 2, 3) == third, (recipe, layer)
    ours, theirs = session.state()[0], resumed.state()[0]
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == [], (recipe, layer)
    if rng.random() < 0.5:
        return "resumed bit-equal", one
    compare_chunks(recipe, layer, kind, rng)
    return "resumed bit-equal, chunked equal", one


def compare_chunks(recipe: str, layer: dict[str, Any], kind: str, rng: random.Random) -> None:
    """The loss of the first step, and every weight after it, with and without tiles."""
    results = []
    for chunk in ("none", rng.choice([1, 2, 5, 100])):
        session = open_session(recipe, {**layer, "chunk": chunk}, kind, torch.float64)
        loss = losses_of(session, 0, 1)
        results.append((loss[0], torch.cat([w.detach().reshape(-1) for w in session.method.parameters()])))
    (dense, weights), (tiled, tiled_weights) = results
    assert abs(dense - tiled) <= ROUNDING * max(1.0, abs(dense)), (recipe, layer, dense, tiled)
    scale = max(1.0, float(weights.abs().max()))
    # an optimiser that divides a gradient by its own size makes a sign of rounding where the gradient is
    # zero: few such
    share = ((weights - tiled_weights).abs() > 1e-6 * scale).double().mean()
    assert float(share) < 0.01, (recipe, layer, float(share))


def by_ranks(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    """Compositions that one process can step with, by two: loss, gradient and weights."""
    make_data(place)
    cases: dict[str, dict[str, Any]] = {}
    tried = 0
    while len(cases) < BY_RANKS:
        tried += 1
        recipe, layer = draw_composition(rng, "images")
        settings = {
            key: value
            for key, value in layer.items()
            if key not in ("epochs", "batch_size", "workers", "held_out", "precision")
        }
        settings |= {"recipe": recipe, "optimizer": "sgd", "lr": 0.01}
        try:
            single = trajectory(settings, place, SINGLE, 1, torch.float64, 16)
        except UserError:
            continue
        if all(map(math.isfinite, single.losses)) and bool(single.gradient.isfinite().all()):
            cases[f"{recipe} {settings}"] = settings
    comparison = compare(2, cases, steps=1)
    for name, differences in comparison.items():
        assert max(differences.values()) < ROUNDING, (name, differences)
    return "two ranks equal one", {"compositions": tried}
