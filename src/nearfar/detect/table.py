"""A detection result as a text table and as a section of the report."""

from collections.abc import Mapping
from typing import Any

from nearfar.core.tables import plus_minus, text_table
from nearfar.errors import counted
from nearfar.evaluate.table import matched_lines

TITLES = {"map": "AP", "map_50": "AP50", "map_75": "AP75"}


def rows_of(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each backbone and kind of truth: AP over IoU 0.50 to 0.95, at 0.50, at 0.75, in percent."""
    rows = []
    for backbone in ("untrained", "pretrained"):
        for kind, figures in (result.get(backbone) or {}).items():
            cells = [f"{100 * figures[name]:.1f}" if name in figures else "–" for name in TITLES]
            if "spread" in figures:
                cells[0] = plus_minus(100 * figures["map"], 100 * figures["spread"])
            rows.append((backbone, kind, *cells))
    return rows


def caption(result: Mapping[str, Any]) -> str:
    settings, train, test = result["settings"], result["train"], result["test"]
    backbone = "fine-tuned" if settings["fine_tune"] else "frozen"
    backbone += ", class-agnostic" if settings.get("class_agnostic") else ""
    seeds = f", mean and deviation over {settings['seeds']} seeds" if settings["seeds"] > 1 else ""
    return (
        f"{settings['task']}, backbone {backbone}, {counted(settings['epochs'], 'epochs')} at {settings['size']} "
        f"px{seeds}; fitted on {counted(train['samples'], 'images')} "
        f"({train['objects']:,} objects): {train['name']}; tested on {test['samples']} "
        f"({test['objects']:,}): {test['name']}; COCO AP in percent"
    )


def table(result: Mapping[str, Any]) -> str:
    rows = [("backbone", "of", *TITLES.values()), *rows_of(result)]
    return "\n".join([*text_table(rows), caption(result), *matched_lines(result.get("labels"))])
