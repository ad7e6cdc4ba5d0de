"""Chromium under test: its developer protocol over a pipe, without a driver or a port."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
    """One open tab. Every message of the browser is kept in `messages`."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._waiting = b""
        self._count = 0
        self._session: str | None = None
        self.messages: list[dict[str, Any]] = []
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
            self.messages.append(answer)
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
        start = len(self.messages)
        self.ask("Page.navigate", url=url)
        while not any(message.get("method") == "Page.loadEventFired" for message in self.messages[start:]):
            self.messages.append(self._next())

    def value(self, script: str) -> Any:
        """What the script evaluates to, as JSON would carry it."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point_at(self, x: float, y: float) -> None:
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, refusals of the policy, exceptions."""
        complaints = []
        for message in self.messages:
            method, params = message.get("method"), message.get("params", {})
            if method == "Runtime.exceptionThrown":
                complaints.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                complaints.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                complaints.append(str(params["args"]))
        return complaints

    def requests(self) -> list[str]:
        """Every request of the page for something outside it."""
        sent = (
            m["params"]["request"]["url"]
            for m in self.messages
            if m.get("method") == "Network.requestWillBeSent"
        )
        return [url for url in sent if not url.startswith(("data:", "about:"))]

    def screenshot(self, file: Path) -> None:
        """The whole page from top to bottom."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def opened_browser() -> Iterator[Page]:
    """A fresh browser with an empty profile, ended by its own process id."""
    assert CHROMIUM is not None
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


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH: the page is not looked at")
    with opened_browser() as page:
        yield page


@pytest.fixture
def browser(chromium: Page) -> Page:
    """The browser with nothing heard yet."""
    chromium.messages.clear()
    return chromium
