"""How many negatives: k of instance discrimination, drawn from all and from a ring (Wu et al. 2021, App. C).

Command: nearfar study negatives data=cifar10:ROOT     Cost: about 12 minutes on two quiet cores.
"""

from nearfar.studies.compared import Claim, Comparison, compare, draw
from nearfar.studies.frame import Bench, Result, Study
from nearfar.studies.images import Setup
from nearfar.studies.ring import between, plain, rising

NUMBERS = (16, 64, 256, 1024)


def comparison(setup: Setup, depth: float = 0.9, upper: float = 0.99, pool: int | None = None) -> Comparison:
    edge = rising(depth, setup.epochs)
    everyone = {f"IR, k={k}": plain("instdisc", k) for k in NUMBERS}
    rings = {f"IRing, k={k}": between("instdisc", edge, upper, k, pool) for k in NUMBERS}
    claims = [Claim(f"IRing, k={k}", f"IR, k={k}") for k in NUMBERS]
    return Comparison(
        "Appendix C",
        {**everyone, **rings},
        {},
        "",
        (*claims, Claim(f"IR, k={NUMBERS[-1]}", f"IR, k={NUMBERS[0]}")),
    )


def run(bench: Bench, setup: Setup) -> Result:
    return compare(bench, setup, comparison(setup))


STUDY = Study(
    "negatives", "Wu et al. 2021, App. C: the number of negatives, drawn from all and from a ring", run, draw
)
