"""Agreement of the positive pair alone, without negatives (BYOL)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import Progress
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.parts.bounds.claims import objective


@dataclass(frozen=True)
class Agreement(AbstractBound):
    """Minus the squared distance of unit vectors: -|q - z|^2 = 2 cos(q, z) - 2 (Sáez Maldonado 2021, Eq. 25, sec. 8.1).

    Reads the positive score as a cosine, so its critic is `Cosine(temperature=1)`.
    """

    equation = "E[ 2 f(u, v+) - 2 ] = -E[ |u - v+|^2 ] of unit vectors"
    reads_negatives = False
    needs_bounded_scores = True  # scores: longer vectors would agree ever more

    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]:
        return scores.over_positives(lambda f: 2.0 * f - 2.0)

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        return False

    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        return objective("agreement of two views says nothing about information")
