"""Random settings: complete and stable, or refused in one sentence."""

import random
from pathlib import Path

from nearfar.config.reading import load_yaml
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import all_keys, check, read_words, resolve
from nearfar.config.sections import PARTS_BY_CHOICE
from nearfar.config.settings import Settings
from nearfar.errors import UserError

USUAL = ("1", "2", "8", "0.5", "0.1", "true", "linear(0.1,0.9)")
VALUES = (
    "0", "1", "-1", "2", "7", "0.5", "1e-4", "1e99", "1e-300", "nan", ".inf", "true", "none", "x", "",
    "[1, 2]", "[0.1, 0.9]",
    "{a: 1}", "linear(0,0.9)", "geometric(10,0.1)", "cosine(0.1)", "steps(0.1,0.1,3)", "on_loss(0,1)",
    "linear(,)", "linear(0", "[" * 300,
    "9" * 500, "\0", "é", "*a", "&a 1", "!!python/object:os.system x",
)  # fmt: skip


def written_and_read(settings: Settings) -> None:
    """An accepted setting is what config.yaml then contains and is accepted there too."""
    try:
        restored = check(load_yaml(settings.as_yaml()))
    except UserError as problem:
        raise AssertionError(settings.as_yaml()) from problem
    assert restored.as_plain() == settings.as_plain()


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    keys = all_keys()
    words = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        key = rng.choice(keys) if rng.random() < 0.95 else "".join(rng.choices("abc.=_", k=6))
        room = key if key in PARTS_BY_CHOICE else None
        usual = [*PARTS_BY_CHOICE[room]] if room else USUAL
        value = rng.choice(usual) if rng.random() < 0.7 else rng.choice(VALUES)
        words.append(f"{key}={value}")
    settings = resolve(rng.choice([*RECIPES]), "x", read_words(words))
    written_and_read(settings)
    return "accepted", {"settings": 1}
