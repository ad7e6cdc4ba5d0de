"""The setting `init`: a run starts from the weights of another run, of a file, or of a library's network.

A run of the same shape provides all its networks, with heads and momentum copies. Any other run provides its
backbone, and the first layers of its head if `encoders.cut` keeps them. A file provides the backbone: it must
have every weight and buffer, under its name or behind a prefix of a wrapper. Other tensors of the file (a
classifier) are ignored. `init=pretrained` names the file that timm, torchvision or transformers have for the
backbone, in their local caches.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from nearfar.config.settings import Settings
from nearfar.core.method import Method
from nearfar.errors import UserError
from nearfar.run.checkpoints import under
from nearfar.run.folder import RunFolder
from nearfar.run.trained import Run, backbones_of, copies_of
from nearfar.run.weights import PRETRAINED, fitted, read_folder, read_weights, shapes_of


def start_from(method: Method, init: str, cut: int = 0, settings: Settings | None = None) -> str:
    """Puts the weights that `init` names into `method`, and returns their origin. `cut`: the number of layers
    of the run's head that the network keeps. `settings`: of the run, for `init=pretrained`."""
    file = weights_file(init)
    if cut and (init == PRETRAINED or file is not None):
        raise UserError(
            f"encoders.cut was {cut} with init={init}, weights that have no head; name a run, or leave it out"
        )
    if init == PRETRAINED:
        assert settings is not None
        weights, origin = _pretrained(settings)
        _into_backbones(method, weights, f"{init} ({origin})")
        return f"started from {origin}"
    if file is not None:
        _into_backbones(method, read_weights(file), str(file))
        return f"started from the backbone in {file}"
    if not Path(init).is_dir():
        raise UserError(
            f"init was {init}, which was not found; name a run folder or a weights file, or write init=pretrained"
        )
    return _from_run(method, init, cut)


def weights_file(init: str) -> Path | None:
    """The file that `init` names, itself or by its folder; None if it is not a file."""
    path = Path(init)
    if init == PRETRAINED:
        return None
    in_folder = path / "model.safetensors"
    if path.is_dir() and not RunFolder(path).config.is_file() and in_folder.is_file():
        return in_folder
    return path if path.exists() and not path.is_dir() else None


def _pretrained(settings: Settings) -> tuple[dict[str, Tensor], str]:
    """The weights that a library has for the backbone, and whose they are."""
    pretrained = settings.modality.networks.pretrained(settings.backbone)
    if settings.backbone_config is not None:
        return read_folder(pretrained.path), pretrained.origin
    return read_weights(pretrained.path), f"{pretrained.origin} ({pretrained.path})"


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


def _into_backbones(method: Method, weights: Mapping[str, Tensor], init: str) -> None:
    """Into the backbones and every copy of them that the method holds."""
    for backbone in backbones_of(method):
        fitting = fitted(weights, backbone, init)
        for module in copies_of(method, backbone):
            module.load_state_dict(
                {**module.state_dict(), **method.encoding.strategy.shard_state(module, fitting)}
            )
