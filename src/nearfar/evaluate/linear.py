"""A linear probe that is solved exactly instead of trained: it has no learning rate.

Multinomial logistic regression on standardised features,

    minimise over W, b   mean_i [ logsumexp(W x_i + b) - (W x_i + b)_{y_i} ] + penalty / 2 |W|^2,

which is scikit-learn's LogisticRegression with C = 1 / (penalty n). With two classes, for which scikit-learn
fits one weight vector, W_1 = -W_0, and C = 2 / (penalty n) gives the same probabilities. The problem is
convex, so the solution depends on the features alone. L-BFGS finds it in tens of passes because it starts
from the Hessian at W = 0, G / classes + penalty I, where G is the correlation matrix of the features. Raw
pixels, whose neighbours are nearly equal, would otherwise need thousands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from nearfar.core.optimisers import eager
from nearfar.errors import UserError
from nearfar.evaluate.accuracy import TOP, hit_rates
from nearfar.evaluate.sets import LabelledFeatures, class_codes, stratified_split

PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
_VALIDATION = 0.2
_PATIENCE = 2  # penalties in a row without a better validation score before the rest of the path is left out
_EXACT = 2**22  # features of up to this many numbers are solved in float64 throughout
_WIDEST = 4096  # dimensions up to which the correlation matrix is built and factored
_ITERATIONS = 500

# Largest entry of the gradient in the preconditioned coordinates at which a solution is accepted. There the
# Hessian starts as the identity, so the objective is then within about 1e-5 nats of its minimum on the path
# of penalties (enough to rank them), 1e-7 (float32) or 1e-12 (float64) in the fit that counts. Rounding in
# float32 may leave a larger gradient; then the search ends where the objective stops falling by 1e-9.
_ROUGH, _FINE = 1e-4, {torch.float32: 1e-6, torch.float64: 1e-8}


@dataclass(frozen=True)
class LinearClassifier:
    """log p(class | x) = log softmax(W (x - mean) / scale + b)."""

    weight: Float64[Tensor, "class dim"]
    bias: Float64[Tensor, "class"]
    mean: Float[Tensor, "dim"]
    scale: Float[Tensor, "dim"]
    classes: Int[Tensor, "class"]

    def log_probabilities(self, features: Float[Tensor, "image dim"]) -> Float[Tensor, "image class"]:
        x = (features.to(self.mean) - self.mean) / self.scale
        return (x @ self.weight.to(x.dtype).T + self.bias.to(x.dtype)).log_softmax(1)

    def ranked_classes(self, features: Float[Tensor, "image dim"]) -> Int[Tensor, "image rank"]:
        """The five likeliest classes of each image (all of them if fewer), likeliest first."""
        scores = self.log_probabilities(features)
        return self.classes[scores.topk(min(TOP, len(self.classes)), dim=1).indices]


def linear(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, "train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, "test"],
    *,
    penalties: Sequence[float] = PENALTIES,
    seed: int = 0,
) -> dict[str, float]:
    """Top-1 and top-5 of a linear classifier of the features, and the penalty it was fitted with."""
    classifier, penalty = fit_chosen(train, train_labels, penalties=penalties, seed=seed)
    ranked = classifier.ranked_classes(test.to(train.device))
    return {**hit_rates(ranked, test_labels.to(ranked.device)), "penalty": penalty}


SGD_EPOCHS, SGD_RATE, SGD_MOMENTUM, SGD_BATCH = 100, 0.01, 0.9, 256


def fit_by_sgd(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, "train"],
    *,
    epochs: int = SGD_EPOCHS,
    seed: int = 0,
) -> LinearClassifier:
    """The linear probe of Wu et al. 2021, sec. 5: SGD with rate 0.01 and momentum 0.9 on the features as they
    are, no weight decay and no drop of the rate, 100 epochs of batches of 256. It depends on rate and scale of
    the features; `fit_chosen` does not."""
    classes, codes = labels.unique(return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    x = train.float()
    one_hot = torch.nn.functional.one_hot(codes, len(classes)).to(x)
    weight, bias = x.new_zeros(len(classes), x.shape[1]), x.new_zeros(len(classes))
    velocities = torch.zeros_like(weight), torch.zeros_like(bias)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).to(x.device).split(SGD_BATCH):
            error = ((x[rows] @ weight.T + bias).softmax(1) - one_hot[rows]) / len(rows)
            gradients = error.T @ x[rows], error.sum(0)
            for parameter, velocity, gradient in zip((weight, bias), velocities, gradients, strict=True):
                velocity.mul_(SGD_MOMENTUM).add_(gradient)
                parameter.sub_(velocity, alpha=SGD_RATE)
    return LinearClassifier(
        weight.double(), bias.double(), x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), classes
    )


def fit_linear(
    train: Float[Tensor, "train dim"], labels: Int[Tensor, "train"], penalty: float
) -> LinearClassifier:
    """The classifier that minimises the penalised loss on all of `train`."""
    return fit_chosen(train, labels, penalties=(penalty,))[0]


def linear_probe(train: LabelledFeatures, seed: int) -> tuple[LinearClassifier, float]:
    """The linear probe of these features and its penalty, solved once for all protocols that use it."""
    key = ("linear", seed)
    if key not in train.fits:
        train.fits[key] = fit_chosen(train.features, train.labels, seed=seed)
    classifier, penalty = train.fits[key]
    return classifier, penalty


def fit_chosen(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, "train"],
    *,
    penalties: Sequence[float] = PENALTIES,
    seed: int = 0,
) -> tuple[LinearClassifier, float]:
    """The classifier fitted to all of `train` with the penalty that does best on a stratified fifth of it.

    If no class has two images, this fifth does not exist, and the middle penalty is used.
    """
    if not penalties or not all(0 < penalty < math.inf for penalty in penalties):
        raise UserError(f"penalties were {tuple(penalties)}; they must be one or more numbers above 0")
    classes, codes = class_codes(labels)
    fit, holdout = stratified_split(labels, _VALIDATION, seed)
    rows = torch.cat([fit, holdout])  # so that the part to fit on is a view, not a copy
    x, mean, scale = _standardised(train[rows])
    problem = _Problem(x, codes[rows], len(classes), _correlation(x))
    start = _Solution(x.new_zeros(len(classes), x.shape[1]).double(), x.new_zeros(len(classes)).double())
    path = sorted(set(penalties), reverse=True)
    if len(path) == 1 or not len(holdout):
        penalty = path[len(path) // 2]
    else:
        penalty, start = _best_on_holdout(problem, len(fit), path, start)
    solution = problem.minimum(penalty, start, _FINE[x.dtype])
    return LinearClassifier(solution.weight, solution.bias, mean, scale, classes), penalty


@dataclass(frozen=True)
class _Solution:
    weight: Float64[Tensor, "class dim"]
    bias: Float64[Tensor, "class"]


@dataclass(frozen=True)
class _Problem:
    """Standardised features, their classes, and the correlation matrix that preconditions the search."""

    x: Float[Tensor, "row dim"]
    codes: Int[Tensor, "row"]
    classes: int
    correlation: Float64[Tensor, "dim dim"] | None

    def first(self, rows: int) -> "_Problem":
        return _Problem(self.x[:rows], self.codes[:rows], self.classes, self.correlation)

    def logits(self, at: _Solution) -> Float[Tensor, "class row"]:
        # Classes lead: (class, row) @ (row, dim) is up to 25 times as fast as (dim, row) @ (row, class)
        return torch.addmm(at.bias.to(self.x.dtype)[:, None], at.weight.to(self.x.dtype), self.x.T)

    def loss_and_slope(self, at: _Solution, penalty: float) -> tuple[Tensor, _Solution]:
        """The objective and its gradient in W and b."""
        log_p = self.logits(at).log_softmax(0)
        truth = self.codes[None, :]
        loss = -log_p.gather(0, truth).double().mean() + 0.5 * penalty * at.weight.square().sum()
        residual = log_p.exp_().scatter_add_(0, truth, log_p.new_full(truth.shape, -1.0))
        weight = (residual @ self.x).double() / len(self.x) + penalty * at.weight
        return loss, _Solution(weight, residual.double().mean(1))

    def minimum(self, penalty: float, start: _Solution, tolerance: float) -> _Solution:
        """L-BFGS in coordinates V = W L, c = b / sqrt(classes), where L L' is the Hessian at W = 0."""
        factor = self._factor(penalty)
        stretch = math.sqrt(self.classes)
        v = (start.weight @ factor).requires_grad_()
        c = (start.bias / stretch).requires_grad_()

        def solution() -> _Solution:
            weight = torch.linalg.solve_triangular(factor, v.detach(), upper=False, left=False)
            return _Solution(weight, c.detach() * stretch)

        def closure() -> Tensor:
            loss, slope = self.loss_and_slope(solution(), penalty)
            back = torch.linalg.solve_triangular(factor.T, slope.weight, upper=True, left=False)
            v.grad, c.grad = back.contiguous(), slope.bias * stretch
            return loss

        search = eager(torch.optim.LBFGS)(
            [v, c],
            max_iter=_ITERATIONS,
            history_size=20,
            tolerance_grad=tolerance,
            tolerance_change=1e-9 if self.x.dtype == torch.float32 else 1e-15,
            line_search_fn="strong_wolfe",
        )
        search.step(closure)  # type: ignore[no-untyped-call,unused-ignore]
        return solution()

    def _factor(self, penalty: float) -> Float64[Tensor, "dim dim"]:
        identity = torch.eye(self.x.shape[1], dtype=torch.float64, device=self.x.device)
        if self.correlation is None:
            return identity * math.sqrt(1.0 / self.classes + penalty)
        shift = penalty
        while True:
            factor, failed = torch.linalg.cholesky_ex(self.correlation / self.classes + shift * identity)
            if not failed.item():
                return factor
            # float32 rounding can leave an eigenvalue a little below zero; a preconditioner need not be exact
            shift *= 10.0


def _best_on_holdout(
    problem: _Problem, fitted: int, path: Sequence[float], start: _Solution
) -> tuple[float, _Solution]:
    """The penalty of best accuracy (then lowest loss) on the rows past `fitted`, and its solution.

    From strong to weak, each solution starting the next.
    """
    fit = problem.first(fitted)
    holdout = _Problem(problem.x[fitted:], problem.codes[fitted:], problem.classes, None)
    best: tuple[tuple[float, float], float, _Solution] | None = None
    behind = 0
    for penalty in path:
        start = fit.minimum(penalty, start, _ROUGH)
        log_p = holdout.logits(start).log_softmax(0)
        accuracy = (log_p.argmax(0) == holdout.codes).double().mean().item()
        score = accuracy, log_p.gather(0, holdout.codes[None]).double().mean().item()
        if best is None or score > best[0]:
            best, behind = (score, penalty, start), 0
        else:
            behind += 1
        if behind == _PATIENCE:
            break
    assert best is not None
    return best[1:]


def _standardised(
    rows: Float[Tensor, "row dim"],
) -> tuple[Float[Tensor, "row dim"], Float[Tensor, "dim"], Float[Tensor, "dim"]]:
    """Rows with mean 0 and deviation 1 in every dimension that varies, and the mean and scale taken out."""
    dtype = torch.float64 if rows.numel() <= _EXACT else torch.float32
    mean = rows.mean(0, dtype=torch.float64)
    x = rows.to(dtype) - mean.to(dtype)
    scale = x.std(0, correction=0)
    # a constant dimension has only rounding left, which must not be blown up to deviation 1
    scale[scale <= 1e-6 * mean.abs()] = 1.0
    scale[scale == 0] = 1.0
    return x.div_(scale), mean.to(dtype), scale


def _correlation(x: Float[Tensor, "row dim"]) -> Float64[Tensor, "dim dim"] | None:
    """x'x / n, from evenly spaced rows when there are many more than a preconditioner needs."""
    dim = x.shape[1]
    if dim > _WIDEST:
        return None
    sample = x[:: max(1, len(x) // max(4 * dim, 4096))]
    return (sample.T @ sample).double() / len(sample)
