"""Exact nearest neighbours by cosine similarity, with faiss."""

import numpy as np
from jaxtyping import Float, Int64

from nearfar.system.extras import need


def unit_rows(features: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    """Rows of length one in float32; a row of zeros stays."""
    rows = np.ascontiguousarray(features, dtype=np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def nearest(
    queries: Float[np.ndarray, "query dim"], rows: Float[np.ndarray, "row dim"], count: int
) -> tuple[Float[np.ndarray, "query count"], Int64[np.ndarray, "query count"]]:
    """Cosine similarities and numbers of the `count` most similar rows. Rows have length one."""
    faiss = need("faiss")
    count = min(count, len(rows))
    return faiss.knn(queries, rows, count, metric=faiss.METRIC_INNER_PRODUCT)


def nearest_others(
    rows: Float[np.ndarray, "row dim"], count: int, queries: Int64[np.ndarray, "query"] | None = None
) -> tuple[Float[np.ndarray, "query count"], Int64[np.ndarray, "query count"]]:
    """As `nearest`, of every row, or of those with the numbers `queries`, among the others."""
    numbers = np.arange(len(rows)) if queries is None else queries
    count = min(count, len(rows) - 1)
    similarity, neighbour = nearest(rows[numbers], rows, count + 1)
    # a row is usually its own nearest; among exact copies it may come later or not at all
    is_self = neighbour == numbers[:, None]
    is_self[~is_self.any(axis=1), -1] = True
    shape = len(numbers), count
    return similarity[~is_self].reshape(shape), neighbour[~is_self].reshape(shape)
