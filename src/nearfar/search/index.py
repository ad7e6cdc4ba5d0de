"""An index folder: features of data, their paths and labels, and answers to queries.

    features.safetensors   (rows, dim), rows of length one
    items.parquet          path, label and class of each row
    index.faiss            the same vectors for other programs: faiss.read_index, inner product
    index.json             data, encoder, rows

Searching reads features.safetensors, which is safe for files from strangers, and compares exactly.
"""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import save_file

from nearfar.errors import UserError, check_whole, error_reason
from nearfar.modalities import DataSet
from nearfar.run.features import cached_features, encoder_digest, features_key
from nearfar.run.trained import Run
from nearfar.run.weights import load_tensors
from nearfar.search.neighbours import nearest, unit_rows
from nearfar.system.arrow_reading import read_table_file
from nearfar.system.extras import need
from nearfar.system.files import check_folder, recover_folder, replace_folder, temporary_name
from nearfar.system.untrusted import arrow_path, read_json

FEATURES, ITEMS, FAISS, FACTS = "features.safetensors", "items.parquet", "index.faiss", "index.json"


@dataclass(frozen=True)
class Match:
    """An instance that is similar to a query."""

    path: str
    similarity: float  # cosine
    label: str | None  # class name, or the number of a class without a name


@dataclass(frozen=True)
class Index:
    """Features of length one with their paths and labels."""

    features: Float[np.ndarray, "row dim"]
    paths: list[str]
    labels: list[str | None]

    def search(self, queries: Float[np.ndarray, "query dim"], top: int = 10) -> list[list[Match]]:
        """The `top` most similar rows of each query, most similar first."""
        check_whole("--top", top, 1)
        similarities, rows = nearest(unit_rows(queries), self.features, top)
        return [
            [
                Match(self.paths[row], float(similarity), self.labels[row])
                for similarity, row in zip(*pair, strict=True)
            ]
            for pair in zip(similarities, rows, strict=True)
        ]


def embedded(run: Run, images: DataSet) -> Float[np.ndarray, "row dim"]:
    """Features of length one; those of an earlier command are taken from the run's cache."""
    encoder, view = run.encoder(), run.plain_view()
    key = features_key(encoder, images, view)
    features = cached_features(run.folder.cache, key, lambda: run.embed(images), run.strategy)
    return unit_rows(features.numpy())


def label_names(images: DataSet) -> list[str | None]:
    """The class of each instance: its name, its number where it has none, None where it is not known."""
    if images.labels is None:
        return [None] * len(images)
    names = dict(enumerate(images.classes))
    return [None if label < 0 else names.get(label, str(label)) for label in images.labels.tolist()]


def index_of(run: Run, images: DataSet) -> Index:
    return Index(embedded(run, images), list(images.paths), label_names(images))


def build_index(run: Run | str | Path, data: Any, out: str | Path) -> Index:
    """Writes the index folder `out` of the features of `data`; replaces an index that is there."""
    run = run if isinstance(run, Run) else Run.open(run)
    out = Path(os.path.realpath(out))  # a symbolic link stays
    recover_folder(out)
    _check_target(out)
    images = run.open_data(data)
    index = index_of(run, images)
    facts = {
        "data": images.name,
        "fingerprint": images.fingerprint,
        "encoder": encoder_digest(run.encoder()),
        "rows": len(index.paths),
        "dim": index.features.shape[1],
    }
    temporary = temporary_name(out)
    try:
        temporary.mkdir(parents=True)
        save_file({"features": torch.from_numpy(index.features)}, temporary / FEATURES)
        items = pa.table({"path": pa.array(index.paths), "class": pa.array(index.labels, pa.string())})
        pq.write_table(items, arrow_path(temporary / ITEMS))
        _write_faiss(index.features, temporary / FAISS)
        (temporary / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        replace_folder(temporary, out)
    except (OSError, SafetensorError) as problem:  # safetensors wraps errors of the disk
        raise UserError(f"--out {out} could not be written: {error_reason(problem)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return index


def _check_target(out: Path) -> None:
    """Refuses a folder with other content than an index."""
    if out.is_dir():
        allowed = {FEATURES, ITEMS, FAISS, FACTS}
        check_folder(out, (entry.name for entry in out.iterdir() if entry.name not in allowed), "an index")
    elif out.exists():
        raise UserError(f"--out was {out}, a file; expected a folder")


def _write_faiss(features: Float[np.ndarray, "row dim"], path: Path) -> None:
    faiss = need("faiss")
    index = faiss.IndexFlatIP(features.shape[1])
    index.add(features)
    path.write_bytes(faiss.serialize_index(index).tobytes())  # faiss opens no path that is not UTF-8


def is_index(path: Any) -> bool:
    return isinstance(path, (str, Path)) and (Path(path) / FACTS).is_file()


def open_index(folder: str | Path, run: Run) -> Index:
    """The index in a folder; stops if the features are of another encoder than the run's."""
    folder = Path(folder)
    facts = read_json(folder / FACTS)
    if not isinstance(facts, dict) or facts.get("encoder") != encoder_digest(run.encoder()):
        raise UserError(
            f"{folder} was made with another encoder than that of {run.path}; make it again with nearfar index"
        )
    try:
        features = load_tensors(folder / FEATURES)["features"].numpy()
        table = read_table_file(folder / ITEMS, ["path", "class"])
        paths, labels = table.column("path").to_pylist(), table.column("class").to_pylist()
    except (OSError, SafetensorError, KeyError, pa.ArrowException) as problem:
        raise UserError(
            f"{folder} is not a complete index ({problem}); make it again with nearfar index"
        ) from None
    if features.ndim != 2 or features.dtype != np.float32 or not len(features) == len(paths) == len(labels):
        raise UserError(
            f"{folder} is damaged: its files do not fit together; make it again with nearfar index"
        )
    return Index(features, paths, labels)


def search(run: Run | str | Path, data: Any, query: Any, top: int = 10) -> list[tuple[str, list[Match]]]:
    """For each instance of `query`, its path and the `top` most similar instances of `data`, by the cosine
    of the run's features. `data` is data or an index folder; `query` is data: one file, a folder, an array."""
    check_whole("--top", top, 1)  # and the query is opened before the data are encoded
    run = run if isinstance(run, Run) else Run.open(run)
    try:
        queries = run.open_data(query)
    except UserError as problem:
        raise UserError(f"--query: {problem}") from problem
    if isinstance(data, (str, Path)):
        with suppress(OSError):  # an earlier command may have been killed while it replaced this index
            recover_folder(Path(os.path.realpath(data)))
    if is_index(data):
        index = open_index(data, run)
    else:
        index = index_of(run, run.open_data(data))
    return list(zip(queries.paths, index.search(run.embed(queries).numpy(), top), strict=True))
