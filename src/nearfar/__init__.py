"""nearfar: a method is five choices (views, encoders, negatives, selection, bound).

A name is imported at its first use. So `import nearfar` costs nothing, and losses and bounds work without what
training needs. A command line on a broken install can still report what is broken.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nearfar import losses
    from nearfar.core.abstract import (
        AbstractBound,
        AbstractCritic,
        AbstractEncoders,
        AbstractNegatives,
        AbstractPrior,
        AbstractSelection,
        AbstractViews,
    )
    from nearfar.core.encoding import Encoding
    from nearfar.core.method import Method
    from nearfar.core.schedules import (
        Progress,
        cosine,
        geometric,
        learnt,
        linear,
        on_bound,
        on_loss,
        on_score,
        on_variance,
        plateau,
        stairs,
        steps,
    )
    from nearfar.core.scores import Candidates, Membership, Scores, dense_scores, streamed_scores
    from nearfar.core.strategy import Strategy
    from nearfar.core.types import Batch, Certificate, Context, Encoded, NegativeSampling, Outcome, Pair
    from nearfar.data import Stream, open_data, pack
    from nearfar.detect.run import detect_run
    from nearfar.distributed.strategy import join
    from nearfar.errors import Stopped, UserError
    from nearfar.estimate import (
        Estimate,
        check_mi,
        estimate_cmi,
        estimate_kl,
        estimate_mi,
        fit_density,
        info,
        mi_matrix,
        mi_over_lags,
        pointwise_mi,
        rank_columns,
        total_correlation,
    )
    from nearfar.evaluate import evaluate_run
    from nearfar.evaluate import evaluate_run as evaluate
    from nearfar.evaluate.knn import knn
    from nearfar.exported.hub import Encoder
    from nearfar.exported.write import export
    from nearfar.modalities import time_series
    from nearfar.modalities.image.views import (
        Augment,
        BYOLViews,
        CMCViews,
        CropFlipViews,
        InstDiscViews,
        SimCLRViews,
        Views,
    )
    from nearfar.parts.bounds import (
        NWJ,
        SMILE,
        TUBA,
        UBA,
        Agreement,
        AlphaCPC,
        BarberAgakov,
        BinaryNCE,
        ConstantNCE,
        CrossEntropy,
        Debiased,
        DonskerVaradhan,
        InfoNCE,
        JensenShannon,
        MultiLabelCPC,
        NoBound,
        NPair,
        Sum,
        SupCon,
        Triplet,
        Tuple,
        Vince,
    )
    from nearfar.parts.critics import Bilinear, Cosine, Distance, Dot, Hybrid, Joint, Separable
    from nearfar.parts.encoders import (
        Distilled,
        HeadConfig,
        InfoMax,
        Momentum,
        Network,
        PerView,
        Shared,
        backbone,
    )
    from nearfar.parts.negatives import Bank, Centred, InBatch, NoNegatives, Queue, Sinkhorn, Support
    from nearfar.parts.priors import Adversarial, CrossCorrelation, Distillation, SIGReg, VarianceCovariance
    from nearfar.parts.selections import (
        Accept,
        Ball,
        Cave,
        Chain,
        Everyone,
        Group,
        Hard,
        Labelled,
        Neighbours,
        Others,
        Proposal,
        Ring,
    )
    from nearfar.report import write_report
    from nearfar.run.teachers import Teacher
    from nearfar.run.trained import Run
    from nearfar.simclrv2.run import semi
    from nearfar.sweeps.run import sweep
    from nearfar.train.distill import distill
    from nearfar.train.hooks import Hook
    from nearfar.train.loggers import Logger
    from nearfar.train.online import OnlineHead
    from nearfar.train.pretrain import pretrain, recipe
    from nearfar.train.pretrain import train_supervised as train

# the same names once more for Python itself; tests/core/test_core_surface.py holds the two lists together
_PUBLIC_NAMES = {
    "nearfar.core.abstract": "AbstractBound AbstractCritic AbstractEncoders AbstractNegatives AbstractPrior AbstractSelection "
    "AbstractViews",
    "nearfar.parts.bounds": "Agreement AlphaCPC BarberAgakov BinaryNCE ConstantNCE CrossEntropy Debiased DonskerVaradhan InfoNCE "
    "JensenShannon MultiLabelCPC NoBound NPair NWJ SMILE Sum SupCon Triplet TUBA Tuple UBA Vince",
    "nearfar.parts.critics": "Bilinear Cosine Distance Dot Hybrid Joint Separable",
    "nearfar.data": "open_data pack Stream",
    "nearfar.detect.run": "detect_run",
    "nearfar.parts.encoders": "backbone Distilled HeadConfig InfoMax Momentum Network PerView Shared",
    "nearfar.errors": "Stopped UserError",
    "nearfar.estimate": "check_mi Estimate estimate_cmi estimate_kl estimate_mi fit_density info mi_matrix mi_over_lags pointwise_mi rank_columns "
    "total_correlation",
    "nearfar.evaluate": "evaluate_run",
    "nearfar.evaluate.knn": "knn",
    "nearfar.exported.hub": "Encoder",
    "nearfar.exported.write": "export",
    "nearfar.core.encoding": "Encoding",
    "nearfar.core.method": "Method",
    "nearfar.modalities": "time_series",
    "nearfar.distributed.strategy": "join",
    "nearfar.parts.negatives": "Bank Centred InBatch NoNegatives Queue Sinkhorn Support",
    "nearfar.parts.priors": "Adversarial CrossCorrelation Distillation SIGReg VarianceCovariance",
    "nearfar.report": "write_report",
    "nearfar.core.schedules": "cosine geometric learnt linear on_bound on_loss on_score on_variance plateau Progress stairs steps",
    "nearfar.core.strategy": "Strategy",
    "nearfar.core.scores": "Candidates dense_scores Membership Scores streamed_scores",
    "nearfar.parts.selections": "Accept Ball Cave Chain Everyone Group Hard Labelled Neighbours Others Proposal Ring",
    "nearfar.sweeps.run": "sweep",
    "nearfar.train.distill": "distill",
    "nearfar.train.hooks": "Hook",
    "nearfar.train.loggers": "Logger",
    "nearfar.train.online": "OnlineHead",
    "nearfar.simclrv2.run": "semi",
    "nearfar.train.pretrain": "pretrain recipe train_supervised",
    "nearfar.run.teachers": "Teacher",
    "nearfar.run.trained": "Run",
    "nearfar.core.types": "Batch Certificate Context Encoded NegativeSampling Outcome Pair",
    "nearfar.modalities.image.views": "Augment BYOLViews CMCViews CropFlipViews InstDiscViews SimCLRViews Views",
}
_MODULE_OF = {name: module for module, names in _PUBLIC_NAMES.items() for name in names.split()}
_PACKAGES = (
    "evaluate",
    "losses",
    "train",
)  # nf.evaluate(...) and nf.train(...) can also be called, see their __init__.py
__all__ = ["__version__", *_PACKAGES, *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF and name not in _PACKAGES:
        raise AttributeError(f"module 'nearfar' has no attribute {name!r}")
    try:
        if name in _PACKAGES:
            return import_module(f"nearfar.{name}")
        attribute = getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as problem:
        from nearfar.system.extras import missing_extra

        raise missing_extra(problem) or problem from None
    globals()[name] = attribute  # looked up once
    return attribute


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
