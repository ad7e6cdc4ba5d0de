"""What two views share, against what is learnt from them (Sáez Maldonado 2021, sec. 5.2, the InfoMin principle).

Views that are alike share all there is, and telling them apart from others asks for nothing; views that share nothing
teach nothing. Good ones lie between: as augmentation grows stronger, I(v1; v2) falls and accuracy should rise, then fall.
One knob scales SimCLR's whole pipeline: strength 0 shows the image as it is, 1 is the recipe's own.

The information is our own estimate: InfoNCE on images that training never saw, a view of each against one view of every
other (the form that is proven), under the trained network's cosine with its temperature chosen again on further unseen
images. It goes through the encoder, so it is a lower bound on I(v1; v2), and no more than log m, m images.

The principle's other half is that views keep what the task needs, I(v1; y) = I(x; y): beside it stands what one view tells about the label, by the
same bound with a linear classifier as critic, fitted on views of the training images, and the same of the image as it is.

Command: nearfar study infomin data=cifar10:ROOT     Cost: about 18 minutes of one core.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.scores import streamed_scores
from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.evaluate import LabelledFeatures, scores
from nearfar.modalities import Images
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.negatives import InBatch
from nearfar.run.trained import Run
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Setup, moments, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTHS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
SMALLEST = 0.2  # share of the image that SimCLR's smallest crop shows at this size
TEMPERATURES = tuple(np.geomspace(0.003, 1.0, 30).tolist())
TUNING = 0.2  # share of the unseen images that the temperature is chosen on
SEED = 1  # of the views that information is measured on
SOURCE = "Sáez Maldonado 2021, sec. 5.2, in words: the InfoMin principle, without figures"
MEASURES = {
    "nats": "I(v1; v2) in nats, at least",
    "label_nats": "I(v; y) in nats, at least",
    "plain_nats": "I(x; y) in nats, at least",
    "linear": "linear top-1 in percent",
    "knn": "kNN top-1 in percent",
}


def changes(strength: float) -> dict[str, Any]:
    """SimCLR's pipeline at so many times its strength.

    A crop shows from 0.2^strength of the image to five times that, or all of it: 1 is SimCLR's [0.2, 1], and from there
    on large crops go too. Jitter, greyscale and flip grow in proportion as far as they can.
    """
    found = {
        "crop_scale": [SMALLEST**strength, min(1.0, SMALLEST ** (strength - 1))],
        **dict.fromkeys(("brightness", "contrast", "saturation"), 0.4 * strength),
        "hue": min(0.5, 0.1 * strength),
        "greyscale": min(1.0, 0.2 * strength),
        "flip": min(0.5, 0.5 * strength),
    }
    return {f"views__{name}": value for name, value in found.items()}


@dataclass(frozen=True)
class Information:
    """A lower bound on I(v1; v2), and what is claimed of it."""

    nats: float
    ceiling: float
    temperature: float
    status: str


def information(first: Float[Tensor, "image dim"], second: Float[Tensor, "image dim"]) -> Information:
    """InfoNCE of the first views about the second, the temperature chosen on other rows than the value is of."""
    tuning = round(TUNING * len(first))
    if min(tuning, len(first) - tuning) < 2:
        raise UserError(f"information was asked of {len(first)} images; it takes at least 10")
    chosen = max(TEMPERATURES, key=partial(_nats, first[:tuning], second[:tuning]))
    claim = _claim(len(first) - tuning)
    assert claim.ceiling is not None
    value = _nats(first[tuning:], second[tuning:], chosen)
    return Information(value, claim.ceiling, chosen, claim.status)


def _nats(first: Tensor, second: Tensor, temperature: float) -> float:
    with torch.no_grad():
        return float(InfoNCE()(streamed_scores(first, second, temperature, tile=512)))


def _claim(images: int) -> Certificate:
    return InfoNCE().certificate(InBatch(views="one").sampling(images, key_views=1))


@torch.no_grad()
def embedded_views(run: Run, images: Images) -> tuple[Tensor, Tensor]:
    """Two views of every image, drawn as training drew them, as the trained method embeds and scores them."""
    method, views = run.method().to(run.device), run.views()
    found = []
    for rows in np.array_split(np.arange(len(images)), -(-len(images) // 512)):
        pair = views(images.load(rows), SEED, 0, rows)
        found.append([method.embed(view.to(run.device)).cpu() for view in pair])
    first, second = (torch.cat(side) for side in zip(*found, strict=True))
    return first, second


def measured(run: Run, asked: Images) -> dict[str, Any]:
    """What two views of an image share, as the trained method tells it."""
    # in the data's own order classes may come in blocks, and a temperature is chosen on the first of them
    shuffled = asked.subset(np.random.default_rng(0).permutation(len(asked)))
    return {**asdict(information(*embedded_views(run, shuffled))), **about_labels(run, asked)}


def about_labels(run: Run, asked: Images) -> dict[str, float]:
    """What the features of one view, and of the image as it is, tell about the label: lower bounds in nats."""
    train, encoder, views, plain = run.images(), run.encoder(), run.views(), run.plain_view()
    found = {}
    for name, shown in (("label_nats", lambda *given: views(*given)[:1]), ("plain_nats", plain)):
        fit, ask = (
            LabelledFeatures(_features(encoder, shown, images, run.device), torch.from_numpy(images.labels))
            for images in (train, asked)
        )
        found[name] = scores(fit, ask, ["information"], unseen=True)["information"]["nats"]
    return found


@torch.no_grad()
def _features(encoder: nn.Module, shown: Any, images: Images, device: torch.device) -> Tensor:
    """The encoder's features of what `shown` shows of each image, drawn as training draws."""
    parts = np.array_split(np.arange(len(images)), -(-len(images) // 512))
    encoder = encoder.to(device).eval()
    return torch.cat([encoder(shown(images.load(rows), SEED, 0, rows)[0].to(device)).cpu() for rows in parts])


def run(bench: Bench, setup: Setup) -> Result:
    arms = {
        strength: [
            {**setup.recipe("simclr", s, **changes(strength)), "measure": "information, version 3"}
            for s in setup.numbers
        ]
        for strength in STRENGTHS
    }
    groups = repeated(bench, setup, arms, measured)
    findings = tuple(_finding(groups, measure) for measure in MEASURES)
    return Result(findings, _remarks(groups, findings))


def _finding(groups: Mapping[float, Sequence[Mapping[str, Any]]], measure: str) -> Finding:
    unit = 1 if measure.endswith("nats") else 100
    values = [moments([unit * found[measure] for found in group]) for group in groups.values()]
    rows = [Row(f"strength {s:g}", None, *value) for s, value in zip(groups, values, strict=True)]
    mean, spread = (list(side) for side in zip(*values, strict=True))
    curves: dict[str, Any] = {"strength": list(groups), "mean": mean, "sd": [sd or 0.0 for sd in spread]}
    if measure == "nats":
        curves["ceiling"] = groups[STRENGTHS[0]][0]["ceiling"]
        fall = "yes" if (np.diff(mean) < 0).all() else f"no: {', '.join(f'{nats:.2f}' for nats in mean)}"
        return Finding(
            MEASURES[measure],
            (*rows, Row("falls at every step", "falls with strength", fall)),
            curves,
            SOURCE,
        )
    if measure == "plain_nats":
        return Finding(MEASURES[measure], tuple(rows), curves)
    best = int(np.argmax(mean))
    if measure == "label_nats":
        kept = ", ".join(
            f"{value / groups[s][0]['plain_nats']:.0%}" for s, value in zip(groups, mean, strict=True)
        )
        rows.append(Row("I(v; y) over I(x; y), by strength", "all of it", kept))
        return Finding(MEASURES[measure], tuple(rows), curves, SOURCE)
    ends = (
        f"{mean[0] - mean[best]:+.1f} at {STRENGTHS[0]:g}, {mean[-1] - mean[best]:+.1f} at {STRENGTHS[-1]:g}"
    )
    rows += [
        Row("best strength", "neither end", f"{STRENGTHS[best]:g}"),
        Row("the ends against the best, points", "both below", ends),
    ]
    return Finding(MEASURES[measure], tuple(rows), curves, SOURCE)


def _remarks(
    groups: Mapping[float, Sequence[Mapping[str, Any]]], findings: Sequence[Finding]
) -> tuple[str, ...]:
    first = groups[STRENGTHS[0]][0]
    curves = {measure: finding.curves for measure, finding in zip(MEASURES, findings, strict=True)}
    nats, linear = (curves[measure]["mean"] for measure in ("nats", "linear"))
    best, spread = int(np.argmax(linear)), max(curves["linear"]["sd"])
    # a hump within the spread of seeds, or of less than a point, is none
    inside = linear[best] - max(linear[0], linear[-1]) > max(1.0, 2 * spread)
    shape = "an inverted U" if inside else "no inverted U that exceeds the spread of seeds"
    temperatures = [found["temperature"] for group in groups.values() for found in group]
    near = [f"{s:g}" for s, value in zip(STRENGTHS, nats, strict=True) if value > first["ceiling"] - 1]
    remarks = [
        f"linear accuracy over strength is {shape}; it is highest at strength {STRENGTHS[best]:g}, where the views share "
        f"at least {nats[best]:.2f} nats.",
        f"the nats are {first['status']} to be at most I(v1; v2) in expectation: held-out InfoNCE with one view of every "
        f"other image, ceiling {first['ceiling']:.2f}, the temperature ({min(temperatures):.2g} to {max(temperatures):.2g}) "
        "chosen on other unseen images. What the encoder loses, the number lacks.",
        f"at that strength a view tells at least {curves['label_nats']['mean'][best]:.2f} nats about the label and the whole image "
        f"{curves['plain_nats']['mean'][best]:.2f}: strong views do not keep all that the task needs, which the principle asks for.",
        "Sáez Maldonado 2021 states the principle and gives no figures; its words stand in the paper column.",
        "evaluation shows whole images, so small crops lose accuracy by their scale too, not only by what views share.",
    ]
    if near:
        remarks.append(
            f"within a nat of the ceiling, the truth can be far higher (strength {', '.join(near)})."
        )
    return tuple(remarks)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels, truth

    nats, labels, _, *accuracies = (result.finding(name).curves for name in MEASURES.values())
    titles = ("What the views share", "Accuracy against strength", "Accuracy against information")
    figure, axes = panels(titles)
    axes[0].errorbar(
        nats["strength"],
        nats["mean"],
        yerr=nats["sd"],
        color=COLOURS[3],
        marker="o",
        markersize=4,
        label="with the other view",
    )
    axes[0].plot(
        labels["strength"], labels["mean"], color=COLOURS[2], marker="o", markersize=4, label="with the label"
    )
    truth(axes[0], nats["ceiling"], "log m")
    axes[0].set(xlabel="strength (1: SimCLR's own)", ylabel="at least, nats")
    for name, colour, found in zip(("linear", "kNN"), COLOURS, accuracies, strict=False):
        style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "label": name}
        axes[1].errorbar(found["strength"], found["mean"], yerr=found["sd"], **style)
        axes[2].errorbar(nats["mean"], found["mean"], xerr=nats["sd"], yerr=found["sd"], **style)
    for strength, x, y in zip(nats["strength"], nats["mean"], accuracies[0]["mean"], strict=True):
        axes[2].annotate(f"{strength:g}", (x, y), xytext=(0, 6), textcoords="offset points", fontsize=7.5)
    axes[1].set(xlabel="strength (1: SimCLR's own)", ylabel="top-1, percent")
    axes[2].set(xlabel="I(v1; v2), at least, nats", ylabel="top-1, percent")
    axes[0].legend(frameon=False, fontsize=7.5)
    axes[1].legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "infomin",
    "Sáez Maldonado 2021, sec. 5.2: what two views share against accuracy, as augmentation grows stronger",
    run,
    draw,
)
