"""The result of a sweep: mean and spread of each point, the best, and its figures on test data."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.core.statistics import adjust_for_all, compare_draws, mean_and_spread
from nearfar.core.tables import plus_minus, text_table
from nearfar.sweeps.engine import COMPLETED, FAILED, CellOutcome
from nearfar.sweeps.space import Point

MAX_PRINTED_ROWS = 40  # the CSV has all
UNITS = {"nats": "nats", "at_least": "nats, at least"}


@dataclass(frozen=True)
class SweepRow:
    """A point and its values in the order of the seeds; None where a seed has no value."""

    point: Point
    values: tuple[float | None, ...]
    state: str
    reason: str = ""

    @property
    def mean(self) -> float | None:
        """Over all seeds; None where one is missing, since the mean of the others would be a selection."""
        return None if self.state != COMPLETED else mean_and_spread(self.finished)[0]

    @property
    def spread(self) -> float | None:
        """The sample deviation over seeds; None for a single seed."""
        return None if self.state != COMPLETED else mean_and_spread(self.finished)[1]

    @property
    def finished(self) -> list[float]:
        return [value for value in self.values if value is not None]


def make_row(point: Point, outcomes: Sequence[CellOutcome | None], metric: str) -> SweepRow:
    values = tuple(None if outcome is None else outcome.values.get(metric) for outcome in outcomes)
    if None not in values:
        return SweepRow(point, values, COMPLETED)
    ended = [o for o in outcomes if o is not None and o.state != COMPLETED and metric not in o.values]
    state = ended[0].state if ended else FAILED
    return SweepRow(point, values, state, ended[0].reason if ended else "not done yet")


def best_row(rows: Sequence[SweepRow]) -> SweepRow | None:
    """The row with the largest mean; the first of several."""
    finished = [(row.mean, row) for row in rows if row.mean is not None]
    return max(finished, key=lambda pair: pair[0])[1] if finished else None


@dataclass(frozen=True)
class SweepResult:
    """The rows of all points, and `selected`: figures of the best row by seed."""

    title: str
    metric: str
    percent: bool
    seeds: tuple[int, ...]
    space: Mapping[str, Any]
    facts: Mapping[str, Any]
    rows: tuple[SweepRow, ...]
    selected: tuple[Mapping[str, Any], ...] = ()
    command: str = ""  # trains the best on all of the data
    folder: str = ""

    @property
    def best(self) -> SweepRow | None:
        return best_row(self.rows)

    def as_json(self) -> dict[str, Any]:
        best = self.best
        rows = [
            {
                "settings": row.point,
                "state": row.state,
                "values": dict(zip(map(str, self.seeds), row.values, strict=True)),
                "mean": row.mean,
                "spread": row.spread,
                **({"why": row.reason} if row.reason else {}),
            }
            for row in self.rows
        ]
        selected = best and {"settings": best.point, **self._figures_of_best(), "command": self.command}
        return {
            "sweep": self.title,
            "metric": self.metric,
            **dict(self.space),
            "data": dict(self.facts),
            "rows": rows,
            "best": selected,
        }

    def _figures_of_best(self) -> dict[str, Any]:
        """Mean and spread over seeds of the best row on each set, with baselines."""
        figures: dict[str, Any] = {}
        for name in self.selected[0] if self.selected else ():
            by_seed = [seed[name] for seed in self.selected]
            first, values = by_seed[0], [figure["value"] for figure in by_seed]
            mean, spread = mean_and_spread(values)
            figures[name] = {
                "mean": mean,
                "spread": spread,
                "values": values,
                "set": first["set"],
                "baselines": {
                    kind: mean_and_spread([figure["baselines"][kind] for figure in by_seed])[0]
                    for kind in first["baselines"]
                },
                **({"certificate": first["certificate"]} if "certificate" in first else {}),
            }
        return figures

    def as_text(self) -> str:
        return json.dumps(self.as_json(), indent=1, default=str) + "\n"

    def as_csv(self) -> str:
        """A line for each point: its settings, the value of each seed, mean, spread, state and reason."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        keys = list(self.rows[0].point) if self.rows else []
        seeds = [f"seed_{seed}" for seed in self.seeds]
        writer.writerow([*keys, *seeds, "mean", "spread", "state", "why"])
        for row in self.rows:
            settings = [row.point[key] for key in keys]
            writer.writerow([*settings, *row.values, row.mean, row.spread, row.state, row.reason])
        return file.getvalue()

    def __str__(self) -> str:
        return "\n".join([self._heading(), self._table(), *self._summary()])

    def number(self, mean: float | None, spread: float | None = None) -> str:
        if mean is None:
            return "-"
        scale, digits = (100, 2) if self.percent else (1, 4)
        return plus_minus(scale * mean, None if spread is None else scale * spread, digits)

    @property
    def unit(self) -> str:
        if not self.percent:
            return UNITS.get(self.metric, self.metric)
        return "top-1, %" if self.metric == "accuracy" else f"{self.metric} top-1, %"

    def _heading(self) -> str:
        validation = self.facts["validation"]
        seeds = f", mean ± deviation over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"{self.title}: {self.unit} on {validation['name']} ({validation['samples']:,}){seeds}"

    def _table(self) -> str:
        ranked = sorted(self.rows, key=lambda row: -(row.mean if row.mean is not None else -math.inf))
        best = self.best
        lines = [[*self.rows[0].point, "validation", ""]]
        for row in ranked[:MAX_PRINTED_ROWS]:
            note = "" if row.state == COMPLETED else f"{row.state}: {row.reason}"
            if best is not None and row.mean == best.mean:
                note = "best" if row is best else "equal to the best"
            settings = map(setting_text, row.point.values())
            lines.append([*settings, self.number(row.mean, row.spread), note])
        text = text_table(lines)
        if len(ranked) > MAX_PRINTED_ROWS:
            text.append(f"… {len(ranked) - MAX_PRINTED_ROWS} more in sweep.csv")
        return "\n".join(text)

    def _summary(self) -> list[str]:
        best, figures = self.best, self._figures_of_best()
        if best is None:
            return ["no cell has a value, so nothing was selected"]
        point = " ".join(f"{key}={setting_text(value)}" for key, value in best.point.items())
        lines = [f"best by validation: {point}".rstrip(": ") or "one point"]
        for name, figure in figures.items():
            baselines = "".join(f"; {kind} {self.number(v)}" for kind, v in figure["baselines"].items())
            certificate = f", {figure['certificate']}" if "certificate" in figure else ""
            value, data = self.number(figure["mean"], figure["spread"]), figure["set"]
            lines.append(f"  {name}: {value}{certificate} on {data['name']} ({data['samples']:,}){baselines}")
        if self.percent and "test" not in figures:
            lines.append("  no test figure: give test data with --data")
        lines.append(self._certainty(best))
        return [
            *lines,
            f"with all of the data: {self.command}",
            f"{self.folder}/sweep.json, sweep.csv, figure.svg, figure.png",
        ]

    def _certainty(self, best: SweepRow) -> str:
        """How far the other points are from the best."""
        other_rows = [row for row in self.rows if row is not best and row.mean is not None]
        if best.spread is None or best.mean is None:
            return "  single seed: differences may be chance; use seed=0,1,2"
        differences = [compare_draws(best.finished, row.finished) for row in other_rows]
        close = sum(difference.verdict != "better" for difference in adjust_for_all(differences))
        return (
            f"  {close} of {len(other_rows)} others cannot be distinguished from it over these seeds"
            if other_rows
            else ""
        )


def setting_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
