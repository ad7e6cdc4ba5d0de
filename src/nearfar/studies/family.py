"""Every image recipe on one small budget, beside raw pixels, no training and labels.

Each recipe as it stands, every selection on each that has negatives, and MoCo under ML-CPC with Song & Ermon 2020's curricula of
alpha (sec. 5.3): one table of what a linear classifier and the nearest neighbours make of the
frozen features. Selections and curricula are compared with what they change, seed by seed.

The paper column holds what the papers report of the same method on CIFAR-10, linear top-1 with source. They train a ResNet-18 or
ResNet-50 on all 50,000 images for hundreds of epochs, so orders and signs can be compared, levels cannot.

Command: nearfar study family data=cifar10:ROOT     Cost: about 75 minutes on two cores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearfar.config.recipes import RECIPES
from nearfar.config.schema import unknown
from nearfar.modalities.image.views import PIPELINES
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Arm, Baseline, Figures, Setup, moments, percent, repeated, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SELECTIONS = ("ring", "ball", "cave", "neighbours")
CURRICULA = {
    "1": 1.0,
    "2-0.5": "geometric(2,0.5)",
    "5-0.2": "geometric(5,0.2)",
    "10-0.1": "geometric(10,0.1)",
}
BASELINES: tuple[Baseline, ...] = ("pixels", "untrained", "supervised")
RING, LESION, VARIANTS = (
    f"Wu et al. 2021 Table {n}" for n in ("1a", "2a", "6")
)  # ResNet-18, 300 epochs, pre-pool map
CURRICULUM = "Song & Ermon 2020 Table 3a"  # MoCo-v2, 200 epochs
PAPER = {  # linear top-1 on CIFAR-10, percent
    "simclr": (86.2, "Sáez Maldonado 2021 Table 11"),  # ResNet-50
    "instdisc": (81.2, RING),
    "instdisc-ring": (83.9, RING),
    "instdisc-ball": (82.1, LESION),  # IRing without its inner edge
    "instdisc-cave": (84.0, VARIANTS),
    "instdisc-neighbours": (84.3, VARIANTS),  # IRing (+C_i)
    "cmc": (85.6, RING),
    "cmc-ring": (87.6, RING),
    "cmc-cave": (87.2, VARIANTS),
    "cmc-neighbours": (87.8, VARIANTS),
    "moco-v1": (83.1, RING),  # no MLP head in Wu et al. 2021
    "moco-v1-ring": (86.1, RING),
    "la": (83.9, RING),
    "moco": (83.28, CURRICULUM),
    "moco-ml-cpc-1": (83.61, CURRICULUM),
    "moco-ml-cpc-2-0.5": (84.31, CURRICULUM),
    "moco-ml-cpc-5-0.2": (85.52, CURRICULUM),
    "moco-ml-cpc-10-0.1": (86.16, CURRICULUM),
}
SOURCE = (
    "the table named in the cell, linear top-1 on CIFAR-10; Wu et al. 2021: ResNet-18, 300 epochs; Song & Ermon 2020: MoCo-v2, 200 "
    "epochs; Sáez Maldonado 2021: ResNet-50; its figures for BYOL are of single batches and left out"
)
MARGIN = 5.0  # points above the untrained encoder that a recipe should reach
CLEAR = 1.0  # points that every seed must show before a difference is called one
TABLE = "top-1 in percent"
POINTS = {"linear": "linear, points above the base", "knn": "kNN, points above the base"}

Seeds = Sequence[Figures]


def entries() -> dict[str, tuple[str, dict[str, Any]]]:
    """What is compared, by name: a recipe and what is changed of it."""
    seen: dict[str, dict[str, Any]] = {}
    for name, recipe in RECIPES.items():
        # la-neighbours is la-ring by another name, and is trained once; learning from labels is a baseline; a student needs a teacher
        own = (
            recipe.choices not in seen.values()
            and name not in BASELINES
            and recipe.choices["encoders"]["name"] != "distilled"
        )
        if recipe.choices["views"]["name"] in PIPELINES and own:
            seen[name] = recipe.choices
    found: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in seen}
    for label, alpha in CURRICULA.items():
        found[f"moco-ml-cpc-{label}"] = ("moco", {"bound": "ml-cpc", "bound__alpha": alpha})
    return found


def base_of(name: str) -> str | None:
    """The recipe of which `name` is a variant; None if of none."""
    base, _, selection = name.rpartition("-")
    if selection in SELECTIONS and base in RECIPES:
        return base
    return "moco" if name.startswith("moco-ml-cpc-") else None


def chosen(words: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The entries a list such as `simclr,moco` names; all of them for `all`."""
    known = entries()
    if words == "all":
        return known
    for name in words.split(","):
        if name not in known:
            raise unknown(name, known, "recipes")
    return {name: known[name] for name in words.split(",")}


def run(bench: Bench, setup: Setup, recipes: str = "all") -> Result:
    numbers, wanted = setup.numbers, chosen(recipes)
    arms: dict[str, list[Arm]] = {name: [setup.baseline(name, s) for s in numbers] for name in BASELINES}
    arms |= {name: [setup.recipe(r, s, **changes) for s in numbers] for name, (r, changes) in wanted.items()}
    found = repeated(bench, setup, arms)
    pairs = {name: base for name in wanted if (base := base_of(name)) in found}
    differences = [_differences(found, pairs, measure) for measure in POINTS if pairs]
    return Result((_table(found), *differences), _remarks(found, pairs))


def _table(found: Mapping[str, Seeds]) -> Finding:
    heading = "linear      above untrained   kNN           seconds   images/s    weights"
    rows = [Row("", None, heading)]
    rows += [Row(name, _paper(name), _line(group, found["untrained"])) for name, group in found.items()]
    figures = {
        name: {
            **{key: percent(group, key) for key in POINTS},
            **{key: moments([one[key] for one in group]) for key in ("seconds", "rate")},
            "parameters": group[0]["parameters"],
            "warnings": sorted({said for one in group for said in one.get("warnings", ())}),
        }
        for name, group in found.items()
    }
    return Finding(TABLE, tuple(rows), {"figures (mean, sd)": figures}, SOURCE)


def _paper(name: str) -> str | None:
    """What a paper reports of this method, with its table."""
    if name not in PAPER:
        return None
    value, source = PAPER[name]
    return f"{value:g}, {source}"


def _paper_difference(name: str, base: str) -> str | None:
    """The papers' own difference; both figures are of one paper, hence of one protocol."""
    if name not in PAPER or base not in PAPER:
        return None
    (value, source), (floor, before) = PAPER[name], PAPER[base]
    return f"{value - floor:+.3g}, {before if source == before else f'{before} and {source.split()[-1]}'}"


def _line(group: Seeds, untrained: Seeds) -> str:
    linear, knn = percent(group, "linear"), percent(group, "knn")
    above = linear[0] - percent(untrained, "linear")[0]
    # an arm that was stopped between its last step and its evaluation does not know what it took
    timed = [(one["seconds"], one["rate"]) for one in group if one["rate"]]
    seconds, rate = np.mean(timed, axis=0) if timed else (0.0, 0.0)
    cost = f"{seconds:7.0f}   {rate:8.0f}" if timed else f"{'-':>7}   {'-':>8}"
    return (
        f"{written(linear):<10}  {above:+15.1f}   {written(knn):<10}   "
        f"{cost}   {group[0]['parameters'] or '-':>8}"
    )


def paired(found: Mapping[str, Seeds], name: str, base: str, measure: str) -> list[float]:
    """Points by which `name` is above `base`, seed by seed: both began at the same weights and saw the same order."""
    return [100 * (a[measure] - b[measure]) for a, b in zip(found[name], found[base], strict=True)]


def _differences(found: Mapping[str, Seeds], pairs: Mapping[str, str], measure: str) -> Finding:
    rows, each = [], {}
    for name, base in pairs.items():
        each[name] = paired(found, name, base, measure)
        said = _paper_difference(name, base) if measure == "linear" else None
        mean, spread = moments(each[name])
        shown = round(mean, 2), None if spread is None else round(spread, 2)
        rows.append(Row(f"{name} - {base}", said, *shown))
    return Finding(POINTS[measure], tuple(rows), {"by seed": each}, SOURCE if measure == "linear" else "")


def _remarks(found: Mapping[str, Seeds], pairs: Mapping[str, str]) -> tuple[str, ...]:
    floor = percent(found["untrained"], "linear")[0]
    learned = [name for name in found if name not in BASELINES]
    above = {name: percent(found[name], "linear")[0] - floor for name in learned}
    short = [f"{name} {points:+.1f}" for name, points in above.items() if points < MARGIN]
    least = min(above, key=above.__getitem__)
    margin = (
        f"short of {MARGIN:g} points above the untrained encoder: {', '.join(short)}."
        if short
        else f"every recipe is at least {MARGIN:g} points above the untrained encoder in the linear probe; least is {least} with {above[least]:+.1f}."
    )
    seeds = len(found["untrained"])
    told = [_told(found, pairs, measure, seeds) for measure in POINTS if pairs]
    return (
        margin,
        *told,
        f"{f'± is the sample deviation over {seeds} seeds' if seeds > 1 else 'one seed tells no spread'}; "
        "seconds and images/s are those of one core.",
    )


def _told(found: Mapping[str, Seeds], pairs: Mapping[str, str], measure: str, seeds: int) -> str:
    """Which variants every seed puts on the same side of their base by a point or more."""
    each = {name: paired(found, name, base, measure) for name, base in pairs.items()}
    better = [name for name, points in each.items() if min(points) >= CLEAR]
    worse = [name for name, points in each.items() if max(points) <= -CLEAR]
    rest = len(each) - len(better) - len(worse)
    return (
        f"{measure}, {seeds} paired seed{'s' if seeds > 1 else ''}: better than its base by a point or more in each: {', '.join(better) or 'none'}; "
        f"worse: {', '.join(worse) or 'none'}; the other {rest} of {len(each)} are not told apart."
    )


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    table = result.finding(TABLE).curves["figures (mean, sd)"]
    names = list(table)[::-1]
    figure, axes = panels(
        ["Linear and kNN top-1, percent", "Linear, points above the base"], 5.0, 1.0 + 0.2 * len(names)
    )
    places = range(len(names))
    for colour, key in zip(COLOURS, POINTS, strict=False):
        mean, spread = zip(*(table[name][key] for name in names), strict=True)
        axes[0].errorbar(
            mean, places, xerr=[sd or 0.0 for sd in spread], fmt="o", color=colour, markersize=3.5, label=key
        )
    axes[0].axvline(table["untrained"]["linear"][0], color="#1c1c1c", linewidth=1.0, linestyle=(0, (4, 3)))
    axes[0].set_yticks(places, names, fontsize=7)
    axes[0].legend(frameon=False, fontsize=7.5)
    differences = [f.curves["by seed"] for f in result.findings if f.name == POINTS["linear"]]
    each = differences[0] if differences else {}
    for place, points in enumerate(reversed(each.values())):
        axes[1].plot(points, [place] * len(points), "o-", color=COLOURS[0], markersize=3.5, linewidth=0.8)
    axes[1].axvline(0, color="#1c1c1c", linewidth=1.0)
    axes[1].set_yticks(range(len(each)), list(each)[::-1], fontsize=7)
    return figure


STUDY = Study(
    "family", "every image recipe on one budget: linear and kNN top-1, cost, and selections against their bases", run, draw
)  # fmt: skip
