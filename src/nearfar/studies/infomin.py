"""What two views share, against what is learnt from them: InfoMin (Sáez Maldonado 2021, sec. 5.2).

Equal views share everything and teach nothing; views that share nothing teach nothing either. As augmentation
grows stronger, I(v1; v2) falls, and accuracy should rise, then fall. One knob scales SimCLR's whole pipeline:
strength 0 is the plain image, 1 is the recipe's own.

The information is our estimate: InfoNCE on images that were not trained on, a view of each against one view
of every other (the form that is proven). The critic is the trained network's cosine, with the temperature
chosen again on further unseen images. It goes through the encoder, so it is a lower bound on I(v1; v2), and at most log m
for m images.

The principle's other half is that views keep what the task needs, I(v1; y) = I(x; y). So the tables also show
the information of one view, and of the plain image, about the label. It is by the same bound with a linear
classifier as critic, fitted on views of the training images.

Command: nearfar study infomin data=cifar10:ROOT     Cost: about 18 minutes of one core.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.scores import streamed_scores
from nearfar.core.statistics import mean_difference
from nearfar.errors import UserError
from nearfar.evaluate import LabelledFeatures, features, scores
from nearfar.modalities import Images
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.negatives import InBatch
from nearfar.run.trained import Run
from nearfar.studies.comparison import Comparison, Figures, comparison_study, paired
from nearfar.studies.frame import StudyResult, StudyRow, StudyTable, mean_row
from nearfar.studies.images import ImageSetup, StudyArm, labels_of

STRENGTHS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
SMALLEST_CROP = 0.2  # share of the image in SimCLR's smallest crop at this size
TEMPERATURES = tuple(np.geomspace(0.003, 1.0, 30).tolist())
TUNING_SHARE = 0.2  # of the unseen images: the temperature is chosen on these
VIEW_SEED = 1  # of the views that information is measured on
SOURCE = "Sáez Maldonado 2021, sec. 5.2, in words: the InfoMin principle, without figures"
NATS = {
    "nats": "I(v1; v2) in nats, at least",
    "label_nats": "I(v; y) in nats, at least",
    "plain_nats": "I(x; y) in nats, at least",
}


def scaled_views(strength: float) -> dict[str, Any]:
    """The settings of SimCLR's pipeline, times `strength`.

    A crop shows from 0.2^strength of the image to five times that, at most all of it: 1 is SimCLR's [0.2, 1],
    and above 1 large crops disappear too. Jitter, greyscale and flip grow in proportion as far as they can.
    """
    options = {
        "crop_scale": [SMALLEST_CROP**strength, min(1.0, SMALLEST_CROP ** (strength - 1))],
        **dict.fromkeys(("brightness", "contrast", "saturation"), 0.4 * strength),
        "hue": min(0.5, 0.1 * strength),
        "greyscale": min(1.0, 0.2 * strength),
        "flip": min(0.5, 0.5 * strength),
    }
    return {f"views.{name}": value for name, value in options.items()}


def information(first: Float[Tensor, "image dim"], second: Float[Tensor, "image dim"]) -> dict[str, Any]:
    """InfoNCE between first and second views, a lower bound on I(v1; v2), with the ceiling and status of its
    certificate; the temperature is chosen on other rows."""
    tuning = round(TUNING_SHARE * len(first))
    if min(tuning, len(first) - tuning) < 2:
        raise UserError(f"information needs at least 10 images; found {len(first)}")
    temperature = max(TEMPERATURES, key=partial(_nats, first[:tuning], second[:tuning]))
    claim = InfoNCE().certificate(InBatch(views="one").sampling(len(first) - tuning, key_views=1))
    value = _nats(first[tuning:], second[tuning:], temperature)
    return {"nats": value, "ceiling": claim.ceiling, "temperature": temperature, "status": claim.status}


def _nats(first: Tensor, second: Tensor, temperature: float) -> float:
    with torch.no_grad():
        return float(InfoNCE()(streamed_scores(first, second, temperature, tile=512)))


@torch.no_grad()
def embedded_views(run: Run, images: Images) -> tuple[Tensor, Tensor]:
    """Two views of every image, drawn as training drew them, as the trained method embeds and scores them."""
    method, views = run.method().to(run.device), run.views()
    batches = []
    for rows in np.array_split(np.arange(len(images)), -(-len(images) // 512)):
        pair = views(images.load(rows), VIEW_SEED, 0, rows)
        batches.append([method.embed(view.to(run.device)).cpu() for view in pair])
    first, second = (torch.cat(side) for side in zip(*batches, strict=True))
    return first, second


def information_measures(run: Run, test: Images) -> dict[str, Any]:
    """What two views of a test image share, and what a view and the plain image say about the label."""
    # shuffled: classes may come in blocks, and the temperature is chosen on the first rows
    shuffled = test.subset(np.random.default_rng(0).permutation(len(test)))
    return {**information(*embedded_views(run, shuffled)), **label_information(run, test)}


def label_information(run: Run, test: Images) -> dict[str, float]:
    """Lower bounds in nats on what features of one view, and of the plain image, say about the label."""
    train, encoder, views, plain_view = run.open_data(), run.encoder(), run.views(), run.plain_view()
    view = lambda loaded, seed, epoch, rows: views(loaded, VIEW_SEED, 0, rows)[:1]
    nats = {}
    for name, shown in (("label_nats", view), ("plain_nats", plain_view)):
        fit, held_out = (
            LabelledFeatures(
                features(encoder, images, shown, device=run.device, workers=1), labels_of(images)
            )
            for images in (train, test)
        )
        nats[name] = scores(fit, held_out, ["information"], unseen=True)["information"]["nats"]
    return nats


def strength_name(strength: float) -> str:
    return f"strength {strength:g}"


def add_information(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """Adds the tables in nats, and says whether accuracy over strength is an inverted U."""
    tables = [_nats_table(figures, measure) for measure in NATS]
    return StudyResult((*tables, *result.tables), _remarks(figures, tables, result.tables[1]))


def _nats_table(figures: Figures, measure: str) -> StudyTable:
    columns = {s: [one[measure] for one in figures[strength_name(s)] if one] for s in STRENGTHS}
    rows = [mean_row(strength_name(s), values, x=s, series=measure) for s, values in columns.items()]
    means = [float(row.ours or 0.0) for row in rows]
    if measure == "nats":
        falls = "yes" if (np.diff(means) < 0).all() else f"no: {', '.join(f'{nats:.2f}' for nats in means)}"
        rows.append(StudyRow("falls at every step", "falls with strength", falls))
    if measure == "label_nats":
        plain_nats = [one["plain_nats"] for one in (figures[strength_name(s)][0] for s in STRENGTHS) if one]
        shares = ", ".join(f"{view / image:.0%}" for view, image in zip(means, plain_nats, strict=True))
        rows.append(StudyRow("I(v; y) over I(x; y), by strength", "all of it", shares))
    source = SOURCE if measure != "plain_nats" else ""
    return StudyTable(NATS[measure], tuple(rows), source, x_label="strength (1: SimCLR's own)")


def _remarks(figures: Figures, tables: Sequence[StudyTable], linear: StudyTable) -> tuple[str, ...]:
    means, nats, label_nats, plain_nats = (
        [float(row.ours or 0.0) for row in table.rows if row.x is not None] for table in (linear, *tables)
    )
    best = int(np.argmax(means))
    names = [strength_name(STRENGTHS[at]) for at in (best, 0, -1)]
    ends = [mean_difference(paired(figures, names[0], end, "linear")).verdict for end in names[1:]]
    shape = (
        "an inverted U" if ends == ["better", "better"] else "no inverted U that exceeds the spread of seeds"
    )
    runs = [one for seeds in figures.values() for one in seeds if one]
    temperatures, ceiling = [one["temperature"] for one in runs], runs[0]["ceiling"]
    near_ceiling = [f"{s:g}" for s, value in zip(STRENGTHS, nats, strict=True) if value > ceiling - 1]
    remarks = [
        f"linear accuracy over strength is {shape}; it is highest at strength {STRENGTHS[best]:g}, where the views share "
        f"at least {nats[best]:.2f} nats.",
        f"the nats are {runs[0]['status']} to be at most I(v1; v2) in expectation: held-out InfoNCE with "
        f"one view of every other image, ceiling {ceiling:.2f}, the temperature ({min(temperatures):.2g} to "
        f"{max(temperatures):.2g}) chosen on other unseen images. Information that the encoder loses is "
        "missing in the number.",
        f"at that strength a view says at least {label_nats[best]:.2f} nats about the label and the whole "
        f"image {plain_nats[best]:.2f}: strong "
        "views do not keep all that the task needs, which the principle requires.",
        "evaluation shows whole images, so small crops lose accuracy by their scale too, not only by what "
        "views share.",
    ]
    if near_ceiling:
        remarks.append(
            f"within a nat of the ceiling, the truth can be far higher (strength {', '.join(near_ceiling)})."
        )
    return tuple(remarks)


@comparison_study(
    "infomin",
    "Sáez Maldonado 2021, sec. 5.2: what two views share against accuracy, as augmentation grows stronger",
    information_measures,
    add_information,
)
def infomin(setup: ImageSetup) -> Comparison:
    arms = {strength_name(s): StudyArm("simclr", scaled_views(s)) for s in STRENGTHS}
    x = {strength_name(s): ("simclr", s) for s in STRENGTHS}
    label = "strength (1: SimCLR's own)"
    return Comparison("Accuracy", arms, baselines=(), x=x, x_label=label)
