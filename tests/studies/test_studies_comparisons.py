"""Comparisons: verdicts by paired differences, trainable arms that match their names, tables from values."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import nearfar as nf
from nearfar.config.building import build_method
from nearfar.config.resolving import resolve
from nearfar.core.schedules import Progress, at, parse_value
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities.image import IMAGE
from nearfar.modalities.image.views import pipelines
from nearfar.studies import objectives, rings, run_study, thesis
from nearfar.studies.comparison import Claim, Comparison, PaperColumn, make_result, verdict
from nearfar.studies.family import LABEL_FREE, add_map_gains, pooling
from nearfar.studies.images import ImageSetup, StudyArm
from nearfar.studies.objectives import AUGMENTATIONS, MOMENTA, VIEW_KINDS, only_augmentation
from nearfar.studies.rings import LAST_EDGE, policies, read_moments, small_rings, threshold_name
from nearfar.studies.run import find_study
from nearfar.train.pretrain import run_pretraining

DATA = ["data=digits", "on=validation", "images=80", "size=8", "seeds=1", "jobs=1"]
TOY = [*DATA, "epochs=1", "batch=40"]
SETUP = ImageSetup(data="digits", on="validation", images=80, epochs=6, size=8, batch=40, seeds=1, jobs=1)
COMPARISONS = {
    "ring": rings.ring(SETUP, sample=16),
    "thresholds": rings.thresholds(SETUP),
    "negatives": rings.negatives(SETUP),
    "annealing": rings.annealing(SETUP),
    "vince": objectives.vince(SETUP),
    "bank-momentum": objectives.bank_momentum(SETUP),
    "views": objectives.views(SETUP),
    "curricula": objectives.curricula(SETUP),
    "adaptive-curricula": objectives.adaptive_curricula(SETUP),
    "byol-target": thesis.byol_target(SETUP),
    "byol-norms": thesis.byol_norms(SETUP),
    "pooling": pooling(SETUP),
    "temperature": objectives.temperature(SETUP),
    "critics": objectives.critics(SETUP),
    "dim-weights": objectives.dim_weights(SETUP),
}


# ------------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.020, 0.022, 0.019], "holds"),
        ([-0.020, -0.022, -0.019], "does not hold"),
        ([0.020, -0.019], "not distinguishable"),
    ],
)
def test_verdict_is_students_interval(differences: list[float], word: str) -> None:
    text = verdict(differences)
    assert text.startswith(f"{word}: {100 * np.mean(differences):+.1f} points")
    low, high = stats.t.interval(0.95, len(differences) - 1, np.mean(differences), stats.sem(differences))
    assert f"interval {100 * low:+.1f} to {100 * high:+.1f}" in text


def test_verdict_needs_a_spread() -> None:
    assert verdict([0.05]).startswith("not distinguishable: +5.0 points, 1 seed")
    # accuracies on 1,000 rows: differences of whole rows can agree by chance
    assert verdict([0.876 - 0.871, 0.864 - 0.859]).startswith("not distinguishable: +0.5 points, 2 seeds")


def test_tables_and_verdicts_follow_the_values() -> None:
    column = PaperColumn({"a": 83.1}, "a paper")
    arms = {"a": StudyArm("moco"), "b": StudyArm("moco")}
    measures = {"linear": "pooled", "map": "map"}
    comparison = Comparison("Rings", arms, (Claim("a", "b"),), {"map": column}, measures)
    values = lambda linear: {"linear": linear, "map": linear + 0.1}
    figures: dict[str, list[Any]] = {
        "untrained": [{"linear": 0.3}] * 2,
        "a": [values(0.5), values(0.6)],
        "b": [values(0.45), None],
    }
    result = make_result(figures, comparison)
    linear, before_pooling = result.tables
    assert [row.label for row in linear.rows] == ["untrained", "a", "b (1 of 2 seeds)"]
    assert [row.ours for row in linear.rows] == pytest.approx([30, 55, 45])
    assert linear.rows[1].spread == pytest.approx(50**0.5)
    assert [row.paper for row in linear.rows] == [None] * 3
    assert [(row.label, row.paper) for row in before_pooling.rows] == [
        ("a", 83.1),
        ("b (1 of 2 seeds)", None),
    ]
    # only the seed that both have is compared
    assert result.remarks[0].startswith("a above b (pooled) not distinguishable: +5.0 points, 1 seed")
    missing = make_result({**figures, "b": [None, None]}, comparison)
    assert missing.remarks[0] == "a above b (pooled) not run yet."


# ------------------------------------------------------------------------------------------ all comparisons


@pytest.mark.parametrize("comparison", COMPARISONS.values(), ids=COMPARISONS)
def test_every_arm_can_be_trained(comparison: Comparison) -> None:
    for name, arm in comparison.all_arms().items():
        SETUP.cell(name, arm, 0)  # refuses bad settings
    names = {*comparison.all_arms()}
    assert {name for claim in comparison.claims for name in (claim.better, claim.worse)} <= names
    assert all({*column.values} <= names for column in comparison.paper.values())
    assert {*comparison.x} <= names


@pytest.mark.parametrize("name", ["vince", "bank-momentum"])
def test_comparison_runs(name: str, tmp_path: Path) -> None:
    record = run_study(find_study(name), tmp_path, TOY)
    comparison = COMPARISONS[name]
    assert [row.label for row in record.result.tables[0].rows] == list(comparison.all_arms())
    assert len(list((tmp_path / "cells").iterdir())) == len(comparison.all_arms())
    assert len(record.result.remarks) == 2 * len(comparison.claims)
    assert all("not distinguishable" in remark for remark in record.result.remarks)
    assert (tmp_path / "figure.png").stat().st_size > 1000


# ------------------------------------------------------------------------------------------ rings


def test_ring_of_everyone_until_its_moment_is_the_base_until_then(tmp_path: Path) -> None:
    """Continuing from the base's checkpoint equals an edge that jumps at that step: the same losses, bit by
    bit."""
    losses = []
    arms = rings.thresholds(SETUP, "0,0.5").arms
    for place, name in enumerate((rings.ALL_CANDIDATES, threshold_name(10, 0.5), threshold_name(10, 0.0))):
        settings = SETUP.settings(arms[name].recipe, 0, arms[name].changes)
        settings = replace(settings, log_every=1)
        run = run_pretraining(settings, "digits", tmp_path / str(place), quiet=True)
        losses.append([row["loss"] for row in run.metrics if row["kind"] == "train"])
    base_losses, late_losses, early_losses = losses
    half = len(base_losses) // 2
    assert late_losses[:half] == base_losses[:half]
    assert late_losses[half:] != base_losses[half:]
    assert early_losses[0] != base_losses[0]


def test_ring_with_fewer_candidates_than_the_sample_is_reported() -> None:
    """round(0.95 * 2048) - round(0.9 * 2048) = 1946 - 1843 = 103 candidates."""
    (remark,) = small_rings(128, 2048, {"instdisc": (0.9, 0.95), "cmc": (0.5, 0.95), "moco": (0.9, 0.95)})
    assert (
        remark
        == "IRing: the ring 0.9 to 0.95 of 2,048 candidates holds 103 and uses them all; its base draws 128."
    )


@pytest.mark.parametrize("begin", ["", "0.5,0", "0,1", "soon"])
def test_moments_are_rising_shares(begin: str) -> None:
    with pytest.raises(UserError, match="expected rising shares of the run"):
        read_moments(begin)


def test_policies_rise_from_everyone_to_the_last_edge() -> None:
    for name, raw in policies(10).items():
        if name in ("no ring", "no annealing"):
            continue
        edge = parse_value(raw)
        assert at(edge) == 0
        assert edge.ends() == (0.0, LAST_EDGE)  # type: ignore[union-attr]
        if not name.startswith("on "):
            assert at(edge, Progress(50, 100, 10)) == pytest.approx(LAST_EDGE)
            assert at(edge, Progress(49, 100, 10)) > 0.5


def test_annealing_shows_the_logged_course(tmp_path: Path) -> None:
    record = run_study(find_study("annealing"), tmp_path, [*DATA, "epochs=4", "batch=20"])
    names = list(policies(4))
    for table in record.result.tables[:2]:
        assert [row.label for row in table.rows] == names
    edges = {name: y for name, (_, y) in record.result.table("lower edge at the end").lines.items()}
    assert set(edges["no ring"]) == {0.0}
    assert set(edges["no annealing"]) == {LAST_EDGE}
    assert edges["linear"][-1] == pytest.approx(LAST_EDGE)
    assert edges["linear"][0] < 0.5
    assert all(0 <= edge <= LAST_EDGE for edge in [*edges["on score"], *edges["on loss"]])
    for epochs, _ in record.result.table("kNN within the training images").lines.values():
        assert list(epochs) == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------------------ instance
# discrimination


def test_every_momentum_is_trained() -> None:
    arms = objectives.bank_momentum(SETUP).arms
    assert [arm.changes["negatives.momentum"] for arm in arms.values()] == list(MOMENTA)


@pytest.mark.parametrize("recipe", ["simclr", "instdisc"])
@pytest.mark.parametrize("kind", VIEW_KINDS)
def test_an_arm_has_its_own_augmentation_only(recipe: str, kind: str) -> None:
    settings = dict(resolve(recipe, "d", only_augmentation(kind)).views)
    skipped = ("name", "count", "symmetric", "colours", "aligned", "crops")
    options = {key: value for key, value in settings.items() if key not in skipped}
    default = pipelines(settings["name"], 16)[0]
    for view in pipelines(settings["name"], 16, options):
        active = {name for name in (*AUGMENTATIONS, "blur", "solarise") if getattr(view, name) > 0}
        assert active == {"none": set(), "all": set(AUGMENTATIONS)}.get(kind, {kind})
        for name in active:
            assert getattr(view, name) == getattr(default, name)


def test_views_of_one_recipe(tmp_path: Path) -> None:
    record = run_study(find_study("views"), tmp_path, [*TOY, "recipes=moco"])
    labels = [row.label for row in record.result.tables[0].rows]
    assert labels == ["untrained", *(f"moco, {kind}" for kind in VIEW_KINDS)]
    assert record.result.tables[0].paper() == {}, "Wu et al. 2020 reports instance discrimination only"
    with pytest.raises(UserError, match="moko"):
        run_study(find_study("views"), tmp_path, [*TOY, "recipes=moko"])


# ------------------------------------------------------------------------------------------ frozen features


def test_pooling_compares_the_map_with_pooled_features(tmp_path: Path) -> None:
    record = run_study(find_study("pooling"), tmp_path, [*TOY, "recipes=instdisc"])
    pooled, before_pooling = (table.rows[0].ours for table in record.result.tables)
    assert "the map of 128 numbers" in record.result.remarks[0], "8 pixels a side leave one place"
    assert pooled == pytest.approx(before_pooling, abs=1e-6), "so both are equal"


def test_map_gains_are_paired_by_seed() -> None:
    figures = {
        "a": [{"linear": 0.5, "map": 0.6, "map_width": 9}, {"linear": 0.6, "map": 0.8, "map_width": 9}]
    }
    comparison = Comparison(
        "Pooling", {"a": StudyArm("moco")}, baselines=(), measures={"linear": "", "map": ""}
    )
    (remark,) = add_map_gains(make_result(figures, comparison), figures, comparison).remarks
    assert remark.startswith("a: the map of 9 numbers above pooled not distinguishable: +15.0 points")


def test_label_free_measures_are_compared_with_probes(tmp_path: Path) -> None:
    record = run_study(find_study("quality"), tmp_path, [*TOY, "recipes=simclr,instdisc,triplet"])
    assert [table.name for table in record.result.tables[2:]] == list(LABEL_FREE.values())
    assert all(math.isfinite(float(row.ours or math.nan)) for row in record.result.table("RankMe").rows)
    assert any(remark.startswith("RankMe against knn: Spearman") for remark in record.result.remarks)


# ------------------------------------------------------------------------------------------ curricula


@pytest.mark.parametrize("name", list(objectives.CURRICULA)[1:])
def test_alpha_falls_geometrically_and_is_1_half_way(name: str) -> None:
    """Song & Ermon 2020, sec. 5.3, with 5 to 0.2 as its tables have it."""
    high, low = re.findall(r"[\d.]+", name)
    alpha = resolve("moco", "x", objectives.CURRICULA[name], {"epochs": 10}).bound["alpha"]
    values = [float(alpha(Progress(step, 100, 10))) if callable(alpha) else alpha for step in (0, 50, 100)]
    assert values == pytest.approx([float(high), 1.0, float(low)])


def test_paper_values_of_curricula_are_in_table_3(papers: dict[str, str]) -> None:
    text = papers["002"]
    for name, figures in objectives.CURRICULA_PAPER.items():
        ends = re.findall(r"[\d.]+", name)
        label = (
            "$L_{1.0}$"
            if not ends
            else rf"$J_{{{float(ends[0]):.1f}}} \rightarrow J_{{{float(ends[1]):.1f}}}$"
        )
        row = next(line for line in text.splitlines() if line.startswith(label) and line.count(label) == 2)
        assert [float(cell.split()[0]) for cell in row.split("\t")[1:4]] == list(figures)


def test_lengths_are_in_proportion() -> None:
    assert [objectives.epochs_for(length, 10) for length in objectives.LENGTHS] == [10, 25, 50]
    comparison = objectives.curricula(SETUP)
    assert sorted({arm.budget["epochs"] for arm in comparison.arms.values()}) == [6, 15, 30]
    column = comparison.paper["linear"].values
    assert column["CPC, 200 epochs (here 6)"] == 83.28
    assert column["ML-CPC 10 to 0.1, 1000 epochs (here 30)"] == 91.86


def test_settings_reach_every_cell(tmp_path: Path) -> None:
    words = [*TOY, "backbone=resnet8-w8", "negatives.size=80"]
    record = run_study(find_study("curricula"), tmp_path, words)
    assert len(list((tmp_path / "cells").iterdir())) == 15
    assert "negatives.size=80" in record.command
    assert "negatives.size=80" in json.loads((tmp_path / "result.json").read_text())["command"]


def test_curricula_without_a_clock_end_between_their_ends(tmp_path: Path) -> None:
    words = [*DATA, "epochs=3", "batch=36", "backbone=resnet8-w8"]
    record = run_study(find_study("adaptive-curricula"), tmp_path, words)
    last = {row.label: float(row.ours or 0.0) for row in record.result.table("value at the end").rows}
    assert last["alpha by clock"] == pytest.approx(10 * 0.01 ** (5 / 6))  # of the last of six steps
    assert last["edge by clock"] == pytest.approx(0.9 * 5 / 6)
    for name in ("held-out bound", "variance"):  # one move, made or not
        assert last[f"alpha by {name}"] in (pytest.approx(10.0), pytest.approx(0.1))
        assert last[f"edge by {name}"] in (pytest.approx(0.0), pytest.approx(0.9))
    assert len(record.result.remarks) == 2 * 4


# ------------------------------------------------------------------------------------------ BYOL's target


def test_byol_target_runs(tmp_path: Path) -> None:
    record = run_study(find_study("byol-target"), tmp_path, [*TOY, "backbone=resnet8-w8"])
    ranks = [row.ours for row in record.result.table("RankMe of the features").rows]
    assert all(isinstance(value, float) and value >= 1 for value in ranks)
    assert len(record.result.remarks) == 2 * len(COMPARISONS["byol-target"].claims)


def test_byol_arms_are_what_they_are_called() -> None:
    arms = COMPARISONS["byol-target"].arms
    settings: dict[str, Any] = {name: resolve(arm.recipe, "x", arm.changes) for name, arm in arms.items()}
    for tau in thesis.TAUS:
        assert settings[f"tau {tau:g}"].encoders["momentum"] == tau
    assert settings["no weight decay"].weight_decay == 0.0
    assert settings["tau 0.99"].weight_decay > 0
    assert settings["no predictor"].encoders["predictor"] == "none"
    assert settings["tau 0.99"].encoders["predictor"] == "mlp"


def test_byol_norms_are_where_the_arms_say() -> None:
    """Batch norm in backbone and heads, in one, in neither; arms without it embed an image whatever its batch is."""
    places = {
        "batch norm": (True, True),
        "batch norm in the heads": (False, True),
        "batch norm in the backbone": (True, False),
    }
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for name, arm in COMPARISONS["byol-norms"].arms.items():
        changes = {"backbone": SETUP.backbone, **arm.budget, **arm.changes}
        method = build_method(
            resolve(arm.recipe, "x", changes), IMAGE.reader.example_description(40).resized(8)
        )
        encoders: Any = method.encoders
        network = encoders.network.train()
        in_backbone, in_heads = (
            any(isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) for layer in part.modules())
            for part in (network.backbone, network.head)
        )
        assert (in_backbone, in_heads) == places.get(name, (False, False)), name
        if name not in places:
            torch.testing.assert_close(network(x)[:1], network(x[:1]), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------ critics


@pytest.mark.parametrize("critic", ["cosine", "joint"])
def test_nats_of_a_critic_are_infonce_over_pairs_of_test_images(critic: str, tmp_path: Path) -> None:
    """By loops over all pairs of two views, in both directions; at most the log of the number of images."""
    config = {
        "epochs": 1,
        "image_size": 8,
        "backbone": "resnet8-w8",
        "critic": critic,
        "batch_size": 32,
        "probe_every": 0,
        "precision": "fp32",
    }
    images = open_data("digits")
    run = nf.pretrain("simclr", images.subset(np.arange(64)), tmp_path / "run", config=config, quiet=True)
    test = images.subset(np.arange(100, 130))
    nats = objectives.held_out_nats(run, test)["nats"]
    rows = np.arange(30)
    method = run.method().eval()
    with torch.no_grad():
        encoders: Any = method.encoders
        views = run.views()(test.load(rows), 1, 0, rows)
        u, v = (method.critic.prepare(encoders.network(view)) for view in views)
        values = []
        for f in (method.critic.cross(u, v), method.critic.cross(v, u)):
            values += [float(f[i, i]) - float(f[i].exp().mean().log()) for i in range(30)]
    assert nats == pytest.approx(np.mean(values), abs=1e-4)
    assert nats < math.log(30)
