"""Entropy, divergence and mutual information of discrete distributions (Sáez Maldonado 2021, ch. 3).

    entropy([0.5, 0.5])                             0.693  (nats; base=2 gives 1 bit)
    kl([1.0, 0.0], [0.5, 0.5])                      0.693
    mutual_information([[0.5, 0.0], [0.0, 0.5]])    0.693

A joint distribution is a matrix: entry [x, y] is the probability of X = x and Y = y. Lists, numpy arrays and
torch tensors go in, a Python float comes out. 0 log 0 counts as 0. A sum within 1e-6 of one is
rescaled to one; any other is refused.
"""

import math
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from nearfar.errors import UserError
from nearfar.estimate import settings


def entropy(p: Any, base: float = math.e) -> float:
    """H(X) = -sum_x p(x) log p(x) (Sáez Maldonado 2021, Def. 3.1.1).

    Of a matrix, the joint entropy H(X, Y).
    """
    p = _distribution(p, "p")
    return _in_base(-_expected_log(p, p), base)


def cross_entropy(p: Any, q: Any, base: float = math.e) -> float:
    """-sum_x p(x) log q(x) = H(p) + KL(p || q), the cost of coding p by q; inf where q = 0 < p."""
    p, q = _pair(p, q)
    return _in_base(-_expected_log(p, q), base)


def kl(p: Any, q: Any, base: float = math.e) -> float:
    """KL(p || q) = sum_x p(x) log(p(x) / q(x)); inf where q = 0 < p."""
    p, q = _pair(p, q)
    return _in_base(_expected_log(p, p) - _expected_log(p, q), base)


def conditional_entropy(joint: Any, given: Literal["x", "y"] = "y", base: float = math.e) -> float:
    """H(X | Y) = -sum_{x,y} p(x, y) log(p(x, y) / p(y)) (Sáez Maldonado 2021, Def. 3.1.2), X along rows, Y
    along columns.

    `given="y"`, the default, is the thesis's H(X | Y); `given="x"` is H(Y | X).
    """
    if given not in ("x", "y"):
        raise UserError(f"given was {given!r}; expected x (for H(Y|X)) or y (for H(X|Y))")
    joint = _joint(joint)
    marginal = joint.sum(axis=0 if given == "y" else 1)
    return _in_base(_expected_log(marginal, marginal) - _expected_log(joint, joint), base)


def mutual_information(joint: Any, base: float = math.e) -> float:
    """I(X, Y) = H(X) - H(X | Y) = KL(p(x, y) || p(x) p(y)) (Sáez Maldonado 2021, Def. 3.1, Eq. 4)."""
    joint = _joint(joint)
    x, y = joint.sum(axis=1), joint.sum(axis=0)
    # the marginals' logarithms are added: their product can underflow to zero where the joint has not
    value = _expected_log(joint, joint) - _expected_log(x, x) - _expected_log(y, y)
    return _in_base(value, base)


def _expected_log(p: np.ndarray, q: np.ndarray) -> float:
    """sum p log q over all outcomes with p > 0."""
    occurs = p > 0
    with np.errstate(divide="ignore"):
        return float(math.fsum(p[occurs] * np.log(q[occurs])))


def _in_base(nats: float, base: float) -> float:
    """Converts nats to another base. Every quantity here is at least zero.

    Rounding must not make it negative.
    """
    numeric = isinstance(base, (int, float)) and not isinstance(base, bool)
    if not numeric or not 1 < base < math.inf:
        raise UserError(f"base was {base!r}; expected a number above 1: 2 for bits, e for nats")
    return max(0.0, nats) / math.log(base)  # in this order a zero has no minus


def _pair(p: Any, q: Any) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    p, q = _distribution(p, "p"), _distribution(q, "q")
    if p.shape != q.shape:
        raise UserError(f"p and q must be over the same outcomes; their shapes were {p.shape} and {q.shape}")
    return p, q


def _joint(joint: Any) -> Float[np.ndarray, "x y"]:
    joint = _distribution(joint, "joint")
    if joint.ndim != 2:
        raise UserError(f"joint must be a matrix p(x, y); its shape was {joint.shape}")
    return joint


def _distribution(values: Any, name: str) -> Float[np.ndarray, "..."]:
    """Checked probabilities as float64 that sum to one."""
    p = _numbers(values, name)
    if p.size == 0 or p.ndim == 0:
        raise UserError(
            f"{name} was {'empty' if p.size == 0 else 'a single number'}; it must be a list of probabilities"
        )
    if not np.isfinite(p).all():
        raise UserError(f"{name} holds {p[~np.isfinite(p)][0]}; probabilities are finite numbers")
    if p.min() < 0:
        raise UserError(f"{name} holds {p.min():g}; probabilities are never negative")
    with np.errstate(over="ignore"):
        total = p.sum()
    if abs(total - 1) > settings.SUM_TOLERANCE:
        raise UserError(f"{name} sums to {total:g}; probabilities sum to 1 (divide counts by their sum)")
    return p / total


def _numbers(values: Any, name: str) -> Float[np.ndarray, "..."]:
    if isinstance(values, Tensor) and values.is_floating_point():
        values = values.detach().double().cpu()  # numpy has no bfloat16
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # ragged lists; tensors numpy cannot hold
        array = np.asarray(None)
    if array.dtype.kind not in "fiu":
        raise UserError(f"{name} was {_short(values)}; it must be an array of numbers")
    return array.astype(np.float64)


def _short(values: Any) -> str:
    text = " ".join(repr(values).split())
    return text if len(text) <= 60 else text[:57] + "..."
