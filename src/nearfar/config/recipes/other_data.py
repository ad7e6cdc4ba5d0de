"""Methods for sequences, graphs and pairs."""

from nearfar.config.recipes.recipe import Recipe, Training
from nearfar.core.method import Method
from nearfar.core.schedules import learnt
from nearfar.modalities.graph.views import Perturb, Shuffle, Thin
from nearfar.modalities.pairs.views import BothSides
from nearfar.modalities.series.views import Neighbouring
from nearfar.modalities.sound.views import Window
from nearfar.modalities.text.views import Mask
from nearfar.parts.bounds import BinaryNCE, InfoNCE, JensenShannon
from nearfar.parts.critics import Bilinear, Cosine, Dot
from nearfar.parts.encoders import (
    DeepGraphInfomax,
    HeadConfig,
    InfoGraph,
    MaskedSymbols,
    Nodes,
    PerView,
    Predictive,
    Shared,
)
from nearfar.parts.negatives import Corrupted, Dictionary, InBatch
from nearfar.parts.selections import Everyone


def cpc() -> Method:
    return Method(
        views=Window(samples=2560),
        encoders=Predictive(),
        critic=Dot(),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def mlm() -> Method:
    return Method(
        views=Mask(),
        encoders=MaskedSymbols(),
        critic=Dot(),
        negatives=Dictionary(),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def cebra() -> Method:
    return Method(
        views=Neighbouring(),
        encoders=Shared(HeadConfig("linear", dim=32)),
        critic=Cosine(0.1),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def infograph() -> Method:
    return Method(
        views=Perturb(changes=["identity"], count=1),
        encoders=InfoGraph(HeadConfig("mlp-plain", hidden=96, dim=96), nodes=16),
        critic=Dot(),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=JensenShannon(),
    )


def graphcl() -> Method:
    return Method(
        views=Perturb(),
        encoders=Shared(HeadConfig("mlp-plain", hidden=96, dim=96)),
        critic=Cosine(0.2),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def dgi() -> Method:
    return Method(
        views=Shuffle(),
        encoders=DeepGraphInfomax(HeadConfig("none")),
        critic=Bilinear(),
        negatives=Corrupted(),
        selection=Everyone(),
        bound=JensenShannon(),
    )


def grace() -> Method:
    return Method(
        views=Thin(),
        encoders=Nodes(HeadConfig("mlp-plain", hidden=128, dim=128)),
        critic=Cosine(0.4),
        negatives=InBatch("both"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def clip() -> Method:
    return Method(
        views=BothSides(),
        encoders=PerView(HeadConfig("linear"), keep="first"),
        critic=Cosine(learnt(0.07)),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def siglip() -> Method:
    # SigLIP's logit is f - log nu, with a bias from -10; ours begins at -10 + log 255 (batches of 256)
    return clip().replace(critic=Cosine(learnt(0.1), bias=learnt(-4.46)), bound=BinaryNCE())


_GRAPHS = Training(lr=1e-3, weight_decay=0.0, batch_size=128, epochs=20)
_NODES = Training(backbone="gcn-2", lr=1e-3, weight_decay=0.0, batch_size=32, epochs=20)
_PAIRS = Training(lr=1e-3, weight_decay=1e-2)

SEQUENCES: dict[str, Recipe] = {
    "cpc": Recipe(
        "A recording's past predicts its next frames, contrasted with frames of other recordings (Liu 2022, "
        "sec. 2.2, Eq. 28).",
        cpc,
        Training(backbone="conv-gru", batch_size=64),
    ),
    "mlm": Recipe(
        "The hidden symbols of a block are predicted, contrasted with the whole vocabulary (Wu et al. 2020, "
        "sec. 5.1).",
        mlm,
        Training(backbone="transformer", batch_size=64, lr=1e-3, weight_decay=1e-2, clip=1.0),
    ),
    "cebra": Recipe(
        "A time must identify a neighbouring time among times drawn from all of the recording: contrast in "
        "time (CEBRA-Time, Schneider et al. 2023).",
        cebra,
        Training(batch_size=512, lr=1e-3),
    ),
}
GRAPHS: dict[str, Recipe] = {
    "infograph": Recipe(
        "A graph's summary must identify the graph's own nodes among those of other graphs: Deep InfoMax on "
        "graphs (Sun et al. 2020; Liu 2022, sec. 3.2.3). bound=infonce is its NCE form.",
        infograph,
        _GRAPHS,
    ),
    "graphcl": Recipe(
        "Two views of a graph, each with nodes, edges or labels changed, are contrasted with those of other "
        "graphs: SimCLR on graphs (You et al. 2020).",
        graphcl,
        _GRAPHS,
    ),
    "dgi": Recipe(
        "A graph's summary must tell the graph's nodes from those of the same graph with its nodes shuffled: "
        "features of nodes (Deep Graph Infomax, Veličković et al. 2019).",
        dgi,
        _NODES,
    ),
    "grace": Recipe(
        "A node of one view must identify itself in another among all nodes of both, views without some edges "
        "and features: SimCLR on nodes (GRACE, Zhu et al. 2020).",
        grace,
        _NODES,
    ),
}
PAIRS: dict[str, Recipe] = {
    "clip": Recipe(
        "Two columns: each value must identify its partner in the batch, both ways; learned temperature "
        "(Radford et al. 2021).",
        clip,
        _PAIRS,
    ),
    "siglip": Recipe(
        "CLIP in which every pair is classified by itself, as matching or not; learned temperature and bias "
        "(Zhai et al. 2023).",
        siglip,
        _PAIRS,
    ),
}
