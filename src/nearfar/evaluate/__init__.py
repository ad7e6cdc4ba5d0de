"""How good frozen features are: nearest neighbours and a linear probe, beside raw pixels and no training.

    features --Labelled--> protocol --> {"top1": …, "top5": …}

A protocol sees two labelled sets of features and nothing else, so it judges an encoder, raw pixels or anyone's
vectors alike. `evaluate_run` does it for a run folder and writes evaluation.json.
"""

import sys
from types import ModuleType
from typing import Any

from nearfar.core.results import Result
from nearfar.evaluate.knn import knn, knn_probe
from nearfar.evaluate.labels import Labelled, stratified_split
from nearfar.evaluate.linear import fit_linear, linear
from nearfar.evaluate.protocols import (
    NETWORK_PROTOCOLS,
    PROTOCOLS,
    UNLABELLED_PROTOCOLS,
    Options,
    Subject,
    scores,
)
from nearfar.evaluate.run import evaluate_run
from nearfar.evaluate.table import table
from nearfar.run.features import cached_features, features

__all__ = [
    "NETWORK_PROTOCOLS",
    "PROTOCOLS",
    "UNLABELLED_PROTOCOLS",
    "Labelled",
    "Options",
    "Subject",
    "cached_features",
    "evaluate_run",
    "features",
    "fit_linear",
    "knn",
    "knn_probe",
    "linear",
    "scores",
    "stratified_split",
    "table",
]


class _Evaluate(ModuleType):
    """`nearfar.evaluate` is this room, and what one does in it: `nf.evaluate(run, …)` is `evaluate_run`. An attribute of a
    package and its submodule share one name, so the module itself can be called."""

    def __call__(self, *arguments: Any, **settings: Any) -> Result:
        return evaluate_run(*arguments, **settings)


sys.modules[__name__].__class__ = _Evaluate
