"""What a sweep found: a row for each point, its mean and spread over seeds, the best of them, and what that does on data nobody chose by."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.sweeps.cells import DONE, FAILED, Outcome
from nearfar.sweeps.space import Point

SHOWN = 40  # rows of the printed table; the CSV holds all
UNITS = {"nats": "nats", "at_least": "nats, at least"}


@dataclass(frozen=True)
class Row:
    """A point and what its seeds gave; in the order of the seeds, None where one ended without a value."""

    point: Point
    values: tuple[float | None, ...]
    state: str
    why: str = ""

    @property
    def mean(self) -> float | None:
        """Of all seeds; where one is missing, the others would be a choice."""
        known = [value for value in self.values if value is not None]
        return math.fsum(known) / len(known) if self.state == DONE else None

    @property
    def spread(self) -> float | None:
        """The sample deviation over seeds; of one value nobody knows it."""
        return deviation([v for v in self.values if v is not None]) if self.state == DONE else None


def deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def row_of(point: Point, outcomes: Sequence[Outcome | None], metric: str) -> Row:
    values = tuple(None if outcome is None else outcome.values.get(metric) for outcome in outcomes)
    ended = [o for o in outcomes if o is not None and o.state != DONE and metric not in o.values]
    if None not in values:
        return Row(point, values, DONE)
    state = ended[0].state if ended else FAILED
    return Row(point, values, state, ended[0].why if ended else "not done yet")


def best_of(rows: Sequence[Row]) -> Row | None:
    """The row with the largest mean, the first of several."""
    done = [(row.mean, row) for row in rows if row.mean is not None]
    return max(done, key=lambda each: each[0])[1] if done else None


@dataclass(frozen=True)
class Sweep:
    """The rows in the order in which they were asked for, and `chosen`: how the best one does, by seed, on what was asked."""

    title: str
    metric: str
    share: bool  # shown in percent
    seeds: tuple[int, ...]
    space: Mapping[str, Any]
    facts: Mapping[str, Any]
    rows: tuple[Row, ...]
    chosen: tuple[Mapping[str, Any], ...] = ()
    command: str = ""  # trains the best on all of the data
    folder: str = ""

    @property
    def best(self) -> Row | None:
        return best_of(self.rows)

    def as_json(self) -> dict[str, Any]:
        best = self.best
        return {
            "sweep": self.title,
            "metric": self.metric,
            **dict(self.space),
            "data": dict(self.facts),
            "rows": [
                {
                    "settings": row.point,
                    "state": row.state,
                    "values": dict(zip(map(str, self.seeds), row.values, strict=True)),
                    "mean": row.mean,
                    "spread": row.spread,
                    **({"why": row.why} if row.why else {}),
                }
                for row in self.rows
            ],
            "best": None
            if best is None
            else {"settings": best.point, **self._told(), "command": self.command},
        }

    def _told(self) -> dict[str, Any]:
        """Mean and spread over seeds of the best on each set, with baselines."""
        found: dict[str, Any] = {}
        for name in self.chosen[0] if self.chosen else ():
            each = [told[name] for told in self.chosen]
            values = [one["value"] for one in each]
            kinds = each[0]["baselines"]
            found[name] = {
                "mean": math.fsum(values) / len(values),
                "spread": deviation(values),
                "values": values,
                "set": each[0]["set"],
                "baselines": {
                    kind: math.fsum(one["baselines"][kind] for one in each) / len(each) for kind in kinds
                },
                **({"certificate": each[0]["certificate"]} if "certificate" in each[0] else {}),
            }
        return found

    def as_text(self) -> str:
        return json.dumps(self.as_json(), indent=1, default=str) + "\n"

    def as_csv(self) -> str:
        """A line for each point: its settings, the value of each seed, mean, spread, how it ended."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        keys = list(self.rows[0].point) if self.rows else []
        seeds = [f"seed_{seed}" for seed in self.seeds]
        writer.writerow([*keys, *seeds, "mean", "spread", "state", "why"])
        for row in self.rows:
            cells = [row.point[key] for key in keys] + list(row.values)
            writer.writerow([*cells, row.mean, row.spread, row.state, row.why])
        return out.getvalue()

    def __str__(self) -> str:
        blocks = [self._heading(), self._table(), *self._words()]
        return "\n".join(blocks)

    def figure(self, mean: float | None, spread: float | None = None) -> str:
        if mean is None:
            return "-"
        scale, digits = (100, 2) if self.share else (1, 4)
        told = "" if spread is None else f" ± {scale * spread:.{digits}f}"
        return f"{scale * mean:.{digits}f}{told}"

    @property
    def unit(self) -> str:
        return (
            f"{self.metric} top-1, %"
            if self.share and self.metric != "accuracy"
            else ("top-1, %" if self.share else UNITS.get(self.metric, self.metric))
        )

    def _heading(self) -> str:
        asked = self.facts["validation"]
        seeds = f", mean ± deviation over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"{self.title}: {self.unit} on {asked['name']} ({asked['samples']:,}){seeds}"

    def _table(self) -> str:
        keys = list(self.rows[0].point)
        ranked = sorted(self.rows, key=lambda row: -(row.mean if row.mean is not None else -math.inf))
        lines = [[*keys, "validation", ""]]
        best = self.best
        for row in ranked[:SHOWN]:
            note = "best" if row is best else "" if row.state == DONE else f"{row.state}: {row.why}"
            lines.append([*map(_said, row.point.values()), self.figure(row.mean, row.spread), note])
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        text = ["  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        more = [f"… {len(ranked) - SHOWN} more in sweep.csv"] if len(ranked) > SHOWN else []
        return "\n".join([*text, *more])

    def _words(self) -> list[str]:
        best, told = self.best, self._told()
        if best is None:
            return ["nothing ended with a value, so nothing can be chosen"]
        point = " ".join(f"{key}={_said(value)}" for key, value in best.point.items())
        words = [f"best by validation: {point}".rstrip(": ") or "one point"]
        for name, on in told.items():
            baselines = "".join(f"; {kind} {self.figure(v)}" for kind, v in on["baselines"].items())
            sure = f", {on['certificate']}" if "certificate" in on else ""
            shown = self.figure(on["mean"], on["spread"])
            words.append(
                f"  {name}: {shown}{sure} on {on['set']['name']} ({on['set']['samples']:,}){baselines}"
            )
        words += [] if "test" in told or not self.share else ["  no test figure: give test data with --data"]
        words.append(self._apart(best))
        return [
            *words,
            f"with all of the data: {self.command}",
            f"{self.folder}/sweep.json, sweep.csv, figure.svg, figure.png",
        ]

    def _apart(self, best: Row) -> str:
        """How sure the choice is."""
        others = [row for row in self.rows if row is not best and row.mean is not None]
        if best.spread is None or best.mean is None:
            return "  one seed: nobody knows how much of a difference is chance; seed=0,1,2 tells"
        near = sum(best.mean - (row.mean or 0.0) <= max(best.spread, row.spread or 0.0) for row in others)
        return f"  {near} of {len(others)} others lie within one deviation of it" if others else ""


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
