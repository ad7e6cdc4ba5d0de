"""The training loop and what runs need around it. `nf.train(data, out=…)` learns from labels."""

import sys
from types import ModuleType
from typing import Any


class _Train(ModuleType):
    """Makes the package callable: `nearfar.train` is this package, and `nearfar.train(data, out=…)` trains on
    labels. A package has one attribute for both."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from nearfar.train.pretrain import train_supervised

        return train_supervised(*arguments, **settings)


sys.modules[__name__].__class__ = _Train
