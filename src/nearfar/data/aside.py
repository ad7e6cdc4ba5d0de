"""A small part of the data that nothing is fitted to, so that a number on it can prove something."""

import numpy as np

from nearfar.errors import UserError
from nearfar.modalities import DataSet

SHARE, MOST, FEWEST = 0.05, 2048, 8  # instances kept aside
ENOUGH = 1000  # instances, from which on some are kept aside unasked
HELD_OUT_DRAW = 2**31  # in place of an epoch: no epoch of training draws the same


def kept_aside(images: DataSet, share: float | None, seed: int) -> tuple[DataSet, DataSet | None]:
    """What is trained on and what is not: a function of the seed alone. No share: `SHARE`, where there is enough."""
    rows = round(len(images) * (SHARE if share is None else share))
    if share is None:
        rows = min(rows, MOST) if len(images) >= ENOUGH else 0
    if rows < FEWEST:
        if share:
            raise UserError(
                f"held_out was {share:g}: of the {len(images)} {images.unit} of {images.name} that is {rows}, too few to "
                f"contrast with one another; give a share that keeps at least {FEWEST}, or 0 for none"
            )
        return images, None
    shuffled = images.order(seed, HELD_OUT_DRAW)
    return images.subset(np.sort(shuffled[rows:])), images.subset(np.sort(shuffled[:rows]))
