"""Text: blocks of symbols, some hidden, a transformer, frequencies of symbols as a baseline."""

from nearfar.modalities.base import AbstractNetworks, Choice, Modality, ViewFamily
from nearfar.modalities.text.data import Reading, TextDescription, TextReader, Texts
from nearfar.modalities.text.show import TextPresenter
from nearfar.modalities.text.views import Mask
from nearfar.parts.encoders import InputSpec, TokenTransformer

DIM, LAYERS, HEADS, DROPOUT = 128, 2, 4, 0.1  # of the network, unless the encoders bring their own


class TextNetworks(AbstractNetworks):
    names = ("transformer",)
    default = "transformer"
    smallest = "transformer"

    def inputs(self, network: str, choice: Choice, description: TextDescription) -> InputSpec:
        symbols, length = len(description.symbols), description.length
        context = {"instances": description.instances, "symbols": symbols, "length": length}
        make = lambda view: TokenTransformer(symbols, length, DIM, LAYERS, HEADS, DROPOUT)
        return InputSpec(make, ((length,),) * choice["count"], {**context, "share": choice["share"]})


TEXT = Modality(
    name="text",
    unit="blocks",
    plural="text",
    example="texts/",
    reader=TextReader(),
    views=ViewFamily({"mask": Mask}, several=False),
    networks=TextNetworks(),
    presenter=TextPresenter(),
)

__all__ = ["TEXT", "Reading", "TextDescription", "Texts"]
