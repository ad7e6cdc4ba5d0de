"""CPC and ML-CPC on 2 to 10 nats between Gaussians (Song & Ermon 2020, Fig. 3, App. C.2).

A critic learns from fresh batches of 128 pairs while the information rises by 2 nats every 4,000 steps;
negatives are the other pairs of the batch. The value of a level is the mean over the second half of its
steps, each batch scored before the critic learns from it; the standard deviation over the same steps stands
too, since the paper claims a trade: a smaller alpha reduces bias and adds variance. With negatives from
the batch nothing is proven of ML-CPC, and alpha-CPC does exceed the truth.

The arm `proven` shows how far a proof reaches: 256 anchors, each with 1,023 negatives of its own, alpha the
smallest of Song & Ermon 2020, Cor. 2, the critic frozen before the samples that evaluate it are drawn. As many
negatives as anchors would be too few at 10 nats, even for the true log ratio as critic (docs/results/bounds.md).

Command: nearfar study gaussians arms=separable,proven     Cost: about 25 minutes of one core.
         nearfar study gaussians                           Cost: half an hour more for each of ten joint arms; `bounds` names some; steps=400 is a tenth.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

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
from nearfar.studies.frame import StudyResult, StudyRow, StudyTable, TableValue, Workspace, choose, study

DIM = 20
LEVELS = (2, 4, 6, 8, 10)  # nats
RATE = 1e-3
CURVE_POINTS = 50  # of a level
BLOCK = 8  # anchors whose own negatives are scored together: few enough to stay in cache

TrainedNetwork = TypeVar("TrainedNetwork", bound=nn.Module)
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
ABOVE_TRUTH = "above the truth"
SOURCE = (
    "Song & Ermon 2020, Fig. 3, which prints no numbers: read off the vector graphics in the authors' "
    "repository (jiamings/ml-cpc, mutual-information-estimation/*.pdf)"
)
PAPER: dict[str, tuple[TableValue, ...]] = {  # joint critic
    "CPC": (1.83, 3.27, 4.17, 4.60, 4.77),
    "ML-CPC 0.1": (1.89, 3.64, 5.02, 5.96, 6.54),
    "ML-CPC 0.01": (1.90, 3.79, 5.52, 6.96, 8.00),
    "alpha-CPC 0.01": (None, ABOVE_TRUTH, ABOVE_TRUTH, ABOVE_TRUTH, None),
}
NO_VALUES: tuple[TableValue, ...] = (None,) * len(LEVELS)


def correlation_of(nats: float, dim: int) -> float:
    """I = -(d/2) log(1 - rho^2), solved for rho."""
    return math.sqrt(-math.expm1(-2 * nats / dim))


def pairs(
    count: int, nats: float, generator: torch.Generator
) -> tuple[Float[Tensor, "pair dim"], Float[Tensor, "pair dim"]]:
    """Fresh x and y, each dimension of which is a pair of unit Gaussians; together they share `nats`."""
    rho = correlation_of(nats, DIM)
    x = torch.randn(count, DIM, generator=generator)
    return x, rho * x + math.sqrt(1 - rho * rho) * torch.randn(count, DIM, generator=generator)


def saturated(log_ratio: Tensor, ceiling: float) -> Tensor:
    """The best critic of ML-CPC from the log ratio t of joint and product: t - log(1 + e^(t - ceiling)).

    J_alpha separates the joint distribution P from a mixture with a share alpha/m of P. The best critic is
    the log ratio of those two: log r / (1 - alpha/m + r alpha/m), r = e^t; with ceiling = log(m/alpha) it is
    the above up to a constant and terms of order alpha/m. Without the saturation, the few pairs with a huge
    ratio outweigh all others.
    """
    return log_ratio - F.softplus(log_ratio - ceiling)


def own_scores(
    critic: Separable,
    x: Float[Tensor, "anchor dim"],
    y: Float[Tensor, "anchor dim"],
    own_negatives: Float[Tensor, "anchor negative dim"],
    ceiling: float,
) -> Scores:
    """Scores with own_negatives[i] as the negatives of row i only; all `saturated`."""
    blocks = zip(critic.g(x).split(BLOCK), own_negatives.split(BLOCK), strict=True)
    negative = torch.cat([(critic.h(draws) @ anchor[:, :, None]).squeeze(2) for anchor, draws in blocks])
    return Scores.of(saturated(critic.pairs(x, y), ceiling), saturated(negative, ceiling))


def ascend(
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
    critic: Callable[[], TrainedNetwork], seed: int
) -> tuple[TrainedNetwork, torch.optim.Optimizer, torch.Generator]:
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

    return summary([ascend(partial(value, nats), optimiser, rates) for nats in LEVELS])


def summary(values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mean and deviation over the second half of each level, and a curve, from the values of all steps."""
    levels = torch.tensor(values, dtype=torch.float64)
    pieces = levels.tensor_split(min(CURVE_POINTS, levels.shape[1]), dim=1)
    curve = torch.stack([piece.mean(dim=1) for piece in pieces], dim=1)
    second_half = levels[:, levels.shape[1] // 2 :]
    spread = second_half.std(dim=1) if second_half.shape[1] > 1 else torch.zeros(len(second_half))
    return {"mean": second_half.mean(dim=1).tolist(), "sd": spread.tolist(), "curve": curve.tolist()}


def proven(anchors: int, negatives: int, steps: int, batches: int, seed: int) -> dict[str, list[float]]:
    """Mean and standard error over batches of fresh samples, each anchor with negatives of its own.

    The critic learns the same bound with shared negatives, which cost `negatives` passes instead of `anchors`
    times as many. The proof does not depend on how the critic was trained.
    """
    alpha = smallest_proven_alpha(anchors, negatives)
    bound, ceiling = MultiLabelCPC(alpha), math.log((1 + negatives) / alpha)
    # smooth like the log ratio, which is a quadratic form
    critic = partial(Separable, hidden=128, activation="silu", dim=DIM)
    network, optimiser, generator = learner(critic, seed)
    rates = [RATE * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]

    def training_value(nats: float) -> Tensor:
        x, y = pairs(anchors, nats, generator)
        further = torch.randn(negatives + 1 - anchors, DIM, generator=generator)
        return bound(paired_scores(saturated(network.cross(x, torch.cat([y, further])), ceiling)))

    def test_value(nats: float) -> Tensor:
        x, y = pairs(anchors, nats, generator)
        own_negatives = torch.randn(anchors, negatives, DIM, generator=generator)
        return bound(own_scores(network, x, y, own_negatives, ceiling))

    levels: dict[str, list[float]] = {"mean": [], "error": []}
    for nats in LEVELS:
        ascend(partial(training_value, nats), optimiser, rates)
        with torch.no_grad():
            values = torch.stack([test_value(nats) for _ in range(batches)]).double()
        levels["mean"].append(float(values.mean()))
        levels["error"].append(float(values.std() / math.sqrt(batches)))
    return levels


def claim(anchors: int, negatives: int) -> Certificate:
    """The certificate of the arm `proven`."""
    sampling = NegativeSampling(anchors, negatives, independent=True, held_out=True)
    return MultiLabelCPC(smallest_proven_alpha(anchors, negatives)).certificate(sampling)


@study("gaussians", "Song & Ermon 2020, Fig. 3: CPC and ML-CPC on Gaussians of 20 dimensions, 2 to 10 nats")
def run(
    workspace: Workspace,
    arms: str = "joint,separable,proven",
    bounds: str = "all",
    seed: int = 0,
    steps: int = 4000,
    batch_size: int = 128,
    anchors: int = 256,
    negatives: int = 1023,
    batches: int = 200,
) -> StudyResult:
    """`arms`: which to compute; `bounds`: with which, of `joint` and `separable`. The last three options are those of `proven`; `negatives` are those of one
    anchor.

    The learning rate of `proven` falls to zero within each level, so half the steps are enough for it.
    """
    kinds, chosen_bounds = choose(arms, dict.fromkeys(KINDS), "arms"), choose(bounds, BOUNDS, "bounds")
    if steps < 2 or min(batch_size, anchors, batches) < 2 or negatives < anchors - 1:
        raise UserError(
            f"steps was {steps}, batch_size {batch_size}, anchors {anchors}, negatives {negatives} and "
            f"batches {batches}; expected 2 or more, and negatives from anchors - 1"
        )
    tables, remarks = [], []
    for critic in CRITICS:
        if critic in kinds:
            shared = {"critic": critic, "steps": steps, "batch_size": batch_size, "seed": seed}
            options: dict[str, dict[str, Any]] = {
                f"{critic} critic, {bound}": {"bound": bound, **shared} for bound in chosen_bounds
            }
            values = workspace.call(staircase, options).values()
            by_bound = dict(zip(chosen_bounds, values, strict=True))
            tables += [staircase_table(critic, by_bound, batch_size), spread_table(critic, by_bound)]
    if "proven" in kinds:
        sizes = {
            "anchors": anchors,
            "negatives": negatives,
            "steps": steps // 2,
            "batches": batches,
            "seed": seed,
        }
        certificate = claim(anchors, negatives)
        tables.append(proven_table(workspace.call(proven, {"proven": sizes})["proven"], certificate))
        remarks.append(f"{certificate.status}: {certificate.summary}.")
    return StudyResult(tuple(tables), tuple(remarks))


def staircase_table(critic: str, by_bound: Mapping[str, Mapping[str, Any]], batch_size: int) -> StudyTable:
    # held out: a batch is scored before the critic learns from it, and never again
    sampling = NegativeSampling(batch_size, batch_size - 1, held_out=True)
    rows, lines = [], {}
    for bound, values in by_bound.items():
        paper = PAPER.get(bound, NO_VALUES) if critic == "joint" else NO_VALUES
        rows += [
            StudyRow(f"{bound}, I = {nats}", paper_value, ours)
            for nats, paper_value, ours in zip(LEVELS, paper, values["mean"], strict=True)
        ]
        certificate = BOUNDS[bound].certificate(sampling)
        rows.append(StudyRow(f"{bound}: certificate", None, certificate.status))
        curve = [value for level in values["curve"] for value in level]
        points = len(values["curve"][0])
        lines[bound] = ([(place + 0.5) / points for place in range(len(curve))], curve)
    source = SOURCE if critic == "joint" else ""
    return StudyTable(f"Figure 3, {critic}", tuple(rows), source, lines, "level of the staircase")


def spread_table(critic: str, by_bound: Mapping[str, Mapping[str, Any]]) -> StudyTable:
    """The deviation over the steps of a level, and whether it rises with every smaller alpha."""
    rows = []
    for family in FAMILIES:
        names = [name for alpha in ALPHAS if (name := name_of(family, alpha)) in by_bound]
        rows += [
            StudyRow(f"{name}, I = {nats}", None, sd, None, nats, name)
            for name in names
            for nats, sd in zip(LEVELS, by_bound[name]["sd"], strict=True)
        ]
        for place, nats in enumerate(LEVELS if len(names) > 1 else ()):
            deviations = [by_bound[name]["sd"][place] for name in names]
            rises = all(a < b for a, b in pairwise(deviations))
            text = f"{'yes' if rises else 'no'}: {', '.join(f'{sd:.3f}' for sd in deviations)}"
            paper = RISES if family == "ML-CPC" else None
            rows.append(StudyRow(f"{family}, I = {nats}: {RISES}", paper, text))
    name = f"Figure 3, {critic}: standard deviation over steps"
    return StudyTable(name, tuple(rows), "Song & Ermon 2020, sec. 5.1, in words", x_label="nats")


def proven_table(values: Mapping[str, Sequence[float]], certificate: Certificate) -> StudyTable:
    means, errors = values["mean"], values["error"]
    rows: list[StudyRow] = []
    for nats, mean, error in zip(LEVELS, means, errors, strict=True):
        rows.append(StudyRow(f"I = {nats}", None, mean, None, nats, "ML-CPC"))
        rows.append(StudyRow(f"I = {nats}: standard error", None, error))
    excess = max((m - i) / e for i, m, e in zip(LEVELS, means, errors, strict=True))
    rows += [
        StudyRow("highest of (value - I) / standard error", "never above I", excess),
        StudyRow("ceiling", None, certificate.ceiling),
        StudyRow("certificate", None, certificate.status),
    ]
    return StudyTable(
        "Proven", tuple(rows), "Song & Ermon 2020, Cor. 2", {"I(X; Y)": (LEVELS, LEVELS)}, "nats"
    )
