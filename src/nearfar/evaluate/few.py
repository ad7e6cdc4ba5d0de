"""How far a few labels go: a linear probe on a share of them, and episodes of a few classes with a few examples each."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from nearfar.core.results import Figure, Measurement, mean_over_draws
from nearfar.core.splits import drawn
from nearfar.core.statistics import mean_and_spread, student_interval
from nearfar.errors import UserError
from nearfar.evaluate.figures import classified
from nearfar.evaluate.labels import Labelled
from nearfar.evaluate.linear import fit_chosen
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


def fractions(train: Labelled, test: Labelled, options: Options) -> dict[str, Measurement]:
    """A linear probe fitted on part of the labels: for each share (or number of each class) the mean of several draws. Its penalty
    is chosen within each draw."""
    found = {}
    for asked in options.labels:
        draws = []
        for draw in range(options.draws):
            part = train.rows(part_of(train.labels, asked, options.seed + draw))
            classifier, _ = fit_chosen(part.features, part.labels, seed=options.seed + draw)
            ranked = classifier.ranked_classes(test.features.to(part.features.device))
            draws.append(classified(ranked, test.labels, len(classifier.classes)))
        found[called(asked)] = mean_over_draws(draws, len(test), {"labels": len(part)})
    return found


def few_shot(train: Labelled, test: Labelled, options: Options) -> dict[str, Measurement]:
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

    result = {}
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
            accuracy.append(float((said == truth).double().mean()))
        mean, spread = mean_and_spread(accuracy)
        interval = student_interval(accuracy)
        inside = None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
        result[f"{ways}-way {shots}-shot"] = Measurement(
            {"top1": Figure(mean, inside, spread)},
            {"episodes": options.episodes, "classes": len(classes)},
        )
    return result
