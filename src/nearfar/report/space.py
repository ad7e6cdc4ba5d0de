"""Where features lie: a flat map of them, who is near whom, and whom to ask."""

import numpy as np
from jaxtyping import Float, Int
from sklearn.manifold import TSNE

from nearfar.randomness import order

FEW = 50  # below this t-SNE has too few neighbours to say more than PCA
_PRINCIPAL = 50  # dimensions t-SNE is given: more change little and cost time


def directions(features: Float[np.ndarray, "image dim"]) -> Float[np.ndarray, "image dim"]:
    """Features at unit length: cosine is what contrastive encoders are trained to order by."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(length, 1e-12)


def principal(features: Float[np.ndarray, "image dim"], count: int) -> Float[np.ndarray, "image count"]:
    """The first `count` principal components, zeros where there are fewer."""
    centred = (features - features.mean(axis=0)).astype(np.float64)
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    components = (left * size)[:, :count]
    return np.pad(components, ((0, 0), (0, count - components.shape[1])))


def flat_map(features: Float[np.ndarray, "image dim"]) -> tuple[Float[np.ndarray, "image 2"], str]:
    """The features in two dimensions within [0, 1], and what drew them: t-SNE, or PCA for a few or equal points."""
    components = principal(directions(features), min(_PRINCIPAL, max(2, features.shape[1])))
    spread = components[:, 0].std()
    # a collapsed encoder puts everything on one spot: t-SNE's start divides by that spread
    if len(features) < FEW or spread < 1e-6:
        return _unit_square(components[:, :2]), "PCA"
    start = components[:, :2] / spread * 1e-4
    tsne = TSNE(
        n_components=2,
        init=start,
        learning_rate="auto",
        perplexity=min(30.0, len(features) / 4),
        random_state=0,
    )
    return _unit_square(tsne.fit_transform(components.astype(np.float32))), "t-SNE"


def _unit_square(points: Float[np.ndarray, "image 2"]) -> Float[np.ndarray, "image 2"]:
    """The points moved and scaled, both axes alike, to fill the square around (1/2, 1/2)."""
    low, high = points.min(axis=0), points.max(axis=0)
    return 0.5 + (points - (low + high) / 2) / max(float((high - low).max()), 1e-9)


def nearest(
    features: Float[np.ndarray, "image dim"], queries: Int[np.ndarray, "query"], count: int
) -> tuple[Int[np.ndarray, "query near"], Float[np.ndarray, "query near"]]:
    """The `count` images nearest each query by cosine, nearest first, never the query itself."""
    unit = directions(features)
    similarity = unit[queries] @ unit.T
    similarity[np.arange(len(queries)), queries] = -np.inf
    near = np.argsort(-similarity, axis=1, kind="stable")[:, : min(count, len(features) - 1)]
    return near, np.take_along_axis(similarity, near, axis=1)


def queries_of(labels: Int[np.ndarray, "image"] | None, size: int, count: int) -> Int[np.ndarray, "query"]:
    """Images to ask about, drawn by a fixed seed: as many different classes as there are, then again."""
    drawn = order(1, 0, size)
    if labels is None:
        return drawn[:count]
    turn = np.zeros(size, dtype=np.int64)  # how many of its class were drawn before it
    seen: dict[int, int] = {}
    for place, label in enumerate(labels[drawn].tolist()):
        turn[place] = seen.get(label, 0)
        seen[label] = turn[place] + 1
    chosen = drawn[np.argsort(turn, kind="stable")][:count]
    return chosen[np.argsort(labels[chosen], kind="stable")]
