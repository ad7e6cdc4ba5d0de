"""Where features lie: a flat map of them, who is near whom, and whom to ask."""

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from nearfar.core.randomness import order

LANDMARKS = 1500  # t-SNE lays out no more than these
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


def flat_map(
    features: Float[np.ndarray, "image dim"], like: Float[np.ndarray, "image 2"] | None = None
) -> tuple[Float[np.ndarray, "image 2"], str]:
    """The features in two dimensions within [0, 1], and what drew them: t-SNE, or PCA for a few or equal points.

    Of many, t-SNE lays out `LANDMARKS`, and each of the others is put among those it is most similar to. `like` is another map of the
    same images, from which t-SNE starts, so that what stays near stays where it was.
    """
    components = principal(directions(features), min(_PRINCIPAL, max(2, features.shape[1])))
    # a collapsed encoder puts everything on one spot: t-SNE's start divides by that spread
    if len(features) < FEW or components[:, 0].std() < 1e-6:
        return _unit_square(components[:, :2]), "PCA"
    some = sample(len(features), LANDMARKS)
    start = (components if like is None else like)[some, :2]
    start = start - start.mean(axis=0)
    tsne = TSNE(
        n_components=2,
        init=start / max(float(start[:, 0].std()), 1e-9) * 1e-4,
        learning_rate="auto",
        perplexity=min(30.0, len(some) / 4),
        random_state=0,
        max_iter=1000 if like is None else 300,
    )
    laid = tsne.fit_transform(components[some].astype(np.float32))
    if len(some) == len(features):
        return _unit_square(laid), "t-SNE"
    drawn_by = f"t-SNE of {len(some):,} of them, the others beside the most similar"
    return _unit_square(_beside(components, some, laid)), drawn_by


def _beside(
    rows: Float[np.ndarray, "image dim"],
    some: Int[np.ndarray, "landmark"],
    laid: Float[np.ndarray, "landmark 2"],
) -> Float[np.ndarray, "image 2"]:
    """Every image at the weighted mean of its three nearest landmarks, landmarks at their own place."""
    index = NearestNeighbors(n_neighbors=3).fit(rows[some])
    placed = np.empty((len(rows), 2))
    for part in np.array_split(np.arange(len(rows)), -(-len(rows) // 4096)):
        distance, near = index.kneighbors(rows[part])
        weight = 1 / np.maximum(distance, 1e-9) ** 2
        placed[part] = (laid[near] * (weight / weight.sum(axis=1, keepdims=True))[..., None]).sum(axis=1)
    placed[some] = laid
    return placed


def aligned(
    moved: Float[np.ndarray, "image 2"], to: Float[np.ndarray, "image 2"]
) -> Float[np.ndarray, "image 2"]:
    """One map turned, mirrored, scaled and shifted to lie as near to another of the same points as it can (Procrustes).

    min over s, R, t of |s moved R + t - to|², R orthogonal: R = U V' of the singular vectors of moved' to.
    """
    centre, target = moved.mean(axis=0), to.mean(axis=0)
    left, sizes, right = np.linalg.svd((moved - centre).T @ (to - target))
    spread = float(((moved - centre) ** 2).sum())
    scale = float(sizes.sum()) / spread if spread > 0 else 1.0
    return scale * (moved - centre) @ left @ right + target


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


def neighbours_of_all(features: Float[np.ndarray, "image dim"], count: int) -> Int[np.ndarray, "image near"]:
    """The `count` images nearest each by cosine, nearest first, never itself; the whole matrix is never built."""
    unit = torch.from_numpy(directions(features).astype(np.float32))
    found = []
    for part in torch.arange(len(unit)).split(1024):
        similarity = unit[part] @ unit.T
        similarity[torch.arange(len(part)), part] = -torch.inf
        found.append(similarity.topk(min(count, len(unit) - 1), dim=1).indices)
    return torch.cat(found).numpy()


def sample(size: int, count: int) -> Int[np.ndarray, "image"]:
    """At most `count` of `size` rows, in rising order: always the same ones, so that runs can be compared."""
    return np.sort(order(0, 0, size)[:count])


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
