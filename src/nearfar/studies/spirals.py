"""How much noise makes a good view: two spirals (Wu et al. 2020, sec. 4.3, Fig. 1).

Points on two intertwined spirals are told apart as instances, by a memory bank and 4096 negatives; a view adds uniform
noise from [0, eta] to each coordinate. The representation is two-dimensional, and a logistic regression on it says which
spiral a point is on: it can if the network has unrolled them.

Here the representation is a circle: embeddings have unit length when they are scored and judged, as a bank holds them. Without
noise, whatever spreads the points evenly over a circle scores the same, 1/T - log I_0(1/T) nats at temperature T, be it wound once
or twice (`most_on_a_circle`); so nothing asks for unrolling. With noise, the score falls with how far noise moves a point round
the circle. That is least where each arm has half of the circle to itself and noise across the arm moves nothing: unrolled. It
can be had while noise is narrower than the gap between arms.

From the paper: five layers, 128 hidden units, 2 dimensions, 4096 negatives, batches of 128, 10,000 steps, and since these are 100
epochs, 12,800 points. Its other settings did not show its curve, or are not told; decided on validation points:

- Biases start at zero: the network starts as a function of a point's direction, where both spirals are everywhere, at chance. With
  torch's own random biases, networks without noise ended anywhere from 0.51 to 0.77, so the first weights told, not the noise.
- The temperature is 0.05: at 0.5, noise of 0.4 costs 0.06 of 1.18 nats, too little to move a network; at 0.05, half a nat of 2.41.
- Adam at 1e-3, falling by a cosine: SGD at the paper's 0.03 and near it stayed at chance at this temperature, or collapsed to a point.
- The bank holds the last view (momentum 0, in Wu et al. 2020, sec. 6 as good as 0.5).
- One turn to a spiral, arms 0.8 apart: arms 1.5 apart were unrolled without any noise.

How far the spirals come apart is decided by the first weights more than by any of these: the curve enters the circle folded, and to take a fold
out an arm would have to pass through one point. So seeds differ by 0.09; docs/studies.md tells sixteen of them, thirteen of which nothing
was chosen with.

Command: nearfar study spirals     Cost: about 40 minutes of one core.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from nearfar.errors import UserError
from nearfar.evaluate import linear
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.critics import Cosine
from nearfar.parts.encoders import Shared
from nearfar.parts.negatives import Bank
from nearfar.parts.selections import Everyone
from nearfar.studies.frame import Bench, Cell, Finding, Result, Row, Study
from nearfar.studies.images import moments
from nearfar.system.hardware import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Float[Tensor, "point 2"]

NOISES = (0.0, 0.1, 0.2, 0.4, 0.6, 1.0, 2.0, 5.0)
SOURCE = "Wu et al. 2020, Fig. 1d: 0.70 and the words as its text tells them; the curve is only drawn there"
PAPER: dict[float, Cell] = {0.0: "near chance", 0.4: 0.70, 1.0: "chance", 2.0: "chance", 5.0: "0.5"}
TURNS, GAP = 1, 0.8
TEMPERATURE = 0.05
RATE = cosine(1e-3)
BATCH = 128
SHOWN = 600  # points of an embedding that the figure shows
AVERAGED = 50  # steps to a point of the curve of losses


def spirals(
    size: int, generator: torch.Generator, turns: float = TURNS, gap: float = GAP
) -> tuple[Points, Int64[Tensor, "point"]]:
    """Points, and which of two spirals each is on, by turns.

    At angle t the first is at radius gap t / pi; the second is the first turned by half a circle. So along any ray the arms
    are `gap` apart, alternately one's and the other's. Angles are uniform over whole turns, and no line does better
    than chance on the coordinates themselves.
    """
    angle = 2 * math.pi * turns * torch.rand(size, generator=generator)
    spiral = torch.arange(size) % 2
    radius, turned = gap * angle / math.pi, angle + math.pi * spiral
    return torch.stack([radius * turned.cos(), radius * turned.sin()], dim=1), spiral


def view(points: Points, noise: float, generator: torch.Generator) -> Points:
    """Each coordinate moved by a draw from U(0, noise)."""
    return points + noise * torch.rand(points.shape, generator=generator)


def network() -> nn.Sequential:
    """The paper's layers; without biases at first, so that the output's direction is a function of the input's."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((2, 128, 128, 128, 128, 2)):
        layer = nn.Linear(before, after)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(
    method: Method, points: Points, noise: float, steps: int, generator: torch.Generator
) -> list[float]:
    """Instance discrimination: anchors are views, positives and negatives rows of the bank. Losses, averaged."""
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
    return [float(torch.stack(losses[at : at + AVERAGED]).mean()) for at in range(0, steps, AVERAGED)]


@torch.no_grad()
def representation(net: nn.Module, points: Points) -> Points:
    """What the network says of the points themselves, at unit length as it is scored."""
    return F.normalize(net(points), dim=1)


def repetition(
    seed: int, noise: float, temperature: Value, points: int, negatives: int, steps: int, held: int
) -> dict[str, Any]:
    """One training: accuracy on validation and test points, the losses, and some points of the embedding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the network's weights, then the bank's draws
        net = network()
        (x, labels), validation, test = (spirals(size, generator) for size in (points, held, held))
        bank = Bank(points, momentum=0.0, sample=negatives, dim=2)
        method = Method(Shared(net), Cosine(temperature), bank, Everyone(), InfoNCE())
        losses = train(method, x, noise, steps, generator)
    fitted = representation(net, x)
    found = {
        name: linear(fitted, labels, representation(net, asked), truth)["top1"]
        for name, (asked, truth) in (("validation", validation), ("test", test))
    }
    shown = net(test[0][:SHOWN]).detach()
    return {**found, "loss": losses, "embedding": shown.tolist(), "ceiling": math.log(1 + negatives)}


def run(
    bench: Bench,
    seed: int = 0,
    repeats: int = 3,
    points: int = 12_800,
    negatives: int = 4096,
    steps: int = 10_000,
    held: int = 4_000,
    temperature: Value = TEMPERATURE,
    noise: float | None = None,
    jobs: int = 2,
) -> Result:
    budget = {"points": points, "negatives": negatives, "steps": steps, "held": held}
    least = {"points": BATCH, "held": SHOWN}
    for key, given in {**budget, "repeats": repeats, "jobs": jobs}.items():
        if given < least.get(key, 1):
            raise UserError(f"{key} was {given}; expected whole numbers from {least.get(key, 1)}")
    if noise is not None and noise < 0:
        raise UserError(f"noise was {noise:g}; expected numbers from 0, or none for all of the figure's")
    Cosine(temperature)  # a temperature that cannot be is said before the work
    if isinstance(temperature, Adaptive):
        raise UserError(
            f"temperature was {temperature.written()}, which follows what this study does not watch; use another schedule"
        )
    chosen = {"turns": TURNS, "gap": GAP, "temperature": plain(temperature), "rate": str(RATE), "version": 2}
    noises = NOISES if noise is None else (noise,)
    numbers = range(seed, seed + repeats)
    arms = [{"seed": s, "noise": eta, **budget, **chosen} for eta in noises for s in numbers]
    found = iter(bench.arms(arms, computed, jobs))
    groups = {eta: [next(found) for _ in numbers] for eta in noises}
    last = at(temperature, Progress(steps - 1, steps, max(1, points // BATCH)))
    findings = (_accuracies(groups), _losses(groups, last), _pictures(groups))
    return Result(findings, _remarks(findings[0]))


@one_thread()
def computed(arm: Mapping[str, Any]) -> dict[str, Any]:
    budget = {key: arm[key] for key in ("seed", "noise", "points", "negatives", "steps", "held")}
    return repetition(temperature=parse_value(arm["temperature"]), **budget)


def _accuracies(groups: Mapping[float, Sequence[Mapping[str, Any]]]) -> Finding:
    values = {noise: moments([found["test"] for found in group]) for noise, group in groups.items()}
    mean, spread = (list(side) for side in zip(*values.values(), strict=True))
    rows = [Row(f"noise {noise:g}", PAPER.get(noise), *value) for noise, value in values.items()]
    if len(values) > 1:
        rows.append(Row("best noise", 0.4, list(values)[int(np.argmax(mean))]))
    validation = [moments([found["validation"] for found in group])[0] for group in groups.values()]
    curves = {
        "noise": list(values),
        "mean": mean,
        "sd": [sd or 0.0 for sd in spread],
        "validation": validation,
    }
    return Finding("Figure 1d, linear accuracy on test points", tuple(rows), curves, SOURCE)


def most_on_a_circle(temperature: float) -> float:
    """InfoNCE of cosines by a temperature, in nats, where positives coincide and points lie evenly on a circle.

    A negative at angle t scores cos t / T, and the mean of e^(cos t / T) over a circle is the Bessel function I_0(1/T).
    """
    return -math.log(ive(0, 1 / temperature))


def _losses(groups: Mapping[float, Sequence[Mapping[str, Any]]], temperature: float) -> Finding:
    """InfoNCE at the end of training: the paper says in words that it falls with noise."""
    curves = {
        f"{noise:g}": np.mean([f["loss"] for f in group], axis=0).tolist() for noise, group in groups.items()
    }
    ceiling = next(iter(groups.values()))[0]["ceiling"]
    rows = [Row(f"noise {noise}", None, ceiling - losses[-1]) for noise, losses in curves.items()]
    rows.append(Row("most on a circle, any winding", None, most_on_a_circle(temperature)))
    return Finding("Figure 1c, InfoNCE at the last steps, nats", tuple(rows), {"loss": curves})


def _pictures(groups: Mapping[float, Sequence[Mapping[str, Any]]]) -> Finding:
    embeddings = {f"{noise:g}": group[0]["embedding"] for noise, group in groups.items()}
    return Finding("Figure 1a, b, pictures", (), {"embedding": embeddings})


def _remarks(accuracies: Finding) -> tuple[str, ...]:
    mean, noises = accuracies.curves["mean"], accuracies.curves["noise"]
    chosen = "settings that the paper leaves open were chosen on validation points; test points serve for the table only."
    if len(noises) == 1:
        return (chosen,)
    best = int(np.argmax(mean))
    inside = 0.2 <= noises[best] <= 1.0
    return (
        f"best at noise {noises[best]:g} with {mean[best]:.3f}, {'within' if inside else 'outside'} 0.2 to 1.0 "
        f"(paper: 0.70 at 0.4); {mean[0]:.3f} without noise, {mean[-1]:.3f} at {noises[-1]:g}.",
        chosen,
    )


def draw(result: Result) -> "Figure":
    from matplotlib.figure import Figure

    from nearfar.studies.drawing import COLOURS, TRUTH, truth

    accuracies, losses, pictures = (finding.curves for finding in result.findings)
    noises = accuracies["noise"]
    columns = 2 * max(1, len(noises) // 2)
    figure = Figure(figsize=(2.0 * max(columns, 4), 8.4), layout="constrained")
    grid = figure.add_gridspec(3, columns, height_ratios=(1, 1, 1.6))
    generator = torch.Generator().manual_seed(0)
    points, spiral = spirals(SHOWN, generator)
    for column, noise in enumerate(noises):
        for row, drawn in enumerate(
            (view(points, noise, generator), torch.tensor(pictures["embedding"][f"{noise:g}"]))
        ):
            axis = figure.add_subplot(grid[row, column])
            across, up = drawn.T.numpy()
            axis.scatter(across, up, s=2, c=[COLOURS[int(s)] for s in spiral], linewidths=0)
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"views, noise {noise:g}" if row == 0 else "embedding", fontsize=8)
    half = columns // 2
    left, right = figure.add_subplot(grid[2, :half]), figure.add_subplot(grid[2, half:])
    for place, (noise, loss) in enumerate(losses["loss"].items()):
        steps = [AVERAGED * (at + 1) for at in range(len(loss))]
        left.plot(steps, loss, color=(*COLOURS, TRUTH)[place], linewidth=1, label=f"noise {noise}")
    left.set(xlabel="step", ylabel="loss: ceiling minus InfoNCE, nats")
    left.legend(frameon=False, fontsize=7)
    at = range(len(noises))
    right.errorbar(
        at,
        accuracies["mean"],
        yerr=accuracies["sd"],
        color=COLOURS[0],
        marker="o",
        markersize=4,
        label="test",
    )
    truth(right, 0.5, "chance")
    if 0.4 in noises:
        right.plot(noises.index(0.4), 0.70, "s", color=COLOURS[1], markersize=5, label="paper")
    right.set_xticks(list(at), [f"{noise:g}" for noise in noises])
    right.set(xlabel="noise", ylabel="linear accuracy")
    right.legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "spirals", "Wu et al. 2020, Fig. 1: noise of views against linear accuracy on two spirals", run, draw
)
