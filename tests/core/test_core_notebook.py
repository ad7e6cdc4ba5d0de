"""What notebooks show: every value of the text is in the HTML, names are escaped, figures hold the measured numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nearfar as nf
from nearfar.config.resolving import resolve
from nearfar.core.abstract import AbstractSelection
from nearfar.core.notebook import table_html
from nearfar.core.results import Figure, Measurement, Result, SetFacts


def measured(value: float) -> dict[str, Measurement]:
    return {"knn": Measurement({"top1": Figure(value, (value - 0.1, value + 0.1))})}


RESULT = Result(
    SetFacts("a<b>", 10, "x"), SetFacts("test", 20, "y"), {}, measured(0.5), {"untrained": measured(0.2)}
)


def test_method_shows_its_choices_with_their_settings() -> None:
    method = nf.recipe("moco", negatives={"size": 512})
    html = method._repr_html_()
    for text in ("views", "encoders", "negatives", "selection", "bound", "Queue", "size = 512", "InfoNCE"):
        assert text in html


def test_parts_methods_and_runs_show_their_settings_as_text(tmp_path: Path) -> None:
    assert repr(nf.Queue(16)) == "Queue(size=16)"
    assert repr(nf.Cosine(0.1)) == "Cosine(temperature=0.1, bias=0.0)"
    assert "temperature=linear(0.1,0.2)" in repr(nf.Cosine(nf.linear(0.1, 0.2)))
    assert "Ring(lower=0.5" in repr(nf.recipe("simclr", selection=nf.Ring(0.5)))
    run = nf.Run(tmp_path, resolve("moco", "photos/"))
    assert repr(run) == f"Run({str(tmp_path)!r}, recipe='moco', data='photos/')"


def test_text_of_a_part_leaves_out_objects() -> None:
    """Their text may hold an address in memory, and the text of encoders is compared between processes."""

    class Custom(AbstractSelection):
        def __init__(self, rule: object = None, share: float = 0.5) -> None:
            pass

        def __call__(self, scores: nf.Scores, context: object = None) -> nf.Scores:
            return scores

        def sampling(self, source: Any, progress: Any = None) -> Any:
            return source

    assert repr(Custom(object())) == "Custom(share=0.5)"


def test_certificate_shows_status_and_condition() -> None:
    html = nf.Certificate("proven", "a < b; details of the proof", 1.0)._repr_html_()
    assert "proven" in html
    assert "a &lt; b" in html
    assert "details" not in html


def test_result_shows_baselines_and_escapes_names() -> None:
    html = RESULT._repr_html_()
    assert "50.0 %" in html
    assert "untrained" in html
    assert "a&lt;b&gt;" in html
    assert "<b>" not in html


def test_plot_of_a_result_has_a_bar_with_its_interval_for_each_kind_of_features() -> None:
    (axes,) = RESULT.plot().axes
    assert sorted(bar.get_width() for bar in axes.patches) == pytest.approx([20.0, 50.0])
    (errors,) = axes.collections
    ends = [segment[:, 0].tolist() for segment in errors.get_segments()]
    assert sorted(ends) == [pytest.approx([10.0, 30.0]), pytest.approx([40.0, 60.0])]


@pytest.fixture(scope="module")
def estimate() -> nf.Estimate:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    return nf.estimate_mi(x, 0.6 * x + 0.8 * rng.normal(size=200))


def test_estimate_shows_its_numbers_and_escapes_warnings(estimate: nf.Estimate) -> None:
    html = replace(estimate, warnings=("a < b",))._repr_html_()
    for text in (
        f"{estimate.nats:.4f} nats",
        estimate.interval_text(),
        f"{float(estimate.at_least):.4f} nats",
        f"{estimate.p_value:.3g}",
        estimate.at_least.certificate.status,
        "warning: a &lt; b",
    ):
        assert text in html


def test_plot_of_an_estimate_draws_its_interval(estimate: nf.Estimate) -> None:
    figure = estimate.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    numbers = figure.axes[0]
    (interval,) = numbers.collections
    assert interval.get_segments()[0][:, 0].tolist() == pytest.approx(estimate.interval)
    drawn = {line.get_xdata()[0] for line in numbers.lines if line.get_marker() == "o"}
    assert {estimate.nats, float(estimate.at_least)} <= drawn


def test_table_escapes_cells() -> None:
    assert "<script>" not in table_html([["head"], ["<script>"]])
