"""Figures that live together in one page."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from nearfar.report.charts import Axis, Line, chart
from nearfar.report.facts import Curve
from nearfar.report.gather import curve_of


def curve(*values: float) -> Curve:
    built = curve_of(enumerate(values))
    assert built is not None
    return built


def ids(svg: str) -> list[str]:
    return re.findall(r' id="([^"]*)"', svg)


def test_two_figures_of_the_same_curve_share_no_id_and_refer_to_their_own() -> None:
    lines = [Line(curve(*(math.sin(i) for i in range(700)))), Line(curve(2, 2), ceiling=True)]
    first, second = (chart(lines, Axis(), name) for name in ("c0", "c1"))
    assert ids(first)
    assert not set(ids(first)) & set(ids(second))
    for svg in (first, second):
        assert len(ids(svg)) == len(set(ids(svg)))
        assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg)) == set(ids(svg))


def test_every_colour_is_a_variable_of_the_page() -> None:
    lines = [Line(curve(1, 2, 3), series) for series in range(12)] + [Line(curve(4, 4), ceiling=True)]
    svg = chart(lines, Axis(), "c")
    assert "#" not in re.sub(r"(?:url\(|href=\")#", "", svg)
    assert {"var(--series-0)", "var(--series-9)", "var(--far)", "var(--quiet)", "var(--rule)"} <= set(
        re.findall(r"var\([^)]*\)", svg)
    )


def test_words_are_text_in_the_pages_font_and_nothing_styles_the_page() -> None:
    svg = chart([Line(curve(0.25, 0.5))], Axis(percent=True), "c")
    root = ET.fromstring(str(svg).replace("<svg ", '<svg xmlns:xlink="x" ', 1))
    assert any(text.text and text.text.endswith("%") for text in root.iter("text"))
    assert "font-family" not in svg
    assert "<style" not in svg
    assert "<metadata" not in svg


@pytest.mark.parametrize("values", [(1.0,), (1.0, math.nan, 2.0), (0.0, 0.0), (1e-9, 2e-9), (1e9, 3e9)])
def test_awkward_curves_are_drawn(values: tuple[float, ...]) -> None:
    assert "var(--series-0)" in chart([Line(curve(*values))], Axis(zero=True), "c")


def test_a_lone_point_gets_a_mark() -> None:
    many = [float(i) for i in range(20)]
    line = chart([Line(curve(*many))], Axis(), "c")
    lone = chart([Line(curve(*many, math.nan, 3.0, math.nan, *many))], Axis(), "c")
    assert "<use" not in line
    assert "<use" in lone


def test_the_axis_shows_zero_and_the_top_when_asked() -> None:
    def ticks(axis: Axis) -> set[str]:
        return set(re.findall(r">([^<>\n]+)</text>", chart([Line(curve(0.5, 0.6))], axis, "c")))

    assert {"0", "1"} <= ticks(Axis(zero=True, top=1.0))
    assert "1" not in ticks(Axis())
