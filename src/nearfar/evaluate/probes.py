"""Other classifiers of frozen features: one hidden layer, few labels, few-shot episodes."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from nearfar.core.optimisers import eager
from nearfar.core.results import Figure, Measurement, mean_over_draws
from nearfar.core.splits import draw_rows
from nearfar.core.statistics import clipped_student_interval, mean_and_spread
from nearfar.errors import UserError
from nearfar.evaluate.accuracy import classified, rank_classes
from nearfar.evaluate.linear import fit_chosen
from nearfar.evaluate.options import Options
from nearfar.evaluate.sets import LabelledFeatures, class_codes, stratified_split

# of the classifier with one hidden layer
HIDDEN, EPOCHS, BATCH, RATE = 512, 20, 512, 1e-3
MIN_STEPS = 200
DECAYS = (1e-3, 1e-1, 1.0)
SEEDS = 3
VALIDATION_SHARE = 0.2


def mlp(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """Linear, ReLU, dropout, linear on standardised features, trained with AdamW. The weight decay is the one
    of three that does best on a stratified fifth of train. Mean and spread over three starts."""
    classes, codes = class_codes(train.labels)
    mean, scale = train.features.mean(0), train.features.std(0, correction=0)
    scale = torch.where(scale > 1e-6 * mean.abs(), scale, torch.ones_like(scale))
    x, x_test = (((part.features - mean) / scale).float() for part in (train, test))
    decay = _best_decay(x, codes, train.labels, options.seed)
    draws = []
    for draw in range(SEEDS):
        network = _fit_mlp(x, codes, len(classes), decay, options.seed + draw)
        draws.append(classified(rank_classes(_scores(network, x_test), classes), test.labels, len(classes)))
    measurement = mean_over_draws(draws, len(test), {**draws[0].details, "weight_decay": decay})
    return replace(measurement, answers=draws[0].answers)


def _best_decay(
    x: Float[Tensor, "row dim"], codes: Int[Tensor, "row"], labels: Int[Tensor, "row"], seed: int
) -> float:
    fit, holdout = stratified_split(labels, VALIDATION_SHARE, seed)
    if not len(holdout):
        return DECAYS[0]
    accuracy = {}
    for decay in DECAYS:
        network = _fit_mlp(x[fit], codes[fit], int(codes.max()) + 1, decay, seed)
        accuracy[decay] = float((_scores(network, x[holdout]).argmax(1) == codes[holdout]).double().mean())
    return max(DECAYS, key=lambda decay: accuracy[decay])


def _fit_mlp(
    x: Float[Tensor, "row dim"], codes: Int[Tensor, "row"], classes: int, decay: float, seed: int
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(x.shape[1], HIDDEN), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(HIDDEN, classes)
        ).to(x.device)
        optimiser = eager(torch.optim.AdamW)(network.parameters(), lr=RATE, weight_decay=decay)
        per_epoch = -(-len(x) // BATCH)
        epochs = max(EPOCHS, -(-MIN_STEPS // per_epoch))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * per_epoch)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).to(x.device).split(BATCH):
                loss = functional.cross_entropy(network(x[rows]), codes[rows])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
    return network.eval()


@torch.no_grad()
def _scores(network: nn.Module, x: Float[Tensor, "row dim"]) -> Float[Tensor, "row class"]:
    return network(x)


def fractions(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> dict[str, Measurement]:
    """A linear probe fitted on part of the labels: for each share (or number per class) the mean over several
    draws. The penalty is chosen within each draw."""
    measurements = {}
    for amount in options.labels:
        draws = []
        for draw in range(options.draws):
            part = train.rows(draw_labels(train.labels, amount, options.seed + draw))
            classifier, _ = fit_chosen(part.features, part.labels, seed=options.seed + draw)
            ranked = classifier.ranked_classes(test.features.to(part.features.device))
            draws.append(classified(ranked, test.labels, len(classifier.classes)))
        measurements[amount_text(amount)] = mean_over_draws(draws, len(test), {"labels": len(part)})
    return measurements


def amount_text(amount: float) -> str:
    """A share of the labels, or a number per class, in words."""
    return f"{100 * amount:g} %" if amount < 1 else f"{int(amount)} per class"


def draw_labels(labels: Int[Tensor, "row"], amount: float, seed: int) -> Int[Tensor, "part"]:
    """The rows drawn; all rows of a class that has fewer, but some class must have that many."""
    largest = int(torch.unique(labels, return_counts=True)[1].max())  # type: ignore[no-untyped-call,unused-ignore]
    if amount > largest:
        raise UserError(f"labels was {int(amount)} per class; the largest class has {largest}")
    return torch.from_numpy(draw_rows(labels.cpu().numpy(), amount, seed)).to(labels.device)


def few_shot(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> dict[str, Measurement]:
    """Episodes of `ways` classes: each class is the mean of `shots` training features of unit length, and
    `queries` test rows go to the class with the nearest mean (Snell et al. 2017). Every episode draws new
    training and test rows, of classes that have `shots` training rows. The interval is that of the mean over
    episodes, which share one set of rows.
    """
    occurring = torch.unique(test.labels)
    parts = (train, test)
    rows = {int(n): tuple((part.labels == n).nonzero()[:, 0] for part in parts) for n in occurring}
    features = [functional.normalize(part.features.double(), dim=1) for part in parts]
    generator = torch.Generator().manual_seed(options.seed)
    measurements = {}
    for shots in options.shots:
        classes = occurring[[len(rows[int(n)][0]) >= shots for n in occurring]]
        ways = min(options.ways, len(classes))
        if ways < 2:
            raise UserError(
                f"few-shot needs two classes with {shots} training rows each; {len(classes)} of the "
                f"{len(occurring)} test classes have them"
            )
        accuracy = []
        for _ in range(options.episodes):
            episode_classes = _sample(classes, ways, generator).tolist()
            train_rows = [_sample(rows[n][0], shots, generator) for n in episode_classes]
            centres = torch.stack([features[0][part].mean(0) for part in train_rows])
            queries = [_sample(rows[n][1], options.queries, generator) for n in episode_classes]
            truth = torch.cat([torch.full((len(part),), place) for place, part in enumerate(queries)])
            predicted = torch.cdist(features[1][torch.cat(queries)], centres).argmin(1).cpu()
            accuracy.append(float((predicted == truth).double().mean()))
        mean, spread = mean_and_spread(accuracy)
        measurements[f"{ways}-way {shots}-shot"] = Measurement(
            {"top1": Figure(mean, clipped_student_interval(accuracy), spread)},
            {"episodes": options.episodes, "classes": len(classes)},
        )
    return measurements


def _sample(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    order = torch.randperm(len(values), generator=generator)[:count]
    return values[order.to(values.device)]
