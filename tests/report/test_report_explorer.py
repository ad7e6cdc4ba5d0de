"""The explorer in a real browser: hover, click, search, lasso, keys, slider, narrow, dark, and its data."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearfar as nf
from nearfar.core.types import Batch
from nearfar.evaluate.held_out import held_out_estimate, pointwise_nats
from nearfar.report import write_report
from nearfar.report.facts import Detail, Map
from nearfar.report.gather import gather
from nearfar.report.visuals import aligned, explorer_data, flat_map
from nearfar.search.neighbours import nearest_others, unit_rows

Page = Any
Make = Callable[..., Any]
E = "document.querySelector('.explorer').explorer"
EVIL = "<script>alert(1)</script>"
HEBREW = "\u05e9\u05dc\u05d5\u05dd\u202e.png"


def opened(page: Page, file: Path, **screen: Any) -> None:
    page.open(file.as_uri(), **screen)
    page.value(
        "document.documentElement.style.scrollBehavior = 'auto'; "
        "document.querySelector('.fields').scrollIntoView()"
    )


def place(page: Page, point: int) -> tuple[float, float]:
    """Where a point is on the screen."""
    x, y = page.value(
        f"(() => {{ const f = {E}.fields[0], b = f.box.getBoundingClientRect(); return [b.x + "
        f"f.x[{point}], b.y + f.y[{point}]]; }})()"
    )
    return x, y


def mouse(page: Page, kind: str, x: float, y: float) -> None:
    page.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, buttons=1)


def press(page: Page, key: str, **more: Any) -> None:
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", type=kind, key=key, **more)


@pytest.fixture
def file(make_run: Make, make_digits: Make, tmp_path: Path) -> Path:
    return write_report([make_run(data=make_digits(120))], tmp_path / "r.html")


def test_pointing_shows_the_picture_and_the_name(browser: Page, file: Path) -> None:
    opened(browser, file)
    hidden = "document.querySelector('.peek').hidden"
    assert browser.value(hidden) is True
    browser.point_at(*place(browser, 7))
    hovered = browser.value(f"{E}.hover")
    assert browser.value(hidden) is False
    assert browser.value("document.querySelector('.peek .caption').textContent").startswith(
        f"digit {browser.value(f'{E}.labels[{hovered}]')} · digits#{hovered}"
    )
    browser.value("new Promise(done => setTimeout(done, 100))")
    script = (
        "(c => c.getContext('2d').getImageData(0, 0, 96, 96).data.some((v, i) => i % 4 < 3 && v > "
        "0))(document.querySelector('.peek .tile'))"
    )
    assert browser.value(script), "the thumbnail is painted"
    browser.point_at(1, 1)
    assert browser.value(hidden) is True
    assert browser.complaints() == []


def test_pressing_a_point_shows_its_neighbours(
    browser: Page, file: Path, make_run: Make, make_digits: Make
) -> None:
    opened(browser, file)
    x, y = place(browser, 7)
    mouse(browser, "mousePressed", x, y)
    mouse(browser, "mouseReleased", x, y)
    point = browser.value(f"{E}.chosen")
    data = make_digits(120)
    unit = torch.nn.functional.normalize(make_run(data=data).embed(data), dim=1)
    similar = unit @ unit[point]
    similar[point] = -1
    titles = browser.value("[...document.querySelectorAll('.chosen-point .tiles button')].map(b => b.title)")
    expected = similar[[int(title.rpartition("#")[2]) for title in titles]]
    assert torch.allclose(expected, similar.topk(10).values), (
        "brute force: the ten largest cosines, largest first"
    )


def test_search_finds_classes_and_files(browser: Page, file: Path, make_digits: Make) -> None:
    opened(browser, file)
    find = (
        "(t => {{ const i = document.querySelector('.search input'); i.value = t; i.dispatchEvent(new "
        "Event('input')); return document.querySelector('.found').textContent; }})({!r})"
    )
    count = int((make_digits(120).labels == 3).sum())
    assert browser.value(find.format("DIGIT 3")) == f"{count} of 120 match"
    assert browser.value(find.format("#11")) == "11 of 120 match"  # 11 and 110 to 119
    browser.value("document.querySelector('.search input').focus()")
    press(browser, "Enter")
    assert browser.value(f"{E}.chosen") == 11
    press(browser, "Enter")
    assert browser.value(f"{E}.chosen") == 110
    assert browser.value(find.format("no such thing")) == "0 of 120 match"
    press(browser, "Escape")
    assert browser.value(f"{E}.matches") is None


def test_a_lasso_selects_what_it_encloses_and_names_can_be_copied(browser: Page, file: Path) -> None:
    opened(browser, file)
    browser.value("document.querySelector('.lasso').click()")
    start, top, width, height = browser.value(
        "(b => [b.x, b.y, b.width, b.height])(document.querySelector('.canvas').getBoundingClientRect())"
    )
    corners = [(0.01, 0.01), (0.5, 0.01), (0.5, 0.99), (0.01, 0.99)]
    path = [(start + u * width, top + v * height) for u, v in corners]
    mouse(browser, "mousePressed", *path[0])
    for x, y in path[1:]:
        mouse(browser, "mouseMoved", x, y)
    mouse(browser, "mouseReleased", *path[-1])
    inside = browser.value(
        f"Array.from({E}.fields[0].x).map((x, i) => x < {0.5 * width} ? i : -1).filter(i => i >= 0)"
    )
    assert browser.value("document.querySelector('.picked textarea').value").split("\n") == [
        f"digits#{i}" for i in inside
    ]
    assert browser.value("document.querySelector('.picked-count').textContent") == f"{len(inside)} selected"
    browser.value("document.querySelector('.copy').click()")
    browser.value("new Promise(done => setTimeout(done, 50))")
    assert browser.value("document.querySelector('.found').textContent") == "copied"
    browser.value("document.querySelector('.clear').click()")
    assert browser.value("document.querySelector('.picked').hidden") is True
    assert browser.complaints() == []


def test_keys_walk_from_point_to_point(browser: Page, file: Path) -> None:
    opened(browser, file)
    browser.value("document.querySelector('.canvas').focus()")
    press(browser, "ArrowRight")
    first = browser.value(f"{E}.hover")
    assert first >= 0
    x = browser.value(f"{E}.fields[0].x[{first}]")
    press(browser, "ArrowRight")
    second = browser.value(f"{E}.hover")
    assert second == first or browser.value(f"{E}.fields[0].x[{second}]") > x
    press(browser, "Enter")
    assert browser.value(f"{E}.chosen") == second
    assert browser.value("document.querySelector('.found').textContent").endswith(f"digits#{second}"), (
        "it is announced"
    )
    press(browser, "+", text="+")
    assert browser.value(f"{E}.fields[0].zoom") == 1.5
    press(browser, "0", text="0")
    press(browser, "l", text="l")
    assert browser.value("document.querySelector('.lasso').getAttribute('aria-pressed')") == "true"
    press(browser, "Escape")
    assert browser.value(f"[{E}.chosen, {E}.hover, {E}.lasso]") == [-1, -1, False]


def test_a_pinch_zooms_round_the_pointer(browser: Page, file: Path) -> None:
    """What lies under the pointer stays there, and a wheel alone scrolls the page."""
    opened(browser, file)
    origin = place(browser, 7)
    wheel = (
        "(() => {{ const e = new WheelEvent('wheel', {{ deltaY: {}, ctrlKey: {}, clientX: {}, clientY: {},"
        " cancelable: true }}); {}.fields[0].box.dispatchEvent(e); return e.defaultPrevented; }})()"
    )
    assert browser.value(wheel.format(-200, "false", *origin, E)) is False
    assert browser.value(f"{E}.fields[0].zoom") == 1
    assert browser.value(wheel.format(-200, "true", *origin, E)) is True
    assert browser.value(f"{E}.fields[0].zoom") == pytest.approx(np.e)
    # a wheel event has whole pixels, so the point may be up to one pixel away
    assert place(browser, 7) == pytest.approx(origin, abs=np.e - 1)
    assert browser.value(wheel.format(900, "true", *origin, E)) is True
    assert browser.value(f"{E}.fields[0].zoom") == 1
    assert browser.complaints() == []


def test_single_class_and_colours_by_error(browser: Page, file: Path, make_digits: Make) -> None:
    opened(browser, file)
    browser.value("document.querySelectorAll('.key')[3].click()")
    labels = make_digits(120).labels
    assert browser.value(f"{E}.dimmed().reduce((a, b) => a + b)") == int((labels != 3).sum())
    browser.value("document.querySelectorAll('.key')[3].click()")
    assert browser.value(f"{E}.dimmed()") is None
    browser.value(
        "(s => { s.value = 'error'; s.dispatchEvent(new Event('change')); })(document.querySelector('.by'))"
    )
    wrong = browser.value(f"{E}.colours({E}.fields[0])[0].reduce((a, code) => a + (code === 1 ? 1 : 0), 0)")
    legend = browser.value("document.querySelector('.legend-of').textContent")
    assert f"{120 - wrong} of 120 right" in legend


def test_hostile_names_are_text(browser: Page, make_run: Make, make_digits: Make, tmp_path: Path) -> None:
    data = make_digits(60, classes=(EVIL, "x" * 10_000, HEBREW, *(str(d) for d in range(3, 10))))
    data.paths = tuple([EVIL, "y" * 10_000, HEBREW][i % 3] for i in range(60))
    page = write_report([make_run(data=data)], tmp_path / "r.html")
    for width, dark in ((390, True), (1280, False)):
        opened(browser, page, width=width, dark=dark)
        assert browser.value("document.querySelector('.key bdi').textContent") == EVIL
        browser.value(f"{E}.choose(0); {E}.show(1)")
        assert EVIL in browser.value("document.querySelector('.chosen-point h4').textContent")
        browser.value(f"{E}.show(2)")
        assert HEBREW in browser.value("document.querySelector('.peek .caption').textContent")
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        assert browser.value("document.querySelector('.peek').offsetHeight < 400")
    assert browser.value("document.scripts.length") == 2
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("file:")] == []


def test_the_slider_goes_through_checkpoints(browser: Page, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "backbone": "resnet8-w16",
        "batch_size": 128,
        "epochs": 1,
        "checkpoint_every": 5,
        "keep": 9,
        "probe_every": 0,
    }
    run = nf.pretrain("simclr", data="digits", out=tmp_path / "run", quiet=True, **config)
    assert run.steps[0] == 0
    assert len(run.steps) > 2
    page = write_report([run], tmp_path / "r.html", points=90)
    opened(browser, page)
    names = browser.value(f"{E}.fields[0].layers.map(l => l.name)")
    assert names == [f"step {step}" for step in run.steps]
    slide = (
        "(r => {{ r.value = {}; r.dispatchEvent(new Event('input')); return "
        "Array.from({}.fields[0].x.slice(0, 9)); }})(document.querySelector('.slide input'))"
    )
    first, half, second = (np.array(browser.value(slide.format(at, E))) for at in (0, 0.5, 1))
    np.testing.assert_allclose(half, (first + second) / 2, atol=0.05)
    assert browser.value("document.querySelector('.slide output').textContent") == names[1]
    options = browser.value("[...document.querySelector('.by').options].map(o => o.value)")
    assert options == ["label", "error", "nats"]
    assert browser.complaints() == []


# ----------------------------------------------------------------------------------- what it is given


def test_packed_data_round_trip(make_run: Make, make_digits: Make) -> None:
    map_data = gather(make_run(data=make_digits(70)), Detail(points=70)).map
    assert isinstance(map_data, Map)
    packed = explorer_data([("a", map_data), ("b", map_data)])
    field = packed["fields"][1]
    places = np.frombuffer(base64.b64decode(field["layers"][0]["places"]), "<u2").reshape(-1, 2)
    truth = map_data.points
    spread = (truth - truth.min(0)) / (truth.max(0) - truth.min(0)).max()
    np.testing.assert_allclose(places / 65535, spread, atol=1e-4)
    neighbours = np.frombuffer(base64.b64decode(field["near"]), "<u4").reshape(70, -1)
    np.testing.assert_array_equal(neighbours, map_data.neighbours)


def test_neighbours_of_all_are_those_of_brute_force() -> None:
    features = (
        np.random.default_rng(0).normal(size=(2100, 5)).astype(np.float32)
    )  # more than one tile of rows
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    neighbours = nearest_others(unit_rows(features), 4)[1]
    np.testing.assert_allclose(
        np.take_along_axis(similar, neighbours, 1), -np.sort(-similar, axis=1)[:, :4], rtol=1e-5
    )


def test_a_turned_map_is_turned_back() -> None:
    """Procrustes: a similarity of the plane is undone exactly; on noise the result beats every rotation
    tried."""
    rng = np.random.default_rng(0)
    points, angle = rng.normal(size=(40, 2)), 1.1
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.diag([1, -1])
    np.testing.assert_allclose(aligned(3 * points @ turn + 5, points), points, atol=1e-10)
    noise = rng.normal(size=(40, 2))
    best = ((aligned(noise, points) - points) ** 2).sum()
    for angle in np.linspace(0, 2 * np.pi, 50):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        centred = (noise - noise.mean(0)) @ turn
        scale = (centred * (points - points.mean(0))).sum() / (centred**2).sum()
        assert best <= ((scale * centred + points.mean(0) - points) ** 2).sum() + 1e-9


def test_points_beyond_the_landmarks_are_near_similar_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.report import visuals

    monkeypatch.setattr(visuals, "LANDMARKS", 120)
    rng = np.random.default_rng(0)
    centres = np.eye(3, 8) * 10
    truth = np.arange(600) % 3
    flat, drawn_by = flat_map(centres[truth] + 0.1 * rng.normal(size=(600, 8)))
    assert "120 of them" in drawn_by
    middle = np.array([flat[truth == c].mean(0) for c in range(3)])
    closest = ((flat[:, None] - middle) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(closest, truth)


def test_pointwise_nats_average_to_the_held_out_estimate() -> None:
    torch.manual_seed(0)
    method = nf.Method(torch.nn.Linear(6, 4), nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    batch = Batch((torch.randn(32, 6), torch.randn(32, 6)), torch.arange(32))
    pointwise, estimate = pointwise_nats(method, batch), held_out_estimate(method, [batch])
    assert pointwise is not None
    assert estimate is not None
    assert float(pointwise.mean()) == pytest.approx(estimate.nats, abs=1e-5)


def test_how_often_a_candidate_is_kept(ring_run: Any) -> None:
    """For a ring that drops 5 % above and some below, shares lie in [0, 1], and their mean is the group's."""
    facts = gather(ring_run, Detail(points=200, checkpoints=1))
    map_data = facts.map
    assert isinstance(map_data, Map)
    assert map_data.kept_shares is not None
    shares = map_data.kept_shares[np.isfinite(map_data.kept_shares)]
    assert len(shares) > 50
    assert 0 <= shares.min() <= shares.max() <= 1
    group_kept = next(group for group in facts.selection.groups if group.title == "kept")  # type: ignore[union-attr]
    assert shares.mean() == pytest.approx(group_kept.share, abs=0.12)
