"""The network of text: a small transformer over symbols."""

from nearfar.modalities.base import AbstractNetworks, Choice
from nearfar.modalities.text.data import TextDescription
from nearfar.parts.encoders import InputSpec, TokenTransformer

DIM, LAYERS, HEADS, DROPOUT = 128, 2, 4, 0.1  # of the network, unless the encoders bring their own


class TextNetworks(AbstractNetworks):
    names = ("transformer",)
    default = "transformer"
    smallest = "transformer"

    def inputs(self, network: str, choice: Choice, description: TextDescription) -> InputSpec:
        symbols, length = len(description.symbols), description.length
        context = {
            "instances": description.instances,
            "symbols": symbols,
            "length": length,
            "share": choice["share"],
        }
        return InputSpec(
            lambda view: TokenTransformer(
                symbols, length, dim=DIM, layers=LAYERS, heads=HEADS, dropout=DROPOUT
            ),
            ((length,),) * choice["count"],
            context,
        )
