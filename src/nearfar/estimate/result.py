"""What `estimate_mi` answers: a number, its interval, a bound from below, a ceiling, and what each of them proves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearfar.types import Certificate


class AtLeast(float):
    """A one-sided bound: with this confidence the information is at least so many nats. It is the number itself."""

    confidence: float
    certificate: Certificate

    def __new__(cls, nats: float, confidence: float, certificate: Certificate) -> "AtLeast":
        made = super().__new__(cls, nats)
        made.confidence, made.certificate = confidence, certificate
        return made

    @property
    def nats(self) -> float:
        return float(self)

    def as_json(self) -> dict[str, Any]:
        return {
            "nats": self.nats,
            "confidence": self.confidence,
            "certificate": certificate_json(self.certificate),
        }


def certificate_json(certificate: Certificate) -> dict[str, str]:
    return {"status": certificate.status, "condition": certificate.condition}


@dataclass(frozen=True)
class Estimate:
    """An estimate of mutual information and what it proves.

    `interval` is where the bound's own expectation lies (sampling error, and upwards what fitting cost): the truth can
    lie above both ends, if no critic found it. `at_least` is what the information does not fall below.
    """

    nats: float
    interval: tuple[float, float]
    confidence: float
    at_least: AtLeast
    ceiling: float | None
    certificate: Certificate
    bound: str
    critic: str
    samples: int
    scaling: str
    reason: str  # why this bound
    folds: tuple[float, ...]
    baselines: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def bits(self) -> float:
        return self.nats / math.log(2)

    def as_json(self) -> dict[str, Any]:
        return {
            "nats": self.nats,
            "bits": self.bits,
            "interval": list(self.interval),
            "confidence": self.confidence,
            "at_least": self.at_least.as_json(),
            "ceiling": self.ceiling,
            "certificate": certificate_json(self.certificate),
            "bound": self.bound,
            "critic": self.critic,
            "samples": self.samples,
            "scaling": self.scaling,
            "reason": self.reason,
            "folds": list(self.folds),
            "baselines": dict(self.baselines),
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        low, high = self.interval
        ceiling = "no ceiling" if self.ceiling is None else f"ceiling {self.ceiling:.3f}"
        others = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
        lines = [
            f"{self.nats:.4f} nats ({self.bits:.4f} bits); the bound's {self.confidence:.0%} interval {low:.4f} to {high:.4f} "
            f"(sampling error: the truth can be higher); {ceiling}",
            f"at least {self.at_least.nats:.4f} nats with {self.at_least.confidence:.0%} confidence; "
            f"{self.at_least.certificate.status}: {self.at_least.certificate.condition}",
            f"bound {self.bound} ({self.reason}); critic {self.critic}; {self.samples} samples, {self.scaling}; "
            f"{self.seconds:.1f} s",
            *([f"baselines: {others}"] if others else []),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)
