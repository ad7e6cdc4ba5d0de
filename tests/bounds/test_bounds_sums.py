"""Several bounds of the same scores: their sum, its ceiling, certificate and settings, and bad sums."""

import math

import pytest
import torch

import nearfar as nf
from nearfar.config.schema import settable
from nearfar.core.types import NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds import PARTS


def scores(seed: int = 0) -> nf.Scores:
    draw = torch.Generator().manual_seed(seed)
    return nf.Scores.of(torch.randn(7, generator=draw), torch.randn(7, 9, generator=draw))


def test_a_sum_is_the_sum_and_one_alpha_is_for_all() -> None:
    pair = PARTS["alpha-cpc+ml-cpc"](alpha=0.3)
    expected = nf.AlphaCPC(0.3)(scores()) + nf.MultiLabelCPC(0.3)(scores())
    torch.testing.assert_close(pair(scores()), expected)
    assert list(settable(PARTS["alpha-cpc+ml-cpc"])) == ["alpha"]
    assert {part.alpha for part in PARTS["alpha-cpc+ml-cpc"]().parts} == {nf.AlphaCPC().alpha}  # the first's
    assert list(settable(PARTS["triplet+tuple"])) == [*settable(nf.Triplet)]


def test_a_sum_is_an_objective_and_its_ceiling_the_sum_of_theirs() -> None:
    """log m + log(m / alpha): two bounds of 1 nat that both find it sum to 2."""
    sampling = NegativeSampling(anchors=8, negatives=9, held_out=True, batch_statistics=False)
    claim = PARTS["infonce+ml-cpc"](alpha=0.5).certificate(sampling)
    assert claim.status == "objective only"
    assert claim.ceiling == pytest.approx(math.log(10) + math.log(20))
    assert PARTS["infonce+nwj"]().certificate(sampling).ceiling is None


@pytest.mark.parametrize(
    ("name", "message"),
    [("infonce+infonce", "lists infonce twice"), ("infonce+triplet", "add bounds of one kind")],
)
def test_bad_sums_get_a_sentence(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PARTS[name]()


def test_terms_of_a_sum_have_separate_state() -> None:
    """The constant of nce-constant and the running mean of dv, each as if alone, over two steps of two
    pairs."""
    summed = PARTS["nce-constant+dv"](momentum=0.9)
    single = (nf.ConstantNCE(), nf.DonskerVaradhan(0.9))
    for step in range(2):
        pairs = [scores(2 * step), scores(2 * step + 1)]
        torch.testing.assert_close(summed(pairs[0]), single[0](pairs[0]) + single[1](pairs[0]))
        summed.advance(torch.stack([summed.observe(pair) for pair in pairs]), nf.Progress(step, 10, 5))
        for part in single:
            part.advance(torch.stack([part.observe(pair) for pair in pairs]), nf.Progress(step, 10, 5))
