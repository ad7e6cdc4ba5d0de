"""RUN/evaluation.json: `{"results": […]}`, one for each way in which the run's encoder was tested.

Two results are of one kind if they were fitted and tested on the same data under the same settings; then their protocols and
baselines stand together, and the newer figure counts. Results of one kind can be compared between runs, others cannot.
A result of other weights than the run now has says nothing of the run and is dropped.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.core.intervals import with_intervals
from nearfar.errors import NotSaved
from nearfar.run.answers import without_answers
from nearfar.system.files import write_atomic
from nearfar.system.untrusted import read_json

Result = Mapping[str, Any]


def kind_of(result: Result) -> str:
    """A short name of what the result was fitted on, tested on and how."""
    told = [result[role]["fingerprint"] for role in ("train", "test")] + [
        result.get("settings"),
        result.get("split"),
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def results_of(stored: Any) -> list[dict[str, Any]]:
    """The results in what evaluation.json holds, oldest first; what makes no sense is passed by."""
    if not isinstance(stored, Mapping):
        return []
    listed = stored["results"] if "results" in stored else [_of_old(stored)]
    return [dict(result) for result in listed if _sound(result)] if isinstance(listed, Sequence) else []


def record(path: Path, result: Result) -> None:
    """Adds a result to the file: beside those of other kinds, together with those of its own."""
    kept = {
        **result,
        **({"baselines": without_answers(result["baselines"])} if "baselines" in result else {}),
    }
    earlier = [one for one in _read(path) if one.get("encoder") == result["encoder"]]
    same = [one for one in earlier if kind_of(one) == kind_of(result)]
    others = [one for one in earlier if kind_of(one) != kind_of(result)]
    merged: Result = kept
    for one in same:
        merged = _together(one, merged)
    try:
        write_atomic(path, json.dumps({"results": [*others, merged]}, indent=2) + "\n")
    except OSError as problem:
        raise NotSaved(
            f"{path} could not be written ({problem.strerror}): the figures are not saved",
            without_answers(result),
        ) from None


def _together(earlier: Result, now: Result) -> dict[str, Any]:
    before, after = _baselines(earlier), _baselines(now)
    baselines = {name: {**before.get(name, {}), **after.get(name, {})} for name in {**before, **after}}
    return {**earlier, **now, **({"baselines": baselines} if baselines else {})}


def _baselines(result: Result) -> dict[str, Mapping[str, Any]]:
    told = result.get("baselines") or {}
    return {name: figures for name, figures in told.items() if isinstance(figures, Mapping)}


def _read(path: Path) -> list[dict[str, Any]]:
    return results_of(read_json(path))


def _sound(result: Any) -> bool:
    if not isinstance(result, Mapping) or not all(is_set(result.get(role)) for role in ("train", "test")):
        return False
    return isinstance(result.get("baselines") or {}, Mapping)


def is_set(told: Any) -> bool:
    """Whether this describes a data set: its name, fingerprint and number of samples."""
    return (
        isinstance(told, Mapping)
        and all(isinstance(told.get(key), str) for key in ("name", "fingerprint"))
        and type(told.get("samples")) is int
    )


def _of_old(stored: Mapping[str, Any]) -> Any:
    """The one result that earlier versions kept in the file: without intervals, the last one alone."""
    try:
        held_out = ", held out" if stored["split"] else ""
        sets = {
            role: {
                "name": stored["data"][role]["name"] + held_out,
                "samples": stored["samples"][role],
                "fingerprint": stored["data"][role]["fingerprint"] + held_out,
                "unit": stored["data"][role].get("unit", "images"),
            }
            for role in ("train", "test")
        }
        count = stored["samples"]["test"]
        rest = {name: value for name, value in stored.items() if name not in ("data", "samples", "baselines")}
        told = {name: _old_figures(value, count) for name, value in rest.items()}
        baselines = {
            name: {protocol: _old_figures(value, count) for protocol, value in figures.items()}
            for name, figures in stored.get("baselines", {}).items()
        }
    except (KeyError, TypeError, AttributeError):
        return None
    return {**told, **sets, **({"baselines": baselines} if baselines else {})}


def _old_figures(value: Any, samples: int) -> Any:
    return (
        with_intervals(value, samples)
        if isinstance(value, Mapping) and "top5" in value and "nats" not in value
        else value
    )
