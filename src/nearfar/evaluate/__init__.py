"""Evaluation of frozen features by many protocols, compared with raw pixels and an untrained encoder.

    features --LabelledFeatures--> protocol --> Measurement --> Result

A protocol of features sees two labelled sets of features and nothing else, so it works on the features of an
encoder, raw pixels and any vectors. `evaluate_run` records a run's results in evaluation.json.
"""

import sys
from types import ModuleType
from typing import Any

from nearfar.core.results import Result
from nearfar.evaluate.knn import knn, knn_probe
from nearfar.evaluate.linear import fit_linear, linear
from nearfar.evaluate.protocols import NETWORK_PROTOCOLS, PROTOCOLS, UNLABELLED_PROTOCOLS, Options, scores
from nearfar.evaluate.run import evaluate_run
from nearfar.evaluate.sets import LabelledFeatures, Subject, stratified_split
from nearfar.evaluate.table import table
from nearfar.run.features import cached_features, features

__all__ = [
    "NETWORK_PROTOCOLS",
    "PROTOCOLS",
    "UNLABELLED_PROTOCOLS",
    "LabelledFeatures",
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
    """Makes this package callable: `nf.evaluate(run, …)` is `evaluate_run`. An attribute of `nearfar` and its
    subpackage share one name, so the package itself must be what is called."""

    def __call__(self, *arguments: Any, **settings: Any) -> Result:
        return evaluate_run(*arguments, **settings)


sys.modules[__name__].__class__ = _Evaluate
