"""Prototypes as candidates: learnt vectors, of which the other view decides which are positives.

    Sinkhorn   codes that use all prototypes equally often        SwAV (Caron et al. 2020)
    Centred    codes of a centred, sharpened softmax              DINO (Caron et al. 2021)

A code q gives each prototype w_k a weight. With scores f that are linear in the key, the positive of an anchor
is the mean prototype sum_k q_k w_k. Then `bound=cross-entropy` is -H(q, p), p the softmax of f(u, w_k).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractInnerProduct, AbstractNegatives
from nearfar.core.schedules import Progress, Value, at, parse_within
from nearfar.core.scores import EMPTY, UNKNOWN, Candidates
from nearfar.core.types import NegativeSampling, Sizes
from nearfar.errors import UserError, check_number, check_whole
from nearfar.parts.negatives.queue import Queue

PrototypeVectors = Float[Tensor, "prototype dim"]
Logits = Float[Tensor, "row prototype"]

REASON = "candidates are learnt prototypes, not draws of p(v)"


class AbstractCodes(AbstractNegatives):
    """Candidates are the prototypes of the encoders; positives are given by codes."""

    display_name = "the prototypes"
    reads_vocabulary = True
    gives_codes = True
    prototypes: int  # how many there are; 0: not known

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        name, critic = choices["negatives"]["name"], parts["critic"]
        kind = critic if isinstance(critic, type) else type(critic)
        if not issubclass(kind, AbstractInnerProduct):
            return (
                f"negatives was {name} with critic={choices['critic']['name']}, whose scores are not linear in the "
                "key; use critic=cosine or dot"
            )
        if parts["selection"].remembers_instances or "by" in choices["selection"]:
            return (
                f"negatives was {name} with selection={choices['selection']['name']}, which goes by instances, and "
                "prototypes are none; use selection=everyone, ring or ball"
            )
        return None

    @abstractmethod
    def codes(
        self, keys: Float[Tensor, "row dim"], vocabulary: PrototypeVectors, key: int, progress: Progress
    ) -> Logits: ...

    def candidates(self, keys: Mapping[int, Tensor], index: Int[Tensor, "row"], key: int) -> Candidates:
        return self.symbols(None)

    def symbols(self, vocabulary: PrototypeVectors | None) -> Candidates:
        if vocabulary is None:
            raise UserError(
                f"{type(self).__name__} needs prototypes, which the encoders have not; set encoders.prototypes"
            )
        return Candidates(vocabulary, torch.full((len(vocabulary),), UNKNOWN, device=vocabulary.device))

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        return NegativeSampling(batch_size, self.prototypes, exchangeable=False, reason=REASON)


@torch.no_grad()
def sinkhorn_codes(logits: Logits, epsilon: float, iterations: int) -> Logits:
    """Codes of rows that use all prototypes equally often, as far as the iterations reach (Caron et al.
    2020, Eq. 3-5, and its listing): e^(logits / epsilon) is scaled so that columns have equal sums, then rows
    the sum one."""
    # the largest is subtracted so that nothing overflows; scaling undoes it
    codes = torch.exp((logits - logits.max()) / epsilon)
    for _ in range(iterations):
        codes = codes / codes.sum(dim=0, keepdim=True).clamp_min(torch.finfo(codes.dtype).tiny)
        codes = codes / codes.sum(dim=1, keepdim=True).clamp_min(torch.finfo(codes.dtype).tiny)
    return codes


class Sinkhorn(nn.Module, AbstractCodes):
    """Codes by Sinkhorn-Knopp over the global batch (Caron et al. 2020, sec. 3.1).

    With `size` above 0, the last `size` keys of the view are added: once the queue is full and `after` epochs
    are over (sec. 4.2)."""

    equation = "all prototypes w_k; v+ is sum_k q_k w_k, q = Sinkhorn-Knopp of v.w / {epsilon}, {iterations} iterations"
    remarks = (("size", lambda size: size > 0, "with the last {size} keys"),)

    def __init__(
        self,
        epsilon: float = 0.05,
        iterations: int = 3,
        size: int = 0,
        after: float = 0.0,
        *,
        dim: int | None = None,
        symbols: int = 0,
        views: int = 2,
    ) -> None:
        super().__init__()
        check_number("negatives.epsilon", epsilon, 0, exclude_low=True)
        check_whole("negatives.iterations", iterations, 1, 1000)
        check_whole("negatives.size", size, 0)
        check_number("negatives.after", after, 0)
        self.epsilon, self.iterations, self.after = epsilon, iterations, after
        self.prototypes, self.views = symbols, views
        self.queue = Queue(size, dim=dim) if size else None

    def meet(self, sizes: Sizes) -> None:
        self.prototypes, self.views = sizes.symbols, sizes.views
        if self.queue is not None:
            self.queue.meet(sizes)

    def setup(
        self, key_groups: int, group_of: Callable[[int], int], prepare: Callable[[Tensor], Tensor]
    ) -> None:
        if self.queue is not None:
            self.queue.setup(self.views, int, prepare)  # the group of a view is its number

    @torch.no_grad()
    def codes(
        self, keys: Float[Tensor, "row dim"], vocabulary: PrototypeVectors, key: int, progress: Progress
    ) -> Logits:
        rows = keys if self.queue is None else torch.cat([keys, self._queued(keys, key, progress)])
        return sinkhorn_codes(rows @ vocabulary.T, self.epsilon, self.iterations)[: len(keys)]

    def _queued(self, keys: Tensor, key: int, progress: Progress) -> Float[Tensor, "row dim"]:
        """The remembered keys of a view; none before the queue is full."""
        assert self.queue is not None
        stored = self.queue.candidates({key: keys}, torch.empty(0), key)
        full = progress.epoch >= self.after and not bool((stored.index == EMPTY).any())
        return stored.embedding if full else stored.embedding[:0]

    @torch.no_grad()
    def advance_codes(
        self, keys: Mapping[int, Tensor], vocabulary: PrototypeVectors, progress: Progress
    ) -> None:
        if self.queue is not None:
            index = torch.zeros(len(next(iter(keys.values()))), dtype=torch.long, device=vocabulary.device)
            self.queue.advance(keys, index, progress)

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        if self.queue is not None:
            self.queue.sampling(batch_size, 1)  # raises if the queue is too small
        return super().sampling(batch_size, key_views, keys_per_instance, same_instance_negatives)


class Centred(nn.Module, AbstractCodes):
    """Codes softmax((v.w_k - c_k) / `temperature`): sharpened by a low temperature, and centred by c, the moving
    mean of v.w over batches, c <- m c + (1 - m) mean, m = `momentum` (Caron et al. 2021, Eq. 1 and 4)."""

    equation = (
        "all prototypes w_k; v+ is sum_k q_k w_k, q = softmax((v.w' - c) / {temperature}), c the mean of v.w' with "
        "momentum {momentum}"
    )
    centre: Tensor

    def __init__(self, temperature: Value = 0.04, momentum: float = 0.9, *, symbols: int = 0) -> None:
        super().__init__()
        self.temperature = parse_within(temperature, "negatives.temperature", 0, exclude_low=True)
        check_number("negatives.momentum", momentum, 0, 1, exclude_high=True)
        self.momentum, self.prototypes = momentum, symbols
        self.register_buffer("centre", torch.zeros(symbols))

    def meet(self, sizes: Sizes) -> None:
        self.prototypes = sizes.symbols
        self.centre = torch.zeros(sizes.symbols)

    @torch.no_grad()
    def codes(
        self, keys: Float[Tensor, "row dim"], vocabulary: PrototypeVectors, key: int, progress: Progress
    ) -> Logits:
        logits = keys @ vocabulary.T
        centred = logits - self.centre.to(logits.dtype) if len(self.centre) else logits
        return torch.softmax(centred / at(self.temperature, progress), dim=1)

    @torch.no_grad()
    def advance_codes(
        self, keys: Mapping[int, Tensor], vocabulary: PrototypeVectors, progress: Progress
    ) -> None:
        # the mean of v.w is (the mean of v).w
        mean = torch.cat(list(keys.values())).mean(dim=0) @ vocabulary.T
        if not len(self.centre):
            self.centre = torch.zeros_like(mean)
        self.centre.lerp_(mean.to(self.centre.dtype), 1 - self.momentum)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state.get(f"{prefix}centre")
        if stored is not None and not len(self.centre):  # made without knowing the number of prototypes
            self.centre = torch.zeros_like(stored)
        super()._load_from_state_dict(state, prefix, *rest)
