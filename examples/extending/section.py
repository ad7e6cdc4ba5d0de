"""A section of the report: this file, and a line in `nearfar/report/sections.py`:  SECTIONS["Pace"] = pace

nearfar report runs/a
"""

from nearfar.report.facts import Section
from nearfar.run.trained import Run


def pace(run: Run) -> Section | None:
    """How the loss fell, tenth by tenth of the run; None before there is anything to show."""
    rows = [row for row in run.metrics if row.get("kind") == "train" and row.get("loss") is not None]
    if not rows:
        return None
    tenths = [rows[len(rows) * part // 10] for part in range(10)]
    cells = dict.fromkeys((f"{row['step']:,}", f"{row['loss']:.4f}") for row in tenths)
    return Section("Pace", ("The loss at every tenth of what was logged.",), ("step", "loss"), tuple(cells))
