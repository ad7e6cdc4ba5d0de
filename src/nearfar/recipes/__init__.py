"""The papers' methods as assignments of parts, by family. A recipe changes nothing but the defaults."""

from nearfar.recipes.corrected import DCL, DEBIASED, HCL, SUPCON
from nearfar.recipes.distillation import DISTILL
from nearfar.recipes.graphs import GRAPHCL, INFOGRAPH
from nearfar.recipes.infomax import DIM
from nearfar.recipes.labels import SUPERVISED
from nearfar.recipes.memory import CMC, INSTDISC, LOCAL_AGGREGATION, MOCO, MOCO_V1, NNCLR
from nearfar.recipes.metric import NPAIR, TRIPLET, TUPLE
from nearfar.recipes.pairs import CLIP, SIGLIP
from nearfar.recipes.recipe import Recipe
from nearfar.recipes.sequences import CEBRA, CPC, MASKED
from nearfar.recipes.shaped import SIGREG, VICREG
from nearfar.recipes.siamese import BYOL, END_TO_END, MOCO_V3, SIMCLR, SIMSIAM
from nearfar.recipes.variants import variants

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
