"""Two categories in an order: as dependent as their margins and a few products of scores say, and not more (Goodman 1979).

    r(a, b) = exp( sum_kl theta_kl u_k(a) v_l(b) + alpha(a) + beta(b) )        u_k, v_k powers of the normal quantile of a level's middle rank

Of all joint distributions with these margins and these mean products it is the one of largest entropy. Where a table learns every cell, a few numbers
are learned here: counts of one cause, answers on a scale. alpha and beta make the margins right (Sinkhorn 1967).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize

from nearfar.estimate.ratios.halves import Half
from nearfar.estimate.ratios.ordered import level_places

RIDGE = 1.0  # rows' worth of theta being nought
MOST_LEVELS = 200
ROUNDS = 30  # of making both margins right


@dataclass(frozen=True)
class Association:
    log_ratio: Float[np.ndarray, "level level"]  # last row and column: not seen

    @staticmethod
    def fit(x: Half, y: Half, seed: int, powers: int) -> "Association | None":
        """None but for two categories of which both may be ordered."""
        first, second = level_places(x), level_places(y)
        if first is None or second is None or max(x.levels, y.levels) > MOST_LEVELS:
            return None
        counts = np.zeros((x.levels, y.levels))
        np.add.at(counts, (_code(x), _code(y)), 1.0)
        p, q = counts.sum(axis=1) + 1e-3, counts.sum(axis=0) + 1e-3
        p, q = p / p.sum(), q / q.sum()
        u, v = _standardised(first[:-1], p, powers), _standardised(second[:-1], q, powers)
        seen, rows = u.T @ counts @ v / len(x), len(x)

        def lost(theta: np.ndarray) -> tuple[float, np.ndarray]:
            """Mean negative log ratio and its slope: by the envelope, alpha and beta need none."""
            theta = theta.reshape(seen.shape)
            log_r = _with_margins(u @ theta @ v.T, p, q)
            model = u.T @ (np.exp(log_r) * np.outer(p, q)) @ v
            value = -(counts * log_r).sum() / rows + RIDGE * (theta**2).sum() / (2 * rows)
            return float(value), (model - seen + RIDGE * theta / rows).ravel()

        found = minimize(lost, np.zeros(seen.size), jac=True, method="L-BFGS-B", options={"maxiter": 60})
        log_r = _with_margins(u @ found.x.reshape(seen.shape) @ v.T, p, q)
        return Association(np.pad(log_r, ((0, 1), (0, 1))))

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self.log_ratio[_code(x), _code(y)]

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self.log_ratio[np.ix_(_code(x), _code(y))]


def _code(half: Half) -> Int[np.ndarray, "row"]:
    assert half.code is not None
    return half.code


def _standardised(place: np.ndarray, share: np.ndarray, powers: int) -> Float[np.ndarray, "level power"]:
    """Powers of the place, each uncorrelated with those before it, mean nought and spread one."""
    basis = place[:, None] ** np.arange(min(powers, len(place) - 1) + 1)
    turned, _ = np.linalg.qr(np.sqrt(share)[:, None] * basis)
    return turned[:, 1:] / np.sqrt(share)[:, None]


def _with_margins(
    f: Float[np.ndarray, "level level"], p: np.ndarray, q: np.ndarray
) -> Float[np.ndarray, "level level"]:
    """f + alpha + beta such that the mean of its exponential over either margin is one."""
    f = f - f.max()
    r, a, b = np.exp(np.maximum(f, -60)), np.ones(len(p)), np.ones(len(q))
    for _ in range(ROUNDS):
        a = 1 / (r @ (q * b))
        b = 1 / ((p * a) @ r)
    return np.maximum(f, -60) + np.log(a)[:, None] + np.log(b)[None, :]
