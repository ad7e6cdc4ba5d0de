"""Results: a number of nats with interval, lower limit, ceiling and certificates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from nearfar.core.notebook import table_html
from nearfar.core.types import Certificate


class AtLeast(float):
    """A lower confidence limit in nats; it is the number itself.

    `confidence` is that of the limit, `bound` the name of the bound it was read from, `certificate` what it
    proves.
    """

    confidence: float
    certificate: Certificate
    bound: str

    def __new__(cls, nats: float, confidence: float, certificate: Certificate, bound: str) -> "AtLeast":
        limit = super().__new__(cls, nats)
        limit.confidence, limit.certificate, limit.bound = confidence, certificate, bound
        return limit

    @property
    def nats(self) -> float:
        return float(self)

    def as_json(self) -> dict[str, Any]:
        return {
            "nats": self.nats,
            "confidence": self.confidence,
            "certificate": certificate_json(self.certificate),
            "bound": self.bound,
        }

    def __str__(self) -> str:
        ceiling = self.certificate.ceiling
        limit = "no ceiling" if ceiling is None else f"ceiling {ceiling:.3f}"
        return (
            f"at least {self.nats:.4f} nats with {self.confidence:.0%} confidence ({self.bound}, {limit}); "
            f"{self.certificate.status}: {self.certificate.summary}"
        )


def certificate_json(certificate: Certificate) -> dict[str, str]:
    return {"status": certificate.status, "condition": certificate.condition}


class NatsResult:
    """The part that all results share: conversion to bits, JSON, and lines of warnings."""

    nats: float
    interval: tuple[float, float]
    confidence: float
    certificate: Certificate
    samples: Any
    warnings: tuple[str, ...]

    @property
    def bits(self) -> float:
        return self.nats / math.log(2)

    def interval_text(self) -> str:
        """The interval as text; "and up" if it has no upper end."""
        low, high = self.interval
        return f"{low:.4f} to {high:.4f}" if math.isfinite(high) else f"{low:.4f} and up"

    def drawn_interval(self) -> tuple[float, float]:
        """The interval for plots.

        Without an upper end it extends to 1.5 times the estimate, at least one nat more.
        """
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

    def _lines(self, *lines: str, interval_name: str = "interval", remark: str = "") -> str:
        """The text of a result: the number, further lines, warnings."""
        interval = f"{interval_name} {self.interval_text()}{remark}"
        number = f"{self.nats:.4f} nats ({self.bits:.4f} bits), {interval}"
        return "\n".join([number, *lines, *(f"warning: {warning}" for warning in self.warnings)])


@dataclass(frozen=True)
class Estimate(NatsResult):
    """An estimate of mutual information and what it proves.

    With `bound="auto"`, `nats` is the best estimate and `interval` one whose coverage was measured on
    problems of known information. With a bound chosen by the user, `nats` is the value of the bound and
    `interval` that of its
    expectation: the information can be above both ends. `at_least` is a lower confidence limit of it.
    """

    nats: float
    interval: tuple[float, float]
    confidence: float
    at_least: AtLeast
    ceiling: float | None  # nats
    certificate: Certificate  # of `nats`
    bound: str
    critic: str
    samples: int
    scaling: str
    reason: str  # why this bound
    folds: tuple[float, ...] = field(repr=False)  # nats, per fold
    p_value: float | None = None  # of independence, by permutations; None with a chosen bound
    # log ratios, predicted and counted on unseen rows
    calibration: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    # nats on training and on unseen rows
    learning: Mapping[str, float] = field(default_factory=dict, repr=False)
    baselines: Mapping[str, float] = field(default_factory=dict)  # nats
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
        interval_name = f"{self.confidence:.0%} interval"
        remark = ""
        certificate = []
        if self.p_value is not None:
            remark = f"; p = {self.p_value:.3g} for independence"
        else:
            interval_name = f"the bound's {interval_name}"
            remark = " (sampling error: the information can be higher)"
            ceiling = "no ceiling" if self.ceiling is None else f"ceiling {self.ceiling:.3f}"
            certificate = [f"{self.bound}, {ceiling}; {self.certificate.status}: {self.certificate.summary}"]
        baselines = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
        return self._lines(
            *certificate,
            str(self.at_least),
            f"bound {self.bound} ({self.reason}); {self.samples} samples, {self.scaling}; {self.seconds:.1f} s",
            f"critic {self.critic}",
            *([f"baselines: {baselines}"] if baselines else []),
            interval_name=interval_name,
            remark=remark,
        )

    def _repr_html_(self) -> str:
        limit = self.at_least
        rows = [
            ["estimate", f"{self.nats:.4f} nats ({self.bits:.4f} bits)"],
            [f"{self.confidence:.0%} interval", self.interval_text()],
            [f"at least ({limit.confidence:.0%})", f"{limit.nats:.4f} nats"],
            *([["p (independence)", f"{self.p_value:.3g}"]] if self.p_value is not None else []),
            ["rows", str(self.samples)],
        ]
        notes = "".join(f"<br>warning: {escape(warning)}" for warning in self.warnings)
        return f"{table_html(rows)}<small>at least: {limit.certificate._repr_html_()}{notes}</small>"

    def plot(self) -> Any:
        """A matplotlib figure: the estimate beside its limits and baselines, the fit, the calibration."""
        from nearfar.estimate.plot import estimate_figure

        return estimate_figure(self)
