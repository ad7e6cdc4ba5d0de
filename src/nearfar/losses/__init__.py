"""Losses with the call signatures people have in their loops: change the import, keep the loop.

    NTXentLoss(temperature, memory_bank_size)(z0, z1)            as in lightly, and so are DCLLoss, DCLWLoss,
                                                                 VICRegLoss, BarlowTwinsLoss, LeJEPALoss,
                                                                 NegativeCosineSimilarity
    ClipLoss()(images, texts, logit_scale)                       as in open_clip
    SigLipLoss()(images, texts, logit_scale, logit_bias)         as in open_clip
    MultipleNegativesRankingLoss(model)(features, labels)        as in sentence-transformers, or on embeddings
    SupConLoss(temperature)(embeddings, labels, indices_tuple)   as in pytorch-metric-learning, and so are
                                                                 LabelledNTXentLoss, NPairsLoss, TripletMarginLoss

Each returns what its peer returns, with the same gradient. What differs is how: scores are read through
reductions (`nearfar.core.scores`), so beyond two million of them they are computed tile by tile and the n x n
matrix is never held; half precision is scored in float32; and with `gather_distributed=True` the average over
ranks of value and gradient is exactly that of one process with the whole batch. Where they differ on purpose
is in docs/losses.md.
"""

from nearfar.losses.labels import LabelledNTXentLoss, NPairsLoss, SupConLoss, TripletMarginLoss
from nearfar.losses.pairs import (
    ClipLoss,
    DCLLoss,
    DCLWLoss,
    NTXentLoss,
    SigLipLoss,
    negative_mises_fisher_weights,
)
from nearfar.losses.ranking import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss
from nearfar.losses.regularised import (
    BarlowTwinsLoss,
    LeJEPALoss,
    NegativeCosineSimilarity,
    SIGRegLoss,
    VICRegLoss,
)

__all__ = [
    "BarlowTwinsLoss",
    "CachedMultipleNegativesRankingLoss",
    "ClipLoss",
    "DCLLoss",
    "DCLWLoss",
    "LabelledNTXentLoss",
    "LeJEPALoss",
    "MultipleNegativesRankingLoss",
    "NPairsLoss",
    "NTXentLoss",
    "NegativeCosineSimilarity",
    "SIGRegLoss",
    "SigLipLoss",
    "SupConLoss",
    "TripletMarginLoss",
    "VICRegLoss",
    "negative_mises_fisher_weights",
]
