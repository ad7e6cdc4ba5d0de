"""nearfar: a method is five choices (views, encoders, negatives, selection, bound)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nearfar.bounds import (
    NWJ,
    SMILE,
    TUBA,
    UBA,
    Agreement,
    AlphaCPC,
    BarberAgakov,
    BinaryNCE,
    DonskerVaradhan,
    InfoNCE,
    JensenShannon,
    MultiLabelCPC,
    NPair,
    Triplet,
    Tuple,
    Vince,
)
from nearfar.critics import Bilinear, Cosine, Distance, Dot, Joint, Separable
from nearfar.errors import Stopped, UserError
from nearfar.method import Method
from nearfar.negatives import Bank, InBatch, NoNegatives, Queue
from nearfar.schedules import Progress, cosine, geometric, linear, on_loss, on_score, stairs, steps
from nearfar.scores import Candidates, Membership, Scores, dense_scores, streamed_scores
from nearfar.selections import Accept, Ball, Cave, Everyone, Group, Neighbours, Ring
from nearfar.types import Batch, Certificate, Context, Encoded, NegativeSampling, Outcome, Pair

if TYPE_CHECKING:
    from nearfar.data import Stream, open_data
    from nearfar.encoders import InfoMax, Momentum, Network, PerView, Shared, backbone
    from nearfar.estimate import Estimate, check_mi, estimate_mi, fit_density, info
    from nearfar.evaluate import evaluate_run, knn
    from nearfar.evaluate import evaluate_run as evaluate
    from nearfar.report import write_report
    from nearfar.train.pretrain import pretrain
    from nearfar.train.run import Run
    from nearfar.views import Augment, Views

# what needs torchvision, image codecs or matplotlib is imported when first asked for, so that losses and bounds
# work, quickly, without them
_LATER = {
    "Stream": "nearfar.data",
    "open_data": "nearfar.data",
    "PerView": "nearfar.encoders",
    "backbone": "nearfar.encoders",
    "InfoMax": "nearfar.encoders",
    "Momentum": "nearfar.encoders",
    "Network": "nearfar.encoders",
    "Shared": "nearfar.encoders",
    "Estimate": "nearfar.estimate",
    "check_mi": "nearfar.estimate",
    "estimate_mi": "nearfar.estimate",
    "fit_density": "nearfar.estimate",
    "info": "nearfar.estimate",
    "evaluate_run": "nearfar.evaluate",
    "knn": "nearfar.evaluate",
    "write_report": "nearfar.report",
    "pretrain": "nearfar.train.pretrain",
    "Run": "nearfar.train.run",
    "Augment": "nearfar.views",
    "Views": "nearfar.views",
}


def __getattr__(name: str) -> Any:
    if name == "evaluate":
        return import_module("nearfar.evaluate")  # which can be called
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'nearfar' has no attribute {name!r}")


__all__ = [
    "NWJ",
    "SMILE",
    "TUBA",
    "UBA",
    "Accept",
    "Agreement",
    "AlphaCPC",
    "Augment",
    "Ball",
    "Bank",
    "BarberAgakov",
    "Batch",
    "Bilinear",
    "BinaryNCE",
    "Candidates",
    "Cave",
    "Certificate",
    "Context",
    "Cosine",
    "Distance",
    "DonskerVaradhan",
    "Dot",
    "Encoded",
    "Estimate",
    "Everyone",
    "Group",
    "InBatch",
    "InfoMax",
    "InfoNCE",
    "JensenShannon",
    "Joint",
    "Membership",
    "Method",
    "Momentum",
    "MultiLabelCPC",
    "NPair",
    "NegativeSampling",
    "Neighbours",
    "Network",
    "NoNegatives",
    "Outcome",
    "Pair",
    "PerView",
    "Progress",
    "Queue",
    "Ring",
    "Run",
    "Scores",
    "Separable",
    "Shared",
    "Stopped",
    "Stream",
    "Triplet",
    "Tuple",
    "UserError",
    "Views",
    "Vince",
    "backbone",
    "check_mi",
    "cosine",
    "dense_scores",
    "estimate_mi",
    "evaluate",
    "evaluate_run",
    "fit_density",
    "geometric",
    "info",
    "knn",
    "linear",
    "on_loss",
    "on_score",
    "open_data",
    "pretrain",
    "stairs",
    "steps",
    "streamed_scores",
    "write_report",
]
