"""The page in a real browser: Chromium, headless, driven over its debugging pipe."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.errors import UserError
from nearfar.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
# Chromium reads commands from descriptor 3 and answers on 4.
_LAUNCH = "import os, sys; r, w = map(int, sys.argv[1:3]); r, w = os.dup(r), os.dup(w)\n"
_LAUNCH += "while min(r, w) < 5: r, w = os.dup(r), os.dup(w)\n"
_LAUNCH += "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"


class Page:
    """One open tab. Every message of the browser is kept in `heard`."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._waiting = b""
        self._count = 0
        self._session: str | None = None
        self.heard: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.heard.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            part = os.read(self._answers, 1 << 20)
            assert part, "Chromium closed its pipe"
            self._waiting += part
        message, _, self._waiting = self._waiting.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load `url` on a screen of that size and colour scheme."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        before = len(self.heard)
        self.ask("Page.navigate", url=url)
        while not any(message.get("method") == "Page.loadEventFired" for message in self.heard[before:]):
            self.heard.append(self._next())

    def value(self, script: str) -> Any:
        """What the script evaluates to, as JSON would carry it."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point_at(self, x: float, y: float) -> None:
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, refusals of the policy, exceptions."""
        said = []
        for message in self.heard:
            method, params = message.get("method"), message.get("params", {})
            if method == "Runtime.exceptionThrown":
                said.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                said.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                said.append(str(params["args"]))
        return said

    def requests(self) -> list[str]:
        """Everything the page asked for that is not in itself."""
        sent = (
            m["params"]["request"]["url"]
            for m in self.heard
            if m.get("method") == "Network.requestWillBeSent"
        )
        return [url for url in sent if not url.startswith(("data:", "about:"))]

    def screenshot(self, file: Path) -> None:
        """The whole page from top to bottom."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    """A fresh browser with an empty profile, ended by its own process id."""
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH: the page is not looked at")
    commands_in, commands = os.pipe()
    answers, answers_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        launch = [sys.executable, "-c", _LAUNCH, str(commands_in), str(answers_out), CHROMIUM]
        process = subprocess.Popen(
            [*launch, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(commands_in, answers_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_in)
        os.close(answers_out)
        try:
            yield Page(commands, answers)
        finally:
            process.terminate()
            process.wait(30)
            os.close(commands)
            os.close(answers)


@pytest.fixture
def browser(chromium: Page) -> Page:
    """The browser with nothing heard yet."""
    chromium.heard.clear()
    return chromium


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
            wide = browser.value("[document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1] == width, f"{file.name} scrolls sideways at {width}"
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
    const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
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
    shown = browser.value("document.body.innerText")
    for word in ("simclr", "untrained", "raw pixels", "in-batch", "infonce", "not covered"):
        assert word in shown.lower()


def test_a_selection_is_shown_without_complaint(browser: Page, ring_run: Any, tmp_path: Path) -> None:
    """MoCo-Ring with ML-CPC: edges, histogram, table and pictures, on a phone and on a desk, to be read by anyone."""
    page = write_report([ring_run], tmp_path / "report.html", points=60)
    for width, dark in ((390, False), (1280, True)):
        browser.open(page.as_uri(), width=width, dark=dark)
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        least, text = browser.value(_LEAST_CONTRAST)
        assert least >= 4.5, f"{text!r} has a contrast of {least:.2f}"
    assert browser.complaints() == []
    shown = browser.value("document.body.innerText")
    for words in (
        "Which negatives count",
        "Edges of the selection",
        "dropped as too close",
        "bound.alpha",
        "Wu et al. 2021, Thm 3.1",
    ):
        assert words in shown
    assert browser.value("document.querySelectorAll('.case').length") == 5
    assert browser.value(
        "[...document.querySelectorAll('.case img')].every(i => i.alt && i.naturalWidth > 0)"
    )
    assert browser.value("document.querySelectorAll('.charts.pair [role=img][aria-label]').length") == 2


def test_all_words_can_be_read_in_light_and_dark(browser: Page, several: Path) -> None:
    """WCAG AA asks for 4.5 to 1."""
    for dark, paper in ((False, "rgb(250, 249, 246)"), (True, "rgb(18, 20, 24)")):
        browser.open(several.as_uri(), dark=dark)
        assert browser.value("getComputedStyle(document.body).backgroundColor") == paper
        least, text = browser.value(_LEAST_CONTRAST)
        assert least >= 4.5, f"{text!r} has a contrast of {least:.2f}"


def test_pointing_at_a_dot_shows_its_image_and_name(browser: Page, make_run: Make, tmp_path: Path) -> None:
    browser.open(write_report([make_run()], tmp_path / "r.html").as_uri())
    browser.value(
        "document.documentElement.style.scrollBehavior = 'auto'; document.querySelector('.field').scrollIntoView()"
    )
    assert browser.value("document.querySelector('.peek').hidden") is True
    x, y = browser.value(
        "(() => { const b = document.querySelectorAll('.field circle')[7].getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    browser.point_at(x, y)
    assert browser.value("document.querySelector('.peek').hidden") is False
    assert browser.value("document.querySelector('.peek .caption').textContent") == "digit 7 · digits#7"
    assert browser.value(
        "getComputedStyle(document.querySelector('.peek .tile')).backgroundImage"
    ).startswith('url("data:')
    browser.point_at(1, 1)
    assert browser.value("document.querySelector('.peek').hidden") is True
    assert browser.complaints() == []


def test_pressing_a_class_dims_the_others_and_again_brings_them_back(
    browser: Page, make_run: Make, make_digits: Make, tmp_path: Path
) -> None:
    data = make_digits(100)
    browser.open(write_report([make_run(data=data)], tmp_path / "r.html").as_uri())
    dimmed = "document.querySelectorAll('.field circle.dim').length"
    press = "document.querySelectorAll('.key')[3].click()"
    browser.value(press)
    assert browser.value(dimmed) == int((data.labels != 3).sum())
    assert browser.value("document.querySelectorAll('.key')[3].getAttribute('aria-pressed')") == "true"
    browser.value(press)
    assert browser.value(dimmed) == 0


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
    """What would happen if a name slipped through: nothing, and the listeners of this test would hear of it."""
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
