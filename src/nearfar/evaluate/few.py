"""How far a few labels go: a linear probe on a share of them, and episodes of a few classes with a few examples each."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from nearfar.core.splits import drawn
from nearfar.errors import UserError
from nearfar.evaluate.figures import mean_interval, over_draws
from nearfar.evaluate.labels import Labelled
from nearfar.evaluate.linear import linear
from nearfar.evaluate.options import Options


def called(asked: float) -> str:
    """A share or a number of each class, in words."""
    return f"{100 * asked:g} %" if asked < 1 else f"{int(asked)} per class"


def part_of(labels: Int[Tensor, "row"], asked: float, seed: int) -> Int[Tensor, "part"]:
    """The rows drawn: of a class that has fewer than asked for, all of them, but some class must have so many."""
    most = int(torch.unique(labels, return_counts=True)[1].max())  # type: ignore[no-untyped-call,unused-ignore]
    if asked > most:
        raise UserError(f"labels was {int(asked)} of each class; the largest class to draw from has {most}")
    return torch.from_numpy(drawn(labels.cpu().numpy(), asked, seed)).to(labels.device)


def fractions(train: Labelled, test: Labelled, options: Options) -> dict[str, Any]:
    """A linear probe fitted on part of the labels: for each share (or number of each class) the mean of several draws. Its penalty
    is chosen within each draw."""
    found = {}
    for asked in options.labels:
        draws = []
        for draw in range(options.draws):
            part = train.rows(part_of(train.labels, asked, options.seed + draw))
            draws.append(
                linear(part.features, part.labels, test.features, test.labels, seed=options.seed + draw)
            )
        found[called(asked)] = {**over_draws(draws), "labels": len(part)}
    return found


def few_shot(train: Labelled, test: Labelled, options: Options) -> dict[str, Any]:
    """Episodes of `ways` classes: each class is the mean of `shots` training features of unit length, and `queries` test rows go to
    the class whose mean is nearest (Snell et al. 2017). Training rows and test rows are drawn anew for every episode, of classes
    that have so many training rows; the interval is that of the mean over episodes, which share one set of rows.
    """
    every = torch.unique(test.labels)
    rows = {
        int(number): tuple((part.labels == number).nonzero()[:, 0] for part in (train, test))
        for number in every
    }
    known, asked = (functional.normalize(part.features.double(), dim=1) for part in (train, test))
    generator = torch.Generator().manual_seed(options.seed)

    def some(found: torch.Tensor, count: int) -> torch.Tensor:
        order = torch.randperm(len(found), generator=generator)[:count]
        return found[order.to(found.device)]

    result: dict[str, Any] = {}
    for shots in options.shots:
        classes = every[[len(rows[int(number)][0]) >= shots for number in every]]
        ways = min(options.ways, len(classes))
        if ways < 2:
            raise UserError(
                f"few-shot needs two classes with {shots} training rows each; of the {len(every)} in the test data {len(classes)} have them"
            )
        accuracy = []
        for _ in range(options.episodes):
            picked = classes[
                torch.randperm(len(classes), generator=generator)[:ways].to(classes.device)
            ].tolist()
            centres = torch.stack([known[some(rows[number][0], shots)].mean(0) for number in picked])
            queries = [some(rows[number][1], options.queries) for number in picked]
            truth = torch.cat([torch.full((len(q),), place) for place, q in enumerate(queries)])
            said = torch.cdist(asked[torch.cat(queries)], centres).argmin(1).cpu()
            accuracy.append((said == truth).double().mean())
        values = torch.stack(accuracy)
        result[f"{ways}-way {shots}-shot"] = {
            "top1": float(values.mean()),
            # one episode tells nothing of others
            "spread": float(values.std()) if len(values) > 1 else None,
            "interval": mean_interval(values) if len(values) > 1 else None,
            "episodes": options.episodes,
            "classes": len(classes),
        }
    return result
