"""Coverage-guided fuzzing of our parsers: an input that reaches a new line is kept and changed further.

Every input is parsed or refused with the parser's own exception; anything else is a defect. A case is one
search from the valid inputs of a parser, a function of its seed. (Native fuzzers such as atheris need a
compiler.)"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from nearfar.config.reading import load_yaml, memory_bytes, seconds
from nearfar.config.resolving import read_words, resolve
from nearfar.core.schedules import Schedule, as_text, at, ends, parse_learnable, parse_value
from nearfar.errors import UserError
from nearfar.estimate.read import read_sample
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.graph.data import read_tu
from nearfar.modalities.image.decode import decode
from nearfar.modalities.image.named import read_idx
from nearfar.modalities.sound.data import decode_sound
from nearfar.sweeps.space import read_space
from tests.storm.files import graphs, idx, mutated, numbers, picture, sound
from tests.storm.words import written_and_read

TRIES = 150  # inputs of a case


@dataclass(frozen=True)
class Parser:
    """`run(input, folder)`; files whose lines are counted; valid inputs; the exceptions that refuse an
    input."""

    run: Callable[[bytes, Path], Any]
    files: tuple[str, ...]
    seeds: Callable[[random.Random], list[bytes]]
    answers: tuple[type[Exception], ...] = (UserError, Unusable)


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def schedule(data: bytes, place: Path) -> None:
    """What was read is written so that it is read again as the same."""
    value = parse_value(text_of(data), "key")
    assert parse_value(as_text(value), "key") == value or not isinstance(value, Schedule)
    assert all(abs(end) < float("inf") for end in ends(value))
    at(value)
    parse_learnable(text_of(data), "key")


def words(data: bytes, place: Path) -> None:
    written_and_read(resolve("moco-ring", "x", read_words(text_of(data).split("\x01"))))


def units(data: bytes, place: Path) -> None:
    seconds(text_of(data))
    memory_bytes(text_of(data))


def graph_folder(data: bytes, place: Path) -> None:
    for number, part in enumerate(data.split(b"\x01")[:4]):
        (place / f"S_{('A', 'graph_indicator', 'graph_labels', 'node_labels')[number]}.txt").write_bytes(part)
    read_tu(place, "s")


def written_to(name: str, reader: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    def run(data: bytes, place: Path) -> Any:
        (place / name).write_bytes(data)
        return reader(place / name)

    return run


SETTINGS = [
    b"lr=1e-3\x01bound.alpha=geometric(10,0.1)",
    b"selection.lower=linear(0,0.9)",
    b"views.crop_scale=[0.2, 1]\x01epochs=3",
    b"bound=ml-cpc\x01negatives={size: 64}",
]
CALLS = [
    b"linear(0,0.9)",
    b"steps(0.1,0.5,3)",
    b"on_loss(0,1)",
    b"cosine(0.1)",
    b"learnt(0.07)",
    b"1e-4",
    b"stairs(0,1,4)",
    b"plateau(0.1)",
]
PARSERS = {
    "schedules": Parser(schedule, ("schedules/reading.py", "schedules/shapes.py", "schedules/adaptive.py"),
        lambda rng: CALLS),
    "settings": Parser(words, ("settings.py", "resolve.py", "parts.py", "recipes/choices.py"),
        lambda rng: SETTINGS),
    "units": Parser(units, ("settings.py",), lambda rng: [b"2h", b"1.5 GB", b"90", b"10min", b"512MiB"],
        (UserError, ValueError)),
    "axes": Parser(lambda data, place: read_space(text_of(data).split("\x01")), ("sweeps/space.py",),
        lambda rng: [b"lr=1e-4..1e-1:log\x01seed=0..4", b"a=1,2,'linear(0,1)'"]),
    "yaml": Parser(lambda data, place: load_yaml(text_of(data)), ("parts.py",),
        lambda rng: [b"{a: [1, 2.5, x], b: {c: null}}", b"a: 1e-4\nb: &c 1\n", b"a: !!bool x\nb: 2001-01-01"],
        (yaml.YAMLError,)),
    "wav": Parser(lambda data, place: decode_sound(data), ("modalities/sound/data.py",),
        lambda rng: [sound(rng) for _ in range(3)]),
    "pictures": Parser(lambda data, place: decode(data, 8), ("modalities/image/decode.py",),
        lambda rng: [picture(rng, kind) for kind in ("PNG", "JPEG", "BMP", "WEBP")]),
    "idx": Parser(written_to("train-images-idx3-ubyte", read_idx), ("modalities/image/named.py",),
        lambda rng: [idx(rng) for _ in range(3)]),
    "graphs": Parser(graph_folder, ("modalities/graph/data.py",),
        lambda rng: [b"\x01".join(graphs(rng).values())]),
    "tables": Parser(written_to("a.csv", lambda path: read_sample(str(path))), ("estimate/read.py",),
        lambda rng: [numbers(rng)]),
}  # fmt: skip


def reached(parser: Parser, data: bytes, place: Path) -> tuple[frozenset[tuple[str, int]], bool]:
    """Which lines of the parser's files an input reaches, and whether it was refused."""
    lines: set[tuple[str, int]] = set()

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.endswith(parser.files) else None

    previous = sys.gettrace()
    sys.settrace(call)
    try:
        parser.run(data, place)
    except parser.answers:
        return frozenset(lines), True
    finally:
        sys.settrace(previous)
    return frozenset(lines), False


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    name = rng.choice([*PARSERS])
    parser = PARSERS[name]
    corpus, reached_lines, refused = list(parser.seeds(rng)), set[tuple[str, int]](), 0
    for number in range(TRIES):
        data = (
            corpus[number] if number < len(corpus) else mutated(rng.choice(corpus), rng.choice(corpus), rng)
        )
        try:
            lines, no = reached(parser, data, place)
        except Exception as broken:
            raise AssertionError(f"{name}: {data[:300]!r}") from broken
        refused += no
        if not lines <= reached_lines:
            reached_lines |= lines
            corpus += [data] if data not in corpus else []
    return f"{name} searched", {"parsed": TRIES, "lines": len(reached_lines), "refused inputs": refused}
