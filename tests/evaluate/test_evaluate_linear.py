"""The linear probe reaches the optimum of scikit-learn's solver and never reads the test labels."""

from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from nearfar.errors import UserError
from nearfar.evaluate.linear import PENALTIES, fit_by_sgd, fit_chosen, fit_linear, linear
from nearfar.evaluate.sets import stratified_split


def mixture(seed: int, rows: int, dim: int, classes: int) -> tuple[Tensor, Tensor]:
    """Overlapping Gaussian classes in correlated dimensions of very different scale and place."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[:classes] = torch.arange(classes)
    centres = torch.randn(classes, dim, generator=generator)
    mixing = torch.randn(dim, dim, generator=generator)
    scale = 10 ** torch.linspace(-3, 3, dim)
    noise = torch.randn(rows, dim, generator=generator)
    return ((centres[labels] + 1.5 * noise) @ mixing + 5) * scale, labels


def sklearn_probabilities(train: Tensor, labels: Tensor, test: Tensor, penalty: float) -> np.ndarray:
    x = train.double().numpy()
    mean, scale = x.mean(0), x.std(0)
    scale[scale < 1e-6 * np.abs(mean)] = 1
    scale[scale == 0] = 1
    factor = 2 if len(labels.unique()) == 2 else 1  # scikit-learn fits one weight vector for two classes
    model = LogisticRegression(C=factor / (penalty * len(x)), solver="newton-cg", tol=1e-10, max_iter=2000)
    model.fit((x - mean) / scale, labels.numpy())
    p: np.ndarray = model.predict_proba((test.double().numpy() - mean) / scale)
    return p


@settings(deadline=None, max_examples=12)
@given(
    st.integers(0, 2**20), st.integers(30, 200), st.integers(2, 12), st.integers(2, 6), st.floats(-4.0, 0.0)
)
def test_probabilities_equal_sklearn(seed: int, rows: int, dim: int, classes: int, exponent: float) -> None:
    train, labels = mixture(seed, rows, dim, classes)
    test, _ = mixture(seed + 1, 50, dim, classes)
    ours = fit_linear(train, labels, 10**exponent).log_probabilities(test).exp()
    # far outside the training data a probability is a steep function of W, so training rows are compared
    inside = fit_linear(train, labels, 10**exponent).log_probabilities(train).exp()
    assert np.abs(inside.numpy() - sklearn_probabilities(train, labels, train, 10**exponent)).max() < 1e-3
    assert ours.sum(1).allclose(torch.ones(len(test), dtype=ours.dtype))


def test_two_classes_equal_sklearn_with_twice_its_c() -> None:
    """penalty / 2 |W|^2 with W_1 = -W_0 = w / 2 is penalty / 4 |w|^2, so C = 2 / (penalty n)."""
    train, labels = mixture(0, 120, 4, 2)
    x = (train - train.double().mean(0)) / train.double().std(0, correction=0)
    ours = fit_linear(train, labels, 0.1)
    coefficients = {}
    for factor in (1, 2):
        model = LogisticRegression(C=factor / (0.1 * len(x)), solver="newton-cg", tol=1e-10, max_iter=2000)
        coefficients[factor] = model.fit(x.numpy(), labels.numpy()).coef_[0]
    assert (ours.weight[1] - ours.weight[0]).numpy() == pytest.approx(coefficients[2], abs=1e-4)
    assert np.abs(coefficients[1] - coefficients[2]).max() > 1e-2


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, classes = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float(), torch.from_numpy(classes).long()
    rest, holdout = stratified_split(y, 0.3, 0)
    return x[rest], y[rest], x[holdout], y[holdout]


@pytest.mark.parametrize("penalty", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("widest", [4096, 0], ids=["preconditioned", "too wide to precondition"])
@pytest.mark.parametrize("exact", [2**22, 0], ids=["float64", "float32"])
def test_digits_equal_sklearn(
    penalty: float, widest: int, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits have constant and almost constant pixels. Every path through the solver ends in one place.

    How far from the minimum f* it may end follows from the arithmetic, not from a run: the search stops at a
    gradient of at most `stop` in each of the C d coordinates whose Hessian is the identity at W = 0, where f
    - f* <= |g|^2 / (2 mu) with mu >= penalty / (penalty + |G| / C); and a term logsumexp(s) - s_y is known to
    2 eps max|s|. Probabilities follow: f - f* >= mean KL(p* || p), the Bregman divergence of log-sum-exp, >=
    mean |p* - p|_1^2 / 2 (Pinsker)."""
    module = import_module("nearfar.evaluate.linear")  # by name: the package exports the function `linear`
    monkeypatch.setattr(module, "_WIDEST", widest)
    monkeypatch.setattr(module, "_EXACT", exact)
    train, labels, _, _ = digits()
    ours = fit_linear(train, labels, penalty)
    dtype = ours.mean.dtype
    assert dtype == (torch.float64 if exact else torch.float32)
    x = (train.double() - ours.mean.double()) / ours.scale.double()
    theirs = LogisticRegression(C=1 / (penalty * len(x)), solver="newton-cg", tol=1e-10, max_iter=2000)
    theirs.fit(x.numpy(), labels.numpy())
    best, at_best, _ = objective(
        torch.from_numpy(theirs.coef_), torch.from_numpy(theirs.intercept_), x, labels, penalty
    )
    value, _, largest = objective(ours.weight, ours.bias, x, labels, penalty)
    curvature = penalty / (penalty + float(torch.linalg.matrix_norm(x.T @ x / len(x), 2)) / 10)
    stop = module._FINE[dtype]
    allowed = ours.weight.numel() * stop**2 / (2 * curvature) + 2 * torch.finfo(dtype).eps * largest
    assert value - best < allowed
    distances = (ours.log_probabilities(train).double().exp() - at_best.exp()).abs().sum(1)
    assert float(distances.square().mean()) / 2 < allowed


def objective(
    weight: Tensor, bias: Tensor, x: Tensor, labels: Tensor, penalty: float
) -> tuple[float, Tensor, float]:
    """The penalised loss in float64, the log probabilities and the largest score."""
    scores = x @ weight.T + bias
    log_p = scores.log_softmax(1)
    loss = -log_p.gather(1, labels[:, None]).mean() + penalty / 2 * weight.square().sum()
    return float(loss), log_p, float(scores.abs().max())


def test_figures_follow_from_the_chosen_classifier() -> None:
    train, labels, test, truth = digits()
    figures = linear(train, labels, test, truth)
    p = sklearn_probabilities(train, labels, test, figures["penalty"])
    assert figures["top1"] == pytest.approx((p.argmax(1) == truth.numpy()).mean(), abs=1e-9)
    top5 = np.argsort(-p, 1)[:, :5]
    assert figures["top5"] == pytest.approx((top5 == truth.numpy()[:, None]).any(1).mean(), abs=1e-9)
    assert figures["top1"] > 0.95


@pytest.mark.parametrize("noise", [0, 400])
def test_penalty_is_the_best_on_the_validation_split(noise: int) -> None:
    """With many noise dimensions a strong penalty wins, without any a weak one."""
    train, labels, _, _ = digits()
    train = torch.cat([train, torch.randn(len(train), noise, generator=torch.Generator().manual_seed(0))], 1)
    penalties = (10.0, 1e-1, 1e-3, 1e-6)
    _, selected_penalty = fit_chosen(train, labels, penalties=penalties, seed=7)
    rest, holdout = stratified_split(labels, 0.2, 7)
    scored = {}
    for penalty in penalties:
        log_p = fit_linear(train[rest], labels[rest], penalty).log_probabilities(train[holdout])
        scored[penalty] = (log_p.argmax(1) == labels[holdout]).double().mean().item()
    # the path is solved roughly: one image
    assert scored[selected_penalty] >= max(scored.values()) - 1.5 / len(holdout)
    assert selected_penalty == (1e-1 if noise else 1e-3)
    assert scored[selected_penalty] > min(scored.values()) + 0.01


def test_test_labels_do_not_touch_the_penalty_or_the_fit() -> None:
    train, labels, test, truth = digits()
    shuffled = truth[torch.randperm(len(truth), generator=torch.Generator().manual_seed(0))]
    honest, blind = linear(train, labels, test, truth), linear(train, labels, test, shuffled)
    assert honest["penalty"] == blind["penalty"]
    assert blind["top1"] < 0.3 < honest["top1"]


def test_scale_and_place_of_features_do_not_matter() -> None:
    train, labels, test, truth = digits()
    moved = linear(1e-3 * train + 7, labels, 1e-3 * test + 7, truth)
    assert moved == pytest.approx(linear(train, labels, test, truth), abs=0.01)


def test_dimensions_that_hold_only_rounding_add_nothing() -> None:
    """Blown up to deviation 1, noise in the ninth digit would let a shift in the sixth decide everything."""
    train, labels, test, truth = digits()
    noise = 1e-9 * torch.randn(len(train), 30, generator=torch.Generator().manual_seed(0)).double()
    widened = torch.cat([train.double(), 0.1 + noise], 1)
    moved = torch.cat([test.double(), torch.full((len(test), 30), 0.1 + 1e-6).double()], 1)
    assert linear(widened, labels, moved, truth) == linear(train, labels, test, truth)


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_fewer_than_five_classes(classes: int) -> None:
    train, labels = mixture(0, 60, 3, classes)
    figures = linear(train, labels, train, labels)
    assert figures["top5"] == 1
    assert figures["top1"] <= 1


def test_one_image_of_each_class_is_fitted_with_the_middle_penalty() -> None:
    figures = linear(10 * torch.eye(6), torch.arange(6), 10 * torch.eye(6), torch.arange(6))
    assert figures == {"top1": 1, "top5": 1, "penalty": PENALTIES[len(PENALTIES) // 2]}


@pytest.mark.parametrize("penalties", [(), (0.0,), (1.0, -1.0), (float("inf"),)])
def test_impossible_penalties_are_named(penalties: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="penalties were"):
        linear(torch.eye(4), torch.arange(4), torch.eye(4), torch.arange(4), penalties=penalties)


def test_the_papers_own_probe_is_torchs_sgd() -> None:
    """Wu et al. 2021, sec. 5: rate 0.01, momentum 0.9, no decay, batches of 256, weights that begin at zero."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 5, generator=generator), torch.randint(3, (300,), generator=generator) + 4
    classifier = fit_by_sgd(x, y, epochs=3, seed=7)
    layer = torch.nn.Linear(5, 3)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    optimiser = torch.optim.SGD(layer.parameters(), 0.01, momentum=0.9)
    order = torch.Generator().manual_seed(7)
    for _ in range(3):
        for rows in torch.randperm(300, generator=order).split(256):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(layer(x[rows]), y[rows] - 4).backward()
            optimiser.step()
    torch.testing.assert_close(classifier.weight.float(), layer.weight.detach())
    torch.testing.assert_close(classifier.bias.float(), layer.bias.detach())
    assert set(classifier.ranked_classes(x)[:, 0].tolist()) <= {4, 5, 6}
