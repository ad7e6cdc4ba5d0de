"""Methods for images: two views, memories, metric losses, corrected negatives, no negatives, prototypes.

Settings are for small pictures and a CPU; presets.py has the papers' own.
"""

from nearfar.config.recipes.recipe import (
    CLOSE_AFTER,
    WITH_BANK,
    WITH_CLOSE_NEIGHBOURS,
    WITH_NEGATIVES,
    Recipe,
    Training,
    share_of,
)
from nearfar.core.abstract import AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import Value, cosine
from nearfar.modalities.image.views import BYOLViews, CMCViews, CropFlipViews, InstDiscViews, SimCLRViews
from nearfar.parts.bounds import (
    UBA,
    Agreement,
    BarberAgakov,
    CrossEntropy,
    Debiased,
    InfoNCE,
    NoBound,
    NPair,
    SupCon,
    Triplet,
    Tuple,
)
from nearfar.parts.critics import Cosine, Distance, Dot
from nearfar.parts.encoders import HeadConfig, InfoMax, Momentum, PerView, Prototypes, Shared
from nearfar.parts.negatives import Bank, Centred, Dictionary, InBatch, NoNegatives, Queue, Sinkhorn, Support
from nearfar.parts.priors import Adversarial, CrossCorrelation, SIGReg, VarianceCovariance
from nearfar.parts.selections import Everyone, Hard, Labelled, Neighbours

# ------------------------------------------------------------------------ two views, encoded side by side


def simclr(temperature: Value = 0.2) -> Method:
    return Method(
        views=SimCLRViews(),
        encoders=Shared(HeadConfig("mlp")),
        critic=Cosine(temperature),
        negatives=InBatch("both"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def end_to_end() -> Method:
    return Method(
        views=SimCLRViews(symmetric=False),
        encoders=PerView(HeadConfig("mlp"), keep="first"),
        critic=Cosine(0.2),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def byol(momentum: Value = cosine(0.99, 1.0)) -> Method:  # noqa: B008
    return Method(
        views=BYOLViews(),
        encoders=Momentum(HeadConfig("mlp", predictor="mlp"), momentum=momentum),
        critic=Cosine(1.0),
        negatives=NoNegatives(),
        selection=Everyone(),
        bound=Agreement(),
    )


def moco_v3(momentum: Value = cosine(0.99, 1.0)) -> Method:  # noqa: B008
    return Method(
        views=BYOLViews(),
        encoders=Momentum(HeadConfig("mlp", predictor="mlp"), momentum=momentum),
        critic=Cosine(0.2),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def simsiam() -> Method:
    return Method(
        views=SimCLRViews(),
        encoders=Shared(HeadConfig("mlp", predictor="mlp"), stop_gradient=True),
        critic=Cosine(1.0),
        negatives=NoNegatives(),
        selection=Everyone(),
        bound=Agreement(),
    )


def dim() -> Method:
    """The paper shows one view: then summary and map share every pixel, and little has to be learned to
    match them. With 5,000 pictures of CIFAR-10 and 10 epochs the linear probe on held-out training pictures
    was at 36 % with one view and at 43 % with two (untrained: 33 %), so the recipe contrasts the summary of
    one view with the maps of another; `views.count=1` is the paper's."""
    return Method(
        views=SimCLRViews(),
        encoders=InfoMax(HeadConfig("mlp")),
        critic=Cosine(0.1),
        negatives=InBatch("one"),
        selection=Everyone(),
        bound=InfoNCE(),
        prior=Adversarial(),
    )


# --------------------------------------------------------------------------------------- remembered keys


def moco(size: int = 4096, momentum: Value = 0.99) -> Method:
    return Method(
        views=SimCLRViews(symmetric=False),
        encoders=Momentum(HeadConfig("mlp-plain"), momentum=momentum),
        critic=Cosine(0.1),
        negatives=Queue(size),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def moco_v1(size: int = 4096, momentum: Value = 0.99) -> Method:
    return Method(
        views=InstDiscViews(symmetric=False),
        encoders=Momentum(HeadConfig("linear"), momentum=momentum),
        critic=Cosine(0.07),
        negatives=Queue(size),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def nnclr(size: int = 4096) -> Method:
    return Method(
        views=SimCLRViews(),
        encoders=Shared(HeadConfig("mlp", predictor="mlp"), stop_gradient=True),
        critic=Cosine(0.1),
        negatives=Support(size),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def instdisc(momentum: Value = 0.5) -> Method:
    return Method(
        views=InstDiscViews(count=1),
        encoders=Shared(HeadConfig("linear-norm")),
        critic=Cosine(0.07),
        negatives=Bank(None, momentum),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def cmc(momentum: Value = 0.5) -> Method:
    return Method(
        views=CMCViews(colours="lab", aligned=True),
        encoders=PerView(HeadConfig("linear-norm"), keep="all"),
        critic=Cosine(0.07),
        negatives=Bank(None, momentum),
        selection=Everyone(),
        bound=InfoNCE(),
    )


def local_aggregation() -> Method:
    # the bound's value is the paper's log p(C_i and B_i) - log p(B_i), without a log m
    return instdisc().replace(bound=Tuple())


def closest_background(epochs: int) -> AbstractSelection:
    # B_i is a share: the papers' 4,096 rows are 0.3 % of ImageNet and would be 82 % of 5,000 pictures
    return Neighbours(background=0.1, lower=0.0, after=share_of(epochs, CLOSE_AFTER))


# ----------------------------------------------------------------------------------- learnt prototypes


def swav(prototypes: int = 300, epsilon: float = 0.05) -> Method:
    return Method(
        views=SimCLRViews(),
        encoders=Shared(HeadConfig("mlp", prototypes=prototypes), stop_gradient=True),
        critic=Cosine(0.1),
        negatives=Sinkhorn(epsilon),
        selection=Everyone(),
        bound=CrossEntropy(),
    )


def dino(prototypes: int = 1024, momentum: Value = cosine(0.99, 1.0)) -> Method:  # noqa: B008
    """The head's output is the paper's bottleneck. The critic makes it and the prototypes unit vectors, which
    is the paper's weight-normalised last layer."""
    return Method(
        views=BYOLViews(),
        encoders=Momentum(HeadConfig("mlp-gelu", layers=3, prototypes=prototypes), momentum=momentum),
        critic=Cosine(0.1),
        negatives=Centred(0.04),
        selection=Everyone(),
        bound=CrossEntropy(),
    )


# ----------------------------------------------------------------------------------------- metric losses


def npair() -> Method:
    return simclr().replace(negatives=InBatch("one"), bound=NPair())


def tuple_loss() -> Method:
    return simclr().replace(bound=Tuple())


def triplet(margin: Value = 1.0) -> Method:
    return simclr().replace(critic=Distance(), negatives=InBatch("one"), bound=Triplet(margin))


# --------------------------------------------------------------------------- SimCLR with other negatives


def dcl() -> Method:
    return simclr(0.1).replace(bound=UBA())


def debiased(tau: Value = 0.1) -> Method:
    return simclr(0.5).replace(bound=Debiased(tau))


def hcl(beta: Value = 1.0) -> Method:
    return debiased().replace(selection=Hard(beta))


def supcon() -> Method:
    return simclr(0.1).replace(selection=Labelled(), bound=SupCon())


# -------------------------------------------------------------------- no negatives, but a prior; labels


def vicreg() -> Method:
    """Agreement is Barber-Agakov with a normal q(v | u) about u; the prior raises its missing term, H(v)."""
    return Method(
        views=SimCLRViews(),
        encoders=Shared(HeadConfig("mlp")),
        critic=Distance(0.04, unit=False, mean=True),  # 25 times the mean square
        negatives=NoNegatives(),
        selection=Everyone(),
        bound=BarberAgakov(),
        prior=VarianceCovariance(),
    )


def sigreg() -> Method:
    # a quarter of the mean square between two views is that from their mean
    return vicreg().replace(critic=Distance(4.0, unit=False, mean=True), prior=SIGReg())


def lejepa(weight: float = 0.05) -> Method:
    """(1 - weight) times the mean square distance of views to the mean of the large ones, + weight SIGReg."""
    return vicreg().replace(
        encoders=Shared(HeadConfig("mlp"), target="mean"),
        critic=Distance(1 / (1 - weight), unit=False, mean=True),
        prior=SIGReg(weight),
    )


def barlow(redundancy: float = 0.0051) -> Method:
    # the critic is read by the estimate on held-out pictures alone
    prior = CrossCorrelation(redundancy=redundancy)
    return vicreg().replace(critic=Cosine(0.2), bound=NoBound(), prior=prior)


def supervised() -> Method:
    """Small SimCLR crops. Colours are unchanged: labels say what matters, and jitter only costs accuracy."""
    return Method(
        views=CropFlipViews(count=1),
        encoders=Prototypes(HeadConfig("none")),
        critic=Dot(),
        negatives=Dictionary(),
        selection=Everyone(),
        bound=InfoNCE(),
    )


IMAGES: dict[str, Recipe] = {
    "simclr": Recipe(
        "Two views of an image are contrasted with the views of all other images in the batch (Sáez "
        "Maldonado 2021, ch. 7).",
        simclr,
        variants=WITH_NEGATIVES,
        on_cpu={"backbone": "resnet6-w48", "optimizer": "muon", "lr": 2e-2},
    ),
    "moco": Recipe(
        "A view is contrasted with a queue of keys embedded by a slow copy of the network (Liu 2022, sec. "
        "3.2.2; v2 head).",
        moco,
        variants=WITH_NEGATIVES,
    ),
    "moco-v1": Recipe(
        "MoCo as first published: a linear head and no blur (Liu 2022, Eq. 35).",
        moco_v1,
        variants=WITH_NEGATIVES,
    ),
    "byol": Recipe(
        "The network predicts the embedding of the other view by a slow copy of itself; no negatives (Sáez "
        "Maldonado 2021, ch. 8).",
        byol,
    ),
    "simsiam": Recipe(
        "BYOL with the network as its own teacher: a predictor and a stopped gradient, no slow copy.", simsiam
    ),
    "instdisc": Recipe(
        "A view must identify its own row in a memory bank with one row per image (Wu et al. 2021, sec. "
        "2, Wu et al. 2020, sec. 5).",
        instdisc,
        variants=WITH_BANK,
    ),
    "cmc": Recipe(
        "An image's luminance must identify its colours in a memory bank, and its colours its luminance. "
        "Two networks; the loss is the mean of both directions, in the paper their sum (Wu et al. 2021, sec. 2).",
        cmc,
        variants=WITH_BANK,
    ),
    "end-to-end": Recipe(
        "Query and key have networks of their own, both trained: contrast end to end (Liu 2022, Eq. 34).",
        end_to_end,
        variants=WITH_NEGATIVES,
    ),
    "npair": Recipe(
        "Each view is contrasted with the same view of the other images: multi-class N-pair (Sáez "
        "Maldonado 2021, Eq. 20).",
        npair,
        variants=WITH_NEGATIVES,
    ),
    "tuple": Recipe(
        "A view is contrasted with all views of the other images in one tuple (Sáez Maldonado 2021, Eq. 19).",
        tuple_loss,
        variants=WITH_NEGATIVES,
    ),
    "triplet": Recipe(
        "A view is closer to the other view of its image than to any other image, by a margin (Sáez Maldonado "
        "2021, Eq. 17-18).",
        triplet,
        variants=WITH_NEGATIVES,
    ),
    "dim": Recipe(
        "Deep InfoMax: the summary of one view must identify the feature maps of the other view, globally "
        "and locally, among those of other images (Liu 2022, Eq. 36-39).",
        dim,
        variants=WITH_NEGATIVES,
    ),
    "la": Recipe(
        "Local Aggregation: a view is contrasted with its nearest rows in a memory bank and pulled towards "
        "those in its own clusters (Wu et al. 2020, sec. 5.3).",
        local_aggregation,
        selection=closest_background,
        variants=WITH_CLOSE_NEIGHBOURS,
    ),
    "moco-v3": Recipe(
        "MoCo without a queue: the prediction from one view is contrasted with the batch, embedded by a slow "
        "copy of the network (Chen et al. 2021).",
        moco_v3,
        variants=WITH_NEGATIVES,
    ),
    "nnclr": Recipe(
        "A view is contrasted with the nearest of earlier keys to the other view, instead of that view "
        "itself (Dwibedi et al. 2021).",
        nnclr,
        variants=WITH_NEGATIVES,
    ),
    "dcl": Recipe(
        "SimCLR with the positive left out of the sum over negatives: decoupled contrastive learning (Yeh "
        "et al. 2022), UBA up to a constant.",
        dcl,
        variants=WITH_NEGATIVES,
    ),
    "debiased": Recipe(
        "SimCLR corrected for the share of negatives that are of the anchor's own class (Chuang et al. "
        "2020).",
        debiased,
        variants=WITH_NEGATIVES,
    ),
    "hcl": Recipe(
        "Debiased contrast with negatives weighted by their similarity: hard negatives (Robinson et al. "
        "2021).",
        hcl,
        variants=WITH_NEGATIVES,
    ),
    "supcon": Recipe(
        "Views of all images with the anchor's label are its positives: supervised contrast; needs labels "
        "(Khosla et al. 2020).",
        supcon,
        variants=WITH_NEGATIVES,
    ),
    "vicreg": Recipe(
        "Two views agree while every dimension varies and no two vary together; no negatives (Bardes et al. "
        "2022).",
        vicreg,
    ),
    "sigreg": Recipe(
        "Two views agree while embeddings are normal seen from any direction; no negatives (LeJEPA, "
        "Balestriero & LeCun 2025).",
        sigreg,
    ),
    "lejepa": Recipe(
        "Every view predicts the mean of the large ones while embeddings are normal seen from any direction; no "
        "negatives (Balestriero & LeCun 2025).",
        lejepa,
    ),
    "barlow": Recipe(
        "Each dimension of one view correlates with the same dimension of the other view and with no other: "
        "Barlow Twins; no negatives (Zbontar et al. 2021).",
        barlow,
    ),
    "swav": Recipe(
        "A view predicts to which of the learnt prototypes the other view is assigned, all of them equally often "
        "(Caron et al. 2020).",
        swav,
    ),
    "dino": Recipe(
        "A view predicts to which of the learnt prototypes a slow copy of the network assigns the other view, "
        "centred and sharpened (Caron et al. 2021).",
        dino,
        Training(lr=5e-4),
    ),
}
SUPERVISED = Recipe(
    "An image is contrasted with all other classes: cross-entropy on its label, every class a "
    "learnt vector; needs labels.",
    supervised,
)
