"""Losses with the call signatures people have in their loops: change the import, keep the loop.

    NTXentLoss(temperature)(z0, z1)                              as in lightly
    ClipLoss()(images, texts, logit_scale)                       as in open_clip
    SigLipLoss()(images, texts, logit_scale, logit_bias)         as in open_clip
    MultipleNegativesRankingLoss(scale)(queries, documents, …)   as in sentence-transformers, on embeddings
    SupConLoss(temperature)(embeddings, labels)                  as in pytorch-metric-learning, and so are
    LabelledNTXentLoss, NPairsLoss, TripletMarginLoss

Each returns what its peer returns, with the same gradient. What differs is how: scores are read through
reductions (`nearfar.core.scores`), so beyond two million of them they are computed tile by tile and the n x n
matrix is never held; half precision is scored in float32; and with `gather_distributed=True` the average over
ranks of value and gradient is exactly that of one process with the whole batch.
"""

from nearfar.losses.labels import LabelledNTXentLoss, NPairsLoss, SupConLoss, TripletMarginLoss
from nearfar.losses.pairs import ClipLoss, MultipleNegativesRankingLoss, NTXentLoss, SigLipLoss

__all__ = [
    "ClipLoss",
    "LabelledNTXentLoss",
    "MultipleNegativesRankingLoss",
    "NPairsLoss",
    "NTXentLoss",
    "SigLipLoss",
    "SupConLoss",
    "TripletMarginLoss",
]
