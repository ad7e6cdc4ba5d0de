"""When hard negatives begin to pay: rings of several widths, begun early, midway and late (Wu et al. 2021, App. E, Fig. 2a).

Instance discrimination trains as it is up to a moment of the run; from there on only the most similar 10, 25 or 50 % of the bank count. The
paper goes on from checkpoints of one base run at epochs 0, 50 and 100 of 200; here the edge is a schedule that jumps at that moment, which
is the same computation, since a ring of everyone is no ring. `begin` are moments as shares of the run.

Command: nearfar study thresholds data=cifar10:ROOT     Cost: about 9 minutes on two quiet cores; seeds=3 epochs=100 images=20000 are hours.
"""

from nearfar.errors import UserError
from nearfar.studies.compared import Claim, Comparison, compare, draw
from nearfar.studies.frame import Bench, Cell, Result, Study
from nearfar.studies.images import Setup

KEPT = (10, 25, 50)  # percent of the bank, the most similar
BASE = "everyone (100 %)"
SAID = {
    "first": "below everyone, the more so the fewer are kept",
    "middle": "as good as everyone",
    "last": "above everyone, the more so the fewer are kept",
}


def arm(kept: int, begin: float) -> str:
    return f"{kept} % from {begin:.0%}"


def moments_of(begin: str) -> list[float]:
    """Rising shares of a run."""
    try:
        found = [float(share) for share in begin.split(",")]
    except ValueError:
        found = []
    if not found or sorted(set(found)) != found or not all(0 <= share < 1 for share in found):
        raise UserError(
            f"begin was {begin!r}; expected rising shares of the run, from 0 on and below 1, such as 0,0.25,0.5"
        )
    return found


def comparison(setup: Setup, begin: list[float]) -> Comparison:
    arms: dict[str, tuple[str, dict[str, float | str]]] = {BASE: ("instdisc", {})}
    paper: dict[str, Cell] = {}
    for place, share in enumerate(begin):
        when = "first" if place == 0 else "last" if place == len(begin) - 1 else "middle"
        for kept in KEPT:
            lower = round(1 - kept / 100, 2)
            # one jump half-way through twice the time
            edge = f"stairs(0,{lower:g},1,{2 * share * setup.epochs:g})" if share else lower
            arms[arm(kept, share)] = (
                "instdisc-ring",
                {"selection__lower": edge, "selection__upper": 1.0},
            )
            paper[arm(kept, share)] = SAID[when]
    early, late = begin[0], begin[-1]
    return Comparison(
        "Figure 2a",
        arms,
        paper,
        "Wu et al. 2021, App. E, Fig. 2a, in words: only drawn there (nearest neighbours, CIFAR-10, 200 epochs of ResNet-18)",
        (
            *(Claim(BASE, arm(kept, early)) for kept in KEPT),
            *(Claim(arm(kept, late), BASE) for kept in KEPT),
            Claim(arm(KEPT[0], late), arm(KEPT[0], early)),
        ),
    )


def run(bench: Bench, setup: Setup, begin: str = "0,0.25,0.5") -> Result:
    return compare(bench, setup, comparison(setup, moments_of(begin)))


STUDY = Study(
    "thresholds",
    "Wu et al. 2021, Fig. 2a: rings of several widths, begun early, midway and late",
    run,
    draw,
)
