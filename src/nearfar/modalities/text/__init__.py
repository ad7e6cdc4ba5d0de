"""Text: blocks of symbols, some of them hidden, seen by a transformer, compared with the frequencies of
symbols."""

from nearfar.modalities.base import Modality, ViewFamily
from nearfar.modalities.text.data import Reading, TextDescription, TextReader, Texts
from nearfar.modalities.text.networks import TextNetworks
from nearfar.modalities.text.show import TextPresenter
from nearfar.modalities.text.views import Mask

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
