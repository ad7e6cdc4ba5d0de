"""Every symbol of a vocabulary (masked language models, Wu et al. 2020, sec. 5.1), or every class of a label."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.scores import Candidates
from nearfar.core.types import NegativeSampling
from nearfar.errors import UserError


class Dictionary(AbstractNegatives):
    """All `symbols` of the vocabulary, or all classes, each once, as the encoders embed them: InfoNCE over them is
    log-softmax + log V, the cross-entropy of a masked language model or of a classifier up to a constant."""

    reads_vocabulary = True
    equation = "every other symbol of the vocabulary, or every other class, once"

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if parts["encoders"].keys_are_symbols:
            return None
        role = choices["encoders"]["name"]
        return f"negatives was dictionary with encoders={role}; only encoders=masked and encoders=prototypes have a vocabulary"

    def __init__(self, *, symbols: int = 0) -> None:
        self.size = symbols

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, which: int) -> Candidates:
        return self.symbols(None)

    def symbols(self, vocabulary: Float[Tensor, "symbol dim"] | None) -> Candidates:
        if vocabulary is None or len(vocabulary) != self.size:
            raise UserError(
                f"negatives was dictionary, but the encoders bring no vocabulary of {self.size} symbols; "
                "use encoders=masked or encoders=prototypes, or other negatives"
            )
        return Candidates(vocabulary, torch.arange(self.size, device=vocabulary.device))

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        why = (
            "each symbol (or class) is a negative once, not as often as it occurs, so the value can exceed the "
            "information by as much as the symbols' entropy falls short of log V (Wu et al. 2020, sec. 5.1)"
        )
        return NegativeSampling(batch_size, self.size - 1, exchangeable=False, reason=why)
