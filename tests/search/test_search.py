"""Image search, indexes and curation of real files: exact neighbours, planted copies and wrong labels."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

import nearfar as nf
from nearfar.cli import main
from nearfar.search import build_index, curate, search
from nearfar.search.curate import duplicate_groups, outlier_scores, suggested_labels, vote_shares
from nearfar.search.neighbours import nearest_others, unit_rows
from nearfar.system.files import machine_mark

COPIES = {"copy-of-0.png": 0, "copy-of-7.png": 7}  # altered copies, and one with equal pixels
WRONG = ("3", "3-labelled-as-8.png")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 handwritten digits by class, a brighter copy, an equal copy, and a 3 in the folder of 8."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    pictures = [Image.fromarray((16 * row.clip(0, 15.9)).astype(np.uint8).reshape(8, 8)) for row in images]
    for number in range(200):
        folder = root / str(labels[number])
        folder.mkdir(exist_ok=True)
        pictures[number].resize((16, 16)).save(folder / f"{number}.png")
    for name, number in COPIES.items():
        picture = pictures[number].resize((16, 16))
        brighter = ImageEnhance.Brightness(picture).enhance(1.1 if number == 0 else 1.0)
        brighter.save(root / str(labels[number]) / name)
    three = next(number for number in range(200, 300) if labels[number] == 3)
    pictures[three].resize((16, 16)).save(root / "8" / WRONG[1])
    return root


@pytest.fixture(scope="module")
def run(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "digits"
    views = {"flip": 0.0, "greyscale": 0.0, "jitter": 0.0, "crop_scale": [0.5, 1.0]}
    nf.pretrain(
        "simclr", str(digits), out, epochs=12, batch_size=64, quiet=True, backbone="resnet8-w8", views=views
    )
    return out


def test_search_equals_exhaustive_comparison(run: Path, digits: Path) -> None:
    opened = nf.Run.open(run)
    query = digits / "0" / "0.png"
    ((path, matches),) = search(opened, str(digits), str(query), top=7)
    assert path == "0.png"
    features, images = opened.embed(str(digits)).numpy(), opened.open_data(str(digits))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    row = list(images.paths).index("0/0.png")
    cosine = unit @ unit[row]
    best = np.argsort(-cosine, kind="stable")[:7]
    np.testing.assert_allclose([match.similarity for match in matches], cosine[best], atol=1e-5)
    assert {match.path for match in matches[:2]} == {"0/0.png", "0/copy-of-0.png"}
    assert all(match.label == match.path.split("/")[0] for match in matches)


def test_an_index_answers_like_the_data_and_opens_in_faiss(run: Path, digits: Path, tmp_path: Path) -> None:
    query = str(digits / "7" / "7.png")
    direct = search(run, str(digits), query)
    for _ in range(2):  # an index is replaced
        index = build_index(run, str(digits), tmp_path / "index")
    assert search(run, tmp_path / "index", query) == direct
    stored = faiss.read_index(str(tmp_path / "index" / "index.faiss"))
    row = list(index.paths).index("7/7.png")
    similarity, rows = stored.search(index.features[row : row + 1], 10)
    np.testing.assert_allclose(similarity[0], [match.similarity for match in direct[0][1]], atol=1e-5)
    assert pq.read_table(tmp_path / "index" / "items.parquet")["path"][int(rows[0, 0])].as_py() in {
        "7/7.png",
        "7/copy-of-7.png",
    }


def test_unusable_indexes_and_targets_get_a_sentence(run: Path, digits: Path, tmp_path: Path) -> None:
    build_index(run, str(digits), tmp_path / "index")
    facts = json.loads((tmp_path / "index" / "index.json").read_text())
    (tmp_path / "index" / "index.json").write_text(json.dumps({**facts, "encoder": "another"}))
    with pytest.raises(nf.UserError, match="another encoder"):
        search(run, tmp_path / "index", str(digits / "0" / "0.png"))
    (tmp_path / "index" / "index.json").write_text(json.dumps(facts))
    (tmp_path / "index" / "items.parquet").write_bytes(b"PAR1")
    with pytest.raises(nf.UserError, match="index"):
        search(run, tmp_path / "index", str(digits / "0" / "0.png"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    for write in (build_index, curate):
        with pytest.raises(nf.UserError, match=r"letter\.txt"):
            write(run, str(digits), tmp_path / "other")


def test_messages_name_the_options_of_the_command(
    run: Path, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, missing = str(digits / "0" / "0.png"), str(tmp_path / "missing")
    with pytest.raises(nf.UserError, match=r"^top was 0"):
        search(run, str(digits), query, top=0)
    with pytest.raises(nf.UserError, match=r"^query: data '.*missing' was not found"):
        search(run, str(digits), missing)
    for words, message in (
        (["--query", query, "--top", "0"], "--top was 0; expected a whole number from 1"),
        (["--query", missing], f"--query: data '{missing}' was not found"),
    ):
        assert main(["search", str(run), str(digits), *words]) == 2
        assert message in capsys.readouterr().err


def test_an_index_survives_kills_and_failed_writes(
    run: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an export does: the folder that a killed replacement set aside comes back; nothing else is left."""
    folder, query = tmp_path / "index", str(digits / "7" / "7.png")
    build_index(run, str(digits), folder)
    expected = search(run, folder, query)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    folder.rename(tmp_path / f".index.{child.pid}-{machine_mark()}0123abcd.old")
    assert search(run, folder, query) == expected
    (tmp_path / "latest").symlink_to(folder)
    build_index(run, str(digits), tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    monkeypatch.setattr("nearfar.search.index._write_faiss", fail)
    with pytest.raises(nf.UserError, match="index could not be written: No space left on device"):
        build_index(run, str(digits), folder)
    assert search(run, folder, query) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "latest"]


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_ignored_files_are_reported(
    run: Path, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(digits, tmp_path / "digits")
    for number in range(3):
        (tmp_path / "digits" / "0" / f"{number}.heic").write_bytes(b"not read")
    data, query = str(tmp_path / "digits"), str(digits / "0" / "0.png")
    for words in (
        ["search", str(run), data, "--query", query, "--json"],
        ["index", str(run), data, "--out", str(tmp_path / "index")],
        ["curate", str(run), data, "--out", str(tmp_path / "curation")],
    ):
        assert main(words) == 0
        assert (
            capsys.readouterr().err
            == f"{data}: 3 files ignored: HEIC (.heic) is not read: convert to PNG, JPEG or TIFF\n"
        )


@pytest.mark.parametrize("change", [{"instances": math.inf}, {"duplicates": {"count": 1, "first": [[10**9, "x"]]}},
                                    {"duplicates": {"count": 1, "first": [[-1, "x"]]}}])  # fmt: skip
def test_a_forged_curation_does_not_stop_the_report(
    change: dict[str, Any], run: Path, digits: Path, tmp_path: Path
) -> None:
    curate(run, str(digits))
    facts = run / "curation.json"
    stored = json.loads(facts.read_text())
    try:
        facts.write_text(json.dumps({**stored, **change}))
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    finally:
        facts.unlink()
    page = (tmp_path / "page.html").read_text()
    assert "curation.json cannot be read" in page or "names rows that the data do not have" in page


def test_the_report_says_when_the_encoder_changed_after_curation(
    run: Path, digits: Path, tmp_path: Path
) -> None:
    trained, page = tmp_path / "run", tmp_path / "page.html"
    shutil.copytree(run, trained)
    curate(trained, str(digits))
    assert main(["report", str(trained), "--out", str(page)]) == 0
    assert "near-duplicates" in page.read_text()
    nf.pretrain("simclr", str(digits), trained, epochs=13, quiet=True, allow_change=True)
    assert main(["report", str(trained), "--out", str(page)]) == 0
    assert "curation.json was made before the encoder changed" in page.read_text()
    assert "near-duplicates" not in page.read_text()


def test_commands(run: Path, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = digits / "1" / "1.png"
    assert main(["index", str(run), str(digits), "--out", str(tmp_path / "index")]) == 0
    capsys.readouterr()
    for data in (digits, tmp_path / "index"):
        words = ["search", str(run), str(data), "--query", str(query), "--top", "3", "--json"]
        assert main(words) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["1.png"][0]["path"] == "1/1.png"
        assert len(answer["1.png"]) == 3
    assert main(["curate", str(run), str(digits), "--out", str(tmp_path / "curation")]) == 0
    assert "duplicates.parquet" in capsys.readouterr().out
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Doubtful labels" in page
    assert WRONG[1] in page.split("Doubtful labels")[1]


def test_curation_finds_planted_copies_and_the_wrong_label(run: Path, digits: Path, tmp_path: Path) -> None:
    curation = curate(run, str(digits), tmp_path / "out")
    assert curation.instances == 203
    duplicates = curation.duplicates.to_pylist()
    groups = {row["path"]: row["group_id"] for row in duplicates}
    for name, number in COPIES.items():
        assert groups[f"{number}/{name}"] == groups[f"{number}/{number}.png"]
    exact = {row["path"] for row in duplicates if row["exact"]}
    assert exact == {"7/7.png", "7/copy-of-7.png"}
    assert curation.labels is not None
    doubtful = {row["path"]: row["suggested"] for row in curation.labels.to_pylist()}
    assert doubtful[f"8/{WRONG[1]}"] == WRONG[0]
    for name, table in curation.tables().items():
        assert pq.read_table(tmp_path / "out" / name).equals(table)


def test_data_without_labels_have_no_table_of_labels(run: Path, digits: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(digits.rglob("*.png"))[:30]):
        (tmp_path / f"{number}.png").write_bytes(path.read_bytes())
    assert curate(run, str(tmp_path)).labels is None
    with pytest.raises(nf.UserError, match="needs more than"):
        curate(run, str(tmp_path / "0.png"))


@given(rows=st.integers(4, 40), dim=st.integers(2, 6), seed=st.integers(0, 10**6), copies=st.integers(0, 3))
def test_neighbours_equal_those_of_scikit_learn(rows: int, dim: int, seed: int, copies: int) -> None:
    random = np.random.default_rng(seed)
    points = random.normal(size=(rows, dim)).astype(np.float32)
    points[rows - copies :] = points[:copies] if copies else points[rows:]
    unit, count = unit_rows(points), min(3, rows - 1)
    similarity, neighbour = nearest_others(unit, count)
    assert not (neighbour == np.arange(rows)[:, None]).any(), "no row is its own neighbour"
    reference = NearestNeighbors(n_neighbors=count, metric="cosine").fit(unit.astype(np.float64))
    distance, _ = reference.kneighbors()
    np.testing.assert_allclose(1 - similarity, distance, atol=2e-6)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=12))
def test_groups_are_the_connected_components(pairs: list[tuple[int, int]]) -> None:
    pairs = [(a, b) for a, b in pairs if a != b]
    sources, targets = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    group = duplicate_groups((sources, targets), 12)
    components = [{row} for row in range(12)]  # merged by hand
    for a, b in pairs:
        merged = components[a] | components[b]
        for row in merged:
            components[row] = merged
    for row in range(12):
        mates = {other for other in range(12) if group[other] == group[row]} if group[row] >= 0 else {row}
        assert mates == components[row]
    numbers = [number for number in group if number >= 0]
    assert list(dict.fromkeys(numbers)) == list(range(len(set(numbers)))), "numbered by first row"


def test_outlier_scores_do_not_depend_on_the_scale_of_distances() -> None:
    distance = np.random.default_rng(0).lognormal(size=(50, 5))
    np.testing.assert_allclose(outlier_scores(distance), outlier_scores(3 * distance), atol=1e-9)
    distance[17] *= 50
    assert outlier_scores(distance).argmax() == 17


def test_suggestions_follow_confident_learning() -> None:
    """Northcutt et al. 2021, Eq. 1 and 2: of the classes whose share reaches the mean share of their own
    members, the largest is suggested; written out with loops."""
    random = np.random.default_rng(0)
    labels = random.integers(-1, 3, 60)
    neighbour_labels = random.integers(-1, 3, (60, 8))
    similarity = np.sort(random.uniform(size=(60, 8)), axis=1)[:, ::-1]
    share = vote_shares(similarity, neighbour_labels, 3)
    for row in range(60):
        weights = [0.0] * 3
        for place in range(8):
            if neighbour_labels[row, place] >= 0:
                weights[neighbour_labels[row, place]] += np.exp(similarity[row, place] / 0.07)
        np.testing.assert_allclose(share[row], np.array(weights) / max(sum(weights), 1e-300), atol=1e-9)
    means = [share[labels == c, c].mean() for c in range(3)]
    for row, suggestion in enumerate(suggested_labels(share, labels)):
        able = [c for c in range(3) if share[row, c] >= means[c]]
        best = max(able, key=lambda c: share[row, c]) if able else labels[row]
        better = labels[row] >= 0 and share[row, best] > share[row, labels[row]]
        assert suggestion == (best if better else labels[row])
