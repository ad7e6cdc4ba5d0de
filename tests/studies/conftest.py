"""The papers' own texts, where they lie beside the project, and recordings."""

import wave
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def recording(tone: float, pitch: float, generator: np.random.Generator) -> bytes:
    time = np.arange(int(generator.integers(1100, 1500)))
    sound = (
        np.sin(2 * np.pi * tone * time) + np.sin(2 * np.pi * pitch * time) + generator.normal(size=len(time))
    )
    out = BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((4000 * sound).astype("<i2").tobytes())
    return out.getvalue()


def write(file: Path, count: int, seed: int) -> str:
    generator = np.random.default_rng(seed)
    digit, speaker = np.arange(count) % 2, np.arange(count) // 2 % 2
    sounds = [
        recording(0.02 + 0.1 * d, 0.3 + 0.1 * s, generator) for d, s in zip(digit, speaker, strict=True)
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        "audio": pa.array([{"bytes": sound, "path": "x"} for sound in sounds], kind),
        "label": pa.array(digit),
        "speaker": pa.array([("ann", "ben")[s] for s in speaker]),
    }
    pq.write_table(pa.table(columns), file)
    return str(file)


@pytest.fixture(scope="session")
def write_recordings() -> Callable[[Path, int, int], str]:
    """Writes so many recordings of two digits and two speakers to a file."""
    return write
