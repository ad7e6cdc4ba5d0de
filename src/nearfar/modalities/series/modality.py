"""Time series: windows of rows that were measured one after another, seen at neighbouring times by a small convolutional network.

    nearfar pretrain cebra series:recording.csv --out runs/recording       also Parquet, an .npz with `x`; rows in the order of time

A column `label` tells the class of each time, a column `series` to which of several series a row belongs; all others are channels. An
instance is a window of `views.window` rows that has neighbours on both sides, so windows near the ends of a series are shown only as
neighbours of others. Windows overlap, so they are no independent draws: a run on one series proves nothing about its information, and
a part that evaluation holds out is one stretch of time, with a gap on either side.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32, Int, Int64
from PIL import Image
from scipy.special import ndtri
from torch import Tensor, nn

from nearfar.config.schema import chosen_views, settable
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError
from nearfar.modalities.base import Choice, Description, Features, Found, MakeViews, Modality
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.labels import Labels, class_numbers
from nearfar.modalities.pairs.files import read_table
from nearfar.modalities.showing import heat, plain_views
from nearfar.modalities.vectors.modality import single_precision
from nearfar.parts.encoders import InputSpec
from nearfar.system.untrusted import check_data_file, npz_arrays

PREFIX = "series:"
SUFFIXES = (".csv", ".parquet", ".npz")
LABEL, SERIES, ARRAY = "label", "series", "x"
WIDTHS = {"conv1d": 128, "conv1d-small": 32}


@dataclass(frozen=True)
class Neighbouring:
    """Two windows: that of a time, and that of a time at most `offset` rows before or after it, any but itself as likely (Schneider et
    al. 2023). `noise` is added to every number of both."""

    window: int = 10
    offset: int = 10
    noise: float = 0.0
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        for key in ("window", "offset"):
            if not 1 <= getattr(self, key) <= 100_000:
                raise UserError(
                    f"views.{key} was {getattr(self, key)}; expected a whole number from 1 to 100000"
                )
        if not 0 <= self.noise < float("inf"):
            raise UserError(f"views.noise was {self.noise:g}; it must be at least 0")
        if self.count != 2:
            raise UserError(f"views.count was {self.count}; a time and its neighbour are 2")

    @property
    def span(self) -> int:
        """Rows that an instance is read from."""
        return self.window + 2 * self.offset


@dataclass(frozen=True)
class Stretches:
    """All rows in one array; an instance is the stretch that begins at its row."""

    array: Float32[np.ndarray, "time channel"]
    span: int

    def take(self, rows: Int[np.ndarray, "item"]) -> Float32[np.ndarray, "item span channel"]:
        return self.array[rows[:, None] + np.arange(self.span)]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TimeSeries(DataSet):
    """Opened series: `load` gives stretches of rows, of which views show windows."""

    modality: ClassVar[str] = "series"
    unit: ClassVar[str] = "windows"
    stratified: ClassVar[bool] = False

    width: int
    offset: int

    def parts(self, share: float, seed: int) -> tuple[Int64[np.ndarray, "rest"], Int64[np.ndarray, "held"]]:
        """Every so many stretches of time one is held out, in every series; what overlaps with it belongs to neither part, and a time
        of a class that is nowhere else is not asked about."""
        store = self.store
        assert isinstance(store, Stretches)
        assert self.cut_from is not None
        count = max(2, round(1 / share))
        held, near = np.zeros(len(self), dtype=bool), np.zeros(len(self), dtype=bool)
        for whole in np.unique(self.cut_from):
            places = np.flatnonzero(self.cut_from == whole)
            since = self.rows[places] - self.rows[places].min()
            # as many rounds as leave stretches four times as long as what is read of one window: gaps then take less than they leave
            rounds = max(1, int(since.max()) // (4 * count * store.span))
            mine = since // (int(since.max()) // (rounds * count) + 1) % count == seed % count
            asked = np.sort(since[mine])
            if len(asked):
                after = np.searchsorted(asked, since)
                beside = asked[np.clip([after - 1, after], 0, len(asked) - 1)]  # the nearest before and after
                near[places] = np.abs(beside - since).min(axis=0) < store.span
                held[places[mine]] = True
        if self.labels is not None:
            held &= np.isin(self.labels, self.labels[~near])
        rest, kept = np.flatnonzero(~near), np.flatnonzero(held)
        if not len(rest) or not len(kept):
            raise UserError(
                f"data {self.name!r}: {len(self)} windows are too few to hold out a stretch of time with a gap of {store.span} rows on "
                f"either side; give test data with --data, or lower views.window and views.offset"
            )
        return rest, kept


@dataclass(frozen=True)
class TimeSeriesDescription(Description):
    window: int
    offset: int
    mean: tuple[float, ...]  # of each channel
    std: tuple[float, ...]


class Centred:
    """The window of each time, every channel at mean 0 and deviation 1: what evaluation sees."""

    def __init__(self, known: TimeSeriesDescription, device: torch.device) -> None:
        self.mean, self.std, self.device = np.array(known.mean), np.array(known.std), device
        self.window, self.offset = known.window, known.offset

    def __repr__(self) -> str:
        return f"Centred({self.window}, {self.offset}, {self.mean.tolist()}, {self.std.tolist()})"

    def as_views(self, shown: Tensor, count: int) -> tuple[Tensor, ...]:
        return (shown,) * count

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return (self._shown(loaded, np.full(len(loaded), self.offset)),)

    def _shown(self, loaded: np.ndarray, starts: np.ndarray) -> Tensor:
        times = starts[:, None] + np.arange(self.window)
        rows = (loaded[np.arange(len(loaded))[:, None], times] - self.mean) / self.std
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)


class Neighbours(Centred):
    """What training sees: the windows of a time and of a neighbour, a function of (seed, epoch, time)."""

    def __init__(self, settings: Neighbouring, known: TimeSeriesDescription, device: torch.device) -> None:
        super().__init__(known, device)
        self.noise = settings.noise

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        (own,) = super().__call__(loaded, seed, epoch, index)
        place = np.floor(2 * self.offset * uniforms(seed, epoch, index, 0, 1)[:, 0]).astype(np.int64)
        starts = place + (place >= self.offset)  # any of the 2 x offset neighbours, not the time itself
        shown = (own, self._shown(loaded, starts))
        if not self.noise:
            return shown
        return tuple(self._noisy(view, seed, epoch, index, n) for n, view in enumerate(shown, start=1))

    def _noisy(self, view: Tensor, seed: int, epoch: int, index: np.ndarray, number: int) -> Tensor:
        draws = uniforms(seed, epoch, index, number, view[0].numel())
        normal = ndtri(np.maximum(draws, np.finfo(np.float64).tiny)).reshape(view.shape)
        return view + self.noise * torch.from_numpy(normal.astype(np.float32)).to(view.device)


class Conv1d(nn.Module):
    """Three convolutions over time, the later two beside a shortcut, then the mean over the window."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.dim = width
        self.first = nn.Conv1d(channels, width, 3, padding=1)
        self.later = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # (n, window, channels)
        x = nn.functional.gelu(self.first(x.transpose(1, 2)))  # (n, width, window)
        for layer in self.later:
            x = x + nn.functional.gelu(layer(x))
        return x.mean(dim=2)


class TimeSeriesModality(Modality):
    name = "series"
    unit = "windows"
    files = "rows"
    holds = "time series"
    example = "series:recording.csv"
    pipelines = ("neighbouring",)
    default_views = "neighbouring"
    networks: ClassVar[tuple[str, ...]] = tuple(WIDTHS)
    default_network = "conv1d"
    smallest_network = "conv1d-small"
    baseline_titles: ClassVar[Mapping[str, str]] = {"numbers": "the numbers of the window"}

    def options(self, *, views: Neighbouring | None = None, **given: Any) -> Mapping[str, Any]:
        return {"views": views or Neighbouring(), **super().options(**given)}

    def opening(self, views: Choice, size: int | None, known: Description | None) -> dict[str, Any]:
        return {"views": _settings(views)}

    def claims(self, spec: str) -> bool:
        return spec.startswith(PREFIX)

    def open_whole(self, spec: str, options: Mapping[str, Any]) -> TimeSeries:
        path = Path(spec.removeprefix(PREFIX))
        if not path.exists() or path.suffix.lower() not in SUFFIXES:
            raise UserError(
                f"data {spec!r}: {str(path)!r} is not a file that exists; expected {', '.join(SUFFIXES)}."
            )
        check_data_file(path, spec)
        array, labels, series = _npz(path, spec) if path.suffix.lower() == ".npz" else _table(path, spec)
        labelled = (None, ()) if labels is None else class_numbers(np.asarray(labels), f"data {spec!r}")
        return windows(array, labelled, series, spec, options["views"])

    def collect(self, found: Found, options: Mapping[str, Any]) -> DataSet:
        raise UserError(f"data {found.name!r}: time series are read from one table; write series:FILE")

    def describe(self, data: TimeSeries, size: int | None) -> TimeSeriesDescription:
        store = data.store
        assert isinstance(store, Stretches)
        seen = np.zeros(len(store.array), dtype=bool)  # rows that some window of this set shows
        for step in range(store.span):
            seen[data.rows + step] = True
        rows = store.array[seen].astype(np.float64)
        std = rows.std(axis=0)
        std = np.where(std > 0, std, 1.0)  # a channel that never varies is only shifted
        window = store.span - 2 * data.offset
        mean = tuple(rows.mean(axis=0).tolist())
        return TimeSeriesDescription(
            data.fingerprint, len(data), window, data.offset, mean, tuple(std.tolist())
        )

    def typical(self, instances: int) -> TimeSeriesDescription:
        return TimeSeriesDescription("", instances, 10, 10, (0.0,) * 4, (1.0,) * 4)

    def description(self, plain: Mapping[str, Any]) -> TimeSeriesDescription:
        return TimeSeriesDescription.from_plain(plain)

    def check_alike(self, data: TimeSeries, known: TimeSeriesDescription, where: str) -> None:
        if data.width != len(known.mean):
            raise UserError(
                f"{data.name} has {data.width} channels but {where} was trained on {len(known.mean)}"
            )

    def check_views(self, choice: Choice) -> dict[str, Any]:
        return chosen_views(Neighbouring, choice)

    def views(self, choice: Choice, known: TimeSeriesDescription, device: torch.device) -> Neighbours:
        return Neighbours(_settings(choice), known, device)

    def plain(self, choice: Choice, known: TimeSeriesDescription, device: torch.device) -> Centred:
        return Centred(known, device)

    def inputs(self, network: str, choice: Choice, known: TimeSeriesDescription) -> InputSpec:
        channels = len(known.mean)
        return InputSpec(
            lambda view: Conv1d(channels, WIDTHS[network]),
            ((known.window, channels),) * choice["count"],
            {"instances": known.instances},
        )

    def baselines(self, plain: MakeViews) -> dict[str, Features]:
        whole = lambda data: torch.cat([view.cpu().flatten(1) for view in plain_views(data, plain, 4096, 0)])
        return {"numbers": whole}

    def pictures(self, loaded: np.ndarray, known: TimeSeriesDescription) -> list[Image.Image]:
        shown = (loaded - np.array(known.mean)) / np.array(known.std)
        return [heat(stretch.T) for stretch in shown[:, known.offset : known.offset + known.window]]

    def view_pictures(
        self, views: MakeViews, shown: Tensor, known: TimeSeriesDescription
    ) -> list[Image.Image]:
        return [heat(window.T) for window in shown.detach().cpu().numpy()]


def time_series(
    array: Any, labels: Any = None, series: Any = None, *, window: int = 10, offset: int = 10
) -> TimeSeries:
    """Rows that were measured one after another, (time, channels), as data for `pretrain` and `evaluate`.

        run = nf.pretrain("cebra", data=nf.time_series(recording, labels), out="runs/recording")

    `series` says of each row to which of several series it belongs. `window` and `offset` are those of the views: a run that asks for
    others (`views={"window": 20}`) needs data made with them.
    """
    rows = np.asarray(array)
    rows = rows[:, None] if rows.ndim == 1 else rows
    labelled = (None, ()) if labels is None else class_numbers(np.asarray(labels), "data 'series'")
    return windows(
        rows, labelled, None if series is None else np.asarray(series), "series", Neighbouring(window, offset)
    )


def windows(
    array: np.ndarray, labelled: Labels, series: np.ndarray | None, name: str, views: Neighbouring
) -> TimeSeries:
    """Every window that has all its neighbours within its own series."""
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iufb":
        raise UserError(
            f"data {name!r} are {array.dtype} of shape {array.shape}; expected numbers of shape (time, channels)."
        )
    rows = np.ascontiguousarray(single_precision(array, name))
    for what, given in (("labels", labelled[0]), ("series", series)):
        if given is not None and len(given) != len(rows):
            raise UserError(f"data {name!r}: {len(rows)} rows but {len(given)} {what}; give one for each.")
    owner = (
        np.zeros(len(rows), dtype=np.int64) if series is None else np.unique(series, return_inverse=True)[1]
    )
    # a series is a run of equal owners: one that comes back later is another stretch of time
    whole = np.cumsum(np.concatenate(([0], owner[1:] != owner[:-1]))).astype(np.int64)
    starts = np.arange(max(0, len(rows) - views.span + 1))
    starts = starts[whole[starts] == whole[starts + views.span - 1]]
    if len(starts) < 2:
        raise UserError(
            f"data {name!r}: no series is longer than {views.span} rows, which a window of {views.window} with neighbours up to "
            f"{views.offset} rows away needs; lower views.window or views.offset."
        )
    centre = starts + views.offset + (views.window - 1) // 2
    digest = hashlib.sha256(repr((rows.shape, views.window, views.offset)).encode() + rows.tobytes())
    digest.update(whole.astype("<i8").tobytes())
    labels, classes = labelled
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return TimeSeries(
        name=name,
        fingerprint=digest.hexdigest(),
        labels=None if labels is None else labels[centre],
        classes=classes,
        paths=tuple(f"{Path(name).name}#{row}" for row in centre),
        store=Stretches(rows, views.span),
        rows=starts,
        cut_from=whole[starts],
        width=rows.shape[1],
        offset=views.offset,
        unlabelled="" if labels is not None else f"the table has no column `{LABEL}`",
    )


def _settings(choice: Choice) -> Neighbouring:
    return Neighbouring(**{key: choice[key] for key in settable(Neighbouring)})


Read = tuple[np.ndarray, Any, np.ndarray | None]  # numbers, labels, series


def _npz(path: Path, spec: str) -> Read:
    found, held = npz_arrays(path, {ARRAY, "labels", SERIES})
    if ARRAY not in found:
        raise UserError(
            f"data {spec!r} have no array `{ARRAY}` (the file holds: {', '.join(sorted(held)) or 'nothing'})."
        )
    array = found[ARRAY]
    return array[:, None] if array.ndim == 1 else array, found.get("labels"), found.get(SERIES)


def _table(path: Path, spec: str) -> Read:
    table = read_table(path, spec, None)
    labels, series = table.pop(LABEL, None), table.pop(SERIES, None)
    columns = []
    for name, values in table.items():
        column = np.asarray(values)
        if column.dtype.kind not in "iufb":
            raise UserError(
                f"data {spec!r}: the column `{name}` does not hold numbers in every row; expected channels of numbers, and `{LABEL}` and "
                f"`{SERIES}` beside them."
            )
        columns.append(column)
    if not columns:
        raise UserError(f"data {spec!r}: the table has no column of numbers.")
    return np.stack(columns, axis=1), labels, None if series is None else np.asarray(series)


TIME_SERIES = TimeSeriesModality()
