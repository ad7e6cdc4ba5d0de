"""Time series: windows of rows that were measured one after another.

A column `label` tells the class of each time, a column `series` to which of several series a row belongs; all
others are channels. An instance is a window of `views.window` rows with neighbours on both sides; windows
near the ends of a series are shown only as neighbours. Windows overlap, so they are no independent draws: a
run on one series proves nothing about its information, and evaluation holds out stretches of time with a gap
on either side.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Int, Int64

from nearfar.errors import UserError, check_whole
from nearfar.modalities.base import AbstractReader, Choice, StandardisedDescription
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.files import Labels, class_numbers, read_table
from nearfar.modalities.vectors.data import mean_and_std, single_precision
from nearfar.system.untrusted import check_data_file, npz_arrays

PREFIX = "series:"
SUFFIXES = (".csv", ".parquet", ".npz")
LABEL, SERIES, ARRAY = "label", "series", "x"
MAX_ROWS = 100_000  # of a window, and of an offset


def check_window(window: int, offset: int) -> None:
    for key, value in (("window", window), ("offset", offset)):
        check_whole(f"views.{key}", value, 1, MAX_ROWS)


@dataclass(frozen=True)
class StretchStore:
    """All rows in one array; an instance is the stretch that begins at its row."""

    array: Float32[np.ndarray, "time channel"]
    span: int

    def take(self, rows: Int[np.ndarray, "item"]) -> Float32[np.ndarray, "item span channel"]:
        return self.array[rows[:, None] + np.arange(self.span)]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TimeSeries(DataSet):
    """Opened series: `load` returns stretches of rows, (instance, span, channel)."""

    modality: ClassVar[str] = "series"
    unit: ClassVar[str] = "windows"
    stratified: ClassVar[bool] = False

    width: int
    offset: int

    def parts(self, share: float, seed: int) -> tuple[Int64[np.ndarray, "rest"], Int64[np.ndarray, "held"]]:
        """Holds out every n-th stretch of time in every series, n = round(1 / share). Windows that overlap
        with it belong to neither part, and times of a class that occurs nowhere else are not tested."""
        store = self.store
        assert isinstance(store, StretchStore)
        assert self.cut_from is not None
        count = max(2, round(1 / share))
        held_out, overlapping = np.zeros(len(self), dtype=bool), np.zeros(len(self), dtype=bool)
        for series in np.unique(self.cut_from):
            places = np.flatnonzero(self.cut_from == series)
            time = self.rows[places] - self.rows[places].min()
            # as many rounds as leave stretches that are at least four times as long as the gaps around them
            rounds = max(1, int(time.max()) // (4 * count * store.span))
            in_test = time // (int(time.max()) // (rounds * count) + 1) % count == seed % count
            test_times = np.sort(time[in_test])
            if len(test_times):
                following = np.searchsorted(test_times, time)
                nearest = test_times[np.clip([following - 1, following], 0, len(test_times) - 1)]
                overlapping[places] = np.abs(nearest - time).min(axis=0) < store.span
                held_out[places[in_test]] = True
        if self.labels is not None:
            held_out &= np.isin(self.labels, self.labels[~overlapping])
        rest, test = np.flatnonzero(~overlapping), np.flatnonzero(held_out)
        if not len(rest) or not len(test):
            raise UserError(
                f"data {self.name!r}: {len(self)} windows are too few to hold out a stretch of time with a "
                f"gap of {store.span} rows on "
                f"either side; give test data with --data, or lower views.window and views.offset"
            )
        return rest, test


@dataclass(frozen=True)
class TimeSeriesDescription(StandardisedDescription):
    window: int  # rows of a view
    offset: int  # largest distance of a neighbour, in rows

    def check_alike(self, data: TimeSeries, run_name: str) -> None:
        self.check_width(data, data.width, "channels", run_name)


class SeriesReader(AbstractReader):
    description_type = TimeSeriesDescription
    files = "rows"
    dependence = "windows are times of one recording and overlap"

    def options(self, *, window: int = 10, offset: int = 10, **values: Any) -> Mapping[str, Any]:
        check_window(window, offset)
        return {"window": window, "offset": offset, **super().options(**values)}

    def options_for(self, views: Choice, size: int | None, description: Any) -> dict[str, Any]:
        return {"window": views["window"], "offset": views["offset"]}

    def claims(self, spec: str) -> bool:
        return spec.startswith(PREFIX)

    def open_spec(self, spec: str, options: Mapping[str, Any]) -> TimeSeries:
        path = Path(spec.removeprefix(PREFIX))
        if not path.exists() or path.suffix.lower() not in SUFFIXES:
            raise UserError(
                f"data {spec!r}: {str(path)!r} is not a file that exists; expected {', '.join(SUFFIXES)}."
            )
        check_data_file(path, spec)
        array, labels, series = _npz(path, spec) if path.suffix.lower() == ".npz" else _table(path, spec)
        labelled = (None, ()) if labels is None else class_numbers(np.asarray(labels), f"data {spec!r}")
        return windows(array, labelled, series, spec, options["window"], options["offset"])

    def describe(self, data: TimeSeries, size: int | None) -> TimeSeriesDescription:
        store = data.store
        assert isinstance(store, StretchStore)
        used = np.zeros(len(store.array), dtype=bool)  # rows in some window of this set
        for step in range(store.span):
            used[data.rows + step] = True
        mean, std = mean_and_std(store.array[used])
        window = store.span - 2 * data.offset
        return TimeSeriesDescription(data.fingerprint, len(data), mean, std, window, data.offset)

    def example_description(self, instances: int) -> TimeSeriesDescription:
        return TimeSeriesDescription("", instances, (0.0,) * 4, (1.0,) * 4, 10, 10)


def time_series(
    array: Any, labels: Any = None, series: Any = None, *, window: int = 10, offset: int = 10
) -> TimeSeries:
    """Rows that were measured one after another, (time, channels), as data for `pretrain` and `evaluate`.

        run = nf.pretrain("cebra", data=nf.time_series(recording, labels), out="runs/recording")

    `series` holds, for each row, the series it belongs to. `window` and `offset` are those of the views: a
    run with other settings (`views={"window": 20}`) needs data made with them.
    """
    check_window(window, offset)
    rows = np.asarray(array)
    rows = rows[:, None] if rows.ndim == 1 else rows
    labelled = (None, ()) if labels is None else class_numbers(np.asarray(labels), "data 'series'")
    return windows(rows, labelled, None if series is None else np.asarray(series), "series", window, offset)


def windows(
    array: np.ndarray, labelled: Labels, series: np.ndarray | None, name: str, window: int, offset: int
) -> TimeSeries:
    """Every window that has all its neighbours within its own series."""
    span = window + 2 * offset
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iufb":
        raise UserError(
            f"data {name!r} are {array.dtype} of shape {array.shape}; expected numbers of shape (time, "
            "channels)."
        )
    rows = np.ascontiguousarray(single_precision(array, name))
    for title, values in (("labels", labelled[0]), ("series", series)):
        if values is not None and len(values) != len(rows):
            raise UserError(
                f"data {name!r}: {len(rows)} rows but {len(values)} {title}; expected one per row."
            )
    owner = (
        np.zeros(len(rows), dtype=np.int64) if series is None else np.unique(series, return_inverse=True)[1]
    )
    # a series is a run of equal owners: one that comes back later is another stretch of time
    stretch = np.cumsum(np.concatenate(([0], owner[1:] != owner[:-1]))).astype(np.int64)
    starts = np.arange(max(0, len(rows) - span + 1))
    starts = starts[stretch[starts] == stretch[starts + span - 1]]
    if len(starts) < 2:
        raise UserError(
            f"data {name!r}: no series is longer than {span} rows, which a window of {window} with "
            f"neighbours up to {offset} rows away needs; lower views.window or views.offset."
        )
    centre = starts + offset + (window - 1) // 2
    digest = hashlib.sha256(repr((rows.shape, window, offset)).encode() + rows.tobytes())
    digest.update(stretch.astype("<i8").tobytes())
    labels, classes = labelled
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return TimeSeries(
        name=name,
        fingerprint=digest.hexdigest(),
        labels=None if labels is None else labels[centre],
        classes=classes,
        paths=tuple(f"{Path(name).name}#{row}" for row in centre),
        store=StretchStore(rows, span),
        rows=starts,
        cut_from=stretch[starts],
        width=rows.shape[1],
        offset=offset,
        unlabelled="" if labels is not None else f"the table has no column `{LABEL}`",
    )


Table = tuple[np.ndarray, Any, np.ndarray | None]  # numbers, labels, series


def _npz(path: Path, spec: str) -> Table:
    arrays, names = npz_arrays(path, {ARRAY, "labels", SERIES})
    if ARRAY not in arrays:
        raise UserError(
            f"data {spec!r} have no array `{ARRAY}` (the file holds: "
            f"{', '.join(sorted(names)) or 'nothing'})."
        )
    array = arrays[ARRAY]
    return array[:, None] if array.ndim == 1 else array, arrays.get("labels"), arrays.get(SERIES)


def _table(path: Path, spec: str) -> Table:
    table = read_table(path, spec, None)
    labels, series = table.pop(LABEL, None), table.pop(SERIES, None)
    columns = []
    for name, values in table.items():
        column = np.asarray(values)
        if column.dtype.kind not in "iufb":
            raise UserError(
                f"data {spec!r}: the column `{name}` does not hold numbers in every row; expected channels "
                f"of numbers, and maybe `{LABEL}` and `{SERIES}`."
            )
        columns.append(column)
    if not columns:
        raise UserError(f"data {spec!r}: the table has no column of numbers.")
    return np.stack(columns, axis=1), labels, None if series is None else np.asarray(series)
