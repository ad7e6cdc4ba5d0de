"""Figures of studies: panels side by side, one colour per thing, the truth as a dashed line."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#2c6e91", "#c2562d", "#4d8b4f", "#7b5ea7", "#b48a12", "#5c5c5c", "#b0507b")
TRUTH = "#1c1c1c"


def panels(titles: Sequence[str], width: float = 4.0, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """A row of titled axes."""
    figure = Figure(figsize=(width * len(titles), height), layout="constrained")
    axes = figure.subplots(1, len(titles), squeeze=False)[0]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=9.5)
        axis.grid(alpha=0.25, linewidth=0.5)
    return figure, list(axes)


def truth(axes: Axes, value: float, label: str) -> None:
    axes.axhline(value, color=TRUTH, linewidth=1.0, linestyle=(0, (4, 3)), label=label)
