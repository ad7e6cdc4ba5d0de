"""Python of the guides: every block runs on small data, or the line above says why it does not."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nearfar as nf

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)
# README's blocks run in test_docs_site.py
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.parent.name != "generated" and BLOCK.search(page.read_text())
]


class Pairs(torch.utils.data.Dataset[Any]):
    """A data set of your own."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, n: int) -> tuple[np.ndarray, int]:
        return self.images[n], int(self.labels[n])


class Rows:
    """A logger of your own."""

    def log(self, row: dict[str, Any]) -> None:
        assert "kind" in row

    def close(self) -> None: ...


def names_of_a_reader(folder: Path) -> dict[str, Any]:
    """What the blocks take for granted."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(80) % 2
    module = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    recording = rng.normal(size=(80, 5)).astype(np.float32)
    return {
        "nf": nf,
        "images": images,
        "labels": labels,
        "my_torch_dataset": Pairs(images, labels),
        "my_module": module,
        "MySelection": partial(nf.Ball, 0.5),
        "MyBound": nf.InfoNCE,
        "MyLogger": Rows,
        "other": lambda image: image.resize((64, 64)),
        "recording": recording,
        "another": recording[:60],
    }


def small(call: Any) -> Any:
    """The call with one epoch of a small network."""

    def with_small_budget(*arguments: Any, **options: Any) -> Any:
        return call(*arguments, **{"epochs": 1, "batch_size": 20, "quiet": True, **options})

    return with_small_budget


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run_or_say_why_not(
    page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("photos", "labelled", "test", "others"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nf, "pretrain", small(nf.pretrain))
    names = names_of_a_reader(folder)
    for block in BLOCK.finditer(page.read_text()):
        if not block["reason"]:
            exec(compile(block["code"], page.name, "exec"), names)
