"""What number is maximised. A bound is a function of scores, in nats.

    InfoNCE          log softmax of the positive + log m          contrasted with the anchor's own negatives
    MultiLabelCPC    the same with one softmax for the batch      contrasted with everybody's negatives
    NWJ              E[f] - E[e^(f-1)]                            no ceiling, more variance
    Sum              several of them: infonce+ml-cpc              an objective, no estimate

What each claims about mutual information is its `certificate`; the reasons are in docs/certificates.md.
"""

from nearfar.parts.bounds.classification import BinaryNCE, ConstantNCE, JensenShannon
from nearfar.parts.bounds.cpc import AlphaCPC, MultiLabelCPC
from nearfar.parts.bounds.cpc import smallest_proven_alpha as smallest_proven_alpha
from nearfar.parts.bounds.infonce import Debiased, InfoNCE, Vince
from nearfar.parts.bounds.objectives import (
    Agreement,
    CrossEntropy,
    NoBound,
    NPair,
    Sum,
    SupCon,
    Triplet,
    Tuple,
)
from nearfar.parts.bounds.variational import NWJ, SMILE, TUBA, UBA, BarberAgakov, DonskerVaradhan
from nearfar.parts.joined import Joinable

PARTS = Joinable(
    {
        "infonce": InfoNCE,
        "alpha-cpc": AlphaCPC,
        "ml-cpc": MultiLabelCPC,
        "vince": Vince,
        "barber-agakov": BarberAgakov,
        "uba": UBA,
        "tuba": TUBA,
        "nwj": NWJ,
        "dv": DonskerVaradhan,
        "smile": SMILE,
        "js": JensenShannon,
        "nce": BinaryNCE,
        "nce-constant": ConstantNCE,
        "triplet": Triplet,
        "tuple": Tuple,
        "npair": NPair,
        "agreement": Agreement,
        "supcon": SupCon,
        "debiased": Debiased,
        "cross-entropy": CrossEntropy,
        "none": NoBound,
    },
    "bound",
    Sum,
    between=" + ",
    traits={
        "distance_scores": any,
        "needs_bounded_scores": any,
        "reads_negatives": any,
        "averages_anchors": all,
        "reads_only_logsumexp": all,
    },
    shared=True,  # one alpha for all that have one
)
