"""The study of every image recipe: who is in it, its table's arithmetic, its sentences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nearfar as nf
from nearfar.config.recipes import RECIPES
from nearfar.studies import run_study
from nearfar.studies.family import (
    PAPER,
    STUDY,
    TABLE,
    _paper,
    _paper_difference,
    _remarks,
    base_of,
    chosen,
    entries,
    paired,
)

TOY = ["data=digits", "on=validation", "images=120", "epochs=1", "size=8", "batch=40", "seeds=2", "jobs=1"]


def test_every_image_recipe_and_its_selections_are_in() -> None:
    names = set(entries())
    assert set(RECIPES) - names == {
        *("cpc", "mlm", "cebra", "la-neighbours", "supervised", "distill"),
        *("infograph", "graphcl", "clip", "siglip"),
    }
    assert RECIPES["la-neighbours"].settings(9) == RECIPES["la-ring"].settings(9)
    assert {f"moco-ml-cpc-{ends}" for ends in ("1", "2-0.5", "5-0.2", "10-0.1")} <= names
    assert all(recipe in RECIPES for recipe, _ in entries().values())


def test_a_variant_knows_its_base() -> None:
    assert base_of("moco-v1-ring") == "moco-v1"
    assert base_of("simclr-cave") == "simclr"
    assert base_of("moco-ml-cpc-10-0.1") == "moco"
    assert base_of("moco-v1") is None
    assert base_of("byol") is None


def test_paper_cells_name_their_table_and_differences_are_the_papers() -> None:
    assert set(PAPER) <= set(entries())
    assert _paper("cmc-ring") == "87.6, Wu et al. 2021 Table 1a"
    assert _paper("byol") is None
    assert _paper_difference("cmc-ring", "cmc") == "+2, Wu et al. 2021 Table 1a"
    assert _paper_difference("instdisc-ball", "instdisc") == "+0.9, Wu et al. 2021 Table 1a and 2a"
    assert _paper_difference("moco-ml-cpc-10-0.1", "moco") == "+2.88, Song & Ermon 2020 Table 3a"
    assert _paper_difference("simclr-ring", "simclr") is None
    # figures of two papers have nothing to be subtracted for
    for name in PAPER:
        base = base_of(name)
        if base in PAPER:
            assert PAPER[name][1].partition(" Table")[0] == PAPER[base][1].partition(" Table")[0]


def test_recipes_can_be_chosen() -> None:
    assert list(chosen("moco,moco-v1-ring")) == ["moco", "moco-v1-ring"]
    assert chosen("all") == entries()
    with pytest.raises(nf.UserError, match=r"simclrr is not one of the recipes \(did you mean simclr, "):
        chosen("moco,simclrr")
    with pytest.raises(nf.UserError, match="cpc is not one of the recipes"):
        chosen("cpc")  # it hears and does not see


def test_the_table_is_what_the_arms_say(tmp_path: Path) -> None:
    words = [*TOY, "recipes=simclr,simclr-ring"]
    record = run_study(STUDY, tmp_path, words)
    arms = [json.loads(path.read_text()) for path in (tmp_path / "arms").iterdir()]
    assert len(arms) == 10

    def measured(name: str, measure: str) -> list[float]:
        of = [a for a in arms if name in (a["settings"].get("recipe"), a["settings"]["kind"])]
        return [100 * a["value"][measure] for a in sorted(of, key=lambda a: a["settings"]["seed"])]

    table = record.result.finding(TABLE)
    lines = {row.label: str(row.ours).split() for row in table.rows}
    assert list(lines) == ["", "pixels", "untrained", "supervised", "simclr", "simclr-ring"]
    for name in list(lines)[1:]:
        linear, knn = measured(name, "linear"), measured(name, "knn")
        mean, _, spread, above, knn_mean, _, knn_spread = lines[name][:7]
        assert float(mean) == pytest.approx(np.mean(linear), abs=0.051)
        assert float(spread) == pytest.approx(abs(linear[0] - linear[1]) / 2**0.5, abs=0.051)
        assert float(above) == pytest.approx(
            np.mean(linear) - np.mean(measured("untrained", "linear")), abs=0.051
        )
        assert float(knn_mean) == pytest.approx(np.mean(knn), abs=0.051)
        assert float(knn_spread) == pytest.approx(abs(knn[0] - knn[1]) / 2**0.5, abs=0.051)
    assert lines["simclr"][-1] == lines["untrained"][-1] == "302576"
    assert lines["pixels"][-3:] == ["-", "-", "-"]
    for finding, measure in zip(record.result.findings[1:], ("linear", "knn"), strict=True):
        each = np.subtract(measured("simclr-ring", measure), measured("simclr", measure))
        assert finding.rows[0].label == "simclr-ring - simclr"
        assert finding.rows[0].ours == pytest.approx(each.mean(), abs=0.0051)
        assert finding.rows[0].spread == pytest.approx(each.std(ddof=1), abs=0.0051)
        assert finding.curves["by seed"]["simclr-ring"] == pytest.approx(each.tolist())
    assert not list((tmp_path / "runs").iterdir())

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "arms").iterdir()}
    again = run_study(STUDY, tmp_path, words)
    assert again.result == record.result
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "arms").iterdir()} == before


def figures(*linear: float) -> list[dict[str, Any]]:
    return [{"linear": value, "knn": value} for value in linear]


def test_sentences_follow_the_figures() -> None:
    found = {
        "untrained": figures(0.30, 0.32),
        "moco": figures(0.40, 0.42),
        "moco-ring": figures(0.42, 0.44),
        "moco-ball": figures(0.42, 0.425),
        "moco-cave": figures(0.33, 0.39),
    }
    pairs = {"moco-ring": "moco", "moco-ball": "moco", "moco-cave": "moco"}
    assert paired(found, "moco-cave", "moco", "linear") == pytest.approx([-7.0, -3.0])
    margin, linear, *_ = _remarks(found, pairs)
    assert "at least 5 points" in margin
    assert "moco-cave with +5.0" in margin
    assert "better than its base by a point or more in each: moco-ring;" in linear
    assert "worse: moco-cave; the other 1 of 3 are not told apart" in linear
    found["moco-cave"] = figures(0.33, 0.37)
    assert _remarks(found, pairs)[0] == "short of 5 points above the untrained encoder: moco-cave +4.0."
