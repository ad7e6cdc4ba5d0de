"""Instances with what can be said and shown of each."""

from collections.abc import Iterator

import numpy as np
from PIL import Image

from nearfar.modalities import DataSet
from nearfar.report.pictures import SMALL, decoded
from nearfar.run.trained import Run


class Named:
    """Some rows of a data set: `place` counts among them, not in the data set."""

    def __init__(self, run: Run, images: DataSet, rows: np.ndarray):
        self.run, self.images, self.rows = run, images, rows
        self.labels = None if images.labels is None else np.asarray(images.labels)[rows]
        self.small = max(next(decoded(run, images, rows[:1])).size) <= SMALL

    def pictures(self, places: np.ndarray | None = None) -> Iterator[Image.Image]:
        """Those at these places, or all."""
        return decoded(self.run, self.images, self.rows if places is None else self.rows[places])

    def label(self, place: int) -> int | None:
        """The class of the instance at `place` of the sample; a negative label means unknown."""
        if self.labels is None or self.labels[place] < 0:
            return None
        return int(self.labels[place])

    def path(self, place: int) -> str:
        return str(self.images.paths[int(self.rows[place])])

    def caption(self, place: int) -> str:
        label = self.label(place)
        return self.path(place) if label is None else f"{self.class_of(label)} · {self.path(place)}"

    def class_of(self, label: int) -> str:
        return self.images.classes[label] if label < len(self.images.classes) else str(label)

    def classes(self) -> tuple[str, ...]:
        if self.labels is None or not (self.labels >= 0).any():
            return ()
        return tuple(self.class_of(label) for label in range(int(self.labels.max()) + 1))
