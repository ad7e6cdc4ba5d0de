"""Folders with unusual entries and hostile names: opened, refused in one sentence, never a hang; text in
pages."""

import functools
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from types import FrameType

import numpy as np

from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.estimate.read import read_sample
from nearfar.report import write_report
from nearfar.run.embed import write_embedding
from nearfar.train.pretrain import pretrain
from tests.storm.jobs import picture_bytes
from tests.storm.places import lasting

SUFFIXES = (".png", ".jpg", ".wav", ".txt", ".npz", ".parquet", ".csv", "")
HOSTILE = (
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'onload='x", "a&amp;b<", "{{7*7}}",
    "{% raw %}", "</svg><b>", "]]>", "--><i>",
    "${x}", "`x`", "%s%n", "\u202egnp", "\u0000"[:0] + "\u200b", "a\nb", "é" * 40, "| --- |",
    "javascript:alert(1)", "=cmd|' /C calc'!A0", "\\",
)  # fmt: skip


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """What takes longer hangs."""

    def rang(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hung for {seconds} s")

    previous = signal.signal(signal.SIGALRM, rang)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def odd_entry(rng: random.Random, path: Path) -> None:
    """One thing that a folder may hold."""
    kind = rng.choice(
        ["pipe", "socket", "device", "loop", "dangling", "up", "folder", "empty", "huge", "secret", "picture"]
    )
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener, suppress(OSError):  # a path may be too long for one
            listener.bind(str(path))
    elif kind == "device":
        path.symlink_to(rng.choice(["/dev/zero", "/dev/full", "/dev/random", "/dev/stdin", "/proc/self/mem"]))
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "up":
        path.symlink_to("..", target_is_directory=True)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":  # a hole: no disk is used
        with path.open("wb") as file:
            file.truncate(2**40)
    elif kind == "secret":
        path.write_bytes(picture_bytes(1))
        path.chmod(0)
    else:
        path.write_bytes(picture_bytes(rng.randrange(100)) if kind == "picture" else b"")


def odd_folder(rng: random.Random, empty: Path) -> str:
    place = empty / "folder"  # a link to `..` then leads to nothing but this case
    place.mkdir()
    for number in range(rng.choice([0, 3, 20])):
        (place / f"{number:02}.png").write_bytes(picture_bytes(number))
    for number in range(rng.randint(1, 6)):
        stem = rng.choice(
            [
                f"odd{number}",
                f"\udcff{number}",
                " ",
                f"-{number}",
                "n" * 240,
                f"new\nline{number}",
                f"{number}#0",
            ]
        )
        path = place / f"{stem}{rng.choice(SUFFIXES)}"
        if not os.path.lexists(path):
            odd_entry(rng, path)
    source = rng.choice([place, *place.iterdir()])
    with alarm(60):
        if rng.random() < 0.2:
            read_sample(str(source))
            return "a sample, read"
        opened = open_data(source, max_bad_share=rng.choice([0.05, 1.0]), cache_bytes=rng.choice([0, 10**7]))
        opened.load(np.arange(min(len(opened), 4)))
    return "odd folder, opened"


class Structure(HTMLParser):
    """Which elements with which attributes a page has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[tuple[str, str]] = set()
        self.scripts = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.elements |= {(tag, name) for name, _ in attrs} | {(tag, "")}
        if tag == "a":
            assert all(
                not (value or "").strip().lower().startswith("javascript:")
                for name, value in attrs
                if name == "href"
            )


def named_run(place: Path, folder: str, names: list[str]) -> list[str]:
    """Pages of a run whose data, classes and folder have these names: single, and with another run."""
    place.mkdir()
    rng = np.random.default_rng(0)
    data = place / f"{names[0].replace('/', '_')[:60]}.npz"
    np.savez(
        data,
        images=rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8),
        labels=np.arange(60) % len(names),
        classes=np.array(names),
    )
    small = {"backbone": "resnet8-w16", "batch_size": 20, "epochs": 1, "workers": 0, "held_out": 0.0}
    runs = [
        pretrain("simclr", str(data), place / f"{folder}{n}", quiet=True, seed=n, config=small)
        for n in range(2)
    ]
    write_embedding(runs[0], str(data), place / "features.parquet")
    pages = [place / "one.html", place / "both.html"]
    write_report(runs[:1], pages[0])
    write_report(runs, pages[1])
    return [page.read_text(encoding="utf-8") for page in pages]


@functools.cache
def harmless() -> tuple[Structure, ...]:
    place = lasting("plain") / "x"
    return tuple(Structure(page) for page in named_run(place, "run", ["a", "b", "c"]))


def names(rng: random.Random, place: Path) -> str:
    """A page with hostile names has the elements and attributes of one with harmless names, and no other."""
    hostile_names = rng.sample(HOSTILE, 3)
    folder = rng.choice(HOSTILE).replace("/", "_")
    for page, harmless_page in zip(named_run(place / "x", folder, hostile_names), harmless(), strict=True):
        structure = Structure(page)
        assert structure.elements <= harmless_page.elements, (
            hostile_names,
            folder,
            structure.elements - harmless_page.elements,
        )
        assert structure.scripts == harmless_page.scripts, (hostile_names, folder)
    return "hostile names stayed text"


def crowd(rng: random.Random, place: Path) -> str:
    """100,000 files of a few bytes with some pictures among them."""
    for part in range(100):
        folder = place / f"{part:02}"
        folder.mkdir()
        for number in range(1000):
            (folder / f"{number:03}.png").write_bytes(b"x" * rng.randrange(3))
    for number in range(20):
        (place / "00" / f"good{number}.png").write_bytes(picture_bytes(number))
    listed = place.parent / f"{place.name}-quarantine.csv"
    try:
        with alarm(600):
            opened = open_data(place, max_bad_share=1.0, quarantine=listed)
            assert (len(opened), len(opened.quarantine)) == (20, 100_000)
            with suppress(UserError):
                open_data(place)
                raise AssertionError("most files are bad, and there was no message")
    finally:
        listed.unlink(missing_ok=True)
    return "100,000 tiny files set aside"


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    return (names if rng.random() < 0.02 else odd_folder)(rng, place), {"odd": 1}


def many(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    return crowd(rng, place), {"tiny files": 100_020}
