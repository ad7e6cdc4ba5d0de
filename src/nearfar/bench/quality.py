"""`nearfar bench quality`: linear accuracy over CPU-minutes of training without labels.

Each arm trains in a process of its own: ours with the settings of the command line, a peer's with torch's
defaults. Arms take turns, a part of the budget each, so that other load affects all of them alike. After each
part the frozen backbone is probed: a linear classifier on all training images, tested on the test images. CPU
time counts loader processes and leaves out the probes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearfar.bench.arms import lightly_loop, our_session
from nearfar.bench.peers import PeerMissing
from nearfar.bench.records import append_record, read_records
from nearfar.bench.turns import child_cpu_seconds, open_process
from nearfar.config.recipes import RECIPES
from nearfar.core.buffers import frozen
from nearfar.core.statistics import mean_and_spread
from nearfar.core.tables import markdown_table
from nearfar.data import open_data
from nearfar.errors import UserError, counted
from nearfar.evaluate.linear import linear
from nearfar.modalities import DataSet
from nearfar.run.features import features
from nearfar.sweeps.pictures import COLOURS, panels
from nearfar.train.step import take_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = "simclr"  # of all arms, lightly's too
VALIDATION_SHARE = 0.1  # of the training images, where no test set is named
ENCODE_BATCH = 512
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}  # lightly's normalisation


class Trainer(NamedTuple):
    """Training of one arm: `steps` times a `step` of `batch` images; `embed` returns the frozen backbone's
    features `(n, d)`."""

    step: Callable[[], Any]
    steps: int
    batch: int
    embed: Callable[[DataSet], Tensor]


@dataclass(frozen=True)
class QualityArm:
    """One way to train. `make(images, epochs, seed)` builds it; it must be picklable. `settings`: what it was
    made with, as it is recorded. `process`: OpenMP and malloc settings are ours, or torch's defaults
    ("theirs")."""

    name: str
    make: Callable[[DataSet, int, int], Trainer]
    settings: Mapping[str, Any]
    process: Literal["ours", "theirs"] = "ours"


class QualityBudget(NamedTuple):
    """What every arm trains on and for how long; `probes` measurements at equal distances."""

    train: str
    test: str | None
    epochs: int
    probes: int

    def data(self) -> dict[str, Any]:
        """The files, which all results of a record share."""
        return {"data": self.train, "test": self.test}

    def settings_of(self, arm: QualityArm) -> dict[str, Any]:
        """What the results of an arm depend on, except the seed and the machine."""
        return {**self.data(), "epochs": self.epochs, "probes": self.probes, **arm.settings}

    def load_sets(self) -> tuple[DataSet, DataSet]:
        data = open_data(self.train)
        train, test = (data, open_data(self.test)) if self.test else data.split(VALIDATION_SHARE, seed=0)
        for part in (train, test):
            if part.labels is None:
                raise UserError(f"{part.name} has no labels; the probe of bench quality needs them")
        return train, test


@dataclass(frozen=True)
class QualityPoint:
    """The accuracy of an arm after some training. `settings`: what it depends on (`QualityBudget.settings_of`)."""

    arm: str
    seed: int
    epoch: float
    cpu_minutes: float
    top1: float
    settings: dict[str, Any] = field(default_factory=dict)


def our_trainer(overrides: Mapping[str, Any], data: DataSet, epochs: int, seed: int) -> Trainer:
    """`nearfar pretrain simclr` with its defaults for a CPU and the settings `overrides`, without its
    evaluations and checkpoints."""
    session = our_session(RECIPE, data, {"epochs": epochs, **overrides, "seed": seed})
    batches = session.stream.batches(0, session.steps)
    plain_view = session.settings.parts["views"].plain_view(session.description, session.device)

    def embed(images: DataSet) -> Tensor:
        return features(session.method.encoders.backbone(), images, plain_view, device=session.device)

    return Trainer(
        lambda: take_step(session, session.to_device(next(batches))),
        session.steps,
        session.settings.batch_size,
        embed,
    )


def lightly_trainer(network: str, batch: int, data: DataSet, epochs: int, seed: int) -> Trainer:
    """SimCLR as lightly's documentation shows it; its rate is constant, so `epochs` is its length alone."""
    if len(data) < batch:
        raise UserError(f"--batch-size was {batch}, but {data.name} has {counted(len(data), data.unit)}")
    torch.manual_seed(seed)
    images = data.load(np.arange(len(data))).data
    step, model = lightly_loop(network, batch, images)

    def embed(images: DataSet) -> Tensor:
        rows = np.array_split(np.arange(len(images)), max(1, len(images) // ENCODE_BATCH))
        with frozen(model), torch.inference_mode():
            parts = [model.backbone(_normalize(images.load(part).data)).flatten(1) for part in rows]
        return torch.cat(parts).clone()

    return Trainer(step, epochs * (len(data) // batch), batch, embed)


def _normalize(images: np.ndarray) -> Tensor:
    """Images `(n, h, w, 3)` as tensors `(n, 3, h, w)`, as lightly's transforms normalise them."""
    from torchvision.transforms import functional

    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return functional.normalize(pixels, **IMAGENET)


def quality_arms(
    network: str | None, batch: int, variants: Mapping[str, Mapping[str, Any]]
) -> list[QualityArm]:
    """Ours with its defaults (`network`: of a CPU if None), ours with the settings of each variant, and
    lightly's loop with the same network and with its own."""
    ours = {"nearfar": {}, **variants}
    common = {"batch_size": batch, **({} if network is None else {"backbone": network})}
    peers = {
        "lightly (same network)": network or RECIPES[RECIPE].on_cpu["backbone"],
        "lightly (resnet18)": "resnet18",
    }
    our_settings = {name: {**common, **settings} for name, settings in ours.items()}
    return [
        QualityArm(name, partial(our_trainer, settings), settings) for name, settings in our_settings.items()
    ] + [
        QualityArm(
            name,
            partial(lightly_trainer, peer_network, batch),
            {"batch_size": batch, "backbone": peer_network},
            "theirs",
        )
        for name, peer_network in peers.items()
    ]


# --------------------------------------------------------------------------------------------- measuring


def serve_arm(arm: QualityArm, budget: QualityBudget, seed: int, line: Any) -> None:
    """Sends None once the arm is built. Then trains one part of the budget per message and answers (epoch, CPU
    minutes, top-1)."""
    train, test = budget.load_sets()
    start = time.process_time()
    trainer = arm.make(train, budget.epochs, seed)
    if budget.probes > trainer.steps:
        raise UserError(
            f"--probes was {budget.probes}, but {arm.name} trains for {counted(trainer.steps, 'steps')}"
        )
    line.send(None)
    seconds = time.process_time() - start
    ends = [round(trainer.steps * (part + 1) / budget.probes) for part in range(budget.probes)]
    step = 0
    for end in ends:
        line.recv()
        start = time.process_time() + child_cpu_seconds()
        while step < end:
            trainer.step()
            step += 1
        seconds += time.process_time() + child_cpu_seconds() - start
        top1 = linear(trainer.embed(train), _labels(train), trainer.embed(test), _labels(test))["top1"]
        line.send((step * trainer.batch / len(train), seconds / 60, top1))


def _labels(data: DataSet) -> Tensor:
    return torch.from_numpy(np.asarray(data.labels))


@contextmanager
def open_quality_arm(
    arm: QualityArm, budget: QualityBudget, seed: int
) -> Iterator[Callable[[], QualityPoint]]:
    """Starts the process of an arm and yields the function that trains its next part; raises `PeerMissing`,
    and `UserError` for what the arm cannot be trained with."""
    with open_process(arm.process, arm.name, serve_arm, arm, budget, seed) as answer_to:

        def next_point() -> QualityPoint:
            epoch, cpu_minutes, top1 = answer_to(None)
            return QualityPoint(arm.name, seed, epoch, cpu_minutes, top1, budget.settings_of(arm))

        yield next_point


def run_quality(
    arms: Sequence[QualityArm],
    budget: QualityBudget,
    seeds: int = 1,
    record: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[QualityPoint]:
    """Trains and probes every arm with every seed. `record` is a file of points by line: an arm and seed that
    it has all points of is not trained again. Points of other arms are returned too."""
    points = _last_runs(read_records(record, QualityPoint))
    for point in points:
        _check_same_settings(record, point, arms, budget)
    for seed in range(seeds):
        missing = [
            arm for arm in arms if sum(p.arm == arm.name and p.seed == seed for p in points) < budget.probes
        ]
        points = [p for p in points if p.seed != seed or p.arm not in {arm.name for arm in missing}]
        for point in _train_interleaved(missing, budget, seed, say):
            points.append(point)
            say(
                f"{point.arm}, seed {seed}: {100 * point.top1:.1f} % after {point.epoch:.1f} epochs, "
                f"{point.cpu_minutes:.1f} CPU-minutes"
            )
            append_record(record, point)
    return points


def _last_runs(points: Sequence[QualityPoint]) -> list[QualityPoint]:
    """The points without those of runs that were stopped and started again; in a run, epochs grow."""
    starts: dict[tuple[str, int], tuple[int, float]] = {}  # place of a run's first point, its newest epoch
    for place, point in enumerate(points):
        start, epoch = starts.get((point.arm, point.seed), (place, 0.0))
        starts[point.arm, point.seed] = (start if point.epoch > epoch else place, point.epoch)
    return [point for place, point in enumerate(points) if place >= starts[point.arm, point.seed][0]]


def _check_same_settings(
    record: Path | None, point: QualityPoint, arms: Sequence[QualityArm], budget: QualityBudget
) -> None:
    """Raises UserError if a recorded point was measured otherwise than this command would measure it."""
    same_arm = [budget.settings_of(arm) for arm in arms if arm.name == point.arm]
    expected = same_arm[0] if same_arm else budget.data()
    recorded = point.settings if same_arm else {key: point.settings.get(key) for key in expected}
    differences = [
        f"{key}={recorded.get(key, 'default')}, now {expected.get(key, 'default')}"
        for key in dict.fromkeys([*expected, *recorded])
        if recorded.get(key) != expected.get(key)
    ]
    if differences:
        raise UserError(
            f"--record {record} has {point.arm!r} measured with {'; '.join(differences)}; use another file"
        )


def _train_interleaved(
    arms: Sequence[QualityArm], budget: QualityBudget, seed: int, say: Callable[[str], None]
) -> Iterator[QualityPoint]:
    with ExitStack() as stack:
        turns = []
        for arm in arms:
            try:
                turns.append(stack.enter_context(open_quality_arm(arm, budget, seed)))
            except PeerMissing as absent:
                say(f"{arm.name}: {absent} is not installed")
        for _ in range(budget.probes):
            yield from (next_point() for next_point in turns)


# --------------------------------------------------------------------------------------------- reporting


def minutes_to(points: Sequence[QualityPoint], goal: float) -> float | None:
    """CPU-minutes until the accuracy of one arm and seed reaches `goal`, linear between probes; None if it
    never does."""
    previous = QualityPoint("", 0, 0.0, 0.0, 0.0)
    for point in sorted(points, key=lambda p: p.cpu_minutes):
        if point.top1 >= goal:
            gain = point.top1 - previous.top1
            share = (goal - previous.top1) / gain if previous.arm and gain > 0 else 1.0
            return previous.cpu_minutes + share * (point.cpu_minutes - previous.cpu_minutes)
        previous = point
    return None


def quality_table(points: Sequence[QualityPoint], goal: float) -> Iterator[str]:
    """Markdown: each arm at its last probe, and its CPU-minutes to the goal; mean ± deviation over seeds."""
    head = ["", "linear top-1", "epochs", "CPU-minutes", f"CPU-minutes to {100 * goal:g} %"]
    rows = []
    for arm in dict.fromkeys(point.arm for point in points):
        seeds = [[p for p in points if p.arm == arm and p.seed == seed] for seed in {p.seed for p in points}]
        runs = [run for run in seeds if run]
        last = [max(run, key=lambda p: p.epoch) for run in runs]
        times = [minutes_to(run, goal) for run in runs]
        reached = [minutes for minutes in times if minutes is not None]
        to_goal = f"{fmean(reached):.1f}" if len(reached) == len(runs) else "not reached"
        rows.append(
            [
                arm,
                _mean_text([100 * point.top1 for point in last]) + " %",
                f"{fmean(point.epoch for point in last):.1f}",
                f"{fmean(point.cpu_minutes for point in last):.1f}",
                to_goal,
            ]
        )
    yield from markdown_table([head, *rows])


def _mean_text(values: list[float]) -> str:
    mean, spread = mean_and_spread(values)
    return f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"


def quality_chart(points: Sequence[QualityPoint]) -> "Figure":
    """Linear accuracy over CPU-minutes, a line for each arm and seed."""
    figure, (axis,) = panels(["linear top-1 in % over CPU-minutes of training"], 6.0, 3.6)
    for colour, arm in zip(COLOURS * 9, dict.fromkeys(point.arm for point in points), strict=False):
        for place, seed in enumerate(sorted({p.seed for p in points if p.arm == arm})):
            line = [p for p in points if p.arm == arm and p.seed == seed]
            axis.plot(
                [p.cpu_minutes for p in line],
                [100 * p.top1 for p in line],
                color=colour,
                marker="o",
                markersize=3,
                label=None if place else arm,
            )
    axis.legend(frameon=False)
    return figure
