"""How loose CNCE is on two correlated Gaussians (Wu et al. 2021, App. B, Table 5).

X and Y have covariance [[2, 0.4], [0.4, 2]], so I(X; Y) = -log(1 - 0.2^2) / 2 = 0.02041 nats. Two MLPs embed them,
a dot product scores a pair, and CNCE draws 100 negatives from the candidates above the w-th percentile of similarity
to the anchor: as w grows the kept share shrinks.

Table 5 is read in two ways, because the text does not settle it: encoders trained by NCE and then judged by CNCE, and
encoders trained on by the CNCE that judges them. Values are those of pairs the encoders never saw, which is where
they bound the information; for the second reading those of the training pairs stand beside. Rate, length and bank of
that second training are ours, chosen for its cost among half a dozen that were tried; the paper gives none.

Command: nearfar study cnce-toy     Cost: under three minutes of one core.
"""

import copy
import itertools
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.scores import Scores
from nearfar.errors import UserError
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.selections import Ball
from nearfar.studies.frame import Bench, Finding, Result, Row, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COVARIANCE = ((2.0, 0.4), (0.4, 2.0))
TRUTH = -0.5 * math.log(1 - 0.2**2)
PAPER = {10: 0.01241, 25: 0.00220, 50: 7.29e-5, 75: 1.67e-5, 90: 5.87e-6, 95: 1.97e-6}
NEGATIVES, BATCH = 100, 128
JUDGED = "Table 5, encoders trained by NCE"
RETRAINED = "Table 5, encoders trained on by CNCE"
SEEN = "Table 5, encoders trained on by CNCE, pairs they saw"


class Encoders(nn.Module):
    """A network of five layers with ten hidden units for each of X and Y."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = _network(), _network()

    def scores(
        self, x: Tensor, y: Tensor, index: Int[Tensor, "anchor"], bank: Float[Tensor, "candidate 1"]
    ) -> Scores:
        """Anchor i's positive is y[i]; its negatives are the bank without `index[i]`, its own entry."""
        anchors, keys, candidates = self.x(x), self.y(y), self.y(bank)
        strangers = torch.arange(len(bank))[None, :] != index[:, None]
        return Scores.of((anchors * keys).sum(dim=1), anchors @ candidates.T, strangers)


def _network() -> nn.Sequential:
    widths = [1, 10, 10, 10, 10, 10]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def pairs(size: int, generator: torch.Generator) -> tuple[Float[Tensor, "pair 1"], Float[Tensor, "pair 1"]]:
    factor = torch.linalg.cholesky(torch.tensor(COVARIANCE))
    both = torch.randn(size, 2, generator=generator) @ factor.T
    return both[:, :1], both[:, 1:]


def drawn(scores: Scores, percentile: int, generator: torch.Generator) -> Scores:
    """100 negatives of each anchor, drawn from those above the percentile."""
    values, kept = scores.negative.matrix()
    # in one random order of the bank, the first hundred that an anchor keeps are a uniform draw of those it keeps
    order = torch.randperm(values.shape[1], generator=generator)
    shuffled = Scores.of(scores.positive, values[:, order], kept[:, order])
    values, kept = (Ball(percentile / 100)(shuffled) if percentile else shuffled).negative.matrix()
    return Scores.of(scores.positive, values, kept & (kept.cumsum(dim=1, dtype=torch.int32) <= NEGATIVES))


def train(encoders: Encoders, data: tuple[Tensor, Tensor], epochs: int, generator: torch.Generator) -> None:
    """NCE with negatives from the batch, as the paper's settings have it."""
    x, y = data
    optimiser = torch.optim.Adam(encoders.parameters(), lr=0.03)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            scores = encoders.scores(x[rows], y[rows], torch.arange(len(rows)), y[rows])
            _climb(optimiser, scores)


def train_on(
    encoders: Encoders, data: tuple[Tensor, Tensor], percentile: int, steps: int, generator: torch.Generator
) -> Encoders:
    """A copy of the encoders, trained on by CNCE; a fresh half of the data is the bank at each step."""
    encoders, (x, y) = copy.deepcopy(encoders), data
    optimiser = torch.optim.Adam(encoders.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total_iters=steps)
    for _ in range(steps):
        bank = torch.randperm(len(x), generator=generator)[: len(x) // 2]
        rows = torch.arange(BATCH // 2)
        scores = encoders.scores(x[bank[rows]], y[bank[rows]], rows, y[bank])
        _climb(optimiser, drawn(scores, percentile, generator))
        schedule.step()
    return encoders


def _climb(optimiser: torch.optim.Optimizer, scores: Scores) -> None:
    optimiser.zero_grad()
    (-InfoNCE()(scores)).backward()
    optimiser.step()


@torch.no_grad()
def value(
    encoders: Encoders, data: tuple[Tensor, Tensor], percentile: int, generator: torch.Generator
) -> float:
    """CNCE (NCE at percentile 0) in nats, over all pairs."""
    x, y = data
    blocks = torch.arange(len(x)).split(500)
    scores = (drawn(encoders.scores(x[rows], y[rows], rows, y), percentile, generator) for rows in blocks)
    return float(np.average([float(InfoNCE()(s)) for s in scores], weights=[len(rows) for rows in blocks]))


def repetition(seed: int, points: int, epochs: int, steps: int) -> dict[str, dict[str, float]]:
    """One column of Table 5 in both readings, by percentile; "0" is NCE."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoders = Encoders()
    seen, unseen = pairs(points, generator), pairs(points, generator)
    train(encoders, seen, epochs, generator)
    found = {JUDGED: {str(w): value(encoders, unseen, w, generator) for w in (0, *PAPER)}}
    found[RETRAINED] = {"0": found[JUDGED]["0"]}
    found[SEEN] = {"0": value(encoders, seen, 0, generator)}
    for w in PAPER:
        retrained = train_on(encoders, seen, w, steps, generator)
        found[RETRAINED][str(w)] = value(retrained, unseen, w, generator)
        found[SEEN][str(w)] = value(retrained, seen, w, generator)
    return found


def run(
    bench: Bench, seed: int = 0, repeats: int = 5, points: int = 2000, epochs: int = 100, steps: int = 400
) -> Result:
    if min(repeats, epochs, steps) < 1 or points <= BATCH:
        raise UserError(
            f"repeats was {repeats}, epochs {epochs}, steps {steps} and points {points}; expected whole numbers "
            f"from 1, and more than {BATCH} points"
        )
    found = []
    for number in range(seed, seed + repeats):
        bench.say(f"seed {number}")
        arm = {"seed": number, "points": points, "epochs": epochs, "steps": steps}
        found.append(bench.arm(arm, partial(repetition, **arm)))
    findings = tuple(_finding(name, [one[name] for one in found]) for name in (JUDGED, RETRAINED, SEEN))
    return Result(findings, _remarks(*findings))


def _finding(name: str, repetitions: list[dict[str, float]]) -> Finding:
    percentiles = (0, *PAPER)
    paper = [0.01345, *PAPER.values()]
    values = np.array([[one[str(w)] for w in percentiles] for one in repetitions])
    mean, spread = values.mean(axis=0).tolist(), values.std(axis=0).tolist()
    labels = ["NCE", *(f"CNCE, w={w}" for w in PAPER)]
    rows = [Row(*row) for row in zip(labels, paper, mean, spread, strict=True)]
    curves = {"w": list(percentiles), "paper": paper, "mean": mean, "sd": spread}
    return Finding(name, (Row("true I(X; Y)", 0.02041, TRUTH), *rows), curves, "Wu et al. 2021, Table 5")


def _remarks(judged: Finding, retrained: Finding, seen: Finding) -> tuple[str, ...]:
    remarks = [
        "w is a lower percentile (100 - w percent are kept); read as 'top w percent', the text's other wording, the support would grow with w.",
        "the paper does not say on which pairs its values are; only on unseen ones are they bounds.",
    ]
    if max(judged.curves["mean"][1:]) < 0:
        remarks.append(
            "encoders trained by NCE, as the text says, have negative CNCE at every w: lower bounds still, but of no use, and not the paper's positive values."
        )
    if max(map(abs, retrained.curves["mean"][3:])) < 1e-3:
        remarks.append(
            "trained on by CNCE, the scores become constant from w=50 on and CNCE becomes zero, as in the paper's table to within 1e-3; "
            "that its encoders were trained so is a guess, not something its text says."
        )
    found, spread, unseen = seen.curves["mean"][1], seen.curves["sd"][1], retrained.curves["mean"][1]
    remarks.append(
        f"w=10 is not reproduced: the paper has {PAPER[10]}, ours is {unseen:.4f} on unseen and {found:.4f} ± {spread:.4f} on seen pairs. "
        "The paper gives no settings for training by CNCE; with other rates, lengths and banks we saw -0.012 to 0.006 "
        "on unseen pairs (single seeds), so values at w=10 and 25 say as much about the training as about the bound."
    )
    return tuple(remarks)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels, truth

    figure, axes = panels(["Encoders trained by NCE", "Trained on by each CNCE", "The same, pairs they saw"])
    for axis, name in zip(axes, (JUDGED, RETRAINED, SEEN), strict=True):
        curves = result.finding(name).curves
        truth(axis, TRUTH, "I(X; Y)")
        axis.axhline(0, color="#999999", linewidth=0.6)
        axis.plot(curves["w"], curves["paper"], "s--", color=COLOURS[1], markersize=4, label="paper")
        axis.errorbar(
            curves["w"], curves["mean"], yerr=curves["sd"], color=COLOURS[0], marker="o", markersize=4, label="ours"
        )  # fmt: skip
        axis.set(xlabel="w: percentile dropped below (0: NCE)", ylabel="nats")
    axes[0].legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study("cnce-toy", "Wu et al. 2021, Table 5: how loose CNCE is on two correlated Gaussians", run, draw)
