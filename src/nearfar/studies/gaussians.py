"""What CPC and ML-CPC find of 2 to 10 nats between Gaussians of 20 dimensions (Song & Ermon 2020, Fig. 3, App. C.2).

A critic learns from fresh batches of 128 pairs while the information rises by 2 nats every 4,000 steps; negatives are
the others of the batch. The value of a level is the mean over the second half of its steps, each batch scored before
the critic learns from it; beside it stands the standard deviation over the same steps, since the paper's claim is a trade: a smaller alpha
takes bias away and adds variance. With negatives from the batch nothing is proven of ML-CPC, and alpha-CPC does exceed the truth.

The arm `proven` asks how far a proof reaches: 256 anchors, each with 1,023 negatives of its own that no other anchor
sees, alpha the smallest of Song & Ermon 2020, Thm 2, the critic frozen before the samples that judge it are drawn. As many negatives
as anchors would be too few at 10 nats, even for the true log ratio as critic (docs/information.md).

Command: nearfar study gaussians arms=separable,proven     Cost: about 25 minutes of one core.
         nearfar study gaussians                           Cost: 6 hours more, for ten joint arms of 20,000 steps; steps=400 is a tenth.
Every finished arm is kept: the same command goes on after an interruption, and `arms` shows only those it names.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound
from nearfar.core.scores import Scores, paired_scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds import AlphaCPC, InfoNCE, MultiLabelCPC, smallest_proven_alpha
from nearfar.parts.critics import Joint, Separable
from nearfar.studies.frame import Bench, Cell, Finding, Result, Row, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIM = 20
LEVELS = (2, 4, 6, 8, 10)  # nats
RATE = 1e-3
POINTS = 50  # to a level's curve in the figure
AT_ONCE = 8  # anchors whose own negatives are scored together: few enough to stay in cache

Network = TypeVar("Network", bound=nn.Module)
CRITICS: dict[str, Callable[..., Joint | Separable]] = {"joint": Joint, "separable": Separable}
KINDS = (*CRITICS, "proven")
ALPHAS = (1.0, 0.1, 0.01, 0.001, 0.0001)  # from 1.0 to 0.0001, as the paper says
FAMILIES: dict[str, Callable[[float], AbstractBound]] = {"alpha-CPC": AlphaCPC, "ML-CPC": MultiLabelCPC}


def name_of(family: str, alpha: float) -> str:
    return "CPC" if (family, alpha) == ("alpha-CPC", 1.0) else f"{family} {alpha:g}"


BOUNDS: dict[str, AbstractBound] = {
    name_of(family, alpha): InfoNCE() if name_of(family, alpha) == "CPC" else make(alpha)
    for family, make in FAMILIES.items()
    for alpha in ALPHAS
}
RISES = "rises as alpha falls"
ABOVE = "above the truth"
SOURCE = (
    "Song & Ermon 2020, Fig. 3, which prints no numbers: read off the vector graphics in the authors' repository (jiamings/ml-cpc, "
    "mutual-information-estimation/*.pdf)"
)
PAPER: dict[str, tuple[Cell, ...]] = {  # joint critic
    "CPC": (1.83, 3.27, 4.17, 4.60, 4.77),
    "ML-CPC 0.1": (1.89, 3.64, 5.02, 5.96, 6.54),
    "ML-CPC 0.01": (1.90, 3.79, 5.52, 6.96, 8.00),
    "alpha-CPC 0.01": (None, ABOVE, ABOVE, ABOVE, None),
}


NOT_TOLD: tuple[Cell, ...] = (None,) * len(LEVELS)


def correlation_of(nats: float) -> float:
    """I = -(d/2) log(1 - rho^2), solved for rho."""
    return math.sqrt(-math.expm1(-2 * nats / DIM))


def pairs(
    count: int, nats: float, generator: torch.Generator
) -> tuple[Float[Tensor, "pair dim"], Float[Tensor, "pair dim"]]:
    """Fresh x and y, each dimension of which is a pair of unit Gaussians; together they share `nats`."""
    rho = correlation_of(nats)
    x = torch.randn(count, DIM, generator=generator)
    return x, rho * x + math.sqrt(1 - rho * rho) * torch.randn(count, DIM, generator=generator)


def saturated(log_ratio: Tensor, ceiling: float) -> Tensor:
    """The best critic of ML-CPC, made of the log ratio t of joint and product: t - log(1 + e^(t - ceiling)).

    J_alpha tells the joint distribution P from a mixture with a share alpha/m of P in it. Of all critics the log
    ratio of those two is best: log r / (1 - alpha/m + r alpha/m), r = e^t; with ceiling = log(m/alpha) it is the above
    up to a constant and terms of order alpha/m. Unbent, the few pairs with a huge ratio outweigh all others.
    """
    return log_ratio - F.softplus(log_ratio - ceiling)


def own_scores(
    critic: Separable,
    x: Float[Tensor, "anchor dim"],
    y: Float[Tensor, "anchor dim"],
    others: Float[Tensor, "anchor negative dim"],
    ceiling: float,
) -> Scores:
    """Row i's negatives are `others[i]`, which no other row sees; all scores `saturated`."""
    blocks = zip(critic.g(x).split(AT_ONCE), others.split(AT_ONCE), strict=True)
    negative = torch.cat([(critic.h(draws) @ anchor[:, :, None]).squeeze(2) for anchor, draws in blocks])
    return Scores.of(saturated(critic.pairs(x, y), ceiling), saturated(negative, ceiling))


def climb(
    value: Callable[[], Tensor], optimiser: torch.optim.Optimizer, rates: Sequence[float]
) -> list[float]:
    """One step upwards for each learning rate; the values on the way."""
    values = []
    for rate in rates:
        for group in optimiser.param_groups:
            group["lr"] = rate
        nats = value()
        optimiser.zero_grad(set_to_none=True)
        (-nats).backward()
        optimiser.step()
        values.append(nats.detach())
    return torch.stack(values).tolist()


def learner(
    critic: Callable[[], Network], seed: int
) -> tuple[Network, torch.optim.Optimizer, torch.Generator]:
    """A new critic, its optimiser and the stream of its samples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = critic()
    optimiser = torch.optim.Adam(network.parameters(), RATE, fused=True)
    return network, optimiser, torch.Generator().manual_seed(seed)


def staircase(critic: str, bound: str, steps: int, batch_size: int, seed: int) -> dict[str, Any]:
    """One critic carried up all levels, with the other pairs of the batch as negatives."""
    network, optimiser, generator = learner(partial(CRITICS[critic], dim=DIM), seed)
    rates = [RATE] * steps

    def value(nats: float) -> Tensor:
        return BOUNDS[bound](paired_scores(network.cross(*pairs(batch_size, nats, generator))))

    return summary([climb(partial(value, nats), optimiser, rates) for nats in LEVELS])


def summary(values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """From each step's value to mean and standard deviation over the second half of each level, and a curve to look at."""
    levels = torch.tensor(values, dtype=torch.float64)
    pieces = levels.tensor_split(min(POINTS, levels.shape[1]), dim=1)
    curve = torch.stack([piece.mean(dim=1) for piece in pieces], dim=1)
    late = levels[:, levels.shape[1] // 2 :]
    spread = late.std(dim=1) if late.shape[1] > 1 else torch.zeros(len(late))
    return {"mean": late.mean(dim=1).tolist(), "sd": spread.tolist(), "curve": curve.tolist()}


def proven(anchors: int, negatives: int, steps: int, batches: int, seed: int) -> dict[str, list[float]]:
    """Mean and standard error over batches of fresh samples, each anchor with negatives of its own.

    The critic learns the same bound with negatives that anchors share: they cost `negatives` passes, not `anchors`
    times as many, and how a critic was found does not touch the proof.
    """
    alpha = smallest_proven_alpha(anchors, negatives)
    bound, ceiling = MultiLabelCPC(alpha), math.log((1 + negatives) / alpha)
    # smooth, as the log ratio is: a quadratic form
    critic = partial(Separable, hidden=128, activation="silu", dim=DIM)
    network, optimiser, generator = learner(critic, seed)
    rates = [RATE * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]

    def learned(nats: float) -> Tensor:
        x, y = pairs(anchors, nats, generator)
        strangers = torch.randn(negatives + 1 - anchors, DIM, generator=generator)
        return bound(paired_scores(saturated(network.cross(x, torch.cat([y, strangers])), ceiling)))

    def judged(nats: float) -> Tensor:
        x, y = pairs(anchors, nats, generator)
        others = torch.randn(anchors, negatives, DIM, generator=generator)
        return bound(own_scores(network, x, y, others, ceiling))

    found: dict[str, list[float]] = {"mean": [], "error": []}
    for nats in LEVELS:
        climb(partial(learned, nats), optimiser, rates)
        with torch.no_grad():
            values = torch.stack([judged(nats) for _ in range(batches)]).double()
        found["mean"].append(float(values.mean()))
        found["error"].append(float(values.std() / math.sqrt(batches)))
    return found


def claim(anchors: int, negatives: int) -> Certificate:
    """What the bound of the arm `proven` claims."""
    where = NegativeSampling(anchors, negatives, independent=True, held_out=True)
    return MultiLabelCPC(smallest_proven_alpha(anchors, negatives)).certificate(where)


def run(
    bench: Bench,
    arms: str = "joint,separable,proven",
    seed: int = 0,
    steps: int = 4000,
    batch_size: int = 128,
    anchors: int = 256,
    negatives: int = 1023,
    batches: int = 200,
) -> Result:
    """`arms` names the kinds wanted; the last three options are those of `proven`, `negatives` those of one anchor.

    The rate of `proven` falls to nothing within each level, so that half the steps are enough for it.
    """
    wanted = [kind.strip() for kind in arms.split(",")]
    if not set(wanted) <= set(KINDS):
        raise UserError(f"arms was {arms!r}; expected {', '.join(KINDS)}, with commas between")
    if steps < 2 or min(batch_size, anchors, batches) < 2 or negatives < anchors - 1:
        raise UserError(
            f"steps was {steps}, batch_size {batch_size}, anchors {anchors}, negatives {negatives} and batches {batches}; "
            "expected 2 or more, and negatives from anchors - 1"
        )
    findings = [
        _staircase_finding(bench, kind, steps, batch_size, seed) for kind in CRITICS if kind in wanted
    ]
    findings += [_spread_finding(finding) for finding in findings]
    remarks = []
    if "proven" in wanted:
        findings.append(_proven_finding(bench, anchors, negatives, steps // 2, batches, seed))
        certificate = claim(anchors, negatives)
        remarks.append(f"{certificate.status}: {certificate.condition}.")
    return Result(tuple(findings), tuple(remarks))


def _staircase_finding(bench: Bench, critic: str, steps: int, batch_size: int, seed: int) -> Finding:
    rows: list[Row] = []
    curves: dict[str, Any] = {"levels": list(LEVELS)}
    for bound in BOUNDS:
        bench.say(f"{critic} critic, {bound}")
        sizes = {"steps": steps, "batch_size": batch_size, "seed": seed}
        arm: dict[str, Any] = {"critic": critic, "bound": bound, **sizes}
        found = bench.arm({"arm": "staircase", "version": 2, **arm}, partial(staircase, **arm))
        paper = PAPER.get(bound, NOT_TOLD) if critic == "joint" else NOT_TOLD
        rows += [
            Row(f"{bound}, I = {nats}", told, ours)
            for nats, told, ours in zip(LEVELS, paper, found["mean"], strict=True)
        ]
        # held out: a batch is scored before the critic learns from it, and never again
        where = NegativeSampling(batch_size, batch_size - 1, held_out=True)
        certificate = BOUNDS[bound].certificate(where)
        rows.append(Row(f"{bound}: certificate", None, certificate.status))
        curves[bound] = {**found, "ceiling": certificate.ceiling, "certificate": certificate.condition}
    return Finding(f"Figure 3, {critic}", tuple(rows), curves, SOURCE if critic == "joint" else "")


def _spread_finding(staircase: Finding) -> Finding:
    """How the estimates of a level scatter from step to step, and whether more so with every smaller alpha."""
    rows = []
    for family in FAMILIES:
        names = [name_of(family, alpha) for alpha in ALPHAS]
        rows += [
            Row(f"{name}, I = {nats}", None, sd)
            for name in names
            for nats, sd in zip(LEVELS, staircase.curves[name]["sd"], strict=True)
        ]
        for place, nats in enumerate(LEVELS):
            course = [staircase.curves[name]["sd"][place] for name in names]
            rises = all(a < b for a, b in pairwise(course))
            said = ", ".join(f"{sd:.3f}" for sd in course)
            claim = RISES if family == "ML-CPC" else None
            rows.append(Row(f"{family}, I = {nats}: {RISES}", claim, f"{'yes' if rises else 'no'}: {said}"))
    name = f"{staircase.name}: standard deviation over steps"
    return Finding(name, tuple(rows), source="Song & Ermon 2020, sec. 5.1, in words")


def _proven_finding(
    bench: Bench, anchors: int, negatives: int, steps: int, batches: int, seed: int
) -> Finding:
    bench.say(f"proven, {anchors} anchors with {negatives} negatives of their own")
    sizes = {"anchors": anchors, "negatives": negatives, "steps": steps, "batches": batches, "seed": seed}
    found = bench.arm({"arm": "proven", **sizes}, partial(proven, **sizes))
    certificate = claim(anchors, negatives)
    rows: list[Row] = []
    for nats, mean, error in zip(LEVELS, found["mean"], found["error"], strict=True):
        rows += [Row(f"I = {nats}", None, mean), Row(f"I = {nats}: standard error", None, error)]
    excess = max((m - i) / e for i, m, e in zip(LEVELS, found["mean"], found["error"], strict=True))
    rows += [
        Row("highest of (value - I) / standard error", "never above I", excess),
        Row("ceiling", None, certificate.ceiling),
        Row("certificate", None, certificate.status),
    ]
    return Finding("Proven", tuple(rows), {"levels": list(LEVELS), **found}, "Song & Ermon 2020, Thm 2")


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, TRUTH, panels

    shown = [finding for finding in result.findings if finding.curves]
    figure, axes = panels([finding.name for finding in shown])
    for axis, finding in zip(axes, shown, strict=True):
        edges = range(len(LEVELS) + 1)
        axis.stairs(LEVELS, edges, baseline=None, color=TRUTH, linestyle=(0, (4, 3)), label="I(X; Y)")
        if finding.name == "Proven":
            centres = [edge + 0.5 for edge in edges[:-1]]
            axis.errorbar(
                centres, finding.curves["mean"], yerr=[2 * e for e in finding.curves["error"]], fmt="o", color=COLOURS[0],
                markersize=4, capsize=3, label="ML-CPC, two standard errors",
            )  # fmt: skip
        else:
            for number, bound in enumerate(BOUNDS):
                curve = torch.tensor(finding.curves[bound]["curve"])
                place = (torch.arange(curve.numel()) + 0.5) / curve.shape[1]
                look: dict[str, Any] = {
                    "color": COLOURS[number % len(ALPHAS)],
                    "linestyle": "-" if bound.startswith("ML") else ":",
                }
                axis.plot(place, curve.flatten(), linewidth=1.1, label=bound, **look)
        axis.set(xlabel="level of the staircase", ylabel="nats", ylim=(0, 12), xticks=list(edges))
        axis.legend(frameon=False, fontsize=6.5, loc="upper left", ncols=2)
    return figure


STUDY = Study(
    "gaussians",
    "Song & Ermon 2020, Fig. 3: CPC and ML-CPC on Gaussians of 20 dimensions, 2 to 10 nats",
    run,
    draw,
)
