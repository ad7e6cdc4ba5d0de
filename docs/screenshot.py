"""The picture of a report in README: `python docs/screenshot.py runs/demo/report.html docs/report.png`.

Shows the figures and the map and hides the other sections. Needs Chromium.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

SECTIONS = ("What was learned", "A map of the features")
WIDTH, HEIGHT = 1150, 1460  # CSS pixels
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=8000"]


def screenshot(report: Path, picture: Path) -> None:
    page = report.read_text(encoding="utf-8")
    sections = re.findall(r"<section>\s*<h2[^>]*>([^<]*)", page)
    hidden = ", ".join(
        f"section:nth-of-type({n})" for n, title in enumerate(sections, 1) if title.strip() not in SECTIONS
    )
    style = f"<style>header, footer, {hidden} {{ display: none }} body {{ padding-top: 0 }}</style></head>"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "report.html"
        copy.write_text(page.replace("</head>", style), encoding="utf-8")
        raw = Path(folder) / "raw.png"
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={folder}/profile", f"--screenshot={raw}"]
        subprocess.run(["chromium", *FLAGS, *size, copy.as_uri()], check=True, capture_output=True)
        # 128 colours keep the file small
        Image.open(raw).convert("RGB").quantize(128).save(picture, optimize=True)


if __name__ == "__main__":
    screenshot(Path(sys.argv[1]), Path(sys.argv[2]))
