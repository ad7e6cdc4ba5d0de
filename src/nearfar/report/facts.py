"""Everything the page shows, as plain values.

    Run --gather--> RunFacts --charts, page--> one HTML file

Nothing here depends on matplotlib or HTML, so the same facts can be shown in another form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from nearfar.core.results import Answers, SetFacts
from nearfar.core.types import Certificate
from nearfar.errors import UserError

# exceptions of data that moved, damaged files and missing checkpoints: a part of the page is then left out
UNAVAILABLE = (UserError, OSError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Detail:
    """How much of a run is shown; `shared` reduces it for several runs, so that the page stays small."""

    points: int = 1500
    sprite_bytes: int = 800_000  # of the thumbnails; with many points, so many for each
    bytes_each: int = 300
    checkpoints: int = 5  # of which the map is shown, the last among them
    side: int = 96  # of a picture in the gallery and the strip
    queries: int = 8
    neighbours: int = 8
    epochs: int = 3
    cases: int = 5
    measured: int = 256  # instances that are measured before and after views are made of them

    def shared(self, runs: int) -> "Detail":
        if runs == 1:
            return self
        return Detail(
            max(300, 2 * self.points // runs),
            max(100_000, self.sprite_bytes // runs),
            side=64 if runs < 4 else 48,
            cases=3,
            checkpoints=1,
        )


class Fact(NamedTuple):
    """A name and what it is, both ready to read."""

    name: str
    value: str


@dataclass(frozen=True)
class Absent:
    """A part of the page that could not be made, and why, in one sentence."""

    reason: str


@dataclass(frozen=True)
class Curve:
    """One logged number against epochs, thinned for drawing; NaN marks a gap.

    A point of a thinned curve is the mean of the rows it stands for; `low` and `high` are their extremes.
    """

    epoch: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    first: float  # the first and last finite values that were logged, not thinned
    last: float
    broken: int  # rows whose value was NaN or infinite


@dataclass(frozen=True)
class Tested:
    """What a score was fitted on, tested on and how. Scores of one `kind` can be compared, others cannot."""

    kind: str
    test: SetFacts
    train: SetFacts
    settings: tuple[Fact, ...] = ()
    names: tuple[tuple[int, str], ...] = ()  # of classes by number, where they have names


@dataclass(frozen=True)
class Score:
    """What one protocol measured on one kind of features, as shares in [0, 1]."""

    protocol: str
    features: str  # "learned", "untrained", "pixels", ...
    top1: float
    top5: float | None
    interval: tuple[float, float] | None  # of top1
    tested: Tested
    answers: Answers | None = None  # for each test instance, where they were kept


@dataclass(frozen=True)
class Picture:
    uri: str  # data:image/...
    caption: str


@dataclass(frozen=True)
class Atlas:
    """Square thumbnails in a few sheets, `columns` to a row, `tile` pixels wide."""

    sheets: tuple[str, ...]  # data:image/...
    tile: int
    columns: int
    per_sheet: int


@dataclass(frozen=True, eq=False)
class Map:
    """The features in two dimensions; point i is tile i of the atlas."""

    points: Float[np.ndarray, "point 2"]  # in [0, 1]
    labels: Int[np.ndarray, "point"]  # -1: unknown
    names: tuple[str, ...]
    classes: tuple[str, ...]
    atlas: Atlas
    drawn_by: str
    of: int  # how many images the data set has
    crisp: bool  # images so small that enlarging must not blur them
    neighbours: Int[np.ndarray, "point near"]  # the nearest by cosine, nearest first
    predicted: Int[np.ndarray, "point"] | None = None  # the class that a point's neighbours vote for
    nats: Float[np.ndarray, "point"] | None = None  # what its two views tell of each other among others
    # how often it is kept as a negative; NaN: not looked at
    kept_shares: Float[np.ndarray, "point"] | None = None
    earlier: tuple[tuple[str, Float[np.ndarray, "point 2"]], ...] = ()  # at earlier checkpoints, turned alike
    last: str = ""  # the name of the checkpoint that is shown first


@dataclass(frozen=True)
class Neighbour:
    picture: Picture
    similarity: float
    same: bool | None  # of the query's class; None without labels


@dataclass(frozen=True)
class Query:
    picture: Picture
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Gallery:
    queries: tuple[Query, ...]
    searched: int  # how many images the neighbours were looked for in
    crisp: bool


@dataclass(frozen=True)
class StripRow:
    original: Picture
    draws: tuple[tuple[Picture, ...], ...]  # one tuple of views per epoch


@dataclass(frozen=True)
class ViewHistogram:
    """A number of instances before and after augmentation: shares in each bin."""

    title: str
    note: str
    bins: tuple[float, ...]
    original: tuple[float, ...]
    augmented: tuple[float, ...]
    medians: tuple[float, float]


@dataclass(frozen=True)
class Strip:
    rows: tuple[StripRow, ...]
    crisp: bool
    spreads: tuple[ViewHistogram, ...] = ()
    measured: int = 0  # instances that the spreads are of


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates to which a selection did the same: kept, dropped for a reason, or pulled."""

    title: str
    series: int  # its colour
    per_anchor: float
    share: float  # of all candidates
    low: float  # the lowest and highest similarity an anchor has in it, medians over the anchors
    high: float
    same: float | None  # share that is of the anchor's class; None without labels
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One anchor with examples of what the selection did to its candidates."""

    anchor: Picture
    positive: Picture
    similarity: float  # of the two
    note: str
    groups: tuple[tuple[CandidateGroup, tuple[Neighbour, ...]], ...]


@dataclass(frozen=True)
class Cases:
    rows: tuple[Case, ...]
    crisp: bool


@dataclass(frozen=True)
class Selected:
    """What a selection does at the end of the run, measured on a sample of anchors."""

    name: str
    step: int
    anchors: int
    candidates: float  # per anchor
    source: str
    measure: str  # what similarities are: "cosine" or "score"
    positive: float  # median similarity of the positives
    bins: tuple[float, ...]  # edges of the histograms
    groups: tuple[CandidateGroup, ...]
    notes: tuple[str, ...]
    cases: Cases | Absent
    kept_shares: Mapping[int, float] = field(default_factory=dict)  # by row of the data, how often it is kept


@dataclass(frozen=True)
class Event:
    step: int
    message: str


@dataclass(frozen=True)
class HeldOut:
    """What two views tell about each other, last estimated on instances that nothing was fitted to."""

    nats: float
    error: float
    instances: int
    certificate: Certificate


@dataclass(frozen=True)
class PictureRow:
    """Pictures under a title, each with its caption."""

    title: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Section:
    """A title, sentences, a table of text, remarks below it, and rows of pictures."""

    title: str
    sentences: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # of the table's head
    rows: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    picture_rows: tuple[PictureRow, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    title: str
    path: str
    recipe: str
    data: str
    unit: str  # what one counts of the data
    summary: tuple[Fact, ...]  # a handful: how far, how fast, on what
    environment: tuple[Fact, ...]
    choices: Mapping[str, str]  # views, encoders, critic, negatives, selection, bound
    certificate: Certificate | Absent  # of the training objective
    held_out: HeldOut | Absent
    curves: Mapping[str, Curve]  # by the name metrics.jsonl gives it; absent when nothing was logged
    scores: tuple[Score, ...]
    events: tuple[Event, ...]
    settings: tuple[Fact, ...]
    map: Map | Absent
    gallery: Gallery | Absent
    strip: Strip | Absent
    edges: Mapping[str, Curve]  # of a ring, by name: outer and inner
    selection: Selected | Absent | None  # None: everyone is kept, there is nothing to show
    cost: tuple[Fact, ...] = ()  # time, images, memory
    sections: tuple[Section, ...] = ()  # in addition to those of every page (sections.py)
