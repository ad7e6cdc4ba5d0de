"""A classifier of one hidden layer on frozen features: what a little more than a linear map can read from them."""

import copy
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from nearfar.core.results import Measurement, mean_over_draws
from nearfar.evaluate.figures import classified, ranked
from nearfar.evaluate.labels import Labelled, class_codes, stratified_split
from nearfar.evaluate.options import Options

HIDDEN, EPOCHS, BATCH, RATE = 512, 20, 512, 1e-3
LEAST_STEPS = 200
DECAYS = (1e-3, 1e-1, 1.0)
SEEDS = 3


def mlp(train: Labelled, test: Labelled, options: Options) -> Measurement:
    """Linear, ReLU, dropout, linear on standardised features, by AdamW; its weight decay is the one of three that does best on a
    stratified fifth of train. The mean of three initial weights, with their spread."""
    classes, codes = class_codes(train.labels)
    mean, scale = train.features.mean(0), train.features.std(0, correction=0)
    scale = torch.where(scale > 1e-6 * mean.abs(), scale, torch.ones_like(scale))
    x = ((train.features - mean) / scale).float()
    rest, held = stratified_split(train.labels, 0.2, options.seed)
    decay = DECAYS[0]
    if len(held):
        right = {}
        for each in DECAYS:
            net = _fitted(x[rest], codes[rest], len(classes), each, options.seed)
            right[each] = float((_scores(net, x[held]).argmax(1) == codes[held]).double().mean())
        decay = max(DECAYS, key=lambda each: right[each])
    asked = ((test.features - mean) / scale).float()
    draws = [
        classified(
            ranked(_scores(_fitted(x, codes, len(classes), decay, options.seed + n), asked), classes),
            test.labels,
            len(classes),
        )
        for n in range(SEEDS)
    ]
    measurement = mean_over_draws(draws, len(test), {**draws[0].details, "weight_decay": decay})
    return replace(measurement, answers=draws[0].answers)


def _fitted(
    x: Float[Tensor, "row dim"], codes: Int[Tensor, "row"], classes: int, decay: float, seed: int
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(x.shape[1], HIDDEN), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(HIDDEN, classes)
        ).to(x.device)
        search = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=decay)
        per_epoch = -(-len(x) // BATCH)
        epochs = max(EPOCHS, -(-LEAST_STEPS // per_epoch))
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(search, epochs * per_epoch)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).to(x.device).split(BATCH):
                loss = functional.cross_entropy(net(x[rows]), codes[rows])
                search.zero_grad(set_to_none=True)
                loss.backward()
                search.step()
                rate.step()
    return copy.deepcopy(net).eval()


@torch.no_grad()
def _scores(net: nn.Module, x: Float[Tensor, "row dim"]) -> Float[Tensor, "row class"]:
    return net(x)
