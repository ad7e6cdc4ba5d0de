"""`init=`: the weights a run starts from, those of another run or of a torchvision or timm file.

Another run of the same shape gives all its networks, heads and slow copies included; any other gives its backbone. A file gives
the backbone too: every weight and buffer of ours must be there, under its own name or behind a prefix that wrappers add; what
the file has beyond that (a classifier) is left out.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.method import Method
from nearfar.run.checkpoints import under
from nearfar.run.trained import Run
from nearfar.run.weights import read_weights, renamed, shapes_of
from nearfar.sharding import spread


def start_from(method: Method, init: str) -> str:
    """Puts the weights that `init` names into `method`, and says which."""
    path = Path(init)
    if not path.exists():
        raise UserError(f"init was {init}, which was not found; name a run folder or a weights file")
    return _from_run(method, init) if path.is_dir() else _from_file(method, path)


def _from_run(method: Method, init: str) -> str:
    run = Run.open(init)
    if run.facts["step"] == 0:
        raise UserError(f"init was {init}, which has taken no step yet; train it first")
    own, theirs = method.encoders.state_dict(), under(run.weights(), "encoders.")  # type: ignore[attr-defined]
    if shapes_of(own) == shapes_of(theirs):
        method.encoders.load_state_dict(spread(method.encoders, theirs))  # type: ignore[attr-defined,arg-type]
        return f"started from all networks of {init}"
    _into_backbones(method, run.encoder().state_dict(), init)
    return f"started from the backbone of {init}"


def _from_file(method: Method, path: Path) -> str:
    _into_backbones(method, read_weights(path), str(path))
    return f"started from the backbone in {path}"


def _into_backbones(method: Method, weights: Mapping[str, Tensor], init: str) -> None:
    """Into the backbone and every copy of it that the method holds."""
    backbone = method.encoders.backbone()
    shapes = shapes_of(backbone.state_dict())
    fitting = renamed(weights, shapes, init)
    inside: list[nn.Module] = [m for m in method.encoders.modules() if type(m) is type(backbone)]  # type: ignore[attr-defined]
    for module in {id(m): m for m in (backbone, *inside)}.values():
        if shapes_of(module.state_dict()) == shapes:
            module.load_state_dict({**module.state_dict(), **spread(module, fitting)})
