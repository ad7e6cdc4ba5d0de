"""The solved linear probe against a trained one: 100 epochs of SGD with tuned weight decay, same frozen
features.

    python benchmarks/probe.py RUN cifar10_test.parquet      # RUN was trained on cifar10_train.parquet

Both choose their penalty on the same stratified fifth of the training features and are then fitted on all of
them. Each reads the test set once. Seconds are CPU time, and arms are interleaved. About five minutes on one
core."""

import argparse
import json
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfar.core.statistics import wilson
from nearfar.evaluate import cached_features, features, stratified_split
from nearfar.evaluate.linear import fit_chosen
from nearfar.run.features import features_key
from nearfar.run.trained import Run

EPOCHS, BATCH, RATE, MOMENTUM = 100, 256, 0.1, 0.9
DECAYS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)


def embedded(run: Run, spec: str | None) -> tuple[Tensor, Tensor]:
    images, encoder, view = run.open_data(spec), run.encoder(), run.plain_view()
    rows = cached_features(
        run.path / "cache", features_key(encoder, images, view), lambda: features(encoder, images, view)
    )
    return rows, torch.from_numpy(images.labels)


def by_sgd(x: Tensor, y: Tensor, decay: float, epochs: int) -> nn.Linear:
    """Standardised features, rate 0.1 falling to 0 along a cosine."""
    torch.manual_seed(0)
    net = nn.Linear(x.shape[1], int(y.max()) + 1)
    search = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=decay)
    steps = epochs * (len(x) // BATCH)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(search, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            loss = functional.cross_entropy(net(x[rows]), y[rows])
            search.zero_grad(set_to_none=True)
            loss.backward()
            search.step()
            rate.step()
    return net


def tuned_sgd(x: Tensor, y: Tensor, epochs: int) -> tuple[nn.Linear, float]:
    rest, holdout = stratified_split(y, 0.2, 0)
    right = {}
    for decay in DECAYS:
        net = by_sgd(x[rest], y[rest], decay, epochs)
        right[decay] = float((net(x[holdout]).argmax(1) == y[holdout]).double().mean())
    best = max(DECAYS, key=lambda decay: right[decay])
    return by_sgd(x, y, best, epochs), best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("test")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    run = Run.open(arguments.run)
    train, labels = embedded(run, None)
    test, truth = embedded(run, arguments.test)
    spent = {"solved": 0.0, "sgd": 0.0}

    start = time.process_time()
    classifier, penalty = fit_chosen(train, labels)
    ranked = classifier.ranked_classes(test)
    spent["solved"] = time.process_time() - start

    start = time.process_time()
    mean, scale = train.mean(0), train.std(0).clamp(min=1e-6)
    net, decay = tuned_sgd((train - mean) / scale, labels, arguments.epochs)
    predictions = net((test - mean) / scale).argmax(1)
    spent["sgd"] = time.process_time() - start

    result = {}
    for name, hits in (("solved", ranked[:, 0] == truth), ("sgd", predictions == truth)):
        top1 = float(hits.double().mean())
        result[name] = {"top1": top1, "interval": wilson(top1, len(truth)), "cpu_seconds": spent[name]}
    result["solved"]["penalty"], result["sgd"]["weight_decay"] = penalty, decay
    print(json.dumps({**result, "times_as_fast": spent["sgd"] / spent["solved"]}, indent=1))


if __name__ == "__main__":
    main()
