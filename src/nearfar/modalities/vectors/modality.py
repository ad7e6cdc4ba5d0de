"""Vectors: rows of a table of numbers, seen with noise and with features left out by a small MLP.

    nearfar pretrain simclr table.csv --out runs/table          also Parquet, an .npz with `x`, an array (n, width)

Every feature is brought to mean 0 and deviation 1 first, so that noise and a feature left out (put at its mean) mean the
same for all of them. This file and a line in `MODALITIES` are all there is to the modality.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32, Int
from PIL import Image
from scipy.special import ndtri
from torch import Tensor, nn

from nearfar.config.schema import chosen_views, settable
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError
from nearfar.modalities.base import Arrays, Choice, Decoded, Description, Features, Found, MakeViews, Modality
from nearfar.modalities.dataset import DataSet, Unusable
from nearfar.modalities.showing import heat, plain_views
from nearfar.parts.encoders import InputSpec

WIDTHS = {"mlp": 256, "mlp-small": 64}


@dataclass(frozen=True)
class Rows:
    """Vectors in one array."""

    array: Float32[np.ndarray, "item width"]

    def take(self, rows: Int[np.ndarray, "item"]) -> Float32[np.ndarray, "item width"]:
        return self.array[rows]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Vectors(DataSet):
    """An opened table: `load` gives its rows."""

    modality: ClassVar[str] = "vectors"
    unit: ClassVar[str] = "vectors"

    width: int


@dataclass(frozen=True)
class VectorsDescription(Description):
    mean: tuple[float, ...]  # of each feature
    std: tuple[float, ...]


@dataclass(frozen=True)
class Corrupt:
    """`count` views: every feature with Gaussian noise of deviation `noise`, each left out with chance `dropout`."""

    noise: float = 0.3
    dropout: float = 0.2
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.noise < 0:
            raise UserError(f"views.noise was {self.noise:g}; it must be at least 0")
        if not 0 <= self.dropout < 1:
            raise UserError(f"views.dropout was {self.dropout:g}; it must lie in [0, 1)")
        if not 1 <= self.count <= 16:
            raise UserError(f"views.count was {self.count}; expected a whole number from 1 to 16")


class Standard:
    """Rows with every feature at mean 0 and deviation 1: what evaluation sees."""

    def __init__(self, known: VectorsDescription, device: torch.device) -> None:
        self.mean, self.std, self.device = np.array(known.mean), np.array(known.std), device

    def __repr__(self) -> str:
        return f"Standard({self.mean.tolist()}, {self.std.tolist()})"

    def as_views(self, shown: Tensor, count: int) -> tuple[Tensor, ...]:
        return (shown,) * count

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return (self._tensor((loaded - self.mean) / self.std),)

    def _tensor(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)


class Corrupted(Standard):
    """What training sees: view v of row i in epoch e is a function of (seed, e, i, v) and the row."""

    def __init__(self, settings: Corrupt, known: VectorsDescription, device: torch.device) -> None:
        super().__init__(known, device)
        self.settings = settings

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        standard = (loaded - self.mean) / self.std
        return tuple(
            self._tensor(self._corrupted(standard, uniforms(seed, epoch, index, view, 2 * loaded.shape[1])))
            for view in range(self.settings.count)
        )

    def _corrupted(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        kept, chance = np.split(draws, 2, axis=1)
        # the normal quantile of a uniform draw; 0 has none, and no draw is 1
        noise = ndtri(np.maximum(chance, np.finfo(np.float64).tiny))
        return np.where(kept < self.settings.dropout, 0.0, rows + self.settings.noise * noise)


class MLP(nn.Module):
    """Two hidden layers with batch norm."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dim = width
        layers = [
            layer
            for size in (inputs, width)
            for layer in (nn.Linear(size, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def single_precision(array: np.ndarray, name: str) -> np.ndarray:
    """Rows of numbers as networks take them; one that holds another number than a finite one gets a sentence."""
    with np.errstate(over="ignore"):
        rows = array.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        place = np.flatnonzero(~np.isfinite(rows[bad[0]]))[0]
        beyond = "beyond single precision" if np.isfinite(array[bad[0], place]) else "not finite"
        raise UserError(
            f"data {name!r}: row {bad[0]} holds a number that is {beyond} ({len(bad)} such rows); fill or drop them."
        )
    return rows


class VectorsModality(Modality):
    name = "vectors"
    unit = "vectors"
    files = "vectors"
    holds = "vectors"
    example = "table.csv"
    key = "x"
    axes = (2,)
    pipelines = ("corrupt",)
    default_views = "corrupt"
    networks: ClassVar[tuple[str, ...]] = tuple(WIDTHS)
    default_network = "mlp"
    smallest_network = "mlp-small"
    baseline_titles: ClassVar[Mapping[str, str]] = {"numbers": "the numbers themselves"}

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        if not isinstance(item, Tensor | np.ndarray) or item.ndim != 1:
            return None
        row = np.asarray(item)
        if row.dtype.kind in "iufb":
            with np.errstate(over="ignore"):
                row = row.astype(np.float32)
        if row.dtype != np.float32 or not np.isfinite(row).all():
            raise Unusable("not a row of finite numbers in single precision")
        return Decoded(row, row.shape, row.nbytes)

    def odd(self, facts: Sequence[Any]) -> dict[int, str]:
        widths = [width for (width,) in facts]
        usual = max(sorted(set(widths)), key=widths.count, default=0)
        return {n: f"{w} numbers, where most have {usual}" for n, w in enumerate(widths) if w != usual}

    def collect(self, found: Found, options: Mapping[str, Any]) -> Vectors:
        rows = found.held or [found.read(place) for place in range(len(found.paths))]
        return Vectors(**found.common(), store=Rows(np.stack(rows)), width=len(rows[0]))

    def from_array(self, given: Arrays, name: str, options: Mapping[str, Any]) -> Vectors:
        array, labelled, paths = given.array, given.labelled, given.paths
        if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iufb":
            raise UserError(
                f"data {name!r}: x is {array.dtype} of shape {array.shape}; expected numbers of shape (rows, features)."
            )
        rows = single_precision(array, name)
        labels, classes = labelled
        if labels is not None and len(labels) != len(rows):
            raise UserError(f"data {name!r}: {len(rows)} rows but {len(labels)} labels; give one for each.")
        digest = hashlib.sha256(repr(rows.shape).encode() + np.ascontiguousarray(rows).tobytes())
        digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
        return Vectors(
            name=name,
            fingerprint=digest.hexdigest(),
            labels=labels,
            classes=classes,
            paths=tuple(paths or (f"{name}#{row}" for row in range(len(rows)))),
            store=Rows(rows),
            rows=np.arange(len(rows)),
            width=rows.shape[1],
            unlabelled="" if labels is not None else "the table has no column `label` and no array `labels`",
        )

    def describe(self, data: Vectors, size: int | None) -> VectorsDescription:
        rows = data.load(np.arange(len(data))).astype(np.float64)
        std = rows.std(axis=0)
        std = np.where(std > 0, std, 1.0)  # a feature that never varies is only shifted
        return VectorsDescription(
            data.fingerprint, len(data), tuple(rows.mean(axis=0).tolist()), tuple(std.tolist())
        )

    def typical(self, instances: int) -> VectorsDescription:
        return VectorsDescription("", instances, (0.0,) * 8, (1.0,) * 8)

    def description(self, plain: Mapping[str, Any]) -> VectorsDescription:
        return VectorsDescription.from_plain(plain)

    def check_alike(self, data: Vectors, known: VectorsDescription, where: str) -> None:
        if data.width != len(known.mean):
            raise UserError(
                f"{data.name} has {data.width} features but {where} was trained on {len(known.mean)}"
            )

    def check_views(self, choice: Choice) -> dict[str, Any]:
        return chosen_views(Corrupt, choice)

    def views(self, choice: Choice, known: VectorsDescription, device: torch.device) -> Corrupted:
        return Corrupted(Corrupt(**{key: choice[key] for key in settable(Corrupt)}), known, device)

    def plain(self, choice: Choice, known: VectorsDescription, device: torch.device) -> Standard:
        return Standard(known, device)

    def inputs(self, network: str, choice: Choice, known: VectorsDescription) -> InputSpec:
        width = len(known.mean)
        return InputSpec(
            lambda view: MLP(width, WIDTHS[network]),
            ((width,),) * choice["count"],
            {"instances": known.instances},
        )

    def baselines(self, plain: MakeViews) -> dict[str, Features]:
        whole = lambda data: torch.cat([view.cpu() for view in plain_views(data, plain, 4096, 0)])
        return {"numbers": whole}

    def pictures(self, loaded: np.ndarray, known: VectorsDescription) -> list[Image.Image]:
        return [heat(row[None]) for row in (loaded - np.array(known.mean)) / np.array(known.std)]

    def view_pictures(self, views: MakeViews, shown: Tensor, known: VectorsDescription) -> list[Image.Image]:
        return [heat(row[None]) for row in shown.detach().cpu().numpy()]


VECTORS = VectorsModality()
