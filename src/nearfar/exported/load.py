"""Generates load.py of an exported folder: network and preprocessing without nearfar."""

from nearfar.parts.encoders.portable import Portable

_HEAD = '''"""The encoder of this folder{without}.

    from load import encoder, preprocess

    features = encoder()(preprocess(image))      # image: a PIL image, or bytes as a tensor (channel, height, width)

Written by nearfar. README.md describes the encoder, config.json how it was trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as pictures
{imports}
HERE = Path(__file__).parent
CONFIG = json.loads((HERE / "config.json").read_text(encoding="utf-8"))
'''

_ENCODER = '''
def encoder() -> nn.Module:
    """The trained network, in evaluation mode; every key of the file is used and none is missing."""
    network = {expression}
    network.load_state_dict(load_file(HERE / "model.safetensors"), strict=True)
    return network.eval()
'''

_PREPROCESS = '''
def preprocess(image: Any) -> Tensor:
    """Returns the image as this encoder expects it."""
    spec = CONFIG["input"]
    return plain_view(
        image, spec["size"], spec["mean"], spec["std"], spec["colours"], spec["low"], spec["high"]
    )
'''


def libraries(out: Portable) -> list[str]:
    """The packages that load.py imports."""
    extra = [line.split()[-1] for line in out.imports if line != "import torchvision"]
    return ["torch", "torchvision", *extra, "safetensors"]


def load_file_text(out: Portable, source: str) -> str:
    """Returns the text of load.py; empty if the encoder needs nearfar."""
    if not source or not out.expression:
        return ""
    imports = "".join(f"{line}\n" for line in out.imports)
    head = _HEAD.format(without=f", by {', '.join(libraries(out))} alone", imports=imports)
    return "\n\n".join(
        [
            head.strip() + "\n",
            *(definition.strip() + "\n" for definition in out.definitions),
            _ENCODER.format(expression=out.expression).strip() + "\n",
            source.strip() + "\n",
            _PREPROCESS.strip() + "\n",
        ]
    )
