"""SimCLR with another view of its negatives: without the positive in their sum, corrected for classes, weighted, or labelled."""

from dataclasses import replace

from nearfar.config.recipes.siamese import SIMCLR

DCL = replace(
    SIMCLR,
    about="SimCLR with the positive left out of the sum over negatives: decoupled contrastive learning (Yeh et al. 2022), UBA up to a constant.",
    critic={"name": "cosine", "temperature": 0.1},
    bound={"name": "uba"},
)

DEBIASED = replace(
    SIMCLR,
    about="SimCLR corrected for the share of negatives that are of the anchor's own class (Chuang et al. 2020).",
    critic={"name": "cosine", "temperature": 0.5},
    bound={"name": "debiased", "tau": 0.1},
)

HCL = replace(
    DEBIASED,
    about="Debiased contrast with negatives weighted by their similarity: hard negatives (Robinson et al. 2021).",
    selection={"name": "hard", "beta": 1.0},
)

SUPCON = replace(
    SIMCLR,
    about="Views of all pictures with the anchor's label are its positives: supervised contrast; needs labels (Khosla et al. 2020).",
    critic={"name": "cosine", "temperature": 0.1},
    selection={"name": "labelled"},
    bound={"name": "supcon"},
)
