"""Conditional negatives trade bias for variance (Wu et al. 2021, Thm 3.2, App. C in small).

Four correlated pairs of Gaussians share a known number of nats, and the critic is the true log-ratio
f(u, v) = log p(v | u) / p(v): what is left of bias and variance is the estimator's own. For each k, negatives come
from the marginal (NCE) and from the most similar half and tenth of it (CNCE by Ball), and mean and variance are
measured over many draws of them.

The paper's App. C varies k in training and looks at accuracy; what it claims of the estimate is Thm 3.2.

Command: nearfar study bias-variance     Cost: about a minute on one core.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.scores import Scores
from nearfar.errors import UserError
from nearfar.parts.bounds.infonce import log_share
from nearfar.parts.selections import Ball
from nearfar.studies.frame import Bench, Finding, Result, Row, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (16, 32, 64, 128, 256, 512, 1024)
CUTS = (0.0, 0.5, 0.9)  # share of the marginal left out below
DIM = 4
CHUNK = 2**22  # scores held at once


def log_ratio(
    u: Float[Tensor, "anchor dim"], v: Float[Tensor, "anchor candidate dim"], correlation: float
) -> Float[Tensor, "anchor candidate"]:
    """f(u, v) = log p(v | u) - log p(v) of unit Gaussians whose paired dimensions are correlated."""
    rest = 1 - correlation**2
    given = -((v - correlation * u[:, None, :]) ** 2 / rest).sum(dim=2) - DIM * math.log(rest)
    return 0.5 * (given + (v**2).sum(dim=2))


def correlation_of(nats: float) -> float:
    """I = -(d/2) log(1 - rho^2), solved for rho."""
    return math.sqrt(1 - math.exp(-2 * nats / DIM))


def estimates(
    k: int, cut: float, nats: float, anchors: int, draws: int, seed: int
) -> tuple[Float[np.ndarray, "anchor draw"], Float[np.ndarray, "anchor"]]:
    """Z of Wu et al. 2021, Thm 3.2, one value for each anchor and draw of its k - 1 negatives; and f(u, v) - I of its positive."""
    generator = torch.Generator().manual_seed(seed)
    rho = correlation_of(nats)
    u = torch.randn(anchors, DIM, generator=generator)
    v = rho * u + math.sqrt(1 - rho**2) * torch.randn(anchors, DIM, generator=generator)
    positive = log_ratio(u, v[:, None, :], rho)
    pool = round((k - 1) / (1 - cut))  # so many that k - 1 are left after the cut
    values = []
    for rows in torch.arange(anchors).repeat_interleave(draws).split(max(1, CHUNK // (pool * DIM))):
        marginal = torch.randn(len(rows), pool, DIM, generator=generator)
        scores = Ball(cut)(Scores.of(positive[rows], log_ratio(u[rows], marginal, rho)))
        values.append(_each(scores))
    z = torch.cat(values).double().reshape(anchors, draws)
    return z.numpy(), positive[:, 0].double().numpy() - nats


def _each(scores: Scores) -> Float[Tensor, "anchor"]:
    """InfoNCE before its mean over anchors: a variance needs them apart."""
    return log_share(scores.positive[:, 0], scores.negative.logsumexp()) + torch.log1p(
        scores.negative.count()
    )


def moments(k: int, cut: float, nats: float, anchors: int, draws: int, seed: int) -> dict[str, float]:
    """Mean with its standard error, and variance over draws of negatives, averaged over anchors.

    E f(u, v) = I when f is the true log-ratio, so f - I has mean zero and is a control variate: the part of Z that
    follows it is taken off, and far fewer anchors tell the mean.
    """
    z, control = estimates(k, cut, nats, anchors, draws, seed)
    each = z.mean(axis=1)
    slope = np.cov(each, control)[0, 1] / control.var(ddof=1)
    each = each - slope * control
    return {
        "mean": float(each.mean()),
        "error": float(each.std(ddof=1) / math.sqrt(anchors)),
        "variance": float(z.var(axis=1, ddof=1).mean()),
    }


def run(bench: Bench, seed: int = 0, nats: float = 1.5, anchors: int = 400, draws: int = 10) -> Result:
    if anchors < 2 or draws < 2 or not 0 < nats < 20:
        raise UserError(
            f"anchors was {anchors}, draws {draws} and nats {nats:g}; expected anchors and draws from 2, and 0 < nats < 20"
        )
    found: dict[float, list[dict[str, float]]] = {}
    for cut in CUTS:
        bench.say(name_of(cut))
        arms: list[dict[str, Any]] = [
            {"k": k, "cut": cut, "nats": nats, "anchors": anchors, "draws": draws, "seed": seed}
            for k in SIZES
        ]
        found[cut] = [bench.arm(arm, partial(moments, **arm)) for arm in arms]
    return Result((_finding(found, nats),), _remarks(found, nats))


def name_of(cut: float) -> str:
    return "NCE" if cut == 0 else f"CNCE, top {100 * (1 - cut):.0f}%"


def _finding(found: dict[float, list[dict[str, float]]], nats: float) -> Finding:
    rows = [Row("true I(U; V)", None, nats)]
    for cut in CUTS:
        for k, values in zip(SIZES, found[cut], strict=True):
            rows.append(Row(f"{name_of(cut)}, k={k}: mean", None, values["mean"], values["error"]))
            rows.append(Row(f"{name_of(cut)}, k={k}: variance", None, values["variance"]))
    for cut in CUTS[1:]:
        pairs = list(zip(found[0.0], found[cut], strict=True))
        biased = all(plain["mean"] >= conditional["mean"] for plain, conditional in pairs)
        steadier = sum(plain["variance"] >= conditional["variance"] for plain, conditional in pairs)
        rows.append(
            Row(f"{name_of(cut)}: bias against NCE", "higher", "higher" if biased else "not always higher")
        )
        verdict = f"lower at {steadier} of {len(SIZES)} k"
        rows.append(Row(f"{name_of(cut)}: variance against NCE", "lower", verdict))
    curves: dict[str, Any] = {"k": list(SIZES), "information": nats}
    for cut in CUTS:
        curves[name_of(cut)] = {what: [v[what] for v in found[cut]] for what in ("mean", "error", "variance")}
    return Finding("Theorem 3.2", tuple(rows), curves, "Wu et al. 2021, Thm 3.2")


def _remarks(found: dict[float, list[dict[str, float]]], nats: float) -> tuple[str, ...]:
    lost = nats - found[CUTS[-1]][-1]["mean"]
    return (
        "here the critic is optimal and the truth known; the paper's App. C varies k in training and reports accuracy, not the estimate.",
        f"more negatives do not mend what the cut costs: at k={SIZES[-1]} {name_of(CUTS[-1])} is still {lost:.2f} nats below the truth.",
    )


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels, truth

    figure, axes = panels(["Mean estimate", "Variance over draws of negatives"])
    curves = result.findings[0].curves
    truth(axes[0], curves["information"], "I(U; V)")
    for colour, cut in zip(COLOURS, CUTS, strict=False):
        curve = curves[name_of(cut)]
        axes[0].errorbar(
            curves["k"], curve["mean"], yerr=curve["error"], color=colour, marker="o", markersize=3, label=name_of(cut)
        )  # fmt: skip
        axes[1].plot(curves["k"], curve["variance"], color=colour, marker="o", markersize=3)
    axes[0].set(xscale="log", xlabel="k", ylabel="nats")
    axes[1].set(xscale="log", yscale="log", xlabel="k", ylabel="nats squared")
    axes[0].legend(frameon=False, fontsize=7.5, loc=(0.6, 0.2))
    return figure


STUDY = Study(
    "bias-variance",
    "Wu et al. 2021, Thm 3.2, App. C in small: conditional negatives, mean and variance against k",
    run,
    draw,
)
