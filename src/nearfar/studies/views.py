"""What each augmentation is worth alone (Wu et al. 2020, Fig. 2b).

SimCLR and instance discrimination with no augmentation, with one at a time, and with all of their own: what a view
hides is what the features must not rest on. The paper's lesions are on ImageNet; here they are on small images, so the
order is compared and not the numbers. "All" has every augmentation of the recipe; one alone has the strength it has
there.

Command: nearfar study views data=cifar10:ROOT     Cost: about 15 minutes on two cores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, Setup, percent, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPES = ("simclr", "instdisc")
AUGMENTATIONS = ("crop", "flip", "jitter", "greyscale")
KINDS = ("none", "flip", "greyscale", "jitter", "crop", "all")
PAPER = {  # of instance discrimination
    "none": "plateaus at 2 percent on ImageNet",
    "flip": "does not improve",
    "crop": "much more of an effect",
}
SOURCE = "Wu et al. 2020, Fig. 2b, in its words, of instance discrimination on ImageNet: the figures are only drawn there"
STEP = 5.0  # points that none < crop < all should be apart
NEAR = 3.0  # points within which flip counts as none


def changes(kind: str) -> dict[str, Any]:
    """What leaves only `kind` of a recipe's augmentations."""
    if kind == "all":
        return {}
    return {f"views__{name}": 0.0 for name in (*AUGMENTATIONS, "blur") if name != kind}


def run(bench: Bench, setup: Setup, recipes: str = ",".join(RECIPES)) -> Result:
    names = recipes.split(",")
    arms = {
        f"{recipe}, {kind}": [setup.recipe(recipe, s, **changes(kind)) for s in setup.numbers]
        for recipe in names
        for kind in KINDS
    }
    arms["untrained"] = [setup.baseline("untrained", s) for s in setup.numbers]
    found = repeated(bench, setup, arms)
    findings = [_finding(found, recipe, measure) for measure in ("knn", "linear") for recipe in names]
    return Result(tuple(findings), _remarks(found, names))


def _finding(found: Mapping[str, Sequence[Figures]], recipe: str, measure: str) -> Finding:
    kinds = {"untrained": "untrained", **{kind: f"{recipe}, {kind}" for kind in KINDS}}
    values = {kind: percent(found[name], measure) for kind, name in kinds.items()}
    paper = PAPER if recipe == "instdisc" else {}
    rows = [Row(kind, paper.get(kind), *value) for kind, value in values.items()]
    if measure == "knn":
        low, middle, high = (values[kind][0] for kind in ("none", "crop", "all"))
        steps = f"{middle - low:+.1f}, {high - middle:+.1f}"
        rows.append(Row("none to crop, crop to all", None, steps))
        rows.append(Row("none to flip", paper.get("flip"), f"{values['flip'][0] - low:+.1f}"))
    return Finding(
        f"Figure 2b, {recipe}, {measure} top-1 in percent",
        tuple(rows),
        {"figures (mean, sd)": values},
        SOURCE if paper else "",
    )


def _remarks(found: Mapping[str, Sequence[Figures]], recipes: Sequence[str]) -> tuple[str, ...]:
    remarks = []
    for recipe in recipes:
        low, flip, middle, high = (
            percent(found[f"{recipe}, {kind}"], "knn")[0] for kind in ("none", "flip", "crop", "all")
        )
        ordered = middle - low >= STEP and high - middle >= STEP
        trivial = abs(flip - low) <= NEAR
        remarks.append(
            f"{recipe}, kNN: none < crop alone < all {'holds' if ordered else 'does not hold'} with {STEP:g} points at each "
            f"step; flip alone is {flip - low:+.1f} points from none, {'near it' if trivial else 'not near it'}."
        )
    return tuple(remarks)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels, truth

    figure, axes = panels(["kNN top-1, percent", "Linear top-1, percent"])
    count = len(result.findings) // len(axes)  # recipes: first all under kNN, then all under the linear probe
    width = 0.76 / count
    for number, finding in enumerate(result.findings):
        axis, place = axes[number // count], number % count
        values = finding.curves["figures (mean, sd)"]
        mean, spread = zip(*(values[kind] for kind in KINDS), strict=True)
        bars = [at + width * (place - (count - 1) / 2) for at in range(len(KINDS))]
        axis.bar(
            bars,
            mean,
            0.95 * width,
            yerr=[sd or 0.0 for sd in spread],
            color=COLOURS[place % len(COLOURS)],
            label=finding.name.split(", ")[1],
            capsize=2,
        )
        axis.set_xticks(range(len(KINDS)), KINDS)
        if place == 0:
            truth(axis, values["untrained"][0], "untrained")
    axes[0].legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "views",
    "Wu et al. 2020, Fig. 2b: SimCLR and instance discrimination with each augmentation alone",
    run,
    draw,
)
