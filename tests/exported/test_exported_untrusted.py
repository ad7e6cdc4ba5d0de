"""`Encoder.from_pretrained` on damaged and hostile folders: one sentence, and no large allocation."""

import copy
import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nearfar as nf
from nearfar.errors import UserError


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrusted")
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), dtype=np.uint8)
    run = nf.pretrain(
        "simclr", data=images, out=folder / "run", backbone="resnet8-w8", epochs=1, batch_size=8, workers=0,
        probe_every=0, quiet=True, device="cpu", image_size=8,
    )  # fmt: skip
    return nf.export(run, folder / "exported")


def copied(exported: Path, folder: Path) -> Path:
    shutil.copytree(exported, folder / "copy")
    return folder / "copy"


def test_changed_weights_are_refused(exported: Path, tmp_path: Path) -> None:
    folder = copied(exported, tmp_path)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(
        UserError, match=r"model.safetensors is damaged: its size or SHA-256 differs from config.json"
    ):
        nf.Encoder.from_pretrained(folder)
    nf.Encoder.from_pretrained(exported)


def mutations(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value of a JSON tree, with replacements of other types and sizes."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        replacements: tuple[Any, ...] = (None, -1, 10**9, "x", [], {})
        for replacement in replacements:
            if type(replacement) is not type(value) or isinstance(value, int):
                yield (*path, key), replacement
        yield from mutations(value, (*path, key))


def test_altered_configs_load_or_get_one_sentence(exported: Path, tmp_path: Path) -> None:
    folder = copied(exported, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    changes = list(mutations(config))
    sampled = np.random.default_rng(0).permutation(len(changes))[:40]
    previous_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for path, value in (changes[place] for place in sampled):
        altered = copy.deepcopy(config)
        target = altered
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        (folder / "config.json").write_text(json.dumps(altered))
        try:
            nf.Encoder.from_pretrained(folder)
        except UserError:
            refused += 1
    assert refused > 8
    config["training"]["settings"]["backbone"] = "resnet152"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"describes a network of [\d,]+ bytes"):
        nf.Encoder.from_pretrained(folder)
    # kilobytes on Linux: a network of 10^9 channels would take terabytes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - previous_peak < 2_000_000


def test_pipe_in_place_of_a_file_does_not_block(exported: Path, tmp_path: Path) -> None:
    folder = copied(exported, tmp_path)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors cannot be read"):
        nf.Encoder.from_pretrained(folder)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(UserError, match="is not an exported encoder"):
        nf.Encoder.from_pretrained(folder)
