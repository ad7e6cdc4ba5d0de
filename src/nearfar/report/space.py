"""Flat maps of features, and the choice of query images."""

import numpy as np
from jaxtyping import Float, Int
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from nearfar.core.randomness import order
from nearfar.search.neighbours import unit_rows

LANDMARKS = 1500  # t-SNE lays out no more than these
FEW = 50  # below this t-SNE has too few neighbours to say more than PCA
_PRINCIPAL = 50  # dimensions t-SNE is given: more change little and cost time


def principal(features: Float[np.ndarray, "image dim"], count: int) -> Float[np.ndarray, "image count"]:
    """The first `count` principal components, zeros where there are fewer."""
    centred = (features - features.mean(axis=0)).astype(np.float64)
    left_vectors, size, _ = np.linalg.svd(centred, full_matrices=False)
    components = (left_vectors * size)[:, :count]
    return np.pad(components, ((0, 0), (0, count - components.shape[1])))


def flat_map(
    features: Float[np.ndarray, "image dim"], like: Float[np.ndarray, "image 2"] | None = None
) -> tuple[Float[np.ndarray, "image 2"], str]:
    """The features in two dimensions within [0, 1], and what drew them: t-SNE, or PCA for a few.

    Of many, t-SNE lays out `LANDMARKS`, and each of the others is put among those it is most similar to.
    `like` is another map of the same images, from which t-SNE starts, so that what stays near stays where it
    was.
    """
    components = principal(unit_rows(features), min(_PRINCIPAL, max(2, features.shape[1])))
    # a collapsed encoder puts everything on one spot: t-SNE's start divides by that spread
    if len(features) < FEW or components[:, 0].std() < 1e-6:
        return _unit_square(components[:, :2]), "PCA"
    landmarks = np.sort(order(0, 0, len(features))[:LANDMARKS])  # the same ones for every run
    start = (components if like is None else like)[landmarks, :2]
    start = start - start.mean(axis=0)
    tsne = TSNE(
        n_components=2,
        init=start / max(float(start[:, 0].std()), 1e-9) * 1e-4,
        learning_rate="auto",
        perplexity=min(30.0, len(landmarks) / 4),
        random_state=0,
        max_iter=1000 if like is None else 300,
    )
    layout = tsne.fit_transform(components[landmarks].astype(np.float32))
    if len(landmarks) == len(features):
        return _unit_square(layout), "t-SNE"
    drawn_by = f"t-SNE of {len(landmarks):,} of them, the others beside the most similar"
    return _unit_square(_place_by_landmarks(components, landmarks, layout)), drawn_by


def _place_by_landmarks(
    rows: Float[np.ndarray, "image dim"],
    landmarks: Int[np.ndarray, "landmark"],
    layout: Float[np.ndarray, "landmark 2"],
) -> Float[np.ndarray, "image 2"]:
    """Every image at the weighted mean of its three nearest landmarks, landmarks at their own place."""
    index = NearestNeighbors(n_neighbors=3).fit(rows[landmarks])
    placed = np.empty((len(rows), 2))
    for part in np.array_split(np.arange(len(rows)), -(-len(rows) // 4096)):
        distance, neighbours = index.kneighbors(rows[part])
        weight = 1 / np.maximum(distance, 1e-9) ** 2
        placed[part] = (layout[neighbours] * (weight / weight.sum(axis=1, keepdims=True))[..., None]).sum(
            axis=1
        )
    placed[landmarks] = layout
    return placed


def aligned(
    points: Float[np.ndarray, "image 2"], target_points: Float[np.ndarray, "image 2"]
) -> Float[np.ndarray, "image 2"]:
    """One map turned, mirrored, scaled and shifted to lie near another of the same points (Procrustes).

    min over s, R, t of |s moved R + t - to|², R orthogonal: R = U V' of the singular vectors of moved' to.
    """
    centre, target = points.mean(axis=0), target_points.mean(axis=0)
    left_vectors, sizes, right = np.linalg.svd((points - centre).T @ (target_points - target))
    spread = float(((points - centre) ** 2).sum())
    scale = float(sizes.sum()) / spread if spread > 0 else 1.0
    return scale * (points - centre) @ left_vectors @ right + target


def _unit_square(points: Float[np.ndarray, "image 2"]) -> Float[np.ndarray, "image 2"]:
    """The points moved and scaled, both axes alike, to fill the square around (1/2, 1/2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    return 0.5 + (points - (low + high) / 2) / max(float((high - low).max()), 1e-9)


def queries_of(labels: Int[np.ndarray, "image"] | None, size: int, count: int) -> Int[np.ndarray, "query"]:
    """Query images, drawn by a fixed seed: one of each class in turn."""
    shuffled = order(1, 0, size)
    if labels is None:
        return shuffled[:count]
    turn = np.zeros(size, dtype=np.int64)  # how many of its class were drawn before it
    counts: dict[int, int] = {}
    for place, label in enumerate(labels[shuffled].tolist()):
        turn[place] = counts.get(label, 0)
        counts[label] = turn[place] + 1
    queries = shuffled[np.argsort(turn, kind="stable")][:count]
    return queries[np.argsort(labels[queries], kind="stable")]
