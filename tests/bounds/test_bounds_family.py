"""What weighted, debiased, labelled and neighbour-based contrast prove, with exact counter-examples."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nearfar as nf
from nearfar.config.resolving import resolve
from nearfar.core.abstract import AbstractBound
from nearfar.core.types import NegativeSampling
from nearfar.run.trained import fresh_method

FALLING: dict[str, AbstractBound] = {
    "infonce": nf.InfoNCE(),
    "nwj": nf.NWJ(),
    "tuba": nf.TUBA(0.5),
    "ml-cpc": nf.MultiLabelCPC(0.7),
}


@pytest.mark.parametrize("bound", FALLING)
@given(seed=st.integers(0, 10**6), beta=st.floats(0, 4), scale=st.floats(0.1, 3))
@settings(max_examples=50, deadline=None)
def test_weights_that_rise_with_similarity_only_lower_a_bound(
    bound: str, seed: int, beta: float, scale: float
) -> None:
    """Chebyshev's sum inequality per sample: mean(w r) >= mean(w) mean(r) if w and r rise together."""
    generator = torch.Generator().manual_seed(seed)
    positive, negative = (scale * torch.randn(4, k, generator=generator, dtype=torch.float64) for k in (1, 6))
    mask = torch.rand(4, 6, generator=generator) < 0.8
    baseline = nf.Scores.of(positive, negative, mask)
    assert FALLING[bound](nf.Hard(beta)(baseline)) <= FALLING[bound](baseline) + 1e-12


@pytest.mark.parametrize("bound", FALLING)
def test_weighted_negatives_keep_the_certificate(bound: str) -> None:
    sampling = NegativeSampling(32, 31, independent=True, held_out=True, batch_statistics=False)
    initial = FALLING[bound].certificate(sampling)
    final = FALLING[bound].certificate(nf.Hard(1.0).sampling(sampling))
    assert initial.status == final.status == "proven"
    assert "weights that rise with similarity can only lower it" in final.condition
    assert final.ceiling == initial.ceiling
    fitted = nf.Hard(1.0).sampling(NegativeSampling(32, 31, held_out=False))
    assert FALLING[bound].certificate(fitted).status == "not covered"
    with pytest.raises(nf.UserError, match=r"selection\.beta was -1; it must be at least 0"):
        nf.Hard(-1.0)


def test_debiased_contrast_can_exceed_the_information() -> None:
    """u = v is a fair coin, I = log 2, three negatives of which b match, tau = 1/2:
    G = max(2b - 3, 0), so the value is log 4, log 4, log 2, 0 for b = 0 to 3, with probabilities 1, 3, 3, 1
    eighths."""
    matching = torch.tensor(list(itertools.product([0.0, -1e4], repeat=3)), dtype=torch.float64)
    value = nf.Debiased(0.5)(nf.Scores.of(torch.zeros(8, dtype=torch.float64), matching))
    assert float(value) == pytest.approx(math.log(4) / 2 + 3 / 8 * math.log(2))
    assert float(value) > math.log(2) + 0.25
    sampling = NegativeSampling(4, 3, independent=True, held_out=True, batch_statistics=False)
    assert nf.Debiased(0.5).certificate(sampling).status == "objective only"
    assert nf.Debiased(nf.linear(0.0, 0.1)).certificate(sampling).status == "objective only"
    assert nf.Debiased(0.0).certificate(sampling) == nf.InfoNCE().certificate(sampling)


def information(joint: Tensor) -> float:
    product = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    return float((joint * (joint / product).log()).nan_to_num(0.0).sum())


@pytest.mark.parametrize("seed", range(5))
def test_nearest_support_points_of_keys_add_no_information(seed: int) -> None:
    """Keys are three numbers, the support holds two of them: E[InfoNCE] over all batches of three rows is at
    most I(u; nearest(v)), which is at most I(u; v), for critics fitted to exceed it."""
    generator = torch.Generator().manual_seed(seed)
    joint = torch.rand(2, 3, generator=generator, dtype=torch.float64) ** 3
    joint /= joint.sum()
    support = nf.Support(2, dim=1).double()
    support.queue.advance(
        {0: torch.tensor([[0.1], [1.8]], dtype=torch.float64)}, torch.arange(90, 92), nf.Progress()
    )
    keys = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    stands_for = (support.nearest(keys, 0)[:, 0] > 1).long()
    assert stands_for.tolist() == [0, 1, 1] or stands_for.tolist() == [0, 0, 1]
    merged = torch.zeros(2, 2, dtype=torch.float64).index_add_(1, stands_for, joint)
    assert information(merged) <= information(joint) + 1e-12

    f = torch.randn(2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    rows = list(itertools.product(range(2), range(3)))
    batches = torch.tensor(list(itertools.product(range(6), repeat=3)))
    u, v = (torch.tensor(rows)[batches][..., side] for side in (0, 1))
    chance = joint[u, v].prod(dim=1)

    def expected() -> Tensor:
        nearest_keys = stands_for[v]
        scores = f[u[:, :, None], nearest_keys[:, None, :]]  # (batch, anchor, key)
        positives = scores.diagonal(dim1=1, dim2=2)
        return (chance * (positives - scores.logsumexp(dim=2) + math.log(3)).mean(dim=1)).sum()

    optimiser = torch.optim.Adam([f], lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        (-expected()).backward()
        optimiser.step()
    assert expected().item() <= information(merged) + 1e-12
    sampling = support.sampling(2, 2)
    assert (sampling.exchangeable, sampling.negatives) == (True, 1)


# what each new recipe's own number proves on held-out instances, and a word of the reason
CLAIMS = {
    "moco-v3": ("proven", "never exceeds I"),  # keys of one slow network, all alike
    "nnclr": ("proven", "never exceeds I"),
    "dcl": ("not covered", "Jensen"),
    "debiased": ("objective only", "can exceed I"),
    "hcl": ("objective only", "can exceed I"),
    "supcon": ("objective only", "labels"),
    "vicreg": ("objective only", "entropy"),
    "sigreg": ("objective only", "entropy"),
}


@pytest.mark.parametrize("recipe", CLAIMS)
def test_claims_of_recipes(recipe: str) -> None:
    choice = resolve(recipe, "data", {"backbone": "resnet8-w16"})
    method = fresh_method(choice, choice.modality.reader.example_description(5000)).eval()
    claim = method.certificate(256, held_out=True)
    status, word = CLAIMS[recipe]
    assert claim.status == status
    assert word in claim.condition
    assert method.certificate(256, held_out=False).status != "proven"


def test_labels_remove_the_proof() -> None:
    method = nf.Method(
        nf.Shared(nn.Linear(2, 2)), nf.Cosine(0.1), nf.InBatch("one"), nf.Labelled(instances=8), nf.InfoNCE()
    )
    claim = method.certificate(8, held_out=True)
    assert (claim.status, claim.ceiling) == ("not covered", math.log(8))
    assert "not draws of p(v)" in claim.condition
