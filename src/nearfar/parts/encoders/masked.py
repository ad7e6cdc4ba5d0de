"""Predicting hidden symbols from those around them (Wu et al. 2020, sec. 5.1).

    f(x̂, w) = g(x̂)_t^T e(w)      g: a small transformer over the masked block, e: an embedding of each symbol

The pair of the method is (0, 1): anchors[0] = g(x̂)_t at every hidden position, keys[1] = e(w) of what is
hidden there, with the symbol as a row's identity, so that no symbol is its own negative. The whole table e
goes along as the vocabulary, for negatives=dictionary. The critic that goes with it is `dot`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractEncoders
from nearfar.core.types import Batch, Encoded, Pair
from nearfar.errors import UserError, check_number, check_whole
from nearfar.parts.encoders.heads import InputSpec

MASKED, HIDDEN = 0, 1


class TokenTransformer(nn.Module):
    """A transformer over blocks of symbols; its features are its outputs averaged over the block.

    Values below 0 are padding. `symbols` counts the vocabulary; the mask symbol comes after it.
    """

    def __init__(self, symbols: int, length: int, dim: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.symbols = dim, symbols
        self.embedding = nn.Embedding(symbols + 1, dim)
        self.position = nn.Embedding(length, dim)
        # both also serve as keys or are added to them: inner products should begin near 1, not near `dim`
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=dim**-0.5)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(dim), enable_nested_tensor=False)

    def outputs(self, symbols: Int[Tensor, "item time"]) -> Float[Tensor, "item time dim"]:
        place = torch.arange(symbols.shape[1], device=symbols.device)
        x = self.embedding(symbols.clamp(min=0)) + self.position(place)
        return self.layers(x, src_key_padding_mask=symbols < 0)

    def table(self) -> Float[Tensor, "symbol dim"]:
        """e(w) for every symbol of the vocabulary."""
        return self.embedding.weight[: self.symbols]

    def forward(self, symbols: Int[Tensor, "item time"]) -> Float[Tensor, "item dim"]:
        real = (symbols >= 0)[..., None]
        return (self.outputs(symbols) * real).sum(dim=1) / real.sum(dim=1)


class MaskedSymbols(nn.Module, AbstractEncoders):
    """Anchors are outputs at hidden positions, keys are embeddings of the hidden symbols."""

    equation = "u = g(x)_t at a hidden place t, v = e(w_t), the symbol that stood there"
    built_in_backbone = "transformer"
    view_names = ("mask",)
    view_count = 2
    row_per_instance = False  # there are many embeddings of an instance
    keys_are_symbols = True  # keys are symbols, and all of them can be had

    def __init__(
        self,
        dim: int = 128,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        *,
        symbols: int | None = None,
        length: int = 0,
        share: float = 0.0,
    ) -> None:
        super().__init__()
        for key, value in (("dim", dim), ("layers", layers), ("heads", heads)):
            check_whole(f"encoders.{key}", value, 1, 65536)
        if dim % heads:
            raise UserError(
                f"encoders.dim was {dim} with {heads} heads; it must be a multiple of encoders.heads"
            )
        check_number("encoders.dropout", dropout, 0, 1, exclude_high=True)
        if symbols is not None:
            self._make_networks(symbols, length, share)

    def meet(self, inputs: InputSpec) -> None:
        self._make_networks(*(inputs.context[key] for key in ("symbols", "length", "share")))

    def _make_networks(self, symbols: int, length: int, share: float) -> None:
        self.reader = TokenTransformer(symbols, length, **self.settings)
        self.hidden = max(round(share * length), 1)

    @property
    def vocabulary_size(self) -> int:
        return self.reader.symbols

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        return (Pair(MASKED, HIDDEN, 1.0, self.hidden, self.hidden - 1, identity_is_key=True),)

    def backbone(self) -> nn.Module:
        return self.reader

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        masked, hidden = batch.views[MASKED], batch.views[HIDDEN]
        is_hidden = hidden >= 0
        hidden = hidden[is_hidden]
        table = self.reader.table()
        rows = {MASKED: self.reader.outputs(masked)[is_hidden]} if anchors else {}
        return Encoded(
            rows,
            {HIDDEN: table[hidden]},
            {HIDDEN: hidden},
            {HIDDEN: is_hidden.nonzero()[:, 0]},
            vocabulary=table,
        )
