"""Vectors: rows of a table of numbers.

nearfar pretrain simclr table.csv --out runs/table          also Parquet, an .npz with `x`, an array (n, width)
"""

from nearfar.modalities.base import Modality, ViewFamily
from nearfar.modalities.vectors.data import Vectors, VectorsDescription, VectorsReader
from nearfar.modalities.vectors.networks import VectorsNetworks
from nearfar.modalities.vectors.show import VectorsPresenter
from nearfar.modalities.vectors.views import Corrupt

VECTORS = Modality(
    name="vectors",
    unit="vectors",
    plural="vectors",
    example="table.csv",
    reader=VectorsReader(),
    views=ViewFamily({"corrupt": Corrupt}),
    networks=VectorsNetworks(),
    presenter=VectorsPresenter(),
)

__all__ = ["VECTORS", "Vectors", "VectorsDescription"]
