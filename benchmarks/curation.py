"""Precision and recall of `nearfar curate` on planted duplicates, label errors and outliers; recall of
`nearfar search` and `nearfar index` for the originals of the altered copies.

    python benchmarks/curation.py RUN IMAGES.parquet OTHERS.parquet [--rows 3000] [--seed 1]

Of IMAGES (Parquet with `image` and `label`) `--rows` are drawn. 5 % get an altered copy, 5 % another label, and
1 % as many pictures of OTHERS, or drawings, are added. The planted rows are the truth. Real duplicates and label
errors of the data count as false alarms. The copies are then queries for the `--rows` originals. About one
minute for 3,000 pictures.
"""

import argparse
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageEnhance, ImageOps

import nearfar as nf
from nearfar.core.tables import text_table
from nearfar.search import build_index, curate, search


def altered(picture: Image.Image, kind: str) -> Image.Image:
    width, height = picture.size
    if kind == "jpeg":
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=40)
        return Image.open(file).convert("RGB")
    if kind == "smaller":
        return picture.resize((width * 2 // 3, height * 2 // 3)).resize((width, height))
    if kind == "cropped":
        edge = width // 20
        return picture.crop((edge, edge, width - edge, height - edge)).resize((width, height))
    if kind == "mirrored":
        return ImageOps.mirror(picture)
    return ImageEnhance.Brightness(picture).enhance(1.2)


@dataclass(frozen=True)
class Copy:
    """How a row was altered, and which row it was."""

    kind: str
    source: int


TOP = 10
KINDS = ("jpeg", "smaller", "cropped", "mirrored", "brighter")


def pictures(path: str, rows: np.ndarray) -> list[Image.Image]:
    column = pq.read_table(path, columns=["image"]).column("image").take(pa.array(rows))
    return [Image.open(io.BytesIO(cell["bytes"])).convert("RGB") for cell in column.to_pylist()]


def encoded(picture: Image.Image) -> dict[str, object]:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def drawing(random: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """A picture of coloured noise at a coarse scale."""
    grid = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(grid).resize(size, Image.Resampling.NEAREST)


def planted(
    images: str, others: str, count: int, seed: int, out: Path
) -> tuple[dict[int, Copy], set[int], dict[int, str]]:
    """Writes the altered data; returns copies by row, rows with another label, outliers by row. The first
    `count` rows are the originals."""
    random = np.random.default_rng(seed)
    labels = pq.read_table(images, columns=["label"]).column("label").to_numpy()
    rows = random.choice(len(labels), count, replace=False)
    kept, label = pictures(images, rows), labels[rows].copy()
    wrong = set(random.choice(count, count // 20, replace=False).tolist())
    for row in wrong:
        label[row] = (label[row] + random.integers(1, labels.max() + 1)) % (labels.max() + 1)
    copies: dict[int, Copy] = {}
    for place, source in enumerate(random.choice(count, count // 20, replace=False)):
        kind = KINDS[place % len(KINDS)]
        copies[len(kept)] = Copy(kind, int(source))
        kept.append(altered(kept[source], kind))
        label = np.append(label, labels[rows[source]])
    foreign: dict[int, str] = {}
    other_rows = random.choice(pq.read_metadata(others).num_rows, count // 100, replace=False)
    size = kept[0].size
    for place, other in enumerate(pictures(others, other_rows)):
        kind = ("other data", "drawing")[place % 2]
        foreign[len(kept)] = kind
        kept.append(other.resize(size) if kind == "other data" else drawing(random, size))
        label = np.append(label, random.integers(0, labels.max() + 1))
    pq.write_table(pa.table({"image": [encoded(picture) for picture in kept], "label": label}), out)
    return copies, wrong, foreign


def ranks(run: nf.Run, data: Path, copies: dict[int, Copy], count: int, folder: Path) -> dict[str, list[int]]:
    """The rank of each copy's original among the originals, from 0; 10 if it is not among the first ten."""
    table = pq.read_table(data)
    originals, queries = folder / "originals.parquet", folder / "queries.parquet"
    pq.write_table(table.slice(0, count), originals)
    pq.write_table(table.take(pa.array(copies)), queries)
    build_index(run, str(originals), folder / "index")
    paths = list(run.open_data(str(originals)).paths)
    result = {}
    for name, searched in (("search", str(originals)), ("index", folder / "index")):
        answers = search(run, searched, str(queries), TOP)
        listed = [[match.path for match in matches] for _, matches in answers]
        expected = [paths[copy.source] for copy in copies.values()]
        result[name] = [
            matches.index(path) if path in matches else TOP
            for matches, path in zip(listed, expected, strict=True)
        ]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("images")
    parser.add_argument("others")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "planted.parquet"
        copies, wrong, foreign = planted(options.images, options.others, options.rows, options.seed, data)
        run = nf.Run.open(options.run)
        curation = curate(run, str(data))
        places = ranks(run, data, copies, options.rows, Path(folder))
    duplicates = set(curation.duplicates.column("row").to_pylist())
    outliers = set(curation.outliers.column("row").to_pylist())
    assert curation.labels is not None
    doubtful = curation.labels.column("row").to_pylist()
    groups = (
        curation.duplicates.group_by("group_id").aggregate([("row", "list")]).column("row_list").to_pylist()
    )
    right_groups = sum(any(row in copies for row in group) for group in groups)
    rows = [["planted", "count", "recall", "precision"]]

    def add(name: str, truth: set[int], flagged: set[int], precision: float | None = None) -> None:
        share = f"{100 * len(truth & flagged) / len(truth):.0f} %"
        rows.append([name, str(len(truth)), share, "" if precision is None else f"{100 * precision:.0f} %"])

    add("copies", set(copies), duplicates, right_groups / max(1, len(groups)))
    for kind in KINDS:
        add(f"  {kind}", {row for row, copy in copies.items() if copy.kind == kind}, duplicates)
    add("outliers", set(foreign), outliers, len(outliers & set(foreign)) / max(1, len(outliers)))
    for kind in ("other data", "drawing"):
        add(f"  {kind}", {row for row, name in foreign.items() if name == kind}, outliers)
    add("label errors", wrong, set(doubtful), len(wrong & set(doubtful)) / max(1, len(doubtful)))
    first = set(doubtful[: len(wrong)])
    add(f"  first {len(wrong)} listed", wrong, first, len(wrong & first) / max(1, len(first)))
    for name, place in places.items():
        for top in (1, TOP):
            share = np.mean(np.array(place) < top)
            rows.append([f"{name}: original in the first {top}", str(len(place)), f"{100 * share:.0f} %", ""])
    print("\n".join(text_table(rows, numbers=True)))


if __name__ == "__main__":
    main()
