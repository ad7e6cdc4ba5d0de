"""The parts of a choice by name, and several of them joined by +: `labelled+ring` is two selections in turn,
`infonce+ml-cpc` a sum of two bounds. What is joined is made like any part, with the settings of all that it
joins side by side."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from nearfar.core.abstract import settable
from nearfar.errors import UserError

JOINED_BY = "+"
Maker = Any  # a concrete part's class, or what makes several joined ones


class Joinable(dict[str, Maker]):
    """`join` makes one part of several. `between` stands between their equations. `traits` sets for each trait
    of a part whether `any` or `all` of the joined parts must have it. `shared`: a setting that several have
    is one for all of them; otherwise such parts are not joined."""

    def __init__(
        self,
        parts: Mapping[str, Maker],
        choice: str,
        join: Callable[..., Any],
        between: str,
        traits: Mapping[str, Callable[..., bool]],
        shared: bool = False,
    ) -> None:
        super().__init__(parts)
        self.choice, self.join, self.between, self.traits, self.shared = choice, join, between, traits, shared

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return all(super(Joinable, self).__contains__(part) for part in name.split(JOINED_BY))

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def __missing__(self, name: str) -> Maker:
        names = name.split(JOINED_BY)
        if len(names) < 2 or name not in self:
            raise KeyError(name)
        repeated = next((part for part in names if names.count(part) > 1), None)
        if repeated is not None:
            raise UserError(f"{self.choice} was {name}, which lists {repeated} twice; list each once")
        return self._joined({part: self[part] for part in names})

    def _joined(self, makers: Mapping[str, Maker]) -> Maker:
        parameters = self._parameters(makers)
        # what several share has the default of the first
        defaults = {p.name: p.default for p in parameters}

        def make(**given: Any) -> Any:
            settings = {**defaults, **given}

            def settings_of(maker: Maker) -> dict[str, Any]:
                return {key: settings[key] for key in settable(maker)}

            return self.join(*(maker(**settings_of(maker)) for maker in makers.values()))

        def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
            reasons = (maker.conflict(choices, parts) for maker in makers.values())
            return next((reason for reason in reasons if reason), None)

        joined: Any = make
        joined.__signature__ = inspect.Signature(parameters)
        joined.conflict = conflict
        joined.equation = self.between.join(maker.equation or "" for maker in makers.values())
        joined.remarks = tuple(remark for maker in makers.values() for remark in maker.remarks)
        for trait, combine in self.traits.items():
            setattr(joined, trait, combine(getattr(maker, trait) for maker in makers.values()))
        return make

    def _parameters(self, makers: Mapping[str, Maker]) -> list[inspect.Parameter]:
        """The settings of all."""
        owners: dict[str, str] = {}
        parameters: dict[str, inspect.Parameter] = {}
        for name, maker in makers.items():
            for key, parameter in settable(maker).items():
                if key in parameters and not self.shared:
                    raise UserError(
                        f"{self.choice} was {JOINED_BY.join(makers)}, but {owners[key]} and {name} both have "
                        f"a setting {key}"
                    )
                owners.setdefault(key, name)
                parameters.setdefault(key, parameter)
        return list(parameters.values())
