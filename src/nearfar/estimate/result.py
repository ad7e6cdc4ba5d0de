"""What `estimate_mi` answers: a number, its interval, a bound from below, a ceiling, and what each of them proves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nearfar.core.types import Certificate


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


class InNats:
    """What every answer in nats has: the same in bits, and its common part in JSON."""

    nats: float
    interval: tuple[float, float]
    confidence: float
    certificate: Certificate
    samples: int
    warnings: tuple[str, ...]

    @property
    def bits(self) -> float:
        return self.nats / math.log(2)

    def interval_text(self) -> str:
        """The interval in words; without an upper end where nothing limits the information."""
        low, high = self.interval
        return f"{low:.4f} to {high:.4f}" if math.isfinite(high) else f"{low:.4f} and up"

    def drawn_interval(self) -> tuple[float, float]:
        """The interval as a picture shows it: without an upper end, half as far again as the estimate, at least a nat."""
        low, high = self.interval
        return low, high if math.isfinite(high) else max(1.5 * self.nats, self.nats + 1.0)

    def as_json(self) -> dict[str, Any]:
        return {
            "nats": self.nats,
            "bits": self.bits,
            "interval": [end if math.isfinite(end) else None for end in self.interval],
            "confidence": self.confidence,
            "certificate": certificate_json(self.certificate),
            "samples": self.samples,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Estimate(InNats):
    """An estimate of mutual information and what it proves.

    Of `bound="auto"`, `nats` is the best estimate and `interval` one whose coverage was measured. Of a bound asked for, they are its
    value and where its own expectation lies: the truth can lie above both ends. `at_least` is what the information does not
    fall below, with a certificate of its own.
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
    p_value: float | None = None  # of independence, by permutations
    calibration: tuple[tuple[float, float], ...] = ()  # log ratios as said and as counted on unseen rows
    learning: Mapping[str, float] = field(
        default_factory=dict
    )  # nats of rows learned from and of unseen ones
    baselines: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {
            "at_least": self.at_least.as_json(),
            "ceiling": self.ceiling,
            "bound": self.bound,
            "critic": self.critic,
            "scaling": self.scaling,
            "reason": self.reason,
            "folds": list(self.folds),
            "p_value": self.p_value,
            "learning": dict(self.learning),
            "baselines": dict(self.baselines),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        ceiling = "no ceiling" if self.ceiling is None else f"ceiling {self.ceiling:.3f}"
        others = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
        best = self.p_value is not None
        meant = f"{self.confidence:.0%} interval" if best else f"the bound's {self.confidence:.0%} interval"
        beside = (
            f"; p = {self.p_value:.3g} for independence"
            if best
            else " (sampling error: the truth can be higher)"
        )
        lines = [
            f"{self.nats:.4f} nats ({self.bits:.4f} bits), {meant} {self.interval_text()}{beside}",
            f"at least {self.at_least.nats:.4f} nats with {self.at_least.confidence:.0%} confidence, {ceiling}; "
            f"{self.at_least.certificate.status}: {self.at_least.certificate.condition}",
            f"bound {self.bound} ({self.reason}); critic {self.critic}; {self.samples} samples, {self.scaling}; "
            f"{self.seconds:.1f} s",
            *([f"baselines: {others}"] if others else []),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)
