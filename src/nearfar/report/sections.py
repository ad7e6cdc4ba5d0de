"""Sections that a page may have beside its own: each a function of a run that gives one, or None where it has nothing to say.

A section is a title, sentences and a table of text. It is named in `SECTIONS`; one that cannot be made says why, and the page is
written all the same.
"""

from collections.abc import Callable, Iterator

from nearfar.detect.table import SHOWN, caption, rows_of
from nearfar.report.facts import Section
from nearfar.report.measures import beside_accuracy, classes_told_apart
from nearfar.report.reasons import UNAVAILABLE, said
from nearfar.run.trained import Run
from nearfar.system.untrusted import read_json


def _detection(run: Run) -> Section | None:
    """What RUN/detection.json holds, newest last."""
    told = read_json(run.path / "detection.json")
    results = told.get("results") if isinstance(told, dict) else None
    try:
        rows = tuple((*row, caption(one)) for one in results or () for row in rows_of(one))
    except (KeyError, TypeError, AttributeError, ValueError):
        return Section("Detection", ("RUN/detection.json makes no sense; nearfar detect writes it anew.",))
    if not rows:
        return None
    sentence = "COCO's average precision in percent: over overlaps from 0.50 to 0.95, at 0.50, at 0.75."
    return Section("Detection", (sentence,), ("backbone", "of", *SHOWN.values(), "how"), rows)


SECTIONS: dict[str, Callable[[Run], Section | None]] = {
    "Classes": classes_told_apart,
    "Beyond accuracy": beside_accuracy,
    "Detection": _detection,
}


def sections_of(run: Run) -> Iterator[Section]:
    for name, section in SECTIONS.items():
        try:
            found = section(run)
        except UNAVAILABLE as problem:
            found = Section(name, (f"This could not be made: {said(problem)}",))
        if found is not None:
            yield found
