"""Images with what can be said of each."""

import numpy as np

from nearfar.report.inputs import Images
from nearfar.report.pictures import SMALL


class Named:
    """Some rows of a data set: `place` counts among them, not in the data set."""

    def __init__(self, images: Images, rows: np.ndarray):
        self.images, self.rows = images, rows
        self.labels = None if images.labels is None else np.asarray(images.labels)[rows]
        self.small = int(images.load(rows[:1]).size.max()) <= SMALL

    def label(self, place: int) -> int | None:
        """The class of the image at `place` of the sample; a negative label means unknown."""
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
