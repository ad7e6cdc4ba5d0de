"""The written page: complete, escaped, self-contained, and a sentence where something is wrong."""

import itertools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nearfar.errors import UserError
from nearfar.report import write_report
from nearfar.report.plots import breakable, choice_of

Make = Callable[..., Any]
GONE = FileNotFoundError("photos/ is gone")
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}"


class Outline(HTMLParser):
    """The tags and the visible words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._hidden = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def outline(runs: list[Any], out: Path) -> Outline:
    return Outline(write_report(runs, out).read_text(encoding="utf-8"))


def test_one_run_shows_everything(make_run: Make, tmp_path: Path) -> None:
    page = outline([make_run()], tmp_path / "deep" / "report.html")
    for words in (
        "58.1%",
        "+26.1",
        "points against untrained encoder",
        "proven",
        "ceiling is 6.23 nats",
        "step 55",
    ):
        assert words in page.words
    for room in ("views", "encoders", "negatives", "selection", "bound", "cosine / temperature 0.2"):
        assert room in page.words
    assert page.count("canvas") == 3, "points, what the pointer does, and a thumbnail"
    assert sum("query" in (attrs.get("class") or "") for tag, attrs in page.tags if tag == "img") == 8
    assert sum(attrs.get("class") == "chart" for tag, attrs in page.tags if tag == "svg") == 9
    assert page.count("h1") == 1
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")


def test_ids_are_unique_in_a_page_of_several_runs(make_run: Make, tmp_path: Path) -> None:
    page = outline([make_run("a"), make_run("b", data=GONE)], tmp_path / "r.html")
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids)) > 10


def test_headings_never_skip_a_level(make_run: Make, tmp_path: Path) -> None:
    for runs in ([make_run(data=GONE)], [make_run("a", data=GONE), make_run("b", data=GONE)]):
        page = outline(runs, tmp_path / "r.html")
        levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
        assert levels[0] == 1
        assert all(level - previous <= 1 for previous, level in itertools.pairwise(levels))


def test_names_of_any_kind_are_only_text(
    make_run: Make, make_digits: Make, make_result: Make, tmp_path: Path
) -> None:
    data = make_digits(60, classes=tuple(f"{EVIL}{d}" for d in range(10)))
    data.paths = tuple(f"{EVIL}#{i}" for i in range(60))
    rows = [{"kind": "event", "step": 1, "message": EVIL}]
    runs = [
        make_run(
            "a<b>&'",
            data=data,
            metrics=rows,
            options={"recipe": EVIL, EVIL: EVIL},
            evaluation={"results": [make_result(test=EVIL, **{EVIL: {"top1": 0.5}})]},
        ),
        make_run("c", data=UserError(EVIL), certified=EVIL),
    ]
    page = outline(runs, tmp_path / "r.html")
    attributes = [attrs for tag, attrs in page.tags if tag == "script"]
    assert [attrs.get("type") for attrs in attributes] == ["application/json", None]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert all((attrs["src"] or "").startswith("data:image/webp") for tag, attrs in page.tags if tag == "img")
    assert EVIL in page.words
    assert "49" not in re.findall(r"onerror=alert\(2\)>(\d+)", page.words)


def test_nothing_in_the_page_points_outside(make_run: Make, tmp_path: Path) -> None:
    page = outline([make_run()], tmp_path / "r.html")
    for _, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert (attrs.get(name) or "#").startswith(("#", "data:"))
    policy = next(attrs["content"] or "" for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "script-src 'sha256-" in policy


def test_no_evaluation_says_how_to_get_one(make_run: Make, tmp_path: Path) -> None:
    run = make_run(evaluation=None, data=GONE)
    assert f"nearfar evaluate {run.path}" in outline([run], tmp_path / "r.html").words


def test_page_without_data_gives_the_reason(make_run: Make, tmp_path: Path) -> None:
    page = outline([make_run(data=GONE)], tmp_path / "r.html")
    assert page.words.count("photos/ is gone.") == 3
    assert page.count("img") == 0
    assert "58.1%" in page.words


def test_a_run_just_begun_has_a_page(make_run: Make, tmp_path: Path) -> None:
    run = make_run(metrics=[], evaluation=None, no_checkpoint=True, data=UserError("no checkpoint"))
    page = outline([run], tmp_path / "r.html")
    assert "Nothing is logged yet" in page.words
    assert "no checkpoint" in page.words


def test_page_of_a_method_without_an_estimate(make_run: Make, make_rows: Make, tmp_path: Path) -> None:
    rows = [{**row, "nats": None} if row["kind"] == "train" else row for row in make_rows(100)]
    page = outline([make_run(metrics=rows, data=GONE)], tmp_path / "r.html")
    assert "has no estimate of mutual information" in page.words
    assert "Mutual information, nats" not in page.words


def test_every_score_names_its_test_set(make_run: Make, make_result: Make, tmp_path: Path) -> None:
    results = [make_result(), make_result(knn=0.9, linear=None, test="elsewhere/")]
    page = outline([make_run(evaluation={"results": results}, data=GONE)], tmp_path / "r.html")
    words = " ".join(page.words.split())
    assert "58.1% 55.9–60.2% on 2,000 images: digits:test" in words
    assert "90.0% 88.6–91.2% on 2,000 images: elsewhere/" in words
    assert "Tested on elsewhere/ (2,000 images), fitted on digits:train (5,000)" in words
    figures = [tag for tag, attrs in page.tags if attrs.get("class") == "figure"]
    tags = [tag for tag, attrs in page.tags if attrs.get("class") == "on"]
    assert len(figures) == len(tags) == 3


def test_several_runs_are_compared_first(make_run: Make, make_result: Make, tmp_path: Path) -> None:
    runs = [
        make_run("one"),
        make_run("two", evaluation={"results": [make_result(0.4, 0.5)]}, options={"lr": 0.5}),
        make_run("three", evaluation=None),
    ]
    page = outline(runs, tmp_path / "r.html")
    assert "3 runs side by side" in page.words
    assert page.words.index("Settings that differ") < page.words.index("What was learned")
    best = [attrs for tag, attrs in page.tags if tag == "td" and attrs.get("class") == "best"]
    assert len(best) == 2, "kNN and linear are both best in the first run"
    text = (tmp_path / "r.html").read_text()
    assert text.count('"sheets":') == 1, "runs on the same data share their thumbnails"


def test_runs_tested_on_different_data_are_not_ranked(
    make_run: Make, make_result: Make, tmp_path: Path
) -> None:
    """One table for each test set; a figure that stands alone in its column is not the best of anything."""
    easy = make_result(0.99, 0.99, test="easy")
    other_fit = make_result(0.95, 0.95)
    other_fit["train"]["fingerprint"] = "more data"
    other_k = make_result(0.9, 0.9, settings={"k": 1, "temperature": 0.07, "seed": 0})
    for results in ([easy], [other_fit], [other_k]):
        runs = [make_run("one", data=GONE), make_run("two", data=GONE, evaluation={"results": results})]
        page = outline(runs, tmp_path / "r.html")
        captions = [attributes for _, attributes in page.tags if attributes.get("class") == "numbers"]
        assert len(captions) == 4, "two in the comparison, one under each run"
        assert not [attrs for tag, attrs in page.tags if attrs.get("class") == "best"]
        assert "cannot be compared" in page.words
    elsewhere = make_result(0.4, 0.5)
    elsewhere["test"]["name"] = (
        "/another/way/to/digits:test"  # what the data are decides, not what they are called
    )
    evaluation = {"results": [elsewhere, easy]}
    runs = [make_run("one", data=GONE), make_run("two", data=GONE, evaluation=evaluation)]
    best = [attrs for _, attrs in outline(runs, tmp_path / "r.html").tags if attrs.get("class") == "best"]
    assert len(best) == 2, "on the test set they share"


def test_page_describes_a_changing_ceiling(make_run: Make, make_rows: Make, tmp_path: Path) -> None:
    """The certificate holds for the whole run and the curve for each step: both are shown and named."""
    rows = make_rows(100)
    for row in rows:
        if row["kind"] == "train":
            row["ceiling"] = 6.23 - 0.02 * row["step"]
    words = " ".join(outline([make_run(metrics=rows, data=GONE)], tmp_path / "r.html").words.split())
    assert "at the last logged step it is 4.25 nats" in words
    assert "over the run at most 6.23" in words
    still = " ".join(outline([make_run(data=GONE)], tmp_path / "r.html").words.split())
    assert "Its ceiling is 6.23 nats." in still


def test_runs_with_equal_names_are_shown_by_path(make_run: Make, tmp_path: Path) -> None:
    runs = [make_run("a/run", data=GONE), make_run("b/run", data=GONE)]
    words = outline(runs, tmp_path / "r.html").words
    assert all(words.count(str(run.path)) >= 3 for run in runs)


def test_the_page_is_the_same_for_the_same_run(make_run: Make, tmp_path: Path) -> None:
    first, second = (
        write_report([make_run()], tmp_path / name).read_bytes() for name in ("a.html", "b.html")
    )
    assert first == second


def test_wrong_use_is_one_sentence(make_run: Make, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one run"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(UserError, match="the folder"):
        write_report([make_run()], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="could not be written"):
        write_report([make_run(data=GONE)], tmp_path / "file" / "r.html")


def test_a_choice_is_its_name_and_its_settings() -> None:
    assert choice_of("ring(lower=linear(0, 0.9), upper=0.99, sample=none)") == (
        "ring",
        [("lower", "linear(0, 0.9)"), ("upper", "0.99"), ("sample", "none")],
    )
    assert choice_of("everyone") == ("everyone", [])
    assert choice_of("two random crops (with flip)") == ("two random crops (with flip)", [])
    assert breakable("<b>stop_gradient") == "&lt;b&gt;stop_<wbr>gradient"


def test_ceiling_is_not_repeated(make_run: Make, tmp_path: Path) -> None:
    run = make_run(data=GONE, certified="the value cannot exceed 6.23 nats")
    assert "at most 6.23" not in outline([run], tmp_path / "r.html").words


def test_dates_are_written_alike(make_run: Make, tmp_path: Path) -> None:
    run = make_run(data=GONE)
    (run.path / "env.json").write_text('{"started": "2026-11-16T21:30:26Z"}')
    words = outline([run], tmp_path / "r.html").words
    assert "16 November 2026, 21:30 UTC" in words
