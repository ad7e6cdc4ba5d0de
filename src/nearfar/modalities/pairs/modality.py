"""Pairs: two columns of anything, row by row of each other, each seen by a network of its own.

    nearfar pretrain clip pairs:photos.parquet:image,caption --out runs/clip
    nearfar evaluate runs/clip --data pairs:others.parquet:image,caption        retrieval both ways; zero-shot where captions recur

The two sides are views of one instance, so a method's number is about the mutual information of the two columns, and a run's held-out
estimate of it has its certificate. Evaluation's features are those of the first column.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor

from nearfar.config.schema import chosen_views, settable
from nearfar.errors import UserError
from nearfar.modalities.base import Choice, Description, Found, MakeViews, Measure, Modality
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.labels import class_numbers
from nearfar.modalities.pairs.files import (
    LABEL,
    PREFIX,
    SIDES,
    alike,
    decoded,
    kind_of,
    parts_of,
    read_columns,
    side_set,
)
from nearfar.modalities.pairs.scores import retrieval
from nearfar.parts.encoders import InputSpec

NETWORKS = ("both", "both-small")


@dataclass(frozen=True)
class Sides:
    """Two data sets whose rows belong together."""

    first: DataSet
    second: DataSet
    alike: Int[np.ndarray, "pair"]  # a number for each, the same where the second sides are

    def take(self, rows: Int[np.ndarray, "pair"]) -> tuple[Any, Any]:
        return self.first.load(rows), self.second.load(rows)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Pairs(DataSet):
    """Opened pairs: `load` gives what both sides load."""

    modality: ClassVar[str] = "pairs"
    unit: ClassVar[str] = "pairs"

    @property
    def sides(self) -> tuple[DataSet, DataSet]:
        store = self.store
        assert isinstance(store, Sides)
        return store.first, store.second


@dataclass(frozen=True)
class PairsDescription(Description):
    kinds: tuple[str, ...]  # modality of each side
    sides: tuple[str, ...]  # description of each, as JSON

    def of_sides(self) -> tuple[Description, Description]:
        first, second = (
            SIDES[kind].description(json.loads(side))
            for kind, side in zip(self.kinds, self.sides, strict=True)
        )
        return first, second

    def resized(self, size: int | None) -> Self:
        if size is None:
            return self
        sides = tuple(json.dumps(side.resized(size).as_plain()) for side in self.of_sides())
        return replace(self, sides=sides)


@dataclass(frozen=True)
class Both:
    """Both columns; with `augment`, each as its kind is seen in training (crops, windows, noise), text as it stands."""

    augment: bool = True
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.count != 2:
            raise UserError(f"views.count was {self.count}; with pairs it is 2")


def side_choice(kind: str) -> dict[str, Any]:
    """The views' section of one side: one view of its kind."""
    modality = SIDES[kind]
    asked = {"name": modality.default_views} | (
        {"count": 1, "symmetric": False} if modality.many_views else {}
    )
    return modality.check_views(asked)


class BothViews:
    """Row i of both sides; `known` and how they are seen are kept for whoever must make networks for them."""

    def __init__(self, settings: Both, known: PairsDescription, device: torch.device) -> None:
        self.settings, self.known = settings, known
        self.make: list[MakeViews] = []
        for kind, side in zip(known.kinds, known.of_sides(), strict=True):
            modality = SIDES[kind]
            moved = settings.augment and modality.many_views
            self.make.append((modality.views if moved else modality.plain)(side_choice(kind), side, device))

    def __call__(
        self, loaded: tuple[Any, Any], seed: int, epoch: int, index: np.ndarray
    ) -> tuple[Tensor, ...]:
        return tuple(
            make(side, seed + number, epoch, index)[0]
            for number, (make, side) in enumerate(zip(self.make, loaded, strict=True))
        )


class FirstSide:
    """What evaluation's features are of: the first column as it stands."""

    def __init__(self, known: PairsDescription, device: torch.device) -> None:
        (kind, _), (side, _) = known.kinds, known.of_sides()
        self.plain = SIDES[kind].plain(side_choice(kind), side, device)

    def __repr__(self) -> str:
        return f"FirstSide({self.plain!r})"

    def as_views(self, shown: Tensor, count: int) -> tuple[Tensor, ...]:
        return (shown,) * count

    def __call__(
        self, loaded: tuple[Any, Any], seed: int, epoch: int, index: np.ndarray
    ) -> tuple[Tensor, ...]:
        return self.plain(loaded[0], seed, epoch, index)


class PairsModality(Modality):
    name = "pairs"
    unit = "pairs"
    files = "pairs"
    holds = "pairs"
    example = "pairs:photos.parquet:image,caption"
    pipelines = ("both",)
    default_views = "both"
    networks = NETWORKS
    default_network = "both"
    small_network = "both-small"
    smallest_network = "both-small"
    sized = True

    def claims(self, spec: str) -> bool:
        return spec.startswith(PREFIX)

    def options(self, **given: Any) -> Mapping[str, Any]:
        return given

    def opening(self, views: Choice, size: int | None, known: Description | None) -> dict[str, Any]:
        return {"known": known, "image_size": size}

    def open_whole(self, spec: str, options: Mapping[str, Any]) -> Pairs:
        path, columns = parts_of(spec)
        known = options.get("known")
        table = read_columns(path, spec, [name for column in columns for name in column.names])
        values: list[list[Any]] = [
            list(table[column.names[0]])
            if len(column.names) == 1
            else list(zip(*(table[name] for name in column.names), strict=True))
            for column in columns
        ]
        kinds = (
            known.kinds
            if known
            else tuple(kind_of(v, c, spec, path.parent) for v, c in zip(values, columns, strict=True))
        )
        seen = {"image_size": options.get("image_size") or 224}
        sides = [decoded(v, kind, seen, path.parent) for v, kind in zip(values, kinds, strict=True)]
        bad = {**sides[0].bad, **sides[1].bad}
        rows = [row for row in range(len(values[0])) if row not in bad]
        if not rows or len(bad) > 0.5 * len(values[0]):
            first = next(iter(bad.items()), (0, "no rows"))
            raise UserError(
                f"data {spec!r}: {len(bad)} of {len(values[0])} rows cannot be used (row {first[0]}: {first[1]})."
            )
        symbols = [getattr(side, "symbols", None) for side in known.of_sides()] if known else [None, None]
        both = [side_set(side, rows, spec, s, seen) for side, s in zip(sides, symbols, strict=True)]
        labels = table.get(LABEL)
        labelled = (None, ()) if labels is None else class_numbers(np.asarray(labels)[rows], f"data {spec!r}")
        digest = hashlib.sha256("".join(side.fingerprint for side in both).encode())
        digest.update(b"unlabelled" if labelled[0] is None else labelled[0].astype("<i8").tobytes())
        return Pairs(
            name=spec,
            fingerprint=digest.hexdigest(),
            labels=labelled[0],
            classes=labelled[1],
            paths=tuple(f"{path.name}#{row}" for row in rows),
            store=Sides(both[0], both[1], alike(sides[1], rows)),
            rows=np.arange(len(rows)),
            quarantine=tuple((f"{path.name}#{row}", why) for row, why in sorted(bad.items())),
            unlabelled="" if labelled[0] is not None else "the table has no column `label`",
        )

    def collect(self, found: Found, options: Mapping[str, Any]) -> DataSet:
        raise UserError(f"data {found.name!r}: pairs are read from two columns of one table")

    def describe(self, data: Pairs, size: int | None) -> PairsDescription:
        kinds = tuple(side.modality for side in data.sides)
        sides = (
            SIDES[kind].describe(side.subset(data.rows), size)
            for kind, side in zip(kinds, data.sides, strict=True)
        )
        return PairsDescription(
            data.fingerprint, len(data), kinds, tuple(json.dumps(side.as_plain()) for side in sides)
        )

    def typical(self, instances: int) -> PairsDescription:
        kinds = ("vectors", "vectors")
        side = json.dumps(SIDES["vectors"].typical(instances).as_plain())
        return PairsDescription("", instances, kinds, (side, side))

    def description(self, plain: Mapping[str, Any]) -> PairsDescription:
        return PairsDescription.from_plain(plain)

    def check_alike(self, data: Pairs, known: PairsDescription, where: str) -> None:
        for kind, side, of in zip(known.kinds, data.sides, known.of_sides(), strict=True):
            if side.modality != kind:
                raise UserError(f"{data.name} holds {side.modality} where {where} was trained on {kind}")
            SIDES[kind].check_alike(side, of, where)

    def check_views(self, choice: Choice) -> dict[str, Any]:
        return chosen_views(Both, choice)

    def views(self, choice: Choice, known: PairsDescription, device: torch.device) -> BothViews:
        return BothViews(Both(**{key: choice[key] for key in settable(Both)}), known, device)

    def plain(self, choice: Choice, known: PairsDescription, device: torch.device) -> FirstSide:
        return FirstSide(known, device)

    def conflict(self, choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if choices["encoders"]["name"] != "per-view":
            return f"encoders was {choices['encoders']['name']} with views=both: two columns need encoders=per-view, a network for each"
        if choices["negatives"]["name"] not in ("in-batch", "none"):
            return f"negatives was {choices['negatives']['name']} with views=both; pairs are contrasted with those of their batch: use in-batch"
        return None

    def inputs(self, network: str, choice: Choice, known: PairsDescription) -> InputSpec:
        made = []
        for kind, side in zip(known.kinds, known.of_sides(), strict=True):
            modality = SIDES[kind]
            named = modality.default_network if network == "both" else modality.smallest_network
            made.append(modality.inputs(named, side_choice(kind), side))
        # each network has its own view whole: nothing is split by channels afterwards
        return InputSpec(lambda view: made[view].body(0), ((1,), (1,)), {"instances": known.instances})

    def measures(self) -> dict[str, Measure]:
        return {"retrieval": retrieval(self)}

    def pictures(self, loaded: tuple[Any, Any], known: PairsDescription) -> list[Image.Image]:
        return [
            _beside(*both)
            for both in zip(
                *(
                    SIDES[kind].pictures(side, of)
                    for kind, side, of in zip(known.kinds, loaded, known.of_sides(), strict=True)
                ),
                strict=True,
            )
        ]

    def view_pictures(self, views: BothViews, shown: Tensor, known: PairsDescription) -> list[Image.Image]:
        """The first side, which evaluation shows; where the other's view has another shape, that one."""
        return SIDES[known.kinds[0]].view_pictures(views.make[0], shown, known.of_sides()[0])


def _beside(first: Image.Image, second: Image.Image) -> Image.Image:
    height = max(first.height, second.height)
    page = Image.new("RGB", (first.width + second.width, height), "white")
    page.paste(first, (0, 0))
    page.paste(second, (first.width, 0))
    return page


PAIRS = PairsModality()
