"""The training loop and what runs need around it. `nf.train(data, out=…)` learns from labels."""

import sys
from types import ModuleType
from typing import Any


class _Train(ModuleType):
    """`nearfar.train` is this room, and what one does in it with labels: an attribute of a package and its
    submodule share one name, so the module itself can be called."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from nearfar.train.pretrain import train_supervised

        return train_supervised(*arguments, **settings)


sys.modules[__name__].__class__ = _Train
