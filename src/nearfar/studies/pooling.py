"""Linear evaluation before and after pooling (the protocol of Wu et al. 2021, sec. 5).

The Ring paper fits its linear classifier on the last feature map, every channel at every place; most others fit it on the mean over places.
The map has as many numbers as there are places for each pooled one, and knows where things are. Both are read here from the same
frozen encoders.

Command: nearfar study pooling data=cifar10:ROOT seeds=3     Cost: about 10 minutes on two cores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from nearfar.evaluate import LabelledFeatures, features, scores
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, Setup, moments, percent, repeated, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPES = ("instdisc", "instdisc-ring", "cmc")
KINDS = {"linear": "pooled", "map": "before pooling"}


def run(bench: Bench, setup: Setup, recipes: str = ",".join(RECIPES)) -> Result:
    names = recipes.split(",")
    arms = {name: [setup.recipe(name, s) for s in setup.numbers] for name in names}
    found = repeated(bench, setup, arms, before_pooling)
    rows = [
        Row(f"{name}, {said}", None, *percent(found[name], kind))
        for name in names
        for kind, said in KINDS.items()
    ]
    values = {kind: [percent(found[name], kind) for name in names] for kind in KINDS}
    finding = Finding("Linear top-1 in percent", tuple(rows), {"recipes": names, **values})
    return Result((finding,), _remarks(found, names))


def before_pooling(run: Run, asked: Images) -> Figures:
    """The linear probe on the flattened map, and how many numbers that is."""
    encoder, plain, train = run.encoder("map"), run.plain_view(), run.images()

    def labelled(images: Images) -> LabelledFeatures:
        assert images.labels is not None
        rows = features(encoder, images, plain, device=run.device, workers=1)
        return LabelledFeatures(rows, torch.from_numpy(images.labels))

    fit, ask = labelled(train), labelled(asked)
    return {"map": scores(fit, ask, ["linear"])["linear"]["top1"], "map_width": fit.features.shape[1]}


def _remarks(found: Mapping[str, Sequence[Figures]], names: Sequence[str]) -> tuple[str, ...]:
    said = []
    for name in names:
        gain = moments([100 * (figures["map"] - figures["linear"]) for figures in found[name]])
        width = found[name][0]["map_width"]
        said.append(
            f"{name}: the map of {width} numbers is {written(gain, '+')} points from pooled, paired by seed."
        )
    return tuple(said)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    figure, (axis,) = panels(["Linear top-1, percent"])
    curves = result.findings[0].curves
    for place, (kind, said) in enumerate(KINDS.items()):
        bars = [at + 0.38 * (place - 0.5) for at in range(len(curves["recipes"]))]
        mean, spread = zip(*curves[kind], strict=True)
        axis.bar(
            bars, mean, 0.36, yerr=[sd or 0.0 for sd in spread], color=COLOURS[place], label=said, capsize=2
        )
    axis.set_xticks(range(len(curves["recipes"])), curves["recipes"])
    axis.legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study("pooling", "Wu et al. 2021, sec. 5: linear evaluation before and after pooling", run, draw)
