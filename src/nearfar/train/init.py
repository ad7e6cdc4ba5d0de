"""`init=`: the weights a run starts from, those of another run or of a torchvision or timm file.

Another run of the same shape gives all its networks, heads and slow copies included; any other gives its backbone. A file gives
the backbone too: every weight and buffer of ours must be there, under its own name or behind a prefix that wrappers add; what
the file has beyond that (a classifier) is left out.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.method import Method
from nearfar.run.checkpoints import under
from nearfar.run.trained import Run
from nearfar.sharding import spread
from nearfar.untrusted import check_regular

# what files put before the names of weights, and what we put before timm's
PREFIXES = ("", "net.", "module.", "model.", "backbone.", "encoder.", "module.encoder_q.")


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
    if _shapes(own) == _shapes(theirs):
        method.encoders.load_state_dict(spread(method.encoders, theirs))  # type: ignore[attr-defined]
        return f"started from all networks of {init}"
    _into_backbones(method, run.encoder().state_dict(), init)
    return f"started from the backbone of {init}"


def _from_file(method: Method, path: Path) -> str:
    _into_backbones(method, _read(path), str(path))
    return f"started from the backbone in {path}"


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name; `.pth` files are read without running what a pickle could hold."""
    check_regular(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        raise UserError(
            f"init was {path}, which is not a weights file; expected tensors by name, as .safetensors or as .pth of plain tensors"
        ) from None
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not any(isinstance(t, Tensor) for t in loaded.values()):
        raise UserError(f"init was {path}, which holds no tensors by name")
    return {str(name): tensor for name, tensor in loaded.items() if isinstance(tensor, Tensor)}


def _into_backbones(method: Method, weights: Mapping[str, Tensor], init: str) -> None:
    """Into the backbone and every copy of it that the method holds."""
    backbone = method.encoders.backbone()
    shapes = _shapes(backbone.state_dict())
    fitting = _renamed(weights, shapes, init)
    inside: list[nn.Module] = [m for m in method.encoders.modules() if type(m) is type(backbone)]  # type: ignore[attr-defined]
    for module in {id(m): m for m in (backbone, *inside)}.values():
        if _shapes(module.state_dict()) == shapes:
            module.load_state_dict({**module.state_dict(), **spread(module, fitting)})


def _renamed(
    weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], init: str
) -> dict[str, Tensor]:
    """The weights under our names, or a sentence about the first that is missing or of another shape."""
    candidates = []
    for ours in PREFIXES[:2]:
        for theirs in PREFIXES:
            names = {name: theirs + name.removeprefix(ours) for name in shapes}
            candidates.append(({n: weights[t] for n, t in names.items() if t in weights}, names))
    found, names = max(candidates, key=lambda each: len(each[0]))
    # files from before torch counted batches lack the count, which nothing here reads
    missing = [name for name in shapes if name not in found and not name.endswith("num_batches_tracked")]
    if missing:
        raise UserError(
            f"init was {init}, which has {len(found)} of the backbone's {len(shapes)} tensors and lacks {names[missing[0]]}; "
            "choose the backbone it was made for"
        )
    for name, shape in shapes.items():
        if name in found and tuple(found[name].shape) != shape:
            raise UserError(
                f"init was {init}, whose {names[name]} is {list(found[name].shape)} where the backbone's is {list(shape)}; "
                "choose the backbone, the channels and the image_size (up to 64 the stem is smaller) it was made for"
            )
    return found


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
