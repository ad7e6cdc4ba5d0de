"""Ring as published, and without its parts (Wu et al. 2021, Table 1 and 2): selection, then a sample of k, the edge rising in a third of the run.

`depth` is the outer edge that is reached (the paper's 0.9), `upper` the inner one (not told there), `sample` the negatives drawn from the ring.

Command: nearfar study ring data=cifar10:ROOT     Cost: about 9 minutes on two quiet cores; seeds=3 epochs=100 images=20000 are hours.
"""

from nearfar.studies.compared import Claim, Comparison, compare, draw
from nearfar.studies.frame import Bench, Result, Study
from nearfar.studies.images import Setup


def comparison(setup: Setup, depth: float, upper: float, sample: int) -> Comparison:
    rising = f"linear(0,{depth:g},{setup.epochs / 3:g})"
    drawn = {"selection__sample": sample}
    return Comparison(
        "Table 2a",
        {
            "IR": ("instdisc", {"negatives__sample": sample}),
            "IRing": ("instdisc-ring", {**drawn, "selection__lower": rising, "selection__upper": upper}),
            "IRing (No Anneal)": (
                "instdisc-ring",
                {**drawn, "selection__lower": depth, "selection__upper": upper},
            ),
            "IRing(w_u=100)": (
                "instdisc-ring",
                {**drawn, "selection__lower": rising, "selection__upper": 1.0},
            ),
            "CMC": ("cmc", {"negatives__sample": sample}),
            "CMCRing": ("cmc-ring", {**drawn, "selection__lower": rising, "selection__upper": upper}),
        },
        {"IR": 81.2, "IRing": 83.9, "IRing (No Anneal)": 81.4, "IRing(w_u=100)": 82.1},
        "Wu et al. 2021, Table 2a: CIFAR-10, 300 epochs of ResNet-18 at 224 pixels, linear on pre-pool features",
        (
            Claim("IRing", "IR"),
            Claim("IRing", "IRing (No Anneal)"),
            Claim("IRing", "IRing(w_u=100)"),
            Claim("CMCRing", "CMC"),
        ),
    )


def run(bench: Bench, setup: Setup, depth: float = 0.9, upper: float = 0.99, sample: int = 256) -> Result:
    return compare(bench, setup, comparison(setup, depth, upper, sample))


STUDY = Study("ring", "Wu et al. 2021, Table 2: Ring, its annealing and its inner edge taken away", run, draw)
