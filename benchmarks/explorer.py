"""The report's explorer with 20,000 points in headless Chromium: time per frame of each user action.

    python benchmarks/explorer.py [POINTS]

Prints the size of the page and, over 30 frames, the CPU time of the page's main thread, then the median and
the longest wall time: handler and drawing, measured inside the page, with the canvas flushed by reading a
pixel. Pictures are noise of 32 × 32 pixels, the worst case for compression."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.report.facts import Detail, Map
from nearfar.report.gather import gather
from nearfar.report.page import page
from nearfar.report.pictures import atlas_of
from nearfar.report.visuals import explorer_data

FRAMES = """
(async () => {
  const e = document.querySelector('.explorer').explorer, f = e.fields[0], times = [];
  const act = %s;
  for (let i = 0; i < 30; i += 1) {
    const from = performance.now();
    act(i);
    for (const c of [f.base, f.over]) c.getContext('2d').getImageData(0, 0, 1, 1);
    times.push(performance.now() - from);
    await new Promise(requestAnimationFrame);
  }
  times.sort((a, b) => a - b);
  return [times[15], times[29]];
})()
"""
ACTS = {
    "hover": "(i) => e.show(f.nearest(f.width * (0.2 + 0.02 * i), f.height * 0.5, 16, (one) => "
    "e.counts(one)))",
    "click": "(i) => e.choose(i * 97)",
    "search": "(i) => e.search(String(i))",
    "one class": "(i) => { e.search(''); e.alone = i % 10; e.redraw(); }",
    "pan and zoom": "(i) => { e.alone = -1; f.zoom = 1 + i / 10; f.place(); e.redraw(); }",
    "slider": "(i) => { f.zoom = 1; f.layer = i / 30; f.place(); e.redraw(); }",
    "lasso": "(i) => { e.path = { field: f, points: [[50, 50], [400, 60], [300, 400]] }; e.enclose(); "
    "e.pick(null); }",
}


def invented(points: int) -> Map:
    """A map of `points` points of ten classes in clouds, at two checkpoints."""
    from PIL import Image

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, points)
    places = rng.normal(size=(10, 2))[labels] + 0.3 * rng.normal(size=(points, 2))
    pictures = (Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(points))
    return Map(
        places,
        labels,
        tuple(f"photos/{place:06}.jpg" for place in range(points)),
        tuple(f"class {label}" for label in range(10)),
        atlas_of(pictures, points, 32, 300 * points),
        "an invention",
        points,
        True,
        rng.integers(0, points, (points, 10)),
        predicted=rng.integers(0, 10, points),
        nats=rng.normal(size=points),
        earlier=(("step 0", rng.normal(size=(points, 2))),),
        last="step 100",
    )


def busy(browser: Any) -> float:
    """Seconds of CPU that the page's main thread has used: a busy machine does not change them."""
    metrics = {one["name"]: one["value"] for one in browser.ask("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def main() -> None:
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.browser import opened_browser
    from tests.report.conftest import ReportedRun, digits

    with tempfile.TemporaryDirectory() as folder:
        small: Any = ReportedRun(Path(folder), data=digits(60))
        facts = replace(gather(small, Detail(points=60)), map=invented(points))
        assert len(explorer_data([("", facts.map)])["names"]) == points  # type: ignore[list-item]
        written = Path(folder) / "report.html"
        written.write_text(page([facts]))
        print(f"{points:,} points, page of {written.stat().st_size / 1e6:.1f} MB")
        with opened_browser() as browser:
            browser.ask("Performance.enable", timeDomain="threadTicks")
            browser.open(written.as_uri())
            for name, act in ACTS.items():
                start = busy(browser)
                median, longest = browser.value(FRAMES % act)
                per_frame = 1000 * (busy(browser) - start) / 30
                print(
                    f"{name:14} CPU {per_frame:6.1f} ms   median {median:6.1f} ms   longest "
                    f"{longest:6.1f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
