"""Commands of the guides: every block runs on small data, or the line above says why it does not."""

import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nearfar.cli import main
from tests.docs.pages import NOTEBOOKS, PAGES, PROJECT, ROOT, SHELL, Block, blocks

# README's commands run in test_docs_site.py
WRITTEN = [page for page in (*PAGES, *PROJECT, *NOTEBOOKS) if page != ROOT / "README.md"]
# settings that decide how long a command takes, put behind its own
BUDGET = {
    "pretrain": ["epochs=1", "batch_size=16", "held_out=0.2"],
    "train": ["epochs=1", "batch_size=16", "backbone=resnet8-w8"],
    "distill": ["epochs=1", "batch_size=16", "backbone=resnet8-w8"],
    "semi": ["finetune.epochs=1", "distil.epochs=1"],
    "semi, with pretraining": ["epochs=1", "batch_size=16", "backbone=resnet8-w8"],
}
OTHER_NETWORKS = ("clip", "cebra")  # recipes whose data are not images


def shell_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in SHELL]


def runs(page: Path) -> bool:
    return any(not block.reason for block in shell_blocks(page))


def budget(command: str, words: list[str]) -> list[str]:
    settings = BUDGET.get(command, [])
    if command == "semi" and "--init" not in words:
        return [*settings, *BUDGET["semi, with pretraining"]]
    if command == "pretrain" and not (words[0] in OTHER_NETWORKS or words[1].endswith(".csv")):
        return [*settings, "backbone=resnet8-w8"]
    return settings


def picture(rng: np.random.Generator, label: int) -> Image.Image:
    pixels = rng.integers(0, 60, (16, 16, 3)) + np.array([(180, 40, 40), (40, 40, 180)][label])
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a reader: folders of pictures, tables, and a run on photos/."""
    root, rng = tmp_path_factory.mktemp("reader"), np.random.default_rng(0)
    for name, count in (("photos", 48), ("labelled", 32), ("test", 32), ("queries", 2)):
        for n in range(count):
            target = root / name / ("red", "blue")[n % 2] / f"{n}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            picture(rng, n % 2).save(target)
    picture(rng, 0).save(root / "cat.jpg")
    for name in ("photos", "others"):
        files = sorted((root / "photos").rglob("*.png"))
        captions = [f"a {file.parent.name} picture, number {file.stem}" for file in files]
        table = {"image": [file.read_bytes() for file in files], "caption": captions}
        pq.write_table(pa.table(table), root / f"{name}.parquet")
    for name in ("recording", "another"):
        channels = np.cumsum(rng.normal(size=(300, 4)), axis=0)
        rows = [
            ",".join([f"{value:.3f}" for value in row] + [("rest", "run")[n // 150]])
            for n, row in enumerate(channels)
        ]
        (root / f"{name}.csv").write_text("\n".join(["a,b,c,d,label", *rows]) + "\n")
    people = [f"{20 + n % 50},{('red', 'blue')[n % 2]},{n % 7}" for n in range(80)]
    (root / "people.csv").write_text("\n".join(["age,colour,visits", *people]) + "\n")
    labels = [f"{file.relative_to(root / 'photos')},{file.parent.name}" for file in files[::2]]
    (root / "labels.csv").write_text("\n".join(["path,label", *labels]) + "\n")
    words = ["simclr", str(root / "photos"), "--out", str(root / "runs" / "photos"), "backbone=resnet8-w8"]
    assert main(["pretrain", *words, *BUDGET["pretrain"]]) == 0
    return root


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in WRITTEN if runs(page)], ids=lambda page: page.stem)
def test_commands_run(
    page: Path,
    reader: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In their order, in a folder of the page's own."""
    for file in reader.iterdir():
        if file.name != "runs":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "photos").symlink_to(reader / "runs" / "photos")
    monkeypatch.chdir(tmp_path)
    for block in shell_blocks(page):
        for line in () if block.reason else block.commands:
            program, command, *words = shlex.split(line, comments=True)
            assert program == "nearfar", f"{line}: run it, or say why not"
            assert main([command, *words, *budget(command, words)]) == 0, f"{line}\n{capsys.readouterr().err}"


def test_reasons_are_sentences_of_a_few_words() -> None:
    reasons = [block.reason for page in WRITTEN for block in blocks(page) if block.reason]
    assert reasons
    assert all(2 <= len(reason.split()) <= 20 for reason in reasons)
    assert not any(re.search(r"todo|fixme", reason, re.IGNORECASE) for reason in reasons)
