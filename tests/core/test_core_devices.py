"""Training on a device that has no float64, as Apple's GPUs have none, and that need not be waited for.

The device is torch's private-use device with a backend in Python: its tensors are CPU tensors behind another
device, every operation that would give it a float64 raises, and so does one that mixes devices. What this
cannot show: operations that a real device lacks, and kernels that run asynchronously.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import nearfar as nf
from nearfar.core.strategy import SINGLE
from nearfar.run import trained
from nearfar.train import equality, pretrain, step
from nearfar.train.equality import make_data, trajectory

NAME = "small"
# operations for which the host waits: they read a number, or the size of their result depends on the numbers
READS = (
    *("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "bincount"),
    *("repeat_interleave.Tensor", "_unique2", "unique_dim", "unique_consecutive"),
)
INDEXING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")  # by a mask: its size is read
waits: list[str] = []  # of the last step, with the lines of nearfar that caused them
COPIES = ("aten::copy_", "aten::_to_copy", "aten::index", "aten::_index_put_impl_", "aten::index_put_")


def record_wait(name: str) -> None:
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_stack()
        if "/nearfar/" in frame.filename
    ]
    waits.append(f"{name} in {lines[-1] if lines else 'torch'}")


class DeviceTensor(Tensor):
    """A tensor of the device: `raw` holds its numbers on the CPU."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: Tensor) -> "DeviceTensor":
        if raw.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"the device has no {raw.dtype}")
        tensor = Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.raw = raw
        return tensor

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    def tolist(self) -> Any:
        record_wait("tolist")
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})


def compute(operation: Any, args: Any, kwargs: Any) -> Any:
    """The operation on the CPU, its results on the device that torch would give them."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_device = [isinstance(tensor, DeviceTensor) for tensor in tensors]
    name = operation.name().partition(".")[0]
    by_mask = name in INDEXING and any(
        isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1])
    )
    if any(on_device) and (operation.name().removeprefix("aten::") in READS or by_mask):
        record_wait(operation.name())
    mixed = any(on_device) and any(
        not on_this_device and tensor.ndim for on_this_device, tensor in zip(on_device, tensors, strict=True)
    )
    if mixed and name not in COPIES:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    target = kwargs.get("device")
    stays = any(on_device) if target is None else torch.device(target).type == NAME
    if name == "aten::copy_":
        stays = on_device[0]
    crosses = any(on_device) and not (stays and all(on_device))
    in_background = kwargs.get("non_blocking") or (name == "aten::copy_" and args[2:] == (True,))
    if name in ("aten::copy_", "aten::_to_copy") and crosses and not in_background:
        record_wait(name)

    def to_cpu(leaf: Any) -> Any:
        if isinstance(leaf, DeviceTensor):
            return leaf.raw
        return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == NAME else leaf

    results = operation(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs))
    if not stays:
        return results
    changed = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, DeviceTensor)}

    def to_device(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return changed[id(leaf)] if id(leaf) in changed else DeviceTensor(leaf)

    return tree_map(to_device, results)


def register_device() -> list[torch.library.Library]:
    from torch.utils import backend_registration

    class Backend(backend_registration._DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16]

    def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        return compute(torch.ops.aten.copy_.default, (target, source), {"non_blocking": non_blocking})

    backend_registration._setup_privateuseone_for_python_backend(NAME, Backend())
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(lambda operation, *args, **kwargs: compute(operation, args, kwargs), "PrivateUse1")
    aten.impl("copy_", copy, "PrivateUse1")
    return [everything, aten]


CASES: dict[str, dict[str, Any]] = {
    "ring": {"recipe": "simclr-ring", "selection": {"lower": 0.2, "upper": 0.8}},
    "drawn from a ring": {"recipe": "simclr-ring", "selection": {"lower": 0.2, "upper": 0.8, "sample": 5}},
    "bank": {"recipe": "instdisc"},
    "queue": {"recipe": "moco", "selection": "others"},
}
# methods whose steps read nothing but loss and gradient norm, once
WITHOUT_WAITING: dict[str, dict[str, Any]] = {
    "simclr": {"recipe": "simclr"},
    "simclr in tiles": {"recipe": "simclr", "chunk": 5},
    "moco": {"recipe": "moco"},
    "moco in tiles": {"recipe": "moco", "chunk": 5},
    "byol": {"recipe": "byol"},
    "simclr-ring": {"recipe": "simclr-ring", "selection": {"lower": 0.2, "upper": 0.8}},
    "cmc": {"recipe": "cmc"},
}


def train_on_device(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    libraries = register_device()
    device = torch.device(NAME, 0)
    for wrong in (
        lambda: torch.zeros(2, device=device, dtype=torch.float64),
        lambda: torch.ones(2).to(device).double(),
    ):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError("the device took a float64")
    make_data(folder)
    for name, case in CASES.items():
        on_cpu = trajectory(case, folder, SINGLE, 2, torch.float32, 16)
        on_device = trajectory(case, folder, SINGLE, 2, torch.float32, 16, f"{NAME}:0")
        # views are rendered by other arithmetic: float32 has 24 bits, and a gradient is a sum of 10^4 terms
        differences = on_device.differences(on_cpu)
        assert differences["loss_difference"] < 1e-5, (name, differences)
        assert differences["gradient_difference"] < 1e-4, (name, differences)
    check_selections(device)
    for name, case in WITHOUT_WAITING.items():
        with record_steps() as steps:
            trajectory(case, folder, SINGLE, 1, torch.float32, 16, f"{NAME}:0")
        assert len(steps[0]) == 1, (name, steps)
        assert steps[0][0].startswith("tolist in step.py"), (name, steps)
    pretrain.pick_device = lambda *_: device
    options: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 16,
        "workers": 0,
        "precision": "fp32",
        "backbone": "resnet8-w16",
        "selection.background": 0.5,
        "selection.sample": 3,
        "selection.clusters": 4,
    }
    head = nf.OnlineHead()
    nf.pretrain("la", data=str(folder / "pictures.npz"), out=str(folder / "run"), hooks=[head], **options)
    assert head.head is not None
    assert head.head.weight.device.type == NAME
    check_report(folder, device)
    assert libraries


def check_report(folder: Path, device: torch.device) -> None:
    """The page of a run with a selection is written, with the selection's effect."""
    trained.pick_device = lambda *_: device
    options: dict[str, Any] = {"epochs": 1, "batch_size": 16, "workers": 0, "backbone": "resnet8-w16"}
    run = nf.pretrain(
        "simclr-ring",
        data=str(folder / "pictures.npz"),
        out=str(folder / "ring"),
        precision="fp32",
        **options,
    )
    assert run.device == device
    nf.write_report(run, folder / "ring.html")
    page = (folder / "ring.html").read_text()
    assert "dropped as too easy: 90.0% of candidates" in page


@contextmanager
def record_steps() -> Iterator[list[list[str]]]:
    """What the host waited for in each training step."""
    steps: list[list[str]] = []

    def recorded(*arguments: Any) -> Any:
        waits.clear()
        outcome = step.take_step(*arguments)
        steps.append(list(waits))
        return outcome

    equality.take_step = recorded  # type: ignore[assignment]
    yield steps
    equality.take_step = step.take_step


def check_selections(device: torch.device) -> None:
    """Selections keep on the device what they keep on the CPU."""
    draw = torch.Generator().manual_seed(0)
    positive, negative = torch.randn(6, generator=draw), torch.randn(6, 41, generator=draw)
    offered = torch.rand(6, 41, generator=draw) < 0.7
    accept = nf.Accept(0.3)
    selections = [nf.Ring(0.3, 0.9), nf.Ball(0.7, sample=4), nf.Ring(0.1, 0.9, 7), accept, nf.Proposal()]
    for selection in selections:
        masks = []
        for place in (torch.device("cpu"), device):
            accept.to(place)
            torch.manual_seed(3)
            scores = nf.Scores.of(*(tensor.to(place) for tensor in (positive, negative, offered)))
            masks.append(selection(scores).negative.matrix()[1].cpu())
        assert torch.equal(*masks), selection
    scores = nf.Scores.of(*(tensor.to(device) for tensor in (positive, negative, offered)))
    assert nf.Ring(0.3, 0.9).coverage(scores).anchors == 6


def test_training_on_a_device_without_float64(tmp_path: Path) -> None:
    mp.start_processes(train_on_device, (tmp_path,), nprocs=1, start_method="forkserver")
