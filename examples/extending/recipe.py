"""A recipe: this file, and a line in `nearfar/config/recipes/__init__.py`:  "moco-tuple": MOCO_TUPLE

nearfar pretrain moco-tuple photos/ --out runs/a        nearfar recipes moco-tuple
"""

from dataclasses import replace

from nearfar.config.recipes.memory import MOCO

MOCO_TUPLE = replace(
    MOCO, about="MoCo with the (N+1)-tuple loss, whose number has no log m.", bound={"name": "tuple"}
)
