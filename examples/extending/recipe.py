"""A recipe: this file, and a line in `nearfar/config/recipes/__init__.py`:  "moco-tuple": MOCO_TUPLE

nearfar pretrain moco-tuple photos/ --out runs/a        nearfar recipes moco-tuple
"""

import nearfar as nf
from nearfar.config.recipes import Recipe
from nearfar.config.recipes.images import moco


def moco_tuple(size: int = 4096) -> nf.Method:
    return moco(size).replace(bound=nf.Tuple())


MOCO_TUPLE = Recipe("MoCo with the (N+1)-tuple loss, whose number has no log m.", moco_tuple)
