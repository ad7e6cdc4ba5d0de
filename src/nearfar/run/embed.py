"""Features as a Parquet file."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearfar.errors import UserError
from nearfar.modalities import DataSet
from nearfar.run.features import feature_batches
from nearfar.run.trained import Run
from nearfar.system.files import replace_file
from nearfar.system.untrusted import arrow_path


def write_embedding(run: Run, data: Any, out: Path) -> tuple[int, int]:
    """Writes the columns `path`, `label` and `class` (if there are labels) and `feature`; returns the numbers
    of rows and features. Several ranks share the work; the first writes."""
    images = run.open_data(data)
    parts = feature_batches(
        run.encoder(),
        images,
        run.plain_view(),
        device=run.device,
        workers=run.settings.workers,
        strategy=run.strategy,
    )
    if not run.strategy.is_first:
        shapes = [part.shape for part in parts]
        return sum(shape[0] for shape in shapes), shapes[-1][1]
    place = width = 0
    writer: pq.ParquetWriter | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(out) as temporary:
            try:
                for part in parts:
                    table = _table(images, place, part.numpy())
                    writer = writer or pq.ParquetWriter(arrow_path(temporary), table.schema)
                    writer.write_table(table)
                    place, width = place + len(part), part.shape[1]
            finally:
                if writer is not None:
                    writer.close()
    except OSError as problem:
        reason = problem.strerror or str(problem).splitlines()[0]
        raise UserError(
            f"--out {out} could not be written ({reason}); an earlier file is unchanged"
        ) from None
    return place, width


def _table(images: DataSet, start: int, features: np.ndarray) -> pa.Table:
    """The rows that belong to these features, from `start` on."""
    rows, width = features.shape
    part = slice(start, start + rows)
    columns: dict[str, pa.Array] = {"path": pa.array(list(images.paths[part]), pa.string())}
    if images.labels is not None:
        labels = images.labels[part]
        columns["label"] = pa.array(labels)
        if images.classes:
            columns["class"] = pa.array([images.classes[label] for label in labels])
    columns["feature"] = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
    return pa.table(columns)
