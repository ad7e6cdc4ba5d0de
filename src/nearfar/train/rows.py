"""What is written down of a step and of a look at held-out instances."""

import math
from collections.abc import Mapping
from typing import Any

from nearfar.core.schedules import at
from nearfar.evaluate.held_out import HeldOut
from nearfar.system.hardware import peak_memory
from nearfar.train.monitors import Readings
from nearfar.train.trainer import Step, Trainer


def train_row(trainer: Trainer, taken: Step, seen: Readings, rate: float) -> dict[str, Any]:
    """What is logged of a step; what is not finite is null, which JSON can hold."""
    outcome, scheduled = taken.outcome, {"lr": trainer.lr, **trainer.settings.schedules()}
    numbers = {
        "loss": float(outcome.loss.detach()),
        "nats": math.nan if outcome.nats is None else float(outcome.nats),
        "ceiling": math.nan if outcome.ceiling is None else outcome.ceiling,
        **({} if outcome.prior is None else {"prior": float(outcome.prior.detach())}),
        "images_per_s": rate,
        **({} if (most := peak_memory(trainer.device)) is None else {"peak_memory": most}),
        "grad_norm": taken.norm,
        "deviation": seen.deviation,
        "rank": seen.rank,
        "mean_cosine": seen.mean_cosine,
        **{name: at(value, taken.progress) for name, value in scheduled.items()},
        **trainer.method.learnt(),
    }
    return {"kind": "train", "step": trainer.step, "epoch": trainer.progress.epoch, **finite(numbers)}


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """What is not finite as null, which JSON can hold."""
    return {key: value if math.isfinite(value) else None for key, value in numbers.items()}


def held_out_row(found: HeldOut) -> dict[str, Any]:
    certificate = found.certificate
    numbers = {"nats": found.nats, "error": found.error, "ceiling": certificate.ceiling}
    finite = {k: v if v is not None and math.isfinite(v) else None for k, v in numbers.items()}
    return {
        **finite,
        "instances": found.instances,
        "status": certificate.status,
        "condition": certificate.condition,
    }


def held_out_line(found: HeldOut, tells: str) -> str:
    certificate = found.certificate
    ceiling = "" if certificate.ceiling is None else f", ceiling {certificate.ceiling:.3g}"
    return (
        f"on {found.instances} held-out instances: {found.nats:.3f} ± {found.error:.3f} nats {tells} "
        f"({certificate.status} lower bound{ceiling})"
        if certificate.status == "proven"
        else f"on {found.instances} held-out instances: {found.nats:.3f} nats, {certificate.status}: {certificate.condition}"
    )
