"""Whether and from where a run continues: the newest valid checkpoint, and what may have changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nearfar.config.fields import CHOICES
from nearfar.config.recipes.distillation import objective_of
from nearfar.config.settings import MAY_CHANGE, Settings
from nearfar.core.strategy import Strategy
from nearfar.errors import UserError, counted
from nearfar.modalities import DataSet, Description, modality_of_views
from nearfar.run import checkpoints
from nearfar.run.facts import checked
from nearfar.run.folder import RunFolder
from nearfar.train.session import Session

TEACHER_KEYS = {"encoders.teacher", "encoders.digest"}
PROBE_SETTINGS = {"probe_every", "probe", "probe_data"}


def find_checkpoint(
    settings: Settings, folder: RunFolder, allow_change: bool, strategy: Strategy
) -> checkpoints.Loaded | None:
    """The checkpoint that a run continues from, as read by rank 0; None for a new run."""
    if not strategy.is_first:
        return broadcast_checkpoint(None, strategy)
    starts_fresh = starts_over(settings, folder, allow_change)
    return broadcast_checkpoint(None if starts_fresh else newest_checkpoint(folder), strategy)


def starts_over(settings: Settings, folder: RunFolder, allow_change: bool) -> bool:
    """Whether a folder without a single step holds other settings, which may then be replaced."""
    changes = settings_changes(settings, folder)
    has_steps = checkpoints.last_named(folder.checkpoints) > 0
    if not changes or not has_steps:
        return bool(changes)
    previous = modality_of_views(folder.stored_settings()["views"])
    if previous is not settings.modality:
        raise UserError(
            f"{settings.data} holds {settings.modality.plural}, but {folder.path} was trained on "
            f"{previous.plural}; choose another --out"
        )
    if not allow_change:
        raise UserError(
            f"{folder.path} was started with other settings ({changes}); resume with those, choose another "
            "--out, or add --allow-change"
        )
    return False


def settings_changes(settings: Settings, folder: RunFolder) -> str:
    """What differs from the stored settings, as `key: old, now new`."""
    if not folder.config.exists():
        return ""
    stored, current = folder.stored_settings(), settings.as_plain()
    old, new = _flat(stored), _flat(current)
    # a schedule that follows the probe changes when the probe does
    follows_probe = settings.adaptive_on("score") or settings.adaptive_on("bound")
    ignored = set(MAY_CHANGE) - (PROBE_SETTINGS if follows_probe else set())
    objectives = objective_of(stored), objective_of(current)
    if None not in objectives and objectives[0] != objectives[1]:  # show what the user typed
        old["objective"], new["objective"] = objectives
        ignored |= {
            key for key in {**old, **new} if key.partition(".")[0] in CHOICES and key not in TEACHER_KEYS
        }
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key) and key not in ignored]
    return "; ".join(f"{key}: {old.get(key)}, now {new.get(key)}" for key in keys)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat


def newest_checkpoint(folder: RunFolder) -> checkpoints.Loaded | None:
    """The newest valid checkpoint; None before the first. If all are damaged, an error."""
    loaded = checkpoints.load_newest(folder.checkpoints)
    paths = sorted(folder.checkpoints.glob("step-*"))
    if loaded is None and paths:
        raise UserError(
            f"{paths[-1]} cannot be used ({checkpoints.check(paths[-1])}) and there is no earlier one; "
            f"restore it, or move {folder.checkpoints} away to start over"
        )
    return loaded and checked(loaded)


def broadcast_checkpoint(loaded: checkpoints.Loaded | None, strategy: Strategy) -> checkpoints.Loaded | None:
    """The checkpoint that rank 0 has read, on all ranks: only rank 0 needs access to the folder."""
    if not strategy.is_distributed:
        return loaded
    kinds = loaded and {name: [str(t.dtype)[6:], list(t.shape)] for name, t in loaded.tensors.items()}
    header = strategy.broadcast_json(
        loaded and {"path": str(loaded.path), "facts": loaded.facts, "kinds": kinds}
    )
    if header is None:
        return None
    if loaded is None:
        empty = {
            name: torch.empty(shape, dtype=getattr(torch, kind))
            for name, (kind, shape) in header["kinds"].items()
        }
        loaded = checkpoints.Loaded(Path(header["path"]), empty, header["facts"])
    strategy.broadcast([loaded.tensors[name] for name in header["kinds"]])
    return loaded


def describe_data(
    data: DataSet,
    settings: Settings,
    previous: Description | None,
    allow_change: bool,
    all_data: DataSet | None = None,
) -> Description:
    """Sizes, statistics, vocabulary and classes of the data (classes of `all_data`, of which `data` may be
    a part). A resumed run keeps its own statistics, unless settings name others."""
    if previous is not None and previous.fingerprint != data.fingerprint:
        if not allow_change:
            raise UserError(
                f"{data.name} changed since the run started (it had {counted(previous.instances, data.unit)}, now "
                f"{len(data)}); "
                "restore it, choose another --out, or add --allow-change"
            )
        description = previous.of(data)
    elif previous is not None:
        description = previous.resized(settings.image_size)
    else:
        description = settings.modality.reader.describe(data, settings.image_size)
        description = description.labelled(*(all_data or data).label_range)
    if settings.mean is None or settings.std is None:
        return description
    return description.with_statistics(settings.mean, settings.std)


def restore_session(session: Session, restored: checkpoints.Loaded, folder: RunFolder) -> None:
    try:
        session.restore(restored.tensors, restored.facts)
    except UserError:
        raise
    except (RuntimeError, KeyError, ValueError):
        raise UserError(
            f"the checkpoint in {folder.checkpoints} does not fit these settings: another network or other "
            "negatives; choose another --out"
        ) from None


def check_steps_left(
    session: Session, restored: checkpoints.Loaded, settings: Settings, folder: RunFolder
) -> None:
    """Refuses to store new settings or data for weights that would get no step with them."""
    changes = settings_changes(settings, folder)
    if session.description.fingerprint != restored.facts["data"].get("fingerprint"):
        changes = changes or "data: others than before"
    if changes and session.step >= session.steps:
        raise UserError(
            f"{folder.path} was trained for {counted(session.step, 'steps')} and these settings ask for {session.steps}: "
            "no step is left to train "
            f"with what changed ({changes}); raise epochs, or choose another --out"
        )
