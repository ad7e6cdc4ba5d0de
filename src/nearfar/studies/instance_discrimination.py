"""Instance discrimination as a bound on mutual information (Wu et al. 2020): four comparisons.

    nearfar study vince data=cifar10:ROOT            what negatives and views add: IR, BALL, ANN, LA (Fig. 2a); 6 minutes on two cores
    nearfar study bank-momentum data=cifar10:ROOT    how slowly a bank's rows move (Fig. 2c); 6 minutes on two cores
    nearfar study temperature data=cifar10:ROOT      temperature 0.07 against 1 (sec. 5.3); 6 minutes on two cores
    nearfar study views data=cifar10:ROOT            each augmentation alone (Fig. 2b); 15 minutes on two cores

The paper's figures are of ImageNet and only drawn, so orders are compared and not numbers.
"""

from typing import Any

from nearfar.studies.comparison import UNTRAINED, Claim, Comparison, PaperColumn, comparison_study
from nearfar.studies.images import ImageSetup, StudyArm

BOTH_MEASURES = ("knn", "linear")


@comparison_study(
    "vince", "Wu et al. 2020, Fig. 2a: instance discrimination, ball, annulus and Local Aggregation"
)
def vince(setup: ImageSetup, background: float = 0.1) -> Comparison:
    """`background`: the share of the bank that B_i holds, one for all arms and constant, as in App. D."""
    nearest = {"selection.lower": 1 - background}
    close = {"selection.lower": 0.0, "selection.background": background}
    arms = {
        "IR": StudyArm("instdisc"),
        "BALL": StudyArm("instdisc-ball", nearest),
        "ANN": StudyArm("instdisc-annulus", close),
        "LA": StudyArm("la", close),
    }
    claims = (Claim("BALL", "IR"), Claim("ANN", "IR"), Claim("ANN", "BALL"), Claim("LA", "ANN"))
    column = PaperColumn(
        {"BALL": "above IR", "ANN": "slightly above BALL", "LA": "above ANN by as much as ANN above IR"},
        "Wu et al. 2020, Fig. 2a and sec. 5.3, in words: of ImageNet, and only drawn there",
    )
    return Comparison("Figure 2a", arms, claims, dict.fromkeys(BOTH_MEASURES, column))


MOMENTA = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
DEFAULT_MOMENTUM = 0.5


@comparison_study(
    "bank-momentum", "Wu et al. 2020, Fig. 2c: instance discrimination against its bank's update momentum"
)
def bank_momentum(setup: ImageSetup) -> Comparison:
    """M[i] <- normalise(m M[i] + (1 - m) z_i): at m = 0 a row is the view of the last epoch."""
    arms = {f"m={m:g}": StudyArm("instdisc", {"negatives.momentum": m}) for m in MOMENTA}
    default = f"m={DEFAULT_MOMENTUM:g}"
    column = PaperColumn(
        {"m=0": "as good as 0.5", "m=0.99": "worse"},
        "Wu et al. 2020, Fig. 2c, in words: of ImageNet, and only drawn there",
    )
    x = {f"m={m:g}": ("instdisc", m) for m in MOMENTA}
    claims = (Claim("m=0", default), Claim(default, "m=0.99"))
    label = "m: the bank's update momentum"
    return Comparison("Figure 2c", arms, claims, dict.fromkeys(BOTH_MEASURES, column), x=x, x_label=label)


TEMPERATURES = (0.07, 1.0)


@comparison_study(
    "temperature", "Wu et al. 2020, sec. 5.3: temperature 0.07 against 1, said to be negligible"
)
def temperature(setup: ImageSetup, recipes: str = "instdisc,simclr") -> Comparison:
    """The paper: "negligible", 0.07 and 1 perform as well. So each is claimed to be above the other, and the
    paper is right where neither holds."""
    names = recipes.split(",")
    arms = {f"{name}, T={t:g}": StudyArm(name, {"temperature": t}) for name in names for t in TEMPERATURES}
    claims = [Claim(f"{name}, T={TEMPERATURES[0]:g}", f"{name}, T={TEMPERATURES[1]:g}") for name in names]
    column = PaperColumn(
        dict.fromkeys((name for name in arms if name.startswith("instdisc")), "the same at 0.07 and 1"),
        "Wu et al. 2020, sec. 5.3, in words, of ImageNet",
    )
    return Comparison("Temperature", arms, claims, dict.fromkeys(BOTH_MEASURES, column))


AUGMENTATIONS = ("crop", "flip", "jitter", "greyscale")
VIEW_KINDS = ("none", "flip", "greyscale", "jitter", "crop", "all")
VIEWS_PAPER = {
    "none": "plateaus at 2 percent on ImageNet",
    "flip": "does not improve",
    "crop": "much more of an effect",
}
VIEWS_SOURCE = "Wu et al. 2020, Fig. 2b, in its words, of instance discrimination on ImageNet: the figures are only drawn there"


def only_augmentation(kind: str) -> dict[str, Any]:
    """Settings that leave `kind` of a recipe's augmentations, at its strength there."""
    if kind == "all":
        return {}
    return {f"views.{name}": 0.0 for name in (*AUGMENTATIONS, "blur") if name != kind}


@comparison_study(
    "views", "Wu et al. 2020, Fig. 2b: SimCLR and instance discrimination with each augmentation alone"
)
def views(setup: ImageSetup, recipes: str = "simclr,instdisc") -> Comparison:
    names = recipes.split(",")
    arms = {
        f"{name}, {kind}": StudyArm(name, only_augmentation(kind)) for name in names for kind in VIEW_KINDS
    }
    claims = [
        Claim(f"{name}, {better}", f"{name}, {worse}")
        for name in names
        for better, worse in (("crop", "none"), ("all", "crop"), ("flip", "none"))
    ]
    values = {f"instdisc, {kind}": text for kind, text in VIEWS_PAPER.items()} if "instdisc" in names else {}
    column = PaperColumn(values, VIEWS_SOURCE if values else "")
    return Comparison("Figure 2b", arms, claims, dict.fromkeys(BOTH_MEASURES, column), baselines=(UNTRAINED,))
