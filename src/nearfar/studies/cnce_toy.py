"""How loose CNCE is on two correlated Gaussians (Wu et al. 2021, App. B, Table 5).

X and Y have covariance [[2, 0.4], [0.4, 2]], so I(X; Y) = -log(1 - 0.2^2) / 2 = 0.02041 nats. Two MLPs embed
them, a dot product scores a pair, and CNCE draws 100 negatives from the candidates above the w-th percentile
of similarity to the anchor.

The text allows two readings of Table 5: encoders trained by NCE and evaluated by CNCE, or encoders trained
further by the CNCE that evaluates them. Values are of pairs that the encoders were not trained on, where they
bound the information; for the second reading those of the training pairs stand beside. The paper gives no
rate, length or bank for that second training: ours were chosen for their cost among half a dozen.

Command: nearfar study cnce-toy     Cost: under three minutes of one core.
"""

import copy
import itertools
import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.scores import Scores
from nearfar.errors import UserError
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.selections import Ball
from nearfar.studies.frame import REFERENCE, StudyResult, StudyRow, StudyTable, Workspace, mean_row, study

COVARIANCE = ((2.0, 0.4), (0.4, 2.0))
TRUTH = -0.5 * math.log(1 - 0.2**2)
PAPER = {10: 0.01241, 25: 0.00220, 50: 7.29e-5, 75: 1.67e-5, 90: 5.87e-6, 95: 1.97e-6}
NEGATIVES, BATCH = 100, 128
NCE_PAPER = 0.01345
NCE_TRAINED = "Table 5, encoders trained by NCE"
CNCE_TRAINED = "Table 5, encoders trained further by CNCE"
TRAINING_PAIRS = "Table 5, encoders trained further by CNCE, on training pairs"
REMARKS = (
    "w is a lower percentile (100 - w percent are kept); read as 'top w percent', the text's other wording, the support would grow with w.",
    "the paper does not say on which pairs its values are; only on unseen ones are they bounds.",
    "trained further with other rates, lengths and banks, w=10 gave -0.012 to 0.006 on unseen pairs (single seeds): it depends on the "
    "training as much as on the bound.",
)


class ToyEncoders(nn.Module):
    """A network of five layers with ten hidden units for each of X and Y."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = _network(), _network()

    def scores(
        self, x: Tensor, y: Tensor, index: Int[Tensor, "anchor"], bank: Float[Tensor, "candidate 1"]
    ) -> Scores:
        """Anchor i's positive is y[i]; its negatives are the bank without `index[i]`, its own entry."""
        anchors, keys, candidates = self.x(x), self.y(y), self.y(bank)
        not_own = torch.arange(len(bank))[None, :] != index[:, None]
        return Scores.of((anchors * keys).sum(dim=1), anchors @ candidates.T, not_own)


def _network() -> nn.Sequential:
    widths = [1, 10, 10, 10, 10, 10]
    layers: list[nn.Module] = []
    for width, next_width in itertools.pairwise(widths):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def pairs(size: int, generator: torch.Generator) -> tuple[Float[Tensor, "pair 1"], Float[Tensor, "pair 1"]]:
    factor = torch.linalg.cholesky(torch.tensor(COVARIANCE))
    samples = torch.randn(size, 2, generator=generator) @ factor.T
    return samples[:, :1], samples[:, 1:]


def draw_negatives(scores: Scores, percentile: int, generator: torch.Generator) -> Scores:
    """100 negatives of each anchor, drawn from those above the percentile."""
    values, mask = scores.negative.matrix()
    # in a random order of the bank, the first hundred that an anchor keeps are a uniform draw
    order = torch.randperm(values.shape[1], generator=generator)
    shuffled = Scores.of(scores.positive, values[:, order], mask[:, order])
    values, mask = (Ball(percentile / 100)(shuffled) if percentile else shuffled).negative.matrix()
    return Scores.of(scores.positive, values, mask & (mask.cumsum(dim=1, dtype=torch.int32) <= NEGATIVES))


def train(
    encoders: ToyEncoders, data: tuple[Tensor, Tensor], epochs: int, generator: torch.Generator
) -> None:
    """NCE with negatives from the batch, as the paper's settings have it."""
    x, y = data
    optimiser = torch.optim.Adam(encoders.parameters(), lr=0.03)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            scores = encoders.scores(x[rows], y[rows], torch.arange(len(rows)), y[rows])
            _ascend(optimiser, scores)


def train_on(
    encoders: ToyEncoders,
    data: tuple[Tensor, Tensor],
    percentile: int,
    steps: int,
    generator: torch.Generator,
) -> ToyEncoders:
    """A copy of the encoders, trained further by CNCE; each step's bank is a random half of the data."""
    encoders, (x, y) = copy.deepcopy(encoders), data
    optimiser = torch.optim.Adam(encoders.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total_iters=steps)
    for _ in range(steps):
        bank = torch.randperm(len(x), generator=generator)[: len(x) // 2]
        rows = torch.arange(BATCH // 2)
        scores = encoders.scores(x[bank[rows]], y[bank[rows]], rows, y[bank])
        _ascend(optimiser, draw_negatives(scores, percentile, generator))
        schedule.step()
    return encoders


def _ascend(optimiser: torch.optim.Optimizer, scores: Scores) -> None:
    optimiser.zero_grad()
    (-InfoNCE()(scores)).backward()
    optimiser.step()


@torch.no_grad()
def value(
    encoders: ToyEncoders, data: tuple[Tensor, Tensor], percentile: int, generator: torch.Generator
) -> float:
    """CNCE (NCE at percentile 0) in nats, over all pairs."""
    x, y = data
    blocks = torch.arange(len(x)).split(500)
    scores = (
        draw_negatives(encoders.scores(x[rows], y[rows], rows, y), percentile, generator) for rows in blocks
    )
    return float(np.average([float(InfoNCE()(s)) for s in scores], weights=[len(rows) for rows in blocks]))


def repetition(seed: int, points: int, epochs: int, steps: int) -> dict[str, dict[str, float]]:
    """One column of Table 5 in both readings, by percentile; "0" is NCE."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoders = ToyEncoders()
    training, test = pairs(points, generator), pairs(points, generator)
    train(encoders, training, epochs, generator)
    values = {NCE_TRAINED: {str(w): value(encoders, test, w, generator) for w in (0, *PAPER)}}
    values[CNCE_TRAINED] = {"0": values[NCE_TRAINED]["0"]}
    values[TRAINING_PAIRS] = {"0": value(encoders, training, 0, generator)}
    for w in PAPER:
        retrained = train_on(encoders, training, w, steps, generator)
        values[CNCE_TRAINED][str(w)] = value(retrained, test, w, generator)
        values[TRAINING_PAIRS][str(w)] = value(retrained, training, w, generator)
    return values


@study("cnce-toy", "Wu et al. 2021, Table 5: how loose CNCE is on two correlated Gaussians")
def run(
    workspace: Workspace,
    seed: int = 0,
    repeats: int = 5,
    points: int = 2000,
    epochs: int = 100,
    steps: int = 400,
) -> StudyResult:
    if min(repeats, epochs, steps) < 1 or points <= BATCH:
        raise UserError(
            f"repeats was {repeats}, epochs {epochs}, steps {steps} and points {points}; expected whole "
            f"numbers from 1, and more than {BATCH} points"
        )
    budget = {"points": points, "epochs": epochs, "steps": steps}
    (repetitions,) = workspace.repeat(repetition, {"pairs": budget}, range(seed, seed + repeats)).values()
    names = (NCE_TRAINED, CNCE_TRAINED, TRAINING_PAIRS)
    return StudyResult(tuple(_table(name, [one[name] for one in repetitions]) for name in names), REMARKS)


def _table(name: str, repetitions: list[dict[str, float]]) -> StudyTable:
    rows = [StudyRow("true I(X; Y)", 0.02041, TRUTH, series=REFERENCE)]
    for w, paper in {0: NCE_PAPER, **PAPER}.items():
        label = f"CNCE, w={w}" if w else "NCE"
        rows.append(mean_row(label, [one[str(w)] for one in repetitions], paper, x=w, series="ours"))
    label = "w: percentile dropped below (0: NCE)"
    return StudyTable(name, tuple(rows), "Wu et al. 2021, Table 5", x_label=label)
