"""What negatives and what views add to instance discrimination: IR, BALL, ANN, LA (Wu et al. 2020, Fig. 2a).

Command: nearfar study vince data=cifar10:ROOT     Cost: about 6 minutes on two quiet cores; seeds=5 epochs=100 images=20000 are hours.
"""

from nearfar.studies.compared import Claim, Comparison, compare, draw
from nearfar.studies.frame import Bench, Result, Study
from nearfar.studies.images import Setup

COMPARISON = Comparison(
    "Figure 2a",
    {
        "IR": ("instdisc", {}),
        "BALL": ("instdisc-ball", {}),
        "ANN": ("instdisc-annulus", {}),
        "LA": ("la", {}),
    },
    {"BALL": "above IR", "ANN": "slightly above BALL", "LA": "above ANN by as much as ANN above IR"},
    "Wu et al. 2020, Fig. 2a and sec. 5.4, in words: of ImageNet, and only drawn there",
    (Claim("BALL", "IR"), Claim("ANN", "IR"), Claim("ANN", "BALL"), Claim("LA", "ANN")),
)


def run(bench: Bench, setup: Setup) -> Result:
    return compare(bench, setup, COMPARISON)


STUDY = Study(
    "vince",
    "Wu et al. 2020, Fig. 2a: instance discrimination, ball, annulus and Local Aggregation",
    run,
    draw,
)
