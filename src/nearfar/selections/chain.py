"""Several selections in turn: `labelled+ring` takes positives by label, then a ring of the rest.

Selections map scores to scores, so one can follow another. In settings their names are joined by +, and their settings stand side by
side; `PARTS["labelled+ring"]` makes such a chain like any part.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from nearfar.errors import UserError
from nearfar.schedules import Progress
from nearfar.scores import Scores
from nearfar.types import Context, NegativeSampling, Selection

JOINED_BY = "+"


class Chain(nn.Module):
    """Each selection chooses from what the one before it left."""

    def __init__(self, *parts: Selection) -> None:
        super().__init__()
        if any(getattr(part, "weighs", False) for part in parts[:-1]):
            raise UserError(
                "selection: weights have mean one over those who count, so what weighs them comes last"
            )
        self.parts = parts
        self.remembered = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def forward(self, scores: Scores, context: Context | None = None) -> Scores:
        for part in self.parts:
            scores = part(scores, context)
        return scores

    def sampling(self, given: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        for part in self.parts:
            given = part.sampling(given, progress)
        return given


Maker = Callable[..., Selection]


class Parts(dict[str, Maker]):
    """Parts by name, and chains of them by joined names."""

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        names = name.split(JOINED_BY)
        return all(super(Parts, self).__contains__(each) for each in names)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def __missing__(self, name: str) -> Maker:
        names = name.split(JOINED_BY)
        if len(names) < 2 or name not in self:
            raise KeyError(name)
        return _chained({each: self[each] for each in names})


def _chained(makers: Mapping[str, Maker]) -> Maker:
    """What makes the chain, with the settings of all its parts."""
    owners: dict[str, str] = {}
    parameters: dict[str, inspect.Parameter] = {}
    for name, maker in makers.items():
        for key, parameter in inspect.signature(maker).parameters.items():
            if key in parameters and parameter.kind is not parameter.KEYWORD_ONLY:
                raise UserError(
                    f"selection was {JOINED_BY.join(makers)}, but {owners[key]} and {name} both have a setting {key}"
                )
            owners[key], parameters[key] = name, parameter

    def make(**settings: Any) -> Selection:
        def own(maker: Maker) -> dict[str, Any]:
            return {key: settings[key] for key in inspect.signature(maker).parameters if key in settings}

        return Chain(*(maker(**own(maker)) for maker in makers.values()))

    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        asked = [getattr(maker, "conflict", None) for maker in makers.values()]
        return next((said for ask in asked if ask and (said := ask(choices, parts))), None)

    ordered = sorted(parameters.values(), key=lambda parameter: parameter.kind)
    known: Any = make
    known.__signature__ = inspect.Signature(ordered)
    known.conflict = conflict
    known.equation = ", then ".join(getattr(maker, "equation", "") for maker in makers.values())
    known.remarks = tuple(remark for maker in makers.values() for remark in getattr(maker, "remarks", ()))
    known.per_instance = any(getattr(maker, "per_instance", False) for maker in makers.values())
    return make
