"""Graphs in reports (a spring layout, a colour for each label) and their baselines."""

import colorsys
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from nearfar.modalities.base import AbstractPresenter, Features, MakeViews, Measure
from nearfar.modalities.graph.data import Graph, GraphDescription
from nearfar.modalities.graph.scores import label_counts, node_measure, svm_measure
from nearfar.modalities.graph.views import unpacked
from nearfar.modalities.showing import SIDE

ROUNDS, SCALE = 60, 2  # of the layout; the picture is drawn larger and shrunk, which smooths its lines
MAX_LAYOUT_NODES = 300  # larger graphs are drawn as a circle


class GraphPresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {
        "labels": "how often each node label occurs",
        "inputs": "what a network is shown of each node",
    }

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {"labels": label_counts}

    def measures(self) -> dict[str, Measure]:
        return {"svm": svm_measure(), "nodes": node_measure()}

    def pictures(self, loaded: list[Graph], description: GraphDescription) -> list[Image.Image]:
        return [draw_graph(graph, description.node_labels) for graph in loaded]

    def view_pictures(self, views: Any, view: Tensor, description: GraphDescription) -> list[Image.Image]:
        return [draw_graph(unpacked(table), description.node_labels) for table in view.detach().cpu().numpy()]


def layout(graph: Graph) -> Float[np.ndarray, "node 2"]:
    """Places in [0, 1] (Fruchterman & Reingold 1991); it starts from a circle, so it is deterministic."""
    count = len(graph.labels)
    angle = 2 * np.pi * np.arange(count) / max(1, count)
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (1 + 0.01 * np.arange(count)[:, None] % 7)
    ideal = 1 / np.sqrt(max(1, count))
    for round_ in range(ROUNDS if count <= MAX_LAYOUT_NODES else 0):
        offset = place[:, None] - place[None]
        distance = np.maximum(np.linalg.norm(offset, axis=2), 1e-3)
        force = (offset * (ideal**2 / distance**2)[..., None]).sum(axis=1)
        if len(graph.edges):
            a, b = graph.edges.T
            pull = place[b] - place[a]
            np.add.at(force, a, pull * (np.linalg.norm(pull, axis=1, keepdims=True) / ideal))
        length = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        place = place + force / length * np.minimum(length, 0.2 * (1 - round_ / ROUNDS) + 1e-3)
    low, high = place.min(axis=0), place.max(axis=0)
    return (place - low) / np.maximum(high - low, 1e-9)


def colour(label: int, labels: int) -> tuple[int, int, int]:
    """One for each label; grey where it is hidden."""
    if label < 0:
        return 190, 190, 190
    red, green, blue = colorsys.hls_to_rgb(label / max(1, labels), 0.45, 0.65)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_graph(graph: Graph, labels: int) -> Image.Image:
    side = SIDE * SCALE
    page = Image.new("RGB", (side, side), "white")
    draw, margin = ImageDraw.Draw(page), 8 * SCALE
    place = margin + layout(graph) * (side - 2 * margin)
    for a, b in graph.edges.tolist():
        draw.line([tuple(place[a]), tuple(place[b])], fill=(120, 120, 120), width=SCALE)
    radius = max(SCALE, min(4 * SCALE, side // (4 * max(1, int(len(place) ** 0.5)))) - 1)
    for (x, y), label in zip(place.tolist(), graph.labels.tolist(), strict=True):
        draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour(label, labels))
    return page.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
