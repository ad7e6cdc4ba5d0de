"""Two equal coins: what CPC and ML-CPC say of log 2 nats, exactly (Song & Ermon 2020, Example 1, Fig. 1, 2, App. C.1).

Command: nearfar study binary     Cost: under a second (p other than 1/2: half a minute).
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from nearfar.studies.coins import Coins, Negatives
from nearfar.studies.frame import Bench, Finding, Result, Row, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KINDS: tuple[Negatives, ...] = ("batch", "independent")
SIZES = (2, 3, 4, 8, 16, 32, 64, 128)
SHOWN = (3, 8, 32)


def run(bench: Bench, p: float = 0.5) -> Result:
    """Figures 1 and 2 with n = m, negatives from the batch as in the paper and independent as in its theorem."""
    three = Coins(3, 3, p)
    bench.say(f"n = m from {SIZES[0]} to {SIZES[-1]}")
    highest = {kind: _highest(p, kind) for kind in KINDS}
    half, fair = three.cpc(0.5), p == 0.5
    words = "never above I"
    first = Finding(
        "Figure 1",
        (
            Row("I(X; Y)", 0.69 if fair else None, three.information),
            Row("CPC alpha=0.5, n=m=3", 0.72 if fair else None, half.mean),
            Row("CPC alpha=1, n=m=3", None, three.cpc(1.0).mean),
            Row("ML-CPC alpha=3/7, n=m=3, negatives from the batch", None, three.ml_cpc(3 / 7).mean),
            Row(
                "ML-CPC alpha=3/7, n=m=3, independent negatives",
                None,
                Coins(3, 3, p, "independent").ml_cpc(3 / 7).mean,
            ),
            Row("highest of ML-CPC - I, proven alpha, batch, 8 sizes to 128", words, highest["batch"]),
            Row(
                "highest of ML-CPC - I, proven alpha, independent, 8 sizes to 128",
                words,
                highest["independent"],
            ),
        ),
        _figure_one(p),
        "Song & Ermon 2020, Example 1, printed to two digits, and Thm 2",
    )
    second = _figure_two(p)
    remark = (
        "Song & Ermon 2020, Thm 2 assumes independent negatives but Fig. 1, 2 take them from the batch: there the theorem does not "
        "apply, and that J stays below I for these coins is a fact about the coins."
    )
    return Result((first, second), (remark,))


def _highest(p: float, negatives: Negatives) -> float:
    """The largest J_alpha - I over proven alpha and sizes."""
    excess = []
    for size in SIZES:
        coins = Coins(size, size, p, negatives)
        alphas = np.geomspace(coins.smallest_proven, 1.0, 5)
        excess += [coins.ml_cpc(float(alpha)).mean - coins.information for alpha in alphas]
    return max(excess)


def _figure_one(p: float) -> dict[str, Any]:
    alphas = np.geomspace(0.02, 1.0, 40).tolist()
    curves: dict[str, Any] = {"alpha": alphas, "information": Coins(3, 3, p).information}
    for size in SHOWN:
        coins = Coins(size, size, p)
        curves[f"n=m={size}"] = {
            "cpc": [coins.cpc(alpha).mean for alpha in alphas],
            "ml-cpc": [coins.ml_cpc(alpha).mean for alpha in alphas],
            "smallest proven alpha": coins.smallest_proven,
        }
    return curves


def _figure_two(p: float) -> Finding:
    """Bias and variance against m = n, CPC beside ML-CPC at the smallest proven alpha."""
    curves: dict[str, Any] = {"m": list(SIZES)}
    rows: list[Row] = []
    for negatives in KINDS:
        coins = [Coins(size, size, p, negatives) for size in SIZES]
        for name, found in (
            ("CPC", [c.cpc(1.0) for c in coins]),
            ("ML-CPC", [c.ml_cpc(c.smallest_proven) for c in coins]),
        ):
            bias = [c.information - f.mean for c, f in zip(coins, found, strict=True)]
            curves[f"{name}, {negatives}"] = {"bias": bias, "variance": [f.variance for f in found]}
        rows += _against(curves, negatives)
    return Finding(
        "Figure 2", tuple(rows), curves, "Song & Ermon 2020, Fig. 2, in the words beside it: only drawn there"
    )


def _against(curves: dict[str, Any], negatives: Negatives) -> list[Row]:
    """ML-CPC over CPC: the range of the ratio over m, the paper's claim beside it where it makes one."""
    claims = {"bias": "significantly less", "variance": "slightly more"} if negatives == "batch" else {}
    rows = []
    for what in ("bias", "variance"):
        multi, plain = (np.array(curves[f"{name}, {negatives}"][what]) for name in ("ML-CPC", "CPC"))
        ratio = multi / plain
        label = f"{what}, ML-CPC over CPC, m from 2 to 128, {negatives}"
        rows.append(Row(label, claims.get(what), f"{ratio.min():.3g} to {ratio.max():.3g} times"))
        rows += [
            Row(f"{what} of {name}, n=m=8, {negatives}", None, float(values[SIZES.index(8)]))
            for name, values in (("CPC", plain), ("ML-CPC", multi))
        ]
    return rows


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels, truth

    titles = ("CPC (Fig. 1)", "ML-CPC (Fig. 1)", "Bias against m = n (Fig. 2)", "Variance (Fig. 2)")
    figure, axes = panels(titles, width=3.4)
    first, second = result.finding("Figure 1").curves, result.finding("Figure 2").curves
    for axis, name in zip(axes, ("cpc", "ml-cpc"), strict=False):
        truth(axis, first["information"], "I(X; Y)")
        for colour, size in zip(COLOURS, SHOWN, strict=False):
            curve = first[f"n=m={size}"]
            axis.plot(first["alpha"], curve[name], color=colour, label=f"n = m = {size}")
            if name == "ml-cpc":
                edge = curve["smallest proven alpha"]
                axis.plot(edge, np.interp(edge, first["alpha"], curve[name]), "o", color=colour, markersize=4)
        axis.set(xscale="log", xlabel="alpha", ylabel="nats", ylim=(0.4, 1.2))
    axes[1].set_xlabel("alpha (dot: smallest in the theorem's range)")
    lines = [name for name in second if name != "m"]
    for axis, what in zip(axes[2:], ("bias", "variance"), strict=True):
        for name in lines:
            style = "--" if "independent" in name else "-"
            colour = COLOURS[int(name.startswith("ML"))]
            axis.plot(
                second["m"], second[name][what], style, color=colour, label=name, marker=".", linewidth=1.2
            )
        axis.set(xscale="log", yscale="log", xlabel="m = n", ylabel=what)
    for axis in (axes[0], axes[2]):
        axis.legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "binary", "Song & Ermon 2020, Fig. 1, 2: CPC and ML-CPC of two equal coins, in closed form", run, draw
)
