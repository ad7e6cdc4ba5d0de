"""Features as a Parquet file that any tool can read."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nearfar.atomic import replacing
from nearfar.errors import UserError
from nearfar.run.trained import Run


def write_embedding(run: Run, data: str, out: Path) -> tuple[int, int]:
    """Writes `path`, `label` and `class` (where there are labels) and `feature`; returns rows and width."""
    images = run.images(data)
    features = run.embed(images).numpy()
    rows, width = features.shape
    columns: dict[str, pa.Array] = {"path": pa.array(images.paths)}
    if images.labels is not None:
        columns["label"] = pa.array(images.labels)
        if images.classes:
            columns["class"] = pa.array([images.classes[label] for label in images.labels])
    columns["feature"] = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as fresh:
            pq.write_table(pa.table(columns), fresh)
    except OSError as problem:
        reason = problem.strerror or str(problem).splitlines()[0]
        raise UserError(
            f"--out {out} could not be written ({reason}); what was there before is as it was"
        ) from None
    return rows, width
