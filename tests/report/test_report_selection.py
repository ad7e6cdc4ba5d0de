"""What a trained run's selection does: numbers and pictures equal a recomputation from the checkpoint."""

import base64
import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from nearfar.core.randomness import order
from nearfar.core.schedules import START, Progress, at
from nearfar.core.types import Batch
from nearfar.errors import UserError
from nearfar.parts.selections import Cave, Ring
from nearfar.report.facts import Absent, Detail, Fact, Selected
from nearfar.report.gather import gather
from nearfar.report.selection import progress_of, selection_of, training_scores
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain

Make = Callable[..., Any]


def measured(run: Run) -> Selected:
    facts = selection_of(run, run.open_data(), run.settings.as_plain(), Detail())
    assert isinstance(facts, Selected)
    return facts


def batch_of(run: Run, count: int, epoch: int) -> Batch:
    images = run.open_data()
    rows = order(2, 0, len(images))[:count]
    return Batch(run.views()(images.load(rows), run.settings.seed, epoch, rows), torch.from_numpy(rows))


@pytest.fixture(scope="module")
def recomputed(ring_run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cosines of 128 anchors with the full queue, instance ids of both, and places in the order of
    similarity."""
    method = ring_run.method().train()
    batch = batch_of(ring_run, 128, epoch=2)
    with torch.no_grad():
        anchors = method.encoders.encode(batch, anchors=[0], keys=[]).anchors[0]
    unit = (anchors / anchors.norm(dim=1, keepdim=True)).double().numpy()
    tensors = ring_run.method().state_dict()
    cosine = unit @ tensors["negatives.embedding"].double().numpy().T
    mine, theirs = batch.index.numpy(), tensors["negatives.index"].numpy()
    place = np.full(cosine.shape, -1)
    for row in range(len(cosine)):
        offered = np.flatnonzero((theirs != mine[row]) & (theirs >= 0))
        ranked = offered[np.argsort(cosine[row, offered], kind="stable")]
        place[row, ranked] = np.arange(len(ranked))
    return cosine, mine, theirs, place


def groups(place: np.ndarray) -> dict[str, np.ndarray]:
    """Ring(0.9, 0.95) by places, per anchor."""
    count = (place >= 0).sum(axis=1, keepdims=True)
    first, last = np.rint(0.9 * count), np.rint(0.95 * count)
    return {
        "kept": (place >= first) & (place < last),
        "dropped as too close": place >= last,
        "dropped as too easy": (place >= 0) & (place < first),
    }


def test_counts_and_edges_equal_a_full_sort_of_recomputed_scores(
    ring_run: Run, recomputed: tuple[np.ndarray, ...]
) -> None:
    cosine, _, _, place = recomputed
    facts = measured(ring_run)
    assert (facts.name, facts.anchors, facts.source, facts.measure) == ("ring", 128, "the queue", "cosine")
    assert facts.step == 28
    expected = groups(place)
    assert [group.title for group in facts.groups] == list(expected)
    bins = np.array(facts.bins)
    for group in facts.groups:
        inside = expected[group.title]
        assert sum(group.histogram) == inside.sum()
        assert group.per_anchor == pytest.approx(inside.sum() / 128)
        assert group.share == pytest.approx(inside.sum() / (place >= 0).sum())
        lowest = np.where(inside, cosine, np.inf).min(axis=1)
        highest = np.where(inside, cosine, -np.inf).max(axis=1)
        assert group.low == pytest.approx(np.median(lowest), abs=1e-5)
        assert group.high == pytest.approx(np.median(highest), abs=1e-5)
        counts = [int(((cosine >= a) & (cosine < b) & inside).sum()) for a, b in itertools.pairwise(bins)]
        # a rounding error may move a score across the edge of a bin, not change how many there are
        assert np.abs(np.array(counts) - group.histogram).sum() <= 0.001 * inside.sum() + 2


def test_the_share_of_the_anchors_class_is_counted_over_pairs(
    ring_run: Run, recomputed: tuple[np.ndarray, ...]
) -> None:
    _, mine, theirs, place = recomputed
    labels = np.asarray(ring_run.open_data().labels)
    same_class = labels[mine][:, None] == labels[theirs][None, :]
    for group in measured(ring_run).groups:
        assert group.same == pytest.approx(same_class[groups(place)[group.title]].mean(), abs=1e-3)


def opened(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))


def test_the_pictures_are_those_of_the_right_instances(
    ring_run: Run, recomputed: tuple[np.ndarray, ...]
) -> None:
    cosine, mine, theirs, place = recomputed
    images = ring_run.open_data()
    facts = measured(ring_run)
    assert not isinstance(facts.cases, Absent)
    assert len(facts.cases.rows) == Detail().cases
    for case in facts.cases.rows:
        row = int(np.flatnonzero(mine == number(case.anchor.caption))[0])
        for group, neighbours in case.groups:
            inside = np.flatnonzero(groups(place)[group.title][row])
            rising = group.title == "dropped as too easy"
            ranked = sorted(inside, key=lambda c: cosine[row, c] if rising else -cosine[row, c])
            expected = list(dict.fromkeys(theirs[ranked].tolist()))[:5]
            assert [number(neighbour.picture.caption) for neighbour in neighbours] == expected
            for neighbour in neighbours:
                pixels = images.load(np.array([number(neighbour.picture.caption)])).data[0]
                np.testing.assert_array_equal(opened(neighbour.picture.uri), np.repeat(pixels, 3, axis=-1))


def number(caption: str) -> int:
    return int(caption.rpartition("#")[2])


def test_coverage_equals_the_condition_of_theorem_3_1(
    ring_run: Run, recomputed: tuple[np.ndarray, ...]
) -> None:
    """Wu et al. 2021, Thm 3.1: every kept e^f at least the mean of e^f over the anchor's candidates."""
    cosine, _, _, place = recomputed
    f = np.where(place >= 0, cosine / 0.1, -np.inf)
    mean = np.exp(f).sum(axis=1) / (place >= 0).sum(axis=1)
    smallest = np.where(groups(place)["kept"], f, np.inf).min(axis=1)
    share = int(100 * np.mean(np.exp(smallest) >= mean))
    assert any(
        f"holds for {share}% of these {len(place):,} anchors" in note for note in measured(ring_run).notes
    )


def test_measuring_a_selection_changes_nothing(ring_run: Run) -> None:
    for selection in (Ring(0.5, 0.9), Cave(3, instances=len(ring_run.open_data()))):
        method = ring_run.method()
        del method.selection
        method.selection = selection
        initial = {name: tensor.clone() for name, tensor in method.state_dict().items()}
        scores, context = training_scores(method, batch_of(ring_run, 16, 0), START)
        assert method.selection is selection
        assert not method.training
        assert all(torch.equal(tensor, initial[name]) for name, tensor in method.state_dict().items())
        assert scores.negative.matrix()[0].shape == (16, 512)
        assert torch.equal(context.index, batch_of(ring_run, 16, 0).index)


def test_the_edges_and_the_schedules_are_drawn(ring_run: Run) -> None:
    facts = gather(ring_run, Detail(points=60))
    assert set(facts.edges) == {"lower", "upper"}
    assert facts.edges["lower"].last == pytest.approx(0.9)
    assert set(facts.edges["upper"].value) == {0.95}
    # what the last of 28 steps was computed with
    assert facts.curves["bound.alpha"].last == pytest.approx(
        at(ring_run.settings.bound["alpha"], Progress(27, 28, 14))
    )
    assert Fact("bound.alpha", "geometric(2.0,0.5)") in facts.settings


@pytest.mark.parametrize("recipe", ["simclr-cave", "instdisc-neighbours", "byol"])
def test_other_selections_are_measured_or_say_why_not(recipe: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "backbone": "resnet8-w16", "batch_size": 64, "epochs": 2, "probe_every": 0, "views": {"flip": 0.0},
        "selection": {"name": "ball"} if recipe == "byol" else {"clusters": 4},
    }  # fmt: skip
    np.savez(tmp_path / "few.npz", images=np.random.default_rng(0).integers(0, 256, (128, 8, 8, 1), np.uint8))
    run = pretrain(recipe, str(tmp_path / "few.npz"), tmp_path / "run", quiet=True, config=config)
    if recipe == "byol":
        facts = selection_of(run, run.open_data(), run.settings.as_plain(), Detail())
        assert isinstance(facts, Absent)
        assert "no negatives" in facts.reason
        return
    measured_facts = measured(run)
    assert not isinstance(measured_facts.cases, Absent)
    assert all(group.same is None for group in measured_facts.groups)
    assert all(case.note.startswith("in cluster ") for case in measured_facts.cases.rows)
    titles = [group.title for group in measured_facts.groups]
    assert titles == (
        ["kept", "dropped: another cluster"]
        if recipe == "simclr-cave"
        else ["kept", "dropped as too close", "pulled as positives", "dropped as too easy"]
    )
    ids = run.method().state_dict()[f"selection.{'cave' if recipe == 'simclr-cave' else 'close'}.ids"]
    for case in measured_facts.cases.rows:
        mine = ids[:, number(case.anchor.caption)]
        for group, neighbours in case.groups:
            for neighbour in neighbours:
                same_cluster = bool((ids[:, number(neighbour.picture.caption)] == mine).any())
                if group.title != "dropped as too easy":  # far ones may share a cluster or not
                    assert same_cluster == (group.title == ("kept" if recipe == "simclr-cave" else titles[2]))


def test_unmeasurable_selection_gives_the_reason(ring_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_data(spec: object = None) -> None:
        raise UserError("photos/ is gone")

    run = Run.open(ring_run.path)
    monkeypatch.setattr(run, "open_data", without_data)
    facts = gather(run, Detail())
    assert isinstance(facts.selection, Absent)
    assert "photos/ is gone." in facts.selection.reason
    assert set(facts.edges) == {"lower", "upper"}


def test_a_run_that_keeps_everyone_has_no_such_section(make_run: Make) -> None:
    facts = gather(make_run(), Detail())
    assert facts.selection is None
    assert facts.edges == {}


def test_progress_is_that_of_the_checkpoint(ring_run: Run) -> None:
    progress = progress_of(ring_run, ring_run.settings.as_plain())
    assert (progress.step, progress.steps, progress.steps_per_epoch) == (28, 28, 14)
    assert replace(progress, step=14).fraction == 0.5


def test_a_view_is_shown_as_it_was_seen(ring_run: Run) -> None:
    """The anchor is view 0 and the positive view 1 of the last epoch, in the run's own seed."""
    cases = measured(ring_run).cases
    assert not isinstance(cases, Absent)
    for case in cases.rows:
        row = np.array([number(case.anchor.caption)])
        views: tuple[Tensor, ...] = ring_run.views()(ring_run.open_data().load(row), 0, 2, row)
        for view, picture in zip(views, (case.anchor, case.positive), strict=True):
            pixels = ring_run.views().unnormalise(view)[0]
            np.testing.assert_array_equal(opened(picture.uri), np.repeat(pixels, 3, axis=-1))
