"""RUN/evaluation.json: `{"results": […]}`, one for each way in which the run's encoder was tested.

Results of one `kind` were fitted and tested on the same data under the same settings. They are merged:
protocols and baselines stand together, and a newer figure replaces an older one. A result of other weights
than the run's present ones is dropped.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearfar.core.results import Result
from nearfar.errors import NotSaved
from nearfar.system.files import write_atomic
from nearfar.system.untrusted import read_json


def results_of(stored: Any) -> list[Result]:
    """The results in the content of evaluation.json, oldest first, without unreadable entries."""
    listed = stored.get("results") if isinstance(stored, Mapping) else None
    results = map(Result.from_json, listed if isinstance(listed, list) else ())
    return [result for result in results if result is not None]


def record(path: Path, result: Result) -> None:
    """Adds a result to the file, merged with an earlier one of its kind."""
    earlier = [one for one in results_of(read_json(path)) if one.encoder == result.encoder]
    merged = result
    for one in earlier:
        if one.kind == result.kind:
            merged = _merged(one, merged)
    other_kinds = [one for one in earlier if one.kind != result.kind]
    stored = [one.to_json(answers=True) for one in (*other_kinds, merged)]
    try:
        write_atomic(path, json.dumps({"results": stored}, indent=2) + "\n")
    except OSError as problem:
        raise NotSaved(
            f"{path} could not be written ({problem.strerror}): the figures are not saved", result
        ) from None


def _merged(earlier: Result, newer: Result) -> Result:
    baselines = {
        name: {**earlier.baselines.get(name, {}), **newer.baselines.get(name, {})}
        for name in {**earlier.baselines, **newer.baselines}
    }
    return replace(
        newer,
        figures={**earlier.figures, **newer.figures},
        baselines=baselines,
        notes={**earlier.notes, **newer.notes},
    )
