"""The setting `init`: a run starts from the weights of another run, or of a torchvision or timm file.

A run of the same shape provides all its networks, with heads and momentum copies. Any other run provides its
backbone, and the first layers of its head if `encoders.cut` keeps them. A file provides the backbone: it must
have every weight and buffer, under its name or behind a prefix of a wrapper. Other tensors of the file (a
classifier) are ignored.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from nearfar.core.method import Method
from nearfar.errors import UserError
from nearfar.run.checkpoints import under
from nearfar.run.trained import Run
from nearfar.run.weights import read_weights, renamed, shapes_of


def start_from(method: Method, init: str, cut: int = 0) -> str:
    """Puts the weights that `init` names into `method`, and says which. `cut`: the network keeps so many
    layers of the run's head."""
    path = Path(init)
    if not path.exists():
        raise UserError(f"init was {init}, which was not found; name a run folder or a weights file")
    if cut and not path.is_dir():
        raise UserError(
            f"encoders.cut was {cut} with init={init}, a weights file, which has no head; name a run"
        )
    return _from_run(method, init, cut) if path.is_dir() else _from_file(method, path)


def _from_run(method: Method, init: str, cut: int) -> str:
    run, strategy = Run.open(init), method.encoding.strategy
    if run.facts["step"] == 0:
        raise UserError(f"init was {init}, which has taken no step yet; train it first")
    current, stored = method.encoders.state_dict(), under(run.weights(), "encoders.")  # type: ignore[attr-defined]
    if shapes_of(current) == shapes_of(stored):
        method.encoders.load_state_dict(strategy.shard_state(method.encoders, stored))  # type: ignore[attr-defined,arg-type]
        return f"started from all networks of {init}"
    _into_backbones(method, run.encoder().state_dict(), init)
    if cut:
        _into_head(method, under(run.weights(), "encoders.network.head."), init, cut)
        return f"started from the backbone of {init} and the first {cut} of its head's layers"
    return f"started from the backbone of {init}"


def _into_head(method: Method, weights: Mapping[str, Tensor], init: str, cut: int) -> None:
    """The first layers of another network's head, which has the same names for them."""
    head: nn.Module = method.encoders.network.head  # type: ignore[attr-defined]
    for name, tensor in head.state_dict().items():
        stored = list(weights[name].shape) if name in weights else "missing"
        if stored != list(tensor.shape):
            raise UserError(
                f"encoders.cut was {cut} with init={init}, where head.{name} is {stored} and here "
                f"{list(tensor.shape)}; set encoders.head, "
                "encoders.hidden and encoders.layers as that run did"
            )
    head.load_state_dict(
        method.encoding.strategy.shard_state(head, {name: weights[name] for name in head.state_dict()})
    )


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
            module.load_state_dict(
                {**module.state_dict(), **method.encoding.strategy.shard_state(module, fitting)}
            )
