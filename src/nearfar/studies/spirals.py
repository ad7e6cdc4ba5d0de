"""How much noise makes a good view: two spirals (Wu et al. 2020, sec. 4.3, Fig. 1).

Points on two intertwined spirals are discriminated as instances, with a memory bank and 4096 negatives; a
view adds uniform noise from [0, eta] to each coordinate. A logistic regression on the two-dimensional
representation predicts the spiral: it can if the network has unrolled them.

Here the representation is a circle: embeddings have unit length when they are scored and evaluated, as in a
bank. Without noise, any even spread over a circle scores the same, 1/T - log I_0(1/T) nats at temperature T,
wound once or twice (`circle_nats`), so nothing favours unrolling. With noise, the score falls with how far
noise moves a point round the circle. It falls least where each arm has half of the circle to itself and noise
across the arm moves nothing: unrolled. That is possible while noise is narrower than the gap between arms.

From the paper: five layers, 128 hidden units, 2 dimensions, 4096 negatives, batches of 128, 10,000 steps, and
since these are 100 epochs, 12,800 points. Its other settings did not show its curve, or are not given;
decided on validation points:

- Biases start at zero: the network starts as a function of a point's direction, where both spirals are
  everywhere, at chance. With torch's random biases, networks without noise ended anywhere from 0.51 to 0.77.
- The temperature is 0.05: at 0.5, noise of 0.4 costs 0.06 of 1.18 nats, too little to move a network; at 0.05,
  half a nat of 2.41.
- Adam at 1e-3 with a cosine schedule: SGD at the paper's 0.03 stayed at chance or collapsed to a point.
- The bank holds the last view (momentum 0, in Wu et al. 2020, sec. 6 as good as 0.5).
- One turn to a spiral, arms 0.8 apart: arms 1.5 apart were unrolled without any noise.

The first weights decide how far the spirals come apart more than any of these: the curve enters the circle
folded, and to remove a fold an arm would have to pass through one point. So seeds differ by 0.09;
docs/results/images.md reports sixteen of them, thirteen of which nothing was chosen with.

Command: nearfar study spirals     Cost: about 40 minutes of one core.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from scipy.special import ive
from torch import Tensor, nn

from nearfar.config.schema import plain
from nearfar.core.method import Method
from nearfar.core.schedules import Adaptive, Progress, Value, at, cosine, parse_value
from nearfar.core.types import Batch
from nearfar.errors import UserError, check_whole
from nearfar.evaluate import linear
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.critics import Cosine
from nearfar.parts.encoders import Shared
from nearfar.parts.negatives import Bank
from nearfar.parts.selections import Everyone
from nearfar.studies.frame import (
    DOTS,
    REFERENCE,
    StudyResult,
    StudyRow,
    StudyTable,
    TableValue,
    Workspace,
    mean_row,
    study,
)
from nearfar.system.hardware import one_thread

Points = Float[Tensor, "point 2"]

NOISES = (0.0, 0.1, 0.2, 0.4, 0.6, 1.0, 2.0, 5.0)
SOURCE = "Wu et al. 2020, Fig. 1d: 0.70 and the words are those of its text; the curve is only drawn there"
PAPER: dict[float, TableValue] = {0.0: "near chance", 0.4: 0.70, 1.0: "chance", 2.0: "chance", 5.0: "0.5"}
TURNS, GAP = 1, 0.8
TEMPERATURE = 0.05
RATE = cosine(1e-3)
BATCH = 128
DRAWN_POINTS = 600  # of an embedding, in the figure
AVERAGED_STEPS = 50  # for a point of the curve of losses


def spirals(
    size: int, generator: torch.Generator, turns: float = TURNS, gap: float = GAP
) -> tuple[Points, Int64[Tensor, "point"]]:
    """Points, and which of two spirals each is on, alternately.

    At angle t the first is at radius gap t / pi; the second is the first turned by half a circle. So along
    any ray the arms are `gap` apart, alternately one's and the other's. Angles are uniform over whole turns,
    and no line does better than chance on the coordinates themselves.
    """
    angle = 2 * math.pi * turns * torch.rand(size, generator=generator)
    spiral = torch.arange(size) % 2
    radius, turned = gap * angle / math.pi, angle + math.pi * spiral
    return torch.stack([radius * turned.cos(), radius * turned.sin()], dim=1), spiral


def view(points: Points, noise: float, generator: torch.Generator) -> Points:
    """Each coordinate moved by a draw from U(0, noise)."""
    return points + noise * torch.rand(points.shape, generator=generator)


def network() -> nn.Sequential:
    """The paper's layers, without biases at first: the output depends on the input's direction only."""
    layers: list[nn.Module] = []
    for width, next_width in itertools.pairwise((2, 128, 128, 128, 128, 2)):
        layer = nn.Linear(width, next_width)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(
    method: Method, points: Points, noise: float, steps: int, generator: torch.Generator
) -> list[float]:
    """Instance discrimination: anchors are views, the rest rows of the bank. Averaged losses."""
    per_epoch = max(1, len(points) // BATCH)
    optimiser = torch.optim.Adam(method.parameters(), fused=True)
    method.prime(Batch((points,), torch.arange(len(points))))
    losses = []
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(points), generator=generator)
        rows = order[step % per_epoch * BATCH :][:BATCH]
        progress = Progress(step, steps, per_epoch)
        outcome = method(Batch((view(points[rows], noise, generator),), rows), progress)
        optimiser.param_groups[0]["lr"] = at(RATE, progress)
        optimiser.zero_grad()
        outcome.loss.backward()
        optimiser.step()
        method.advance(outcome, progress)
        losses.append(outcome.loss.detach())
    return [
        float(torch.stack(losses[at : at + AVERAGED_STEPS]).mean()) for at in range(0, steps, AVERAGED_STEPS)
    ]


@torch.no_grad()
def representation(net: nn.Module, points: Points) -> Points:
    """The embeddings of points without noise, at unit length."""
    return F.normalize(net(points), dim=1)


@one_thread()
def repetition(
    seed: int, noise: float, temperature: Any, points: int, negatives: int, steps: int, held: int
) -> dict[str, Any]:
    """One training: accuracies, losses, some embedded points. `temperature`: as written."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the network's weights, then the bank's draws
        net = network()
        (x, labels), validation, test = (spirals(size, generator) for size in (points, held, held))
        bank = Bank(points, momentum=0.0, sample=negatives, dim=2)
        method = Method(Shared(net), Cosine(parse_value(temperature)), bank, Everyone(), InfoNCE())
        losses = train(method, x, noise, steps, generator)
    fitted = representation(net, x)
    accuracies = {
        name: linear(fitted, labels, representation(net, coordinates), truth)["top1"]
        for name, (coordinates, truth) in (("validation", validation), ("test", test))
    }
    embedding = net(test[0][:DRAWN_POINTS]).detach().tolist()
    return {**accuracies, "loss": losses, "embedding": embedding, "ceiling": math.log(1 + negatives)}


Groups = Mapping[float, Sequence[Mapping[str, Any]]]  # the repetitions by noise


def _accuracy_table(groups: Groups) -> StudyTable:
    rows = [
        mean_row(
            f"noise {eta:g}", [one["test"] for one in group], PAPER.get(eta), x=eta, series="test points"
        )
        for eta, group in groups.items()
    ]
    if len(rows) > 1:
        best = max(rows, key=lambda row: float(row.ours or 0.0))
        rows.append(StudyRow("best noise", 0.4, best.x))
    rows.append(StudyRow("chance", None, 0.5, series=REFERENCE))
    return StudyTable("Figure 1d, linear accuracy on test points", tuple(rows), SOURCE, x_label="noise")


def circle_nats(temperature: float) -> float:
    """InfoNCE of cosines, in nats, if positives coincide and points lie evenly on a circle.

    The mean of e^(cos t / T) over a circle is the Bessel function I_0(1/T).
    """
    return -math.log(ive(0, 1 / temperature))


def _loss_table(groups: Groups, temperature: float) -> StudyTable:
    """InfoNCE at the end of training: the paper says in words that it falls with noise."""
    rows, lines = [], {}
    for eta, group in groups.items():
        losses = np.mean([one["loss"] for one in group], axis=0).tolist()
        rows.append(StudyRow(f"noise {eta:g}", None, group[0]["ceiling"] - losses[-1]))
        steps = [AVERAGED_STEPS * (place + 1) for place in range(len(losses))]
        lines[f"loss, noise {eta:g}"] = (steps, losses)
    rows.append(StudyRow("most on a circle, any winding", None, circle_nats(temperature)))
    return StudyTable("Figure 1c, InfoNCE at the last steps, nats", tuple(rows), "", lines, "step")


def _embedding_tables(groups: Groups) -> list[StudyTable]:
    """Figure 1b: the embedded points of each noise, which alternate between the spirals."""
    tables = []
    for eta, group in groups.items():
        across, up = zip(*group[0]["embedding"], strict=True)
        tables.append(StudyTable(f"{EMBEDDING} {eta:g}", (), "", {DOTS: (across, up)}))
    return tables


EMBEDDING = "Figure 1b, embedding, noise"
REMARK = "settings that the paper leaves open were chosen on validation points; test points serve for the table only."


@study("spirals", "Wu et al. 2020, Fig. 1: noise of views against linear accuracy on two spirals")
def run(
    workspace: Workspace,
    seed: int = 0,
    repeats: int = 3,
    points: int = 12_800,
    negatives: int = 4096,
    steps: int = 10_000,
    held: int = 4_000,
    temperature: Value = TEMPERATURE,
    noise: float | None = None,
    jobs: int = 2,
) -> StudyResult:
    budget = {"points": points, "negatives": negatives, "steps": steps, "held": held}
    minimum = {"points": BATCH, "held": DRAWN_POINTS}
    for key, value in {**budget, "repeats": repeats, "jobs": jobs}.items():
        check_whole(key, value, minimum.get(key, 1))
    if noise is not None and noise < 0:
        raise UserError(f"noise was {noise:g}; expected numbers from 0, or none for all of the figure's")
    Cosine(temperature)  # refuses a bad temperature before the work
    if isinstance(temperature, Adaptive):
        raise UserError(
            f"temperature was {temperature.written()}, which depends on values that this study does not "
            "monitor; use another schedule"
        )
    noises = NOISES if noise is None else (noise,)
    shared = {**budget, "temperature": plain(temperature)}
    arms: dict[str, dict[str, Any]] = {f"noise={eta:g}": {"noise": eta, **shared} for eta in noises}
    values = workspace.repeat(repetition, arms, range(seed, seed + repeats), jobs)
    groups = dict(zip(noises, values.values(), strict=True))
    last = at(temperature, Progress(steps - 1, steps, max(1, points // BATCH)))
    return StudyResult(
        (_accuracy_table(groups), _loss_table(groups, last), *_embedding_tables(groups)), (REMARK,)
    )
