"""Pairs: two columns of a table, each seen by a network of its own.

    nearfar pretrain clip pairs:photos.parquet:image,caption --out runs/clip
    nearfar evaluate runs/clip --data pairs:others.parquet:image,caption     retrieval both ways; zero-shot where captions recur

The two sides are views of one instance, so a method's number is about the mutual information of the two
columns, and a run's held-out estimate of it has its certificate. Evaluation's features are those of the first
column.
"""

from nearfar.modalities.base import Modality, ViewFamily
from nearfar.modalities.pairs.data import Pairs, PairsDescription, PairsReader
from nearfar.modalities.pairs.show import PairsPresenter
from nearfar.modalities.pairs.views import BothSides, PairsNetworks

PAIRS = Modality(
    name="pairs",
    unit="pairs",
    plural="pairs",
    example="pairs:photos.parquet:image,caption",
    reader=PairsReader(),
    views=ViewFamily({"both": BothSides}, resizable=True),
    networks=PairsNetworks(),
    presenter=PairsPresenter(),
)

__all__ = ["PAIRS", "Pairs", "PairsDescription"]
