"""What `estimate_mi` answers: a number, its interval, its ceiling, and what it proves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearfar.types import Certificate


@dataclass(frozen=True)
class Estimate:
    """An estimate of mutual information and what it proves."""

    nats: float
    interval: tuple[float, float]
    confidence: float
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
            "ceiling": self.ceiling,
            "certificate": {"status": self.certificate.status, "condition": self.certificate.condition},
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
            f"{self.nats:.4f} nats ({self.bits:.4f} bits), {self.confidence:.0%} interval {low:.4f} to {high:.4f}, {ceiling}",
            f"{self.certificate.status}: {self.certificate.condition}",
            f"bound {self.bound} ({self.reason}); critic {self.critic}; {self.samples} samples, {self.scaling}; "
            f"{self.seconds:.1f} s",
            *([f"for company: {others}"] if others else []),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)
