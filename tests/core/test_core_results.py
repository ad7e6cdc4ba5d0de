"""A result and its JSON: a round trip loses nothing, and damaged files do not stop a reader."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearfar.core.results import FIGURE_KINDS, Answers, Figure, Measurement, Result, SetFacts
from nearfar.core.tables import text_table
from nearfar.evaluate.accuracy import classified

KEYS = [
    "results", "train", "test", "baselines", "settings", "knn", "top1", "nats", "interval", "intervals",
    "spread", "draws", "answers", "said", "true", "error", "name", "samples", "fingerprint", "unit",
]  # fmt: skip

numbers = st.floats(-100, 100).map(lambda value: value + 0.0)
shares = st.floats(0, 1)
intervals = st.none() | st.tuples(numbers, numbers)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    names = draw(st.lists(st.sampled_from(list(FIGURE_KINDS)), min_size=1, max_size=4, unique=True))
    kinds = {name: shares if FIGURE_KINDS[name].percent else numbers for name in names}
    figures = {name: Figure(draw(kind), draw(intervals)) for name, kind in kinds.items()}
    if "top1" in figures and "nats" in figures:  # one key holds the interval of either
        figures["nats"] = Figure(figures["nats"].value)
    draws = draw(st.lists(numbers, max_size=3))
    first = figures[names[0]]
    spread = draw(numbers) if len(draws) > 1 else None
    figures[names[0]] = Figure(first.value, first.interval, spread, tuple(draws))
    details = draw(st.dictionaries(st.sampled_from(["penalty", "labels", "episodes"]), numbers))
    return Measurement(figures, details)


def same(first: Measurement, second: Measurement) -> bool:
    return (first.figures, first.details, first.test) == (second.figures, second.details, second.test)


@given(
    st.dictionaries(st.sampled_from(["knn", "linear", "fractions/1 %", "fractions/10 %"]), measurements()),
    st.dictionaries(st.sampled_from(["pixels", "untrained"]), st.just("knn"), max_size=2),
    measurements(),
)
def test_a_result_survives_json(
    figures: dict[str, Measurement], baselines: dict[str, str], baseline: Measurement
) -> None:
    train, test = SetFacts("a", 10, "aa"), SetFacts("b", 5, "bb", "recordings")
    notes = {"confidence": 0.95, "encoder": "0f", "split": None}
    paths = {kind: {path: baseline} for kind, path in baselines.items()}
    result = Result(train, test, {"k": 20}, figures, paths, notes)
    restored = Result.from_json(json.loads(json.dumps(result.to_json(answers=True))))
    assert restored is not None
    assert (restored.train, restored.test, restored.settings, restored.notes) == (
        train,
        test,
        {"k": 20},
        notes,
    )
    assert set(restored.figures) == set(figures)
    assert all(same(restored.figures[path], figures[path]) for path in figures)
    assert all(same(restored.baselines[kind]["knn"], baseline) for kind in baselines)
    assert restored.to_json() == result.to_json()
    assert restored.kind == result.kind


def test_json_has_the_documented_keys() -> None:
    """`{"knn": {"top1", "top5", "interval"}, …, "test": {"name", "samples", …}, "train", "baselines"}`."""
    knn = Measurement({"top1": Figure.share(0.5, 100), "top5": Figure.share(0.9, 100)})
    result = Result(SetFacts("a", 1, "x"), SetFacts("b", 2, "y"), {}, {"knn": knn}, {"pixels": {"knn": knn}})
    document = result.to_json()
    assert document["knn"]["top1"] == document["baselines"]["pixels"]["knn"]["top1"] == 0.5
    assert document["knn"]["interval"][0] < 0.5 < document["knn"]["interval"][1]
    assert document["test"] == {"name": "b", "samples": 2, "fingerprint": "y", "unit": "images"}
    assert result == document, "a result reads like its JSON"
    without_baselines = Result(SetFacts("a", 1, "x"), SetFacts("b", 2, "y"), {}, {"knn": knn})
    assert without_baselines["baselines"] == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
        max_leaves=20,
    )
)
def test_damaged_json_is_read_or_refused(stored: Any) -> None:
    """Whatever a file holds: no exception, and what is read can be shown."""
    facts = {"name": "a", "samples": 3, "fingerprint": "f"}
    for tree in (stored, {**(stored if isinstance(stored, dict) else {}), "train": facts, "test": facts}):
        result = Result.from_json(tree)
        if result is not None:
            for measurement in result.figures.values():
                assert [measurement.text(name) for name in measurement.titles()]


@given(st.lists(st.tuples(st.integers(-1, 2**31 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=50))
def test_answers_survive_json(pairs: list[tuple[int, int]]) -> None:
    predicted, true = (np.array(side) for side in zip(*pairs, strict=True))
    restored = Answers.from_json(json.loads(json.dumps(Answers(predicted, true).to_json())))
    assert restored is not None
    np.testing.assert_array_equal(restored.predicted, predicted)
    np.testing.assert_array_equal(restored.true, true)


@pytest.mark.parametrize(
    "stored",
    [None, 3, {}, {"said": "!", "true": "!"}, {"said": 5, "true": []}, {"said": "YWJj", "true": "YWJj"}],
)
def test_malformed_answers_are_none(stored: object) -> None:
    assert Answers.from_json(stored) is None
    measurement = Measurement.from_json({"top1": 0.5, "answers": stored})
    assert measurement.to_json(answers=True) == {"top1": 0.5}


def test_columns_are_aligned() -> None:
    rows = [["features", "top-1"], ["learned", "58.1 %"], ["x", "9 %"]]
    assert text_table(rows, numbers=True) == ["features   top-1", "learned   58.1 %", "x            9 %"]
    assert text_table(rows) == ["features  top-1", "learned   58.1 %", "x         9 %"]


@pytest.mark.parametrize(("classes", "titles"), [(3, ["top-1"]), (5, ["top-1"]), (6, ["top-1", "top-5"])])
def test_top_5_of_at_most_five_classes_is_not_shown(classes: int, titles: list[str]) -> None:
    labels = torch.arange(60) % classes
    ranked = torch.stack([labels, (labels + 1) % classes], dim=1)
    assert list(classified(ranked, labels, classes).titles().values()) == titles
