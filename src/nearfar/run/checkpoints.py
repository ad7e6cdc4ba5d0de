"""Checkpoints: tensors and JSON facts with SHA-256 digests, written atomically.

    folder/step-00000123/state.safetensors     every tensor
                         facts.json            everything else: step, schedules, monitors, settings
                         manifest.json         the SHA-256 and size of both, and its own

A checkpoint appears by one rename of a complete, fsynced folder, and nothing older is touched before that
rename is durable. So a folder named `step-*` is whole unless the disk changed it later, and then the
manifest says so: every byte of every file is covered. Nothing here is executed on load (no pickle).

What holds a weight that is not finite is not valid either: nothing can go on from it. Tensors that are meant
to hold an infinity (a mask, a running mean of nothing yet) are named in the facts, under `unbounded`.

A step saved again becomes `step-00000123.1`: a rename cannot replace a full folder in one go, and removing
the first one before the second is there would leave a moment with neither.

One process writes a folder at a time (rank 0 of one run): leftovers of any other are swept.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from nearfar.errors import UserError
from nearfar.run.weights import load_tensors
from nearfar.system.files import remove_tree, sync_folder, write_new
from nearfar.system.untrusted import (
    MAX_TEXT_BYTES,
    check_memory,
    open_regular_file,
    parse_json,
    read_bytes,
    read_text,
)

FORMAT = 1
MAX_MANIFEST_BYTES = 2**16
STATE, FACTS, MANIFEST = "state.safetensors", "facts.json", "manifest.json"
_NAME = re.compile(r"step-(\d{8,})(?:\.([1-9]\d*))?")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class _Damaged(Exception):
    """Why a folder is not a checkpoint."""


def save(
    folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], keep: int = 2
) -> Path:
    """Write the checkpoint of `step`, durable when this returns, then drop all but the newest `keep`.

    Values come back exactly; device, memory format and sharing between tensors are not state. `facts` must be
    plain JSON (string keys, lists, finite numbers), so that it comes back equal.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"save(step={step}, keep={keep}): step must be at least 0 and keep at least 1.")
    files = {STATE: safetensors.torch.save(_unshared(tensors)), FACTS: _facts_bytes(facts)}
    files[MANIFEST] = _manifest_bytes(step, files)
    try:
        _ready(folder)
        path = _written(folder, _free_name(folder, step), files)
    except OSError as error:
        raise UserError(_failure(folder, step, error)) from error
    # The new one is safe whatever happens here; what could not be removed is tried again at the next save.
    with suppress(OSError):
        _prune(folder, path, keep)
    return path


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and facts of one checkpoint; a damaged one is refused with a sentence."""
    try:
        return _parsed(path)
    except _Damaged as damage:
        raise UserError(f"{path}: not a usable checkpoint, {damage}.") from damage


def check(path: Path) -> str | None:
    """Why `path` is not a valid checkpoint; None if `load` would take it and its numbers are finite."""
    try:
        tensors, facts = _parsed(path)
    except _Damaged as damage:
        return str(damage)
    return _complaint(tensors, facts)


def _complaint(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str | None:
    unbounded_names = facts.get("unbounded")
    wrong = not_finite(tensors, unbounded_names if isinstance(unbounded_names, list) else ())
    return None if wrong is None else f"{wrong} is not finite"


def not_finite(tensors: Mapping[str, Tensor], unbounded: Collection[str] = ()) -> str | None:
    """The first tensor with a NaN or an infinity; those named in `unbounded` may hold infinities."""
    for name, tensor in sorted(tensors.items()):
        if tensor.is_floating_point() or tensor.is_complex():
            wrong = torch.isnan(tensor) if name in unbounded else ~torch.isfinite(tensor)
            if bool(wrong.any()):
                return name
    return None


def valid(path: Path) -> bool:
    return check(path) is None


def damage(folder: Path) -> str:
    """Why the newest checkpoint is not valid, in parentheses; empty if there is none."""
    newest_named = next(iter(_checkpoints(folder)), None)
    return "" if newest_named is None else f" ({newest_named.name}: {check(newest_named)})"


def last_named(folder: Path) -> int:
    """The highest step that any checkpoint claims by its name, valid or not; -1 where there is none."""
    return max((step_of(path) for path in _checkpoints(folder)), default=-1)


def newest(folder: Path) -> Path | None:
    """The newest valid checkpoint of a folder, found by checking each from the newest down."""
    newest_checkpoint = load_newest(folder)
    return None if newest_checkpoint is None else newest_checkpoint.path


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read: its tensors (on the CPU) and facts."""

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def load_newest(folder: Path) -> Loaded | None:
    """The newest valid checkpoint of a folder, read once.

    A training process may delete the checkpoint that is being read, after writing a newer one: then the folder
    is listed again.
    """
    while True:
        listed = _checkpoints(folder)
        for path in listed:
            with suppress(_Damaged):
                tensors, facts = _parsed(path)
                if _complaint(tensors, facts) is None:
                    return Loaded(path, tensors, facts)
        if listed == _checkpoints(folder):
            return None


def load_step(folder: Path, step: int) -> Loaded | None:
    """The newest valid checkpoint of that step."""
    for path in _checkpoints(folder):
        if step_of(path) == step:
            with suppress(_Damaged, OSError):
                tensors, facts = _parsed(path)
                if _complaint(tensors, facts) is None:
                    return Loaded(path, tensors, facts)
    return None


def steps(folder: Path) -> tuple[int, ...]:
    """The steps that checkpoints are named after, valid or not, rising."""
    return tuple(sorted({step_of(path) for path in _checkpoints(folder)}))


def newest_step(folder: Path) -> int | None:
    """The step of the newest valid checkpoint."""
    newest_checkpoint = newest(folder)
    return None if newest_checkpoint is None else step_of(newest_checkpoint)


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return _place(path)[0]


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


# ---------------------------------------------------------------------------------------------- bytes


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors of which no two share memory: safetensors stores neither strides nor sharing."""
    result: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if value.untyped_storage().data_ptr() in storages:
            value = value.clone()
        storages.add(value.untyped_storage().data_ptr())
        result[name] = value
    return result


def _facts_bytes(facts: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(dict(facts), allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"A checkpoint's facts must be finite plain JSON: {error}.") from error
    content = text.encode()
    if len(content) > MAX_TEXT_BYTES:
        raise ValueError(
            f"A checkpoint's facts have {len(content):,} bytes; at most {MAX_TEXT_BYTES:,} are read."
        )
    if parse_json(text) != dict(facts):
        raise ValueError("A checkpoint's facts must be plain JSON: string keys, and lists for tuples.")
    return content


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1).encode()


def _manifest_bytes(step: int, files: Mapping[str, bytes]) -> bytes:
    hashes = {name: {"sha256": _sha256(data), "size": len(data)} for name, data in files.items()}
    body = {"format": FORMAT, "step": step, "files": hashes}
    return _canonical({"body": body, "sha256": _sha256(_canonical(body))})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -------------------------------------------------------------------------------------------- reading


def _parsed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        _verify(path)
        tensors = load_tensors(path / STATE)
        facts = parse_json(read_text(path / FACTS))
    except OSError as error:
        raise _Damaged(f"it cannot be read ({error.strerror or error})") from error
    # anyone can write a manifest whose hashes match: what the files hold is another check
    except (SafetensorError, ValueError, RecursionError, KeyError) as error:
        raise _Damaged(f"its content cannot be read ({type(error).__name__})") from error
    if not isinstance(facts, dict):
        raise _Damaged(f"{FACTS} holds no mapping")
    return tensors, facts


def _verify(path: Path) -> None:
    """Compares size and SHA-256 of both files with the manifest, the size first. Nothing changes a
    checkpoint once it has its name, so what is hashed here is what will be parsed."""
    _expect_files(path)
    promised = _manifest(path)
    for name in (STATE, FACTS):
        with open_regular_file(path / name) as file:
            size = os.fstat(file.fileno()).st_size
            check_memory(path / name, size)
            same_size = isinstance(promised[name], dict) and promised[name].get("size") == size
            digest = hashlib.file_digest(file, "sha256").hexdigest() if same_size else ""
        if promised[name] != {"sha256": digest, "size": size}:
            raise _Damaged(f"the bytes of {name} are not those its manifest names")


def _expect_files(path: Path) -> None:
    with os.scandir(path) as entries:
        files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    for name in (STATE, FACTS, MANIFEST):
        if not files.pop(name, False):
            raise _Damaged(f"{name} is missing")
    if files:
        raise _Damaged(f"{min(files)} does not belong there")


def _manifest(path: Path) -> dict[str, Any]:
    """Digest and size of each file, of a valid manifest."""
    data = read_bytes(path / MANIFEST, MAX_MANIFEST_BYTES)
    try:
        manifest = json.loads(data)
        body = manifest["body"]
        intact = manifest["sha256"] == _sha256(_canonical(body)) and data == _canonical(manifest)
        version, step, files = body["format"], body["step"], body["files"]
        complete = files.keys() == {STATE, FACTS}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"{MANIFEST} cannot be read ({type(error).__name__})") from error
    if not intact:
        raise _Damaged(f"the bytes of {MANIFEST} are not those it was written with")
    if version != FORMAT:
        raise _Damaged(f"its format is {version}, this version reads {FORMAT}")
    if step != _place(path)[0] or not complete:
        raise _Damaged(f"its manifest is that of step {step}, not of {path.name}")
    return files


# ------------------------------------------------------------------------------------------ the folder


def _place(path: Path) -> tuple[int, int]:
    """(step, which save of that step) as a checkpoint's name has it; step -1 for any other name."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)


def _checkpoints(folder: Path) -> list[Path]:
    """Folders named as checkpoints, newest first, unchecked."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _place(path)[0] >= 0), key=_place, reverse=True)


def _free_name(folder: Path, step: int) -> str:
    saves = [save for saved_step, save in map(_place, _checkpoints(folder)) if saved_step == step]
    return f"step-{step:08d}" + (f".{max(saves) + 1}" if saves else "")


def _ready(folder: Path) -> None:
    """Make the folder, or clear it of what a killed process left: that is never valid and takes up space."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        sync_folder(folder.parent)
    for leftover in _leftovers(folder):
        remove_tree(leftover)


def _leftovers(folder: Path) -> Iterator[Path]:
    return (path for path in list(folder.iterdir()) if path.name.startswith((".writing-", ".deleting-")))


def _written(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    temporary = folder / f".writing-{name}-{os.getpid()}"
    try:
        temporary.mkdir()
        for file, data in files.items():
            write_new(temporary / file, data)
        sync_folder(temporary)
        path = temporary.rename(folder / name)
    except BaseException:
        remove_tree(temporary)
        raise
    sync_folder(folder)
    return path


def _prune(folder: Path, saved: Path, keep: int) -> None:
    """Drops older checkpoints than `saved` beyond `keep`, and damaged ones that claim to be newer."""
    ranked = _checkpoints(folder)
    newer, older = ranked[: ranked.index(saved)], ranked[ranked.index(saved) + 1 :]
    step = _place(saved)[0]
    damaged = [path for path in newer if not valid(path)]
    superseded = [path for path in older if _place(path)[0] == step]
    surplus = [path for path in older if _place(path)[0] != step][keep - 1 :]
    for path in [*damaged, *superseded, *surplus]:
        _delete(path)


def _delete(path: Path) -> None:
    """Renamed first, so that a kill halfway leaves nothing that carries a checkpoint's name."""
    remove_tree(path.rename(path.parent / f".deleting-{path.name}-{os.getpid()}"))


def _failure(folder: Path, step: int, error: OSError) -> str:
    last = newest(folder)
    previous = f"the checkpoint of step {_place(last)[0]} is intact" if last else "there was none before it"
    cause = "no space left" if error.errno in _FULL else error.strerror or str(error)
    return (
        f"{folder}: the checkpoint of step {step} could not be written ({cause}), {previous}; "
        "make room or mend the folder, then run the same command again."
    )
