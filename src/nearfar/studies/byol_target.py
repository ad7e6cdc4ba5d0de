"""What keeps BYOL from collapsing: how slowly its target moves, weight decay, the predictor (Sáez Maldonado 2021, sec. 8.1 and 8.2).

xi <- tau xi + (1 - tau) theta with tau constant: at 0 the target is the online network, at 1 it stays what it was untrained. Beside accuracies
stands RankMe of the features, how many directions they use: a collapsed network uses few.

Command: nearfar study byol-target data=cifar10:ROOT     Cost: about 20 minutes of one core.
"""

from typing import TYPE_CHECKING, Any

from nearfar.studies.compared import Claim, Comparison, draw, found_by, results_of
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Setup, moments
from nearfar.studies.quality import without_labels

if TYPE_CHECKING:
    from collections.abc import Mapping

TAUS = (0.0, 0.9, 0.99, 0.999, 1.0)
BASE = 0.99


def name_of(tau: float) -> str:
    return f"tau {tau:g}"


def _arm(tau: float, **changes: Any) -> "tuple[str, Mapping[str, Any]]":
    return "byol", {"encoders.momentum": tau, **changes}


ADEQUATE = "among the most adequate"
COMPARISON = Comparison(
    "BYOL's target",
    {
        **{name_of(tau): _arm(tau) for tau in TAUS},
        "no weight decay": _arm(BASE, weight_decay=0.0),
        "no predictor": _arm(BASE, **{"encoders.predictor": "none"}),
    },
    {
        name_of(0.0): "updated too often",
        **{name_of(tau): ADEQUATE for tau in (0.9, 0.99, 0.999)},
        name_of(1.0): "never updated",
        "no weight decay": "diverges",
    },
    "Sáez Maldonado 2021, sec. 8.1 and 8.2, in words; it gives no figures",
    (
        *(Claim(name_of(tau), name_of(end)) for tau in (0.9, 0.99, 0.999) for end in (0.0, 1.0)),
        Claim(name_of(BASE), "no weight decay"),
        Claim(name_of(BASE), "no predictor"),
    ),
)


def run(bench: Bench, setup: Setup) -> Result:
    found = found_by(bench, setup, COMPARISON, without_labels)
    result = results_of(found, COMPARISON)
    rows = [Row(name, None, *moments([one["rankme"] for one in found[name]])) for name in COMPARISON.arms]
    return Result((*result.findings, Finding("RankMe of the features", tuple(rows))), result.remarks)


STUDY = Study(
    "byol-target",
    "Sáez Maldonado 2021, sec. 8: BYOL with tau of 0 to 1, without weight decay, without predictor",
    run,
    draw,
)
