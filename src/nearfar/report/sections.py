"""Sections that a page may have beside its own: each a function of a run that gives one, or None where it has nothing to say.

A section is a title, sentences and a table of text. It is named in `SECTIONS`; one that cannot be made says why, and the page is
written all the same.
"""

from collections.abc import Callable, Iterator

from nearfar.report.facts import Section
from nearfar.report.inputs import Run
from nearfar.report.reasons import UNAVAILABLE, said

SECTIONS: dict[str, Callable[[Run], Section | None]] = {}


def sections_of(run: Run) -> Iterator[Section]:
    for name, section in SECTIONS.items():
        try:
            found = section(run)
        except UNAVAILABLE as problem:
            found = Section(name, (f"This could not be made: {said(problem)}",))
        if found is not None:
            yield found
