"""The section about RUN/curation.json: the clearest duplicates, outliers and doubtful labels, with pictures."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearfar.errors import counted
from nearfar.report.facts import UNAVAILABLE, Picture, PictureRow, Section, as_sentence
from nearfar.report.pictures import Sample, data_uri, fitted
from nearfar.run.features import encoder_digest
from nearfar.run.trained import Run
from nearfar.search.curate import FACTS, TITLES
from nearfar.system.untrusted import read_json

MAX_SHOWN = 12  # pictures of a row
SIDE = 128  # pixels


def curation(run: Run) -> Section | None:
    stored = read_json(run.path / FACTS)
    if stored is None:
        return None
    try:
        sentence = f"{stored['data']}: {counted(int(stored['instances']), 'instances')}. " + ", ".join(
            counted(int(stored[name]["count"]), title) for name, title in TITLES.items() if name in stored
        )
        rows = {name: _cases(stored[name]["first"]) for name in TITLES if name in stored}
        encoder = stored["encoder"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Section("Curation", (f"RUN/{FACTS} cannot be read; nearfar curate writes a new one.",))
    title = "Curation"
    try:
        if encoder != encoder_digest(run.encoder()):
            problem = f"RUN/{FACTS} was made before the encoder changed; nearfar curate writes a new one."
            return Section(title, (problem,))
        return Section(title, (f"{sentence}.",), picture_rows=_picture_rows(run, stored, rows))
    except UNAVAILABLE as problem:
        return Section(title, (f"{sentence}.", f"The pictures are missing: {as_sentence(problem)}"))


def _cases(first: Any) -> list[tuple[int, str]]:
    """(row, what is remarkable) of the stored cases."""
    return [(int(row), str(remark)) for row, remark in first][:MAX_SHOWN]


def _picture_rows(
    run: Run, stored: Mapping[str, Any], rows: Mapping[str, list[tuple[int, str]]]
) -> tuple[PictureRow, ...]:
    if not run.may_open(str(stored["data"])):
        raise ValueError("the data are at a URL that was not confirmed")
    images = run.open_data(None if stored["data"] == run.settings.data else str(stored["data"]))
    if images.fingerprint != stored["fingerprint"]:
        raise ValueError("the data have changed since; run nearfar curate again")
    if not all(0 <= row < len(images) for cases in rows.values() for row, _ in cases):
        raise ValueError(f"RUN/{FACTS} names rows that the data do not have")
    picture_rows = []
    for name, cases in rows.items():
        if cases:
            sample = Sample(run, images, np.array([row for row, _ in cases]))
            pictures = tuple(
                Picture(data_uri(fitted(picture, SIDE)), f"{remark} · {sample.caption(place)}")
                for place, (picture, (_, remark)) in enumerate(zip(sample.pictures(), cases, strict=True))
            )
            picture_rows.append(PictureRow(TITLES[name].capitalize(), pictures))
    return tuple(picture_rows)
