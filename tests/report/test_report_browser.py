"""The page in a real browser: nothing complains, nothing is fetched, everything can be read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.errors import UserError
from nearfar.report import write_report
from tests.browser import Page

Make = Callable[..., Any]
SCREENS = [(390, 844, False), (390, 844, True), (1600, 1000, False), (1600, 1000, True)]
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


@pytest.fixture
def several(make_run: Make, make_rows: Make, tmp_path: Path) -> Path:
    """A page with all that a page can have: long names, another method, data that moved."""
    long = "a-name-without-any-space-" * 8
    runs = [
        make_run("first", options={"note": long}),
        make_run(long[:120], evaluation=None, metrics=make_rows(1200)),
        make_run("gone", data=UserError(f"{long}/photos is gone"), metrics=[]),
    ]
    return write_report(runs, tmp_path / "several.html")


def test_nothing_complains_is_fetched_or_overflows(
    browser: Page, make_run: Make, several: Path, tmp_path: Path
) -> None:
    one = write_report([make_run()], tmp_path / "one.html")
    for file in (one, several):
        for width, height, dark in SCREENS:
            browser.open(file.as_uri(), width, height, dark)
            browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
            widths = browser.value("[document.documentElement.scrollWidth, innerWidth]")
            assert widths[0] <= widths[1] == width, f"{file.name} scrolls sideways at {width}"
    assert browser.complaints() == []
    assert set(browser.requests()) == {one.as_uri(), several.as_uri()}


_LEAST_CONTRAST = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data);
  };
  const light = (c) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = rgb(getComputedStyle(at).backgroundColor);
      if (c[3] === 255) return c;
    }
    return [255, 255, 255, 255];
  };
  let least = [21, ""];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim();
    const parent = walk.currentNode.parentElement;
    if (!text || parent.closest("script, style, [hidden]")) continue;
    const style = getComputedStyle(parent);
    const ink = light(rgb(parent.closest("svg") ? style.fill : style.color).slice(0, 3));
    const paper = light(behind(parent).slice(0, 3));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < least[0]) least = [ratio, text];
  }
  return least;
})()
"""


def test_a_real_run_is_shown_without_complaint(browser: Page, tmp_path: Path) -> None:
    """From pretraining to the page, every part the real one."""
    from nearfar.evaluate import evaluate_run
    from nearfar.train.pretrain import pretrain

    config = {"backbone": "resnet8-w16", "batch_size": 128, "epochs": 2, "views": {"flip": 0.0}}
    run = pretrain("simclr", "digits", tmp_path / "run", quiet=True, config=config)
    evaluate_run(run, baselines=True)
    page = write_report([run], tmp_path / "report.html", points=200)
    browser.open(page.as_uri(), width=390)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    text = browser.value("document.body.innerText")
    for word in ("simclr", "untrained", "raw pixels", "in-batch", "infonce", "not covered"):
        assert word in text.lower()


def test_a_selection_is_shown_without_complaint(browser: Page, ring_run: Any, tmp_path: Path) -> None:
    """MoCo-Ring with ML-CPC: edges, histogram, table and pictures are readable on a phone and a desktop."""
    page = write_report([ring_run], tmp_path / "report.html", points=60)
    for width, dark in ((390, False), (1280, True)):
        browser.open(page.as_uri(), width=width, dark=dark)
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        contrast, text = browser.value(_LEAST_CONTRAST)
        assert contrast >= 4.5, f"{text!r} has a contrast of {contrast:.2f}"
    assert browser.complaints() == []
    page_text = browser.value("document.body.innerText")
    for words in (
        "Which negatives count",
        "Edges of the selection",
        "dropped as too close",
        "bound.alpha",
        "Wu et al. 2021, Thm 3.1",
    ):
        assert words in page_text
    assert browser.value("document.querySelectorAll('.case').length") == 5
    assert browser.value(
        "[...document.querySelectorAll('.case img')].every(i => i.alt && i.naturalWidth > 0)"
    )
    charts = (
        "[...document.querySelectorAll('section')].find(s => "
        "s.querySelector('.case')).querySelectorAll('.charts.pair [role=img][aria-label]')"
    )
    assert browser.value(f"{charts}.length") == 2


def test_all_words_can_be_read_in_light_and_dark(browser: Page, several: Path) -> None:
    """WCAG AA requires 4.5 to 1."""
    for dark, paper in ((False, "rgb(250, 249, 246)"), (True, "rgb(18, 20, 24)")):
        browser.open(several.as_uri(), dark=dark)
        assert browser.value("getComputedStyle(document.body).backgroundColor") == paper
        contrast, text = browser.value(_LEAST_CONTRAST)
        assert contrast >= 4.5, f"{text!r} has a contrast of {contrast:.2f}"


def test_evil_names_stay_text_in_the_browser(
    browser: Page, make_run: Make, make_digits: Make, tmp_path: Path
) -> None:
    data = make_digits(60, classes=tuple(f"{EVIL}{d}" for d in range(10)))
    run = make_run(
        data=data, options={"recipe": EVIL}, metrics=[{"kind": "event", "step": 1, "message": EVIL}]
    )
    browser.open(write_report([run], tmp_path / "r.html").as_uri())
    assert browser.value("document.querySelector('.key').textContent") == f"{EVIL}0"
    assert browser.value("[document.scripts.length, document.querySelectorAll('img[src=x]').length]") == [
        2,
        0,
    ]
    assert browser.complaints() == []


def test_the_policy_refuses_a_foreign_script_and_the_network(
    browser: Page, make_run: Make, tmp_path: Path
) -> None:
    """If a name slipped through, it would do nothing, and the listeners of this test would record it."""
    file = write_report([make_run()], tmp_path / "r.html")
    evil = "<script>window.hacked = 1</script><img src='http://localhost:9/x.png'></body>"
    file.write_text(file.read_text().replace("</body>", evil))
    browser.open(file.as_uri())
    assert browser.value("window.hacked === undefined") is True
    assert len(browser.complaints()) == 2


def test_a_page_of_noise_stays_light(make_run: Make, make_digits: Make, tmp_path: Path) -> None:
    """Noise is what compresses worst: even 1,500 pictures of it leave the page under 3 MB."""
    data = make_digits(1500)
    data.data = np.random.default_rng(0).integers(0, 256, (1500, 64, 64, 3), dtype=np.uint8)
    data.channels = 3
    # collapsed features spare t-SNE, whose size on the page is the same
    assert write_report([make_run(data=data, collapsed=True)], tmp_path / "r.html").stat().st_size < 3_000_000
