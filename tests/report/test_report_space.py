"""The map, the neighbours and the draws, against independent references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness
from sklearn.neighbors import NearestNeighbors

from nearfar.report.pictures import queries_of
from nearfar.report.visuals import FEW, flat_map, principal
from nearfar.search.neighbours import nearest_others, unit_rows


def test_nearest_equals_sklearn_cosine_neighbours() -> None:
    features = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    queries = np.array([3, 77, 150])
    similarity, neighbours = nearest_others(unit_rows(features), 8, queries)
    distance, expected = (
        NearestNeighbors(n_neighbors=9, metric="cosine").fit(features).kneighbors(features[queries])
    )
    np.testing.assert_array_equal(neighbours, expected[:, 1:])
    np.testing.assert_allclose(1 - similarity, distance[:, 1:], atol=1e-5)


def test_a_query_is_never_its_own_neighbour_even_among_equals() -> None:
    _, neighbours = nearest_others(unit_rows(np.ones((5, 3))), 8, np.array([2]))
    assert sorted(neighbours[0].tolist()) == [0, 1, 3, 4]


def test_principal_components_equal_sklearn_up_to_sign() -> None:
    features = np.random.default_rng(1).standard_normal((60, 7))
    ours, theirs = principal(features, 3), PCA(3).fit_transform(features)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-9)


def test_the_map_keeps_neighbourhoods_and_is_the_same_again() -> None:
    features = load_digits().data[:300]
    flat, drawn_by = flat_map(features)
    assert drawn_by == "t-SNE"
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert trustworthiness(unit, flat, n_neighbors=10) > 0.95
    np.testing.assert_array_equal(flat, flat_map(features)[0])


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 5), (FEW - 1, 2)])
def test_few_points_are_drawn_by_pca(shape: tuple[int, int]) -> None:
    flat, drawn_by = flat_map(np.random.default_rng(0).standard_normal(shape))
    assert drawn_by == "PCA"
    assert flat.shape == (shape[0], 2)
    assert (flat >= -1e-9).all()
    assert (flat <= 1 + 1e-9).all()


def test_a_collapsed_encoder_is_one_spot() -> None:
    flat, _ = flat_map(np.ones((100, 8), dtype=np.float32))
    np.testing.assert_allclose(flat, 0.5, atol=1e-3)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_queries_take_classes_in_turn(labels: list[int], count: int) -> None:
    array = np.array(labels)
    queries = queries_of(array, len(array), count)
    assert len(set(queries.tolist())) == len(queries) == min(count, len(array))
    assert len(set(array[queries].tolist())) == min(count, len(set(labels)))


def test_queries_without_labels_are_spread() -> None:
    assert len(set(queries_of(None, 100, 8).tolist())) == 8
