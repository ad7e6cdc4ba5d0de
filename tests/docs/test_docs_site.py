"""The documentation: it builds offline, no link is broken, every work cited is in the references, README's
code runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nearfar as nf
from nearfar.cli import main
from tests.browser import Page
from tests.docs.pages import SHELL, blocks

ROOT = Path(__file__).parents[2]


def pages_of_docs() -> list[Path]:
    """The pages that are written by hand."""
    return [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "generated"]


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]*\bsrc="(\w+:)?//|<link[^>]*\bhref="(\w+:)?//|@import"""
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not loaded.search(page.read_text()), page


def test_api_reference_lists_every_public_name(site: Path) -> None:
    pages = [page.read_text() for page in (site / "reference" / "generated").glob("api-*.html")]
    names = set(re.findall(r'<dt class="sig[^"]*" id="nearfar\.[\w.]*?(\w+)">', "".join(pages)))
    assert set(nf.__all__) - {"__version__", "info", *nf._PACKAGES} <= names
    assert any("mutual_information" in page for page in pages)


def test_api_reference_shows_shapes(site: Path) -> None:
    page = (site / "reference" / "generated" / "api-runs-evaluation-export.html").read_text()
    assert "Float[Tensor, &#39;train dim&#39;]" in page or "Float[Tensor, 'train dim']" in re.sub(
        r"<[^>]+>", "", page
    )


def test_site_contains_every_page(site: Path) -> None:
    built = {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}
    written = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert written <= built
    for page in built & written - {"index"}:
        assert f'{Path(page).name}.html"' in (site / "index.html").read_text(), (
            f"{page} is in no table of contents"
        )


def wait_for(browser: Page, script: str) -> Any:
    """The first value of the script that is true, tried for a minute: a loaded machine is slow."""
    return browser.value(
        f"""new Promise((resolve, reject) => {{
            const end = Date.now() + 60000;
            const attempt = () => {{
                const value = {script};
                if (value) resolve(value);
                else if (Date.now() > end) reject(new Error("nothing after a minute"));
                else setTimeout(attempt, 50);
            }};
            attempt();
        }})"""
    )


def test_search_finds_a_word_and_its_page(site: Path, browser: Page) -> None:
    browser.open(f"{(site / 'search.html').as_uri()}?q=temperature")
    for page in ("generated/settings", "generated/api-critics-and-priors"):
        title = wait_for(browser, f"document.querySelector('#search-results a[href*=\"{page}\"]')?.innerText")
        assert title in ("Settings", "Critics and priors")
    assert browser.complaints() == []


def test_mathematics_is_drawn(site: Path, browser: Page) -> None:
    """A numerator is above its denominator, and no formula is left as text."""
    browser.open((site / "features.html").as_uri())
    boxes = browser.value(
        "[...document.querySelectorAll('math mfrac')].map(fraction => "
        "[...fraction.children].map(part => part.getBoundingClientRect()).map(box => [box.top, box.bottom]))"
    )
    assert boxes
    for (_, bottom), (top, _) in boxes:
        assert bottom <= top + 1
    assert "$" not in browser.value("document.querySelector('article').innerText")


def test_api_page_shows_shapes_in_a_browser(site: Path, browser: Page) -> None:
    browser.open((site / "reference" / "generated" / "api-losses.html").as_uri())
    text = browser.value("document.querySelector('article').innerText")
    for loss in text.split("\nclass ")[1:]:
        assert "Float[Tensor, " in loss.partition("forward(")[2], loss.partition("\n")[0]


PAGES = (
    "index.html",
    "questions.html",
    "certificates.html",
    "tutorials/table.html",
    "reference/generated/settings.html",
)


@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_a_narrow_screen_and_have_a_dark_mode(site: Path, browser: Page, page: str) -> None:
    def brightness(dark: bool) -> tuple[float, float]:
        """Of the background and of the text, from 0 to 255."""
        browser.open((site / page).as_uri(), 390, 844, dark)
        assert browser.value("document.documentElement.scrollWidth") <= 390
        colours = browser.value(
            "['background-color', 'color'].map(name => getComputedStyle(document.body).getPropertyValue(name))"
        )
        background, text = (sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3 for colour in colours)
        return background, text

    light, dark = brightness(False), brightness(True)
    assert light[0] > 200 > 100 > light[1]
    assert dark[0] < 100 < 200 < dark[1]
    assert all(url.startswith(site.as_uri()) for url in browser.requests())
    assert browser.complaints() == []


CITED = re.compile(
    r"\b((?:[A-Z][\wáéíóúü'-]+ )?[A-Z][\wáéíóúü'-]+(?: et al\.| (?:&|and) [A-Z][\wáéíóúü'-]+)?),? "
    r"((?:19|20)\d\d)\b"
)
NOT_WORKS = ("JPEG", "January", "November", "NeurIPS", "ICML", "ICLR", "CVPR", "ECCV", "ICCV", "AISTATS")


def test_every_citation_is_in_the_references() -> None:
    listed = (ROOT / "docs" / "references.md").read_text()
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.html"),
        *pages_of_docs(),
        ROOT / "README.md",
    ]
    cited = 0
    for file in files:
        if file.name == "references.md":
            continue
        for who, year in CITED.findall(file.read_text()):
            surname = who.split(" et al.")[0].split(" & ")[0].split(" and ")[0].split()[-1]
            if surname in NOT_WORKS or not ("et al." in who or "&" in who or f"| {who} {year}" in listed):
                continue
            cited += 1
            assert re.search(rf"\| [^|]*{re.escape(surname)}[^|]* {year} \|", listed), (
                f"{file.name}: {who} {year}"
            )
    assert cited > 100


def test_no_paper_is_cited_by_a_file_number() -> None:
    numbers = re.compile(r"\b00[0-4][,]? (?:Eq|sec|Thm|App|Table|Fig|ch)\b")
    for file in [*(ROOT / "src").rglob("*.py"), *pages_of_docs(), ROOT / "README.md"]:
        assert not numbers.search(file.read_text()), file


README = ROOT / "README.md"


def nearfar_commands() -> list[tuple[list[str], str]]:
    """The words of each command of README that is run, with the lines it prints there."""
    commands: list[tuple[list[str], str]] = []
    for block in blocks(README):
        if block.language not in SHELL or block.reason:
            continue
        for line in block.code.splitlines():
            if line.startswith(("nearfar ", "$ ")):
                commands.append((shlex.split(line.removeprefix("$ "), comments=True), ""))
            else:
                words, output = commands[-1]
                commands[-1] = words, output + line + "\n"
    return commands


def printed(line: str, text: str) -> bool:
    """Whether a line is one of the text, up to numbers and spaces; `…` stands for the rest of a line."""

    def pattern_of(line: str) -> str:
        return re.sub(r"-?\d[\d.,]*(?:e[-+]?\d+)?", "0", " ".join(line.split()))

    beginning = pattern_of(line.removesuffix("…"))
    lines = map(pattern_of, text.splitlines())
    return any(other.startswith(beginning) if line.endswith("…") else other == beginning for other in lines)


def test_readme_commands_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands in their order; what README prints is what they print, up to numbers of other pictures."""
    monkeypatch.chdir(folder)
    commands = nearfar_commands()
    assert [words[1] for words, _ in commands] == [
        *("pretrain", "evaluate", "embed", "report", "export", "-c", "mi")
    ]
    for words, output in commands:
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
            continue
        # the README's epochs would take longer than a test should
        extra = ["epochs=1"] if words[1] == "pretrain" else []
        capsys.readouterr()
        code = main([*words[1:], *extra])
        out, err = capsys.readouterr()
        assert code == 0, err
        for line in output.splitlines():
            assert printed(line, out + err), line
        if words[1] == "mi":
            expected, result = (list(map(float, re.findall(r"\d+\.\d+", text)))[:4] for text in (output, out))
            assert result == pytest.approx(expected, abs=0.01)
    assert (folder / "features.parquet").is_file()
    assert (folder / "runs" / "photos" / "report.html").is_file()


def test_readme_python_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    rows: Any = lambda: torch.randn(8, 4)
    image_network = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    names: dict[str, Any] = {
        "anchors": rows(), "keys": rows(), "x": x, "y": 0.6 * x + 0.8 * rng.normal(size=(200, 2)),
        "network": image_network, "image_features": rows(),
        "text_features": rows(), "logit_scale": torch.tensor(10.0), "embeddings": rows(),
        "labels": torch.arange(8) // 2, "queries": rows(), "documents": rows(), "hard_negatives": rows(),
    }  # fmt: skip
    pretrain = nf.pretrain
    monkeypatch.setattr(nf, "pretrain", lambda *a, **k: pretrain(*a, **{**k, "epochs": 1, "quiet": True}))
    python = [block.code for block in blocks(README) if block.language == "python"]
    assert len(python) == 2
    for code in python:
        exec(compile(code, "README.md", "exec"), names)
    (value,) = re.findall(r"NTXentLoss\(.*\)  # (\d\.\d{4})", python[0])
    assert nf.losses.NTXentLoss(temperature=0.1)(names["z0"], names["z1"]).item() == pytest.approx(
        float(value), abs=1e-3
    )
    assert names["features"].shape[0] == 260
    assert torch.isfinite(names["loss"])
    assert names["mi"].interval[0] <= names["mi"].nats <= names["mi"].interval[1]
