"""What a named method is: five choices and how it is usually trained."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Choice = Mapping[str, Any]  # {"name": a part, its settings ...}


@dataclass(frozen=True)
class Recipe:
    """A method's choices, in the form settings take; `training` holds defaults of the loop."""

    about: str
    views: Choice
    encoders: Choice
    critic: Choice
    negatives: Choice
    bound: Choice
    selection: Choice = field(default_factory=lambda: {"name": "everyone"})
    training: Choice = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        rooms = ("views", "encoders", "critic", "negatives", "selection", "bound")
        return {**self.training, **{room: dict(getattr(self, room)) for room in rooms}}
