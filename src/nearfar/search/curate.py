"""Near-duplicates, outliers and doubtful labels of a data set, by the features of a run.

Everything is read off the nearest neighbours of each instance by cosine distance, 1 - cosine.

Duplicates: two instances are near-duplicates if one is among the neighbours of the other and their distance is
at most `DUPLICATE_RATIO` of the distance to the neighbour of rank `SCALE_RANK`, on both sides. The scale is
local, so that dense regions of similar instances are not taken for copies. Copies with equal pixels are always
found.

Outliers: the `OUTLIER_SHARE` of the instances with the largest mean distance to their neighbours (Angiulli &
Pizzuti 2002). Its score is the robust z-score of the distance's logarithm.

Labels: confident learning (Northcutt et al. 2021) with the votes of the neighbours as out-of-sample
probabilities. A label is doubtful if another class has a share of the votes that is above the mean share that
members of that class give it, and above that of the label itself.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nearfar.errors import UserError, counted
from nearfar.modalities import DataSet
from nearfar.run.features import content_hashes, encoder_digest
from nearfar.run.trained import Run
from nearfar.search.index import embedded, label_names
from nearfar.search.neighbours import nearest_others
from nearfar.system.files import check_folder, replace_file, write_atomic
from nearfar.system.untrusted import arrow_path

NEIGHBOURS = 20
SCALE_RANK = 10  # the neighbour that gives the local scale of distances
DUPLICATE_RATIO = 0.3
OUTLIER_SHARE = 0.01  # of the instances, the most isolated ones, are listed
VOTE_TEMPERATURE = 0.07  # of the votes, as in the kNN protocol (Wu et al. 2018)
FILES = ("duplicates.parquet", "outliers.parquet", "labels.parquet")
FACTS = "curation.json"  # in the run folder, for the report
TITLES = {"duplicates": "near-duplicates", "outliers": "outliers", "labels": "doubtful labels"}
MAX_STORED = 24  # cases of each kind in the run folder


@dataclass(frozen=True)
class Curation:
    """Tables of what to look at, the clearest cases first. `labels` is None for data without labels."""

    data: str
    fingerprint: str
    encoder: str  # digest of the encoder whose features were compared
    instances: int
    duplicates: pa.Table  # group_id, row, path, class, cosine_distance (to the nearest copy), exact
    outliers: pa.Table  # row, path, class, cosine_distance (mean, to the neighbours), score
    labels: pa.Table | None  # row, path, class, share, suggested, suggested_share

    def tables(self) -> dict[str, pa.Table]:
        """By file name, those that exist."""
        tables = zip(FILES, (self.duplicates, self.outliers, self.labels), strict=True)
        return {name: table for name, table in tables if table is not None}


def curate(run: Run | str | Path, data: Any, out: str | Path | None = None) -> Curation:
    """Lists near-duplicates, outliers and doubtful labels of `data`, and writes them to the folder `out`."""
    run = run if isinstance(run, Run) else Run.open(run)
    folder = None if out is None else _check_target(Path(out))
    images = run.open_data(data)
    if len(images) <= SCALE_RANK:
        raise UserError(
            f"{images.name} has {counted(len(images), images.unit)}; curation needs more than {SCALE_RANK}"
        )
    similarity, neighbour = nearest_others(embedded(run, images), NEIGHBOURS)
    distance = np.maximum(1 - similarity, 0.0)
    hashes = content_hashes(images, run.plain_view(), workers=run.settings.workers, strategy=run.strategy)
    curation = Curation(
        images.name,
        images.fingerprint,
        encoder_digest(run.encoder()),
        len(images),
        _duplicate_table(images, distance, neighbour, hashes.numpy()),
        _outlier_table(images, distance),
        _label_table(images, similarity, neighbour),
    )
    if run.strategy.is_first:
        if folder is not None:
            write_tables(curation, folder)
        write_atomic(run.path / FACTS, json.dumps(_facts(curation)) + "\n")
    return curation


def _facts(curation: Curation) -> dict[str, Any]:
    """What the report shows: counts, and the row and a remark of the first cases of each table."""
    remarks = {
        "duplicates": lambda row: f"group {row['group_id']}",
        "outliers": lambda row: f"score {row['score']:.1f}",
        "labels": lambda row: f"{row['suggested']}?",
    }
    facts: dict[str, Any] = {
        "data": curation.data,
        "fingerprint": curation.fingerprint,
        "encoder": curation.encoder,
        "instances": curation.instances,
    }
    for name, table in zip(TITLES, (curation.duplicates, curation.outliers, curation.labels), strict=True):
        if table is not None:
            first = [[row["row"], remarks[name](row)] for row in table.slice(0, MAX_STORED).to_pylist()]
            facts[name] = {"count": table.num_rows, "first": first}
    return facts


def _check_target(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out was {out}, a file; expected a folder")
    if out.is_dir():
        check_folder(out, (entry.name for entry in out.iterdir() if entry.name not in FILES), "curate")
    return out


def write_tables(curation: Curation, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in curation.tables().items():
        with replace_file(folder / name) as temporary:
            pq.write_table(table, arrow_path(temporary))


def duplicate_pairs(
    distance: Float[np.ndarray, "row neighbour"], neighbour: Int64[np.ndarray, "row neighbour"]
) -> Bool[np.ndarray, "row neighbour"]:
    """Which neighbours are near-duplicates: nearer than the local scale of both by `DUPLICATE_RATIO`."""
    scale = distance[:, min(SCALE_RANK, distance.shape[1]) - 1]
    return distance <= DUPLICATE_RATIO * np.minimum(scale[:, None], scale[neighbour])


def duplicate_groups(
    pairs: tuple[Int64[np.ndarray, "pair"], Int64[np.ndarray, "pair"]], rows: int
) -> Int64[np.ndarray, "row"]:
    """The number of each row's group; -1 for a row without a duplicate. Groups are numbered by first row."""
    graph = coo_array((np.ones(len(pairs[0]), dtype=np.int8), pairs), shape=(rows, rows))
    component = connected_components(graph, directed=False)[1]
    size = np.bincount(component)
    grouped = size[component] > 1
    group = np.full(rows, -1, dtype=np.int64)
    _, first, number = np.unique(component[grouped], return_index=True, return_inverse=True)
    group[grouped] = np.argsort(np.argsort(first))[number]
    return group


def _equal_pairs(hashes: Int64[np.ndarray, "row 2"]) -> tuple[np.ndarray, np.ndarray]:
    """(first row, later row) with equal content."""
    _, first, inverse = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    rows = np.arange(len(hashes))
    earlier = first[inverse.reshape(-1)]
    return earlier[earlier != rows], rows[earlier != rows]


def _duplicate_table(
    images: DataSet, distance: np.ndarray, neighbour: np.ndarray, hashes: np.ndarray
) -> pa.Table:
    row, place = np.nonzero(duplicate_pairs(distance, neighbour))
    equal = _equal_pairs(hashes)
    pairs = np.concatenate([row, equal[0]]), np.concatenate([neighbour[row, place], equal[1]])
    group = duplicate_groups(pairs, len(images))
    nearest_copy = np.full(len(images), np.inf)
    np.minimum.at(nearest_copy, row, distance[row, place])
    np.minimum.at(nearest_copy, neighbour[row, place], distance[row, place])
    exact = np.zeros(len(images), dtype=bool)
    exact[np.concatenate(equal)] = True
    nearest_copy[exact] = 0.0
    members = np.flatnonzero(group >= 0)
    closest = np.full(group.max(initial=-1) + 1, np.inf)
    np.minimum.at(closest, group[members], nearest_copy[members])
    group[members] = np.argsort(np.argsort(closest, kind="stable"))[group[members]]  # closest copies first
    members = members[np.argsort(group[members], kind="stable")]
    return _table(
        images,
        members,
        {"group_id": group[members]},
        {"cosine_distance": nearest_copy[members], "exact": exact[members]},
    )


def outlier_scores(distance: Float[np.ndarray, "row neighbour"]) -> Float[np.ndarray, "row"]:
    """Robust z-scores of the logarithm of the mean distance to the neighbours."""
    size = np.log(np.maximum(distance.mean(axis=1), np.finfo(np.float32).tiny))
    centre = np.median(size)
    deviation = 1.4826 * np.median(np.abs(size - centre))  # the standard deviation of a normal sample
    return (size - centre) / max(deviation, np.finfo(np.float32).tiny)


def _outlier_table(images: DataSet, distance: np.ndarray) -> pa.Table:
    score = outlier_scores(distance)
    rows = np.argsort(-score, kind="stable")[: math.ceil(OUTLIER_SHARE * len(images))]
    return _table(images, rows, {}, {"cosine_distance": distance.mean(axis=1)[rows], "score": score[rows]})


def vote_shares(
    similarity: Float[np.ndarray, "row neighbour"],
    neighbour_labels: Int64[np.ndarray, "row neighbour"],
    classes: int,
) -> Float[np.ndarray, "row class"]:
    """Shares of the votes exp(cosine / temperature) of labelled neighbours, by class."""
    weight = np.exp((similarity - similarity[:, :1]) / VOTE_TEMPERATURE) * (neighbour_labels >= 0)
    votes = np.zeros((len(similarity), classes))
    np.add.at(votes, (np.arange(len(votes))[:, None], np.maximum(neighbour_labels, 0)), weight)
    return votes / np.maximum(votes.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)


def suggested_labels(
    share: Float[np.ndarray, "row class"], labels: Int64[np.ndarray, "row"]
) -> Int64[np.ndarray, "row"]:
    """The class that confident learning suggests for each row; the label itself where it is not doubtful."""
    rows = np.arange(len(labels))
    thresholds = np.array(
        [share[labels == c, c].mean() if (labels == c).any() else np.inf for c in range(share.shape[1])]
    )
    confident = np.where(share >= thresholds, share, -1.0)
    best = confident.argmax(axis=1)
    better = (labels >= 0) & (confident[rows, best] > share[rows, np.maximum(labels, 0)])
    return np.where(better, best, labels)


def _label_table(images: DataSet, similarity: np.ndarray, neighbour: np.ndarray) -> pa.Table | None:
    if images.labels is None or not (images.labels >= 0).any():
        return None
    labels = np.asarray(images.labels)
    share = vote_shares(similarity, labels[neighbour], int(labels.max()) + 1)
    suggestion = suggested_labels(share, labels)
    rows = np.flatnonzero(suggestion != labels)
    label_share, suggested_share = share[rows, labels[rows]], share[rows, suggestion[rows]]
    order = np.argsort(label_share - suggested_share, kind="stable")
    rows, label_share, suggested_share = rows[order], label_share[order], suggested_share[order]
    names = dict(enumerate(images.classes))
    suggested = [names.get(label, str(label)) for label in suggestion[rows].tolist()]
    return _table(
        images, rows, {}, {"share": label_share, "suggested": suggested, "suggested_share": suggested_share}
    )


def _table(images: DataSet, rows: np.ndarray, leading: dict[str, Any], trailing: dict[str, Any]) -> pa.Table:
    names = label_names(images)
    middle = {
        "row": rows,
        "path": pa.array([str(images.paths[row]) for row in rows], pa.string()),
        "class": pa.array([names[row] for row in rows], pa.string()),
    }
    return pa.table({**leading, **middle, **trailing})


def summary_rows(table: pa.Table, count: int) -> list[list[str]]:
    """The head and the first rows of a table as text."""
    columns = [name for name in table.column_names if name != "row"]
    cells = [[_cell(value) for value in table.column(name).slice(0, count).to_pylist()] for name in columns]
    return [columns, *map(list, zip(*cells, strict=True))]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
