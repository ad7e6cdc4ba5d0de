"""`compile=true`: the backbones run as torch.compile makes them, during training steps only.

A backbone is one function from a tensor to a tensor in every method, and most of a step's time. Heads are a few
matrix products; scores have their own kernels. So one graph per backbone and shape is compiled, without graph
breaks for our networks. Probes, memory estimates and exports use the plain network.

Each shape is compiled on its own (`dynamic=False`): what is computed then depends on the shapes of a batch, not
on those seen before, and a resumed run computes what an uninterrupted one does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from nearfar.core.networks import backbone_of, replaced_forwards
from nearfar.errors import UserError

BACKEND = "inductor"
# layouts stay as they are: some convolutions crash in channels-last (core/networks.py)
OPTIONS: dict[str, Any] = {"layout_optimization": False}
MAX_GRAPHS = 64  # of one class of networks: networks × crop sizes × chunk sizes


class CompiledNetworks:
    """The compiled forward functions of the backbones in `encoders`."""

    def __init__(self, encoders: nn.Module) -> None:
        self._called = False
        options = OPTIONS if BACKEND == "inductor" else None
        self._forwards = {
            network: self._recording_call(
                torch.compile(network.forward, backend=BACKEND, dynamic=False, options=options)
            )
            for network in networks_of(encoders)
        }

    def _recording_call(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compiled)
        def forward(*inputs: Any, **options: Any) -> Any:
            self._called = True
            return compiled(*inputs, **options)

        return forward

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the backbones run compiled, in forward and backward passes."""
        from torch._dynamo import config
        from torch._dynamo.exc import BackendCompilerFailed

        try:
            with replaced_forwards(self._forwards), config.patch(recompile_limit=MAX_GRAPHS):
                yield
        except BackendCompilerFailed as problem:
            raise UserError(compiler_message(problem.inner_exception)) from None
        if not self._called:
            raise UserError(
                "compile was true, but these encoders take the backbone apart instead of calling it; use "
                "compile=false"
            )


def compiler_message(problem: BaseException) -> str:
    """The sentence for a network that torch cannot compile on this machine."""
    reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
    if type(problem).__name__ in ("InvalidCxxCompiler", "CppCompileError"):
        return (
            "compile was true, which needs a working C++ compiler; install g++ or clang, set CXX to one, or use "
            "compile=false"
        )
    return f"compile was true, but torch could not compile the network ({reason}); use compile=false"


def networks_of(encoders: nn.Module) -> list[nn.Module]:
    """The backbones of all networks, slow copies too; networks without a backbone as a whole."""
    networks = [
        network
        for child in encoders.children()
        for network in (child if isinstance(child, nn.ModuleList) else [child])
        if next(network.parameters(), None) is not None
    ]
    backbones = [backbone_of(network) for network in networks]
    inside = [
        backbone for backbone, network in zip(backbones, networks, strict=True) if backbone is not network
    ]
    return inside or networks
