"""Network and epochs by the machine, where the user names none: resnet18 for 100 epochs is for GPUs, and would take a CPU days."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearfar.config.building import NONE
from nearfar.config.objects import Objects
from nearfar.config.resolving import resolve
from nearfar.config.settings import Settings
from nearfar.modalities import Modality
from nearfar.run.folder import RunFolder
from nearfar.system.hardware import pick_device

EPOCHS_ON_CPU = 20


def resolve_here(
    recipe: str,
    data: str,
    out: Path | None,
    *layers: Mapping[str, Any],
    modality: Modality | None = None,
    objects: Objects = NONE,
) -> tuple[Settings, str | None]:
    """The settings as `resolve` gives them, with defaults for this machine, and a sentence about those if there are any."""
    settings = resolve(recipe, data, *layers, modality=modality, objects=objects)
    # encoders, or a whole method, that somebody made have their network
    own = {"backbone": None} if {"backbone", "encoders", "method"} & set(objects) else {}
    here, said = machine_defaults(settings, out, own, *layers)
    again = resolve(recipe, data, here, *layers, modality=modality, objects=objects) if here else settings
    return again, said


def machine_defaults(
    settings: Settings, out: Path | None, *layers: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """A run that was begun keeps what was chosen for it, on whatever machine it goes on."""
    small = settings.modality.small_network
    if small is None:  # the modality's networks suit a CPU as they are
        return {}, None
    defaults = {"backbone": small, "epochs": EPOCHS_ON_CPU}
    free = [key for key in defaults if not any(key in layer for layer in layers)]
    if out is not None and RunFolder(out).config.is_file():
        begun = RunFolder(out).settings()
        return {key: getattr(begun, key) for key in free if begun.recipe == settings.recipe}, None
    on_cpu = settings.device == "cpu" or (settings.device == "auto" and pick_device("auto").type == "cpu")
    if not free or not on_cpu:
        return {}, None
    chosen = {key: defaults[key] for key in free}
    said = " and ".join(f"{key}={value}" for key, value in chosen.items())
    return chosen, f"{said} chosen for a CPU; name them to choose yourself"
