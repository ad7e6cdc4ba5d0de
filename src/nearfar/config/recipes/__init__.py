"""The papers' methods as assignments of parts, by family. A recipe changes nothing but the defaults."""

from nearfar.config.recipes.corrected import DCL, DEBIASED, HCL, SUPCON
from nearfar.config.recipes.distillation import DISTILL
from nearfar.config.recipes.graphs import GRAPHCL, INFOGRAPH
from nearfar.config.recipes.infomax import DIM
from nearfar.config.recipes.labels import SUPERVISED
from nearfar.config.recipes.memory import CMC, INSTDISC, LOCAL_AGGREGATION, MOCO, MOCO_V1, NNCLR
from nearfar.config.recipes.metric import NPAIR, TRIPLET, TUPLE
from nearfar.config.recipes.pairs import CLIP, SIGLIP
from nearfar.config.recipes.recipe import Recipe
from nearfar.config.recipes.sequences import CEBRA, CPC, MASKED
from nearfar.config.recipes.shaped import SIGREG, VICREG
from nearfar.config.recipes.siamese import BYOL, END_TO_END, MOCO_V3, SIMCLR, SIMSIAM
from nearfar.config.recipes.variants import variants

IMAGES: dict[str, Recipe] = {
    "simclr": SIMCLR,
    "moco": MOCO,
    "moco-v1": MOCO_V1,
    "byol": BYOL,
    "simsiam": SIMSIAM,
    "instdisc": INSTDISC,
    "cmc": CMC,
    "end-to-end": END_TO_END,
    "npair": NPAIR,
    "tuple": TUPLE,
    "triplet": TRIPLET,
    "dim": DIM,
    "la": LOCAL_AGGREGATION,
    "moco-v3": MOCO_V3,
    "nnclr": NNCLR,
    "dcl": DCL,
    "debiased": DEBIASED,
    "hcl": HCL,
    "supcon": SUPCON,
    "vicreg": VICREG,
    "sigreg": SIGREG,
}
BASE: dict[str, Recipe] = {
    **IMAGES,
    "cpc": CPC,
    "mlm": MASKED,
    "cebra": CEBRA,
    "infograph": INFOGRAPH,
    "graphcl": GRAPHCL,
    "clip": CLIP,
    "siglip": SIGLIP,
    "supervised": SUPERVISED,
    "distill": DISTILL,
}
RECIPES: dict[str, Recipe] = {**BASE, **variants(IMAGES)}

__all__ = ["BASE", "RECIPES", "Recipe"]
