"""The papers' own texts, where they lie beside the project."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def papers() -> dict[str, str]:
    """Each paper's text by its number; without them what was read from them is not looked up again."""
    folder = next(
        (p / "shared" / "papers" for p in Path(__file__).parents if (p / "shared" / "papers").is_dir()), None
    )
    if folder is None:
        pytest.skip("shared/papers is absent: the papers are not looked up")
    return {path.stem[:3]: path.read_text(encoding="utf-8") for path in folder.glob("0*.txt")}
