"""A run becomes facts: all that it has, and a reason for all that it has not."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nearfar.core.results import SetFacts
from nearfar.core.schedules import linear
from nearfar.core.types import Certificate
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.evaluate import evaluate_run
from nearfar.modalities import MODALITIES
from nearfar.modalities.image.views import Augment, Views
from nearfar.modalities.showing import coloured
from nearfar.report.facts import Absent, Detail, Fact, Gallery, Map, Score, Strip
from nearfar.report.gather import as_text, flattened, gather
from nearfar.report.page import page
from nearfar.report.pictures import data_uri
from nearfar.report.plots import number
from nearfar.report.visuals import _spreads
from nearfar.run.trained import Run

Make = Callable[..., Any]


def test_a_complete_run(make_run: Make) -> None:
    facts = gather(make_run(), Detail())
    assert facts.title == "digits-simclr"
    assert facts.recipe == "simclr"
    assert Fact("views.flip", "0.5") in facts.settings
    assert Fact("views.scale", "0.2, 1.0") in facts.settings
    assert Fact("versions.torch", "2.9") in facts.environment
    assert {"started", "cpu", "torch", "precision", "images per second"} <= {
        fact.name for fact in facts.summary
    }
    assert isinstance(facts.certificate, Certificate)
    assert facts.certificate.ceiling == 6.23
    assert [event.step for event in facts.events] == [55]
    assert set(facts.curves) >= {
        "loss",
        "nats",
        "ceiling",
        "lr",
        "deviation",
        "rank",
        "mean_cosine",
        "knn_top1",
    }


def test_scores_include_baselines_and_nested_protocols(make_run: Make, make_result: Make) -> None:
    all_rows = {"name": "all of it", "samples": 900, "fingerprint": "w", "unit": "blocks"}
    result = make_result(
        knn=0.5,
        linear=None,
        fractions={"1%": {"top1": 0.2, "top5": math.nan}},
        masked={"top1": 0.3, "top5": 0.4, "nats": 2.0, "interval": [0.1, math.nan], "test": all_rows},
        baselines={"pixels": {"knn": {"top1": 0.25, "top5": 0.5, "interval": [0.2, 0.3]}}, "untrained": None},
    )
    scores = gather(make_run(evaluation={"results": [result]}), Detail()).scores
    tested = scores[0].tested
    assert (tested.test.name, tested.test.samples, tested.test.unit) == ("digits:test", 2000, "images")
    assert (tested.train.name, tested.train.samples) == ("digits:train", 5000)
    assert Fact("k", "20") in tested.settings
    low, high = result["knn"]["interval"]
    answers = scores[0].answers
    assert answers is not None
    assert answers.correct.mean() == 0.5
    assert scores == (
        Score("knn", "learned", 0.5, 0.93, (low, high), tested, answers),
        Score("fractions 1%", "learned", 0.2, None, None, tested),
        Score(
            "masked",
            "learned",
            0.3,
            0.4,
            None,
            replace(tested, kind=f"{tested.kind} w", test=SetFacts("all of it", 900, "w", "blocks")),
        ),
        Score("knn", "pixels", 0.25, 0.5, (0.2, 0.3), tested),
    )


def keys_of(tree: Any) -> Any:
    """The shape of a JSON value: names and kinds, no values."""
    if isinstance(tree, dict):
        return {name: keys_of(value) for name, value in tree.items()}
    return type(tree).__name__


def test_the_fixture_has_the_shape_a_run_writes(ring_run: Any, make_result: Make, tmp_path: Path) -> None:
    """Else the tests of the page would show a page that no run can have."""
    shutil.copytree(ring_run.path, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    rng = np.random.default_rng(0)
    second = tmp_path / "other.npz"
    np.savez(
        second,
        images=rng.integers(0, 256, (20, 8, 8), np.uint8),
        labels=np.arange(20) % 10,
        classes=np.array(list("0123456789")),
    )
    evaluate_run(run, str(second), baselines=True)
    (written_down,) = json.loads((tmp_path / "run" / "evaluation.json").read_text())["results"]
    fixture_result = make_result()
    for result in (written_down, fixture_result):
        result["labels"]["classes"] = {}
        for figures in (result, *result["baselines"].values()):
            figures["linear"].pop("penalty", None)
    assert keys_of(written_down) == keys_of(fixture_result)
    assert {score.protocol for score in gather(run, Detail(points=20)).scores} == {"knn", "linear"}


def test_the_gallery_judges_by_label(make_run: Make, make_digits: Make) -> None:
    data = make_digits(300)
    gallery = gather(make_run(data=data), Detail()).gallery
    assert isinstance(gallery, Gallery)
    assert len(gallery.queries) == 8
    label_of = dict(zip(data.paths, data.labels.tolist(), strict=True))

    def label(caption: str) -> int:
        return label_of[caption.rpartition(" · ")[2]]

    for query in gallery.queries:
        assert len(query.neighbours) == 8
        for neighbour in query.neighbours:
            assert neighbour.same == (label(neighbour.picture.caption) == label(query.picture.caption))


def test_without_labels_nothing_is_judged(make_run: Make, make_digits: Make) -> None:
    facts = gather(make_run(data=make_digits(120, labelled=False)), Detail())
    assert isinstance(facts.gallery, Gallery)
    assert isinstance(facts.map, Map)
    assert facts.map.classes == ()
    assert set(facts.map.labels.tolist()) == {-1}
    assert {neighbour.same for query in facts.gallery.queries for neighbour in query.neighbours} == {None}


def test_the_map_shows_at_most_the_requested_points_of_the_right_images(
    make_run: Make, make_digits: Make
) -> None:
    data = make_digits(300)
    map_data = gather(make_run(data=data), Detail(points=60)).map
    assert isinstance(map_data, Map)
    assert (len(map_data.points), map_data.of) == (60, 300)
    label_of = dict(zip(data.paths, data.labels.tolist(), strict=True))
    assert [label_of[name] for name in map_data.names] == map_data.labels.tolist()
    assert map_data.atlas.per_sheet * len(map_data.atlas.sheets) >= 60


def test_effect_of_augmentation_is_drawn(make_run: Make) -> None:
    """Shares of all, for views and for the data; user-defined views are not measured."""
    facts = gather(make_run(), Detail())
    assert isinstance(facts.strip, Strip)
    assert facts.strip.spreads == ()
    assert "What views change" not in page([facts])
    augmented = SimpleNamespace(
        modality=MODALITIES["image"], views=lambda: Views([Augment()], 8, (0.5,), (0.25,))
    )
    spreads = tuple(_spreads(augmented, open_data("digits"), np.arange(64), seed=0))  # type: ignore[arg-type]
    assert [spread.title for spread in spreads] == ["Share of the image", "Brightness", "Contrast"]
    for spread in spreads:
        assert sum(spread.original) == pytest.approx(1)
        assert sum(spread.augmented) == pytest.approx(1)
        assert len(spread.bins) == len(spread.original) + 1 == len(spread.augmented) + 1
    html = page([replace(facts, strip=replace(facts.strip, spreads=spreads, measured=64))])
    assert "64 images and their views" in html
    assert f"Contrast: median {number(spreads[2].medians[0])} originally" in html


def test_the_strip_shows_what_the_views_drew(make_run: Make) -> None:
    run = make_run()
    strip = gather(run, Detail()).strip
    assert isinstance(strip, Strip)
    assert len(strip.rows) == 8
    assert all(len(row.draws) == 3 and all(len(draw) == 2 for draw in row.draws) for row in strip.rows)
    pictures = [view.uri for row in strip.rows for draw in row.draws for view in draw]
    assert len(set(pictures)) > len(pictures) * 0.9, "draws must differ between epochs and views"
    row = int(strip.rows[0].original.caption.rpartition("#")[2])
    index = np.array([row])
    second = run.views()(run.open_data().load(index), 3, 1, index)[0]
    assert strip.rows[0].draws[1][0].uri == data_uri(coloured(run.views().unnormalise(second)[0]))


@pytest.mark.parametrize(
    "problem",
    [FileNotFoundError("photos/ is gone"), UserError("photos/ is gone"), ValueError("photos/ is gone")],
)
def test_data_that_moved_leave_a_reason(make_run: Make, problem: Exception) -> None:
    facts = gather(make_run(data=problem), Detail())
    for part in (facts.map, facts.gallery, facts.strip):
        assert isinstance(part, Absent)
        assert "photos/ is gone." in part.reason
    assert facts.curves


def test_a_diverged_encoder_leaves_a_reason_and_the_views(make_run: Make) -> None:
    facts = gather(make_run(diverged=True), Detail())
    assert isinstance(facts.map, Absent)
    assert "diverged" in facts.map.reason
    assert isinstance(facts.gallery, Absent)
    assert isinstance(facts.strip, Strip)


def test_a_collapsed_encoder_is_still_drawn(make_run: Make) -> None:
    assert isinstance(gather(make_run(collapsed=True), Detail()).map, Map)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_hardly_any_images(make_run: Make, make_digits: Make, count: int) -> None:
    facts = gather(make_run(data=make_digits(count)), Detail())
    assert isinstance(facts.map, Absent if count == 0 else Map)
    assert isinstance(facts.gallery, Absent if count < 2 else Gallery)


def test_a_run_just_begun(make_run: Make) -> None:
    run = make_run(metrics=[], evaluation=None, no_checkpoint=True)
    (run.path / "env.json").write_text("{ damaged")
    facts = gather(run, Detail())
    assert facts.curves == {}
    assert facts.scores == ()
    assert facts.events == ()
    assert facts.environment == ()
    assert isinstance(facts.certificate, Absent)


def test_settings_read_as_they_are_typed() -> None:
    tree = {"a": {"b": {"c": 1}, "d": None}, "e": {}, "f": [1, True], "g": linear(0, 0.9)}
    assert {name: as_text(value) for name, value in flattened(tree)} == {
        "a.b.c": "1",
        "a.d": "none",
        "e": "{}",
        "f": "1, true",
        "g": "linear(0.0,0.9)",
    }


def test_several_runs_share_the_page() -> None:
    single, five = Detail().shared(1), Detail().shared(5)
    assert single == Detail()
    assert five.points < single.points
    assert five.sprite_bytes * 5 <= single.sprite_bytes


@pytest.mark.parametrize("counts", [[[1, 2]], [["x"] * 10] * 10, None, 7])
def test_a_damaged_confusion_is_one_sentence_of_its_section(
    counts: Any, make_run: Make, make_result: Make
) -> None:
    result = make_result()
    result["knn"]["confusion"]["counts"] = counts
    facts = gather(make_run(evaluation={"results": [result]}), Detail())
    (section,) = [section for section in facts.sections if section.title == "Classes"]
    assert section.sentences[0].startswith("This section could not be made: ")
    assert "This section could not be made" in page([facts])
