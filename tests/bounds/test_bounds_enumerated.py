"""Claims of Wu et al. 2020 and Song & Ermon 2020 that hold, and those that do not, by enumeration of small
worlds.

A world is a joint distribution of u and v with a few states, a critic and a proposal q(v | v+). Every outcome
has its
probability, so an expectation is a sum.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import nearfar as nf
from nearfar.core.types import NegativeSampling
from nearfar.errors import UserError
from nearfar.parts.bounds import smallest_proven_alpha
from nearfar.parts.selections.proposal import ImportanceScores

FAIR = 0.6931471805599453  # log 2: the information of a fair coin seen twice
SHARP = 60.0  # a score at which e^-f is nothing beside 1


@dataclass(frozen=True)
class World:
    """p(u, v), f(u, v) and the acceptance r(v | v+) in (0, 1]."""

    joint: Tensor
    critic: Tensor
    acceptance: Tensor

    @property
    def information(self) -> float:
        return float(nf.info.mutual_information(self.joint))

    @property
    def proposal(self) -> Tensor:
        """q(v | v+), normalised: what rejection sampling draws from."""
        q = self.acceptance * self.joint.sum(0)
        return q / q.sum(1, keepdim=True)

    def outcomes(self, negatives: int) -> tuple[Tensor, Tensor, Tensor]:
        """Every u, v+ and tuple of negatives: (outcome,), (outcome,), (outcome, negative)."""
        rows, columns = self.joint.shape
        table = torch.cartesian_prod(
            torch.arange(rows), torch.arange(columns), *[torch.arange(columns)] * negatives
        )
        return table[:, 0], table[:, 1], table[:, 2:]

    def expectation(self, negatives: int, draw: Tensor, weight: Tensor, *, mean: bool = True) -> float:
        """E of prod weight(v_k | v+) times log( e^f(u, v+) / a ) with v_k drawn from `draw`; a is the mean of
        all
        e^f, or their sum."""
        u, v, others = self.outcomes(negatives)
        chance = self.joint[u, v] * draw[v[:, None], others].prod(1)
        scores = torch.cat([self.critic[u, v][:, None], self.critic[u[:, None], others]], dim=1)
        value = scores[:, 0] - scores.logsumexp(1) + (math.log(negatives + 1) if mean else 0.0)
        return float((chance * weight[v[:, None], others].prod(1) * value).sum())


def fair_coin(acceptance: float | Tensor = 1.0) -> World:
    """u = v, a critic that knows it."""
    r = torch.as_tensor(acceptance, dtype=torch.float64).expand(2, 2)
    return World(torch.eye(2, dtype=torch.float64) / 2, SHARP * torch.eye(2, dtype=torch.float64), r)


def random_world(seed: int) -> World:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = 2 + seed % 2, 2 + seed % 3
    noise = torch.randn(2, rows, columns, generator=generator, dtype=torch.float64)
    joint = (3 * noise[0]).flatten().softmax(0).view(rows, columns)
    ratio = (joint / (joint.sum(1, keepdim=True) * joint.sum(0))).log()
    error = (0.0, 0.5, 3.0)[seed % 3]
    r = torch.rand(columns, columns, generator=generator, dtype=torch.float64).clamp_min(0.05)
    return World(joint, ratio + error * noise[1], r)


WORLDS = [fair_coin(), fair_coin(0.1), *map(random_world, range(30))]


# ------------------------------------------------------------------------------------- Wu et al. 2020: what
# holds


@pytest.mark.parametrize("negatives", [1, 2])
def test_vince_with_density_ratios_never_exceeds_the_information(negatives: int) -> None:
    """Thm 3.1, Eq. 3: with weights p / q the expectation is InfoNCE's, and after -K + 1 it is at most -K + 1 with the sum
    that is printed, log K - K + 1 with a mean: vacuous."""
    for world in WORLDS:
        ratio = world.joint.sum(0) / world.proposal
        for mean in (True, False):
            vince = world.expectation(negatives, world.proposal, ratio, mean=mean) - negatives
            assert vince <= (math.log(negatives + 1) if mean else 0.0) - negatives + 1e-12
            assert vince <= world.information + 1e-12


@pytest.mark.parametrize("negatives", [1, 2])
def test_vince_with_the_least_ratio_never_exceeds_the_information(negatives: int) -> None:
    """Cor. 3.1.2: c = prod inf p / q is at most 1, so the value is at most log K - K + 1. It is printed as a lower bound of
    VINCE, too, which fails where the logarithm is negative: a critic that prefers what does not belong together."""
    acceptance = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    wrong = World(fair_coin().joint, -fair_coin().critic, acceptance)
    ratio = wrong.joint.sum(0) / wrong.proposal
    smallest = ratio.amin(1, keepdim=True).expand_as(ratio)
    assert wrong.expectation(1, wrong.proposal, ratio) - 1 == pytest.approx(-30.65, abs=0.01)
    assert wrong.expectation(1, wrong.proposal, smallest) - 1 == pytest.approx(-15.83, abs=0.01)
    for world in WORLDS:
        least = (world.joint.sum(0) / world.proposal).amin(1, keepdim=True).expand_as(world.proposal)
        value = world.expectation(negatives, world.proposal, least) - negatives
        assert value <= math.log(negatives + 1) - negatives + 1e-12
        assert value <= world.information + 1e-12


@pytest.mark.parametrize("negatives", [1, 2])
def test_importance_weighted_infonce_is_infonce(negatives: int) -> None:
    """Eq. 3 without -K + 1 and with a normalised q: the expectation is that of negatives from p(v), at most
    I."""
    for world in WORLDS:
        p = world.joint.sum(0).expand_as(world.proposal)
        weighted = world.expectation(negatives, world.proposal, p / world.proposal)
        assert weighted == pytest.approx(world.expectation(negatives, p, torch.ones_like(p)), abs=1e-12)
        assert weighted <= world.information + 1e-12


def test_local_aggregation_as_printed_is_at_most_zero() -> None:
    """Cor. 5.4.1: log p(C and B) / p(B) is the log of a share, so it bounds every information trivially."""
    generator = torch.Generator().manual_seed(0)
    for close, rest in itertools.product((1, 2, 5), (0, 1, 4)):
        scores = torch.randn(close + rest, generator=generator, dtype=torch.float64)
        assert float(scores[:close].logsumexp(0) - scores.logsumexp(0)) <= 1e-15


# ------------------------------------------------------------------------------- Wu et al. 2020: what does
# not hold


def test_weights_of_one_over_r_exceed_the_information() -> None:
    """Cor. 3.1.1: rejection sampling draws from the normalised r p, so the weights 1 / r are too large by the
    rate of acceptance. r = 0.1 everywhere changes no draw and multiplies InfoNCE by ten: 10 (log 2) / 2 - 1 =
    2.466 > log 2."""
    world = fair_coin(0.1)
    value = world.expectation(1, world.proposal, 1 / world.acceptance) - 1
    assert value == pytest.approx(5 * FAIR - 1)
    assert value == pytest.approx(2.466, abs=1e-3)
    assert value > world.information + 1.7


@pytest.mark.parametrize(("states", "negatives"), [(2, 2), (3, 3)])
def test_negatives_accepted_by_a_threshold_exceed_the_information(states: int, negatives: int) -> None:
    """Ex. 1-2: by a threshold on similarity r is 0 or 1, so q lacks values that p has, and the weights 1 / r are 1. u = v
    uniform, similarity 1 to itself, 1/2 to the next value and 0 to the third: Ex. 1 with t = 1/2 for two values, Ex. 2 with
    1/4 and 3/4 for three. No negative is the positive, so the value is log K, above I = log of the number of values."""
    same = torch.eye(states, dtype=torch.float64)
    similarity = same + 0.5 * same.roll(1, dims=1)
    accepted = similarity <= 0.5 if states == 2 else (similarity >= 0.25) & (similarity <= 0.75)
    world = World(same / states, SHARP * same, accepted.double())
    assert not ((world.proposal > 0) == (world.joint.sum(0) > 0)).all()
    value = world.expectation(negatives, world.proposal, torch.ones_like(same))
    assert value == pytest.approx(math.log(negatives + 1))
    assert value > world.information + 0.2


def test_vince_plus_exceeds_the_information() -> None:
    """Eq. 17 has these weights and drops -K + 1: 3.47 nats of a fair coin, and no limit as r falls."""
    values = [
        fair_coin(r).expectation(1, fair_coin(r).proposal, 1 / fair_coin(r).acceptance) for r in (0.1, 0.01)
    ]
    assert values == pytest.approx([5 * FAIR, 50 * FAIR])
    assert values[0] > FAIR + 2.7


def test_local_aggregation_with_log_m_exceeds_the_information() -> None:
    """Cor. 5.4.1 as an estimate: a constant critic knows nothing (I = 0). With one close neighbour joined to
    the positive and one negative the value is log 2/3 + log 2 = log 4/3."""
    close = torch.tensor([[0.0, 0.0]]).logsumexp(1)
    value = float(nf.InfoNCE()(nf.Scores.of(close, torch.zeros(1, 1))))
    assert value == pytest.approx(math.log(4 / 3))
    sampling = nf.Neighbours(clusters=2, instances=4).sampling(NegativeSampling(4, 3))
    assert nf.InfoNCE().certificate(sampling).status == "not covered"


def test_the_first_term_of_lemma_c1_lacks_a_gradient() -> None:
    """One negative of two values, r of each a logit away: d/dpsi of E_q[ f(u, v+) / r ] under the normalised
    q. Lemma C.1's L1, -f / r^2 without the gradient of r and outside the expectation, is another number, even
    with that gradient put in; the score function of the draw makes up the difference."""
    psi = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
    p, f = torch.tensor([0.7, 0.3], dtype=torch.float64), 1.3
    r = psi.sigmoid()
    q = r * p / (r * p).sum()
    exact = torch.autograd.grad((q * f / r).sum(), psi, retain_graph=True)[0]
    slopes = torch.stack([torch.autograd.grad(one, psi, retain_graph=True)[0] for one in r])
    printed = -(q.detach()[:, None] * f / r.detach()[:, None] ** 2).expand(2, 2).sum(0)
    pathwise = -(q.detach()[:, None] * f / r.detach()[:, None] ** 2 * slopes).sum(0)
    scores = torch.stack([torch.autograd.grad(one.log(), psi, retain_graph=True)[0] for one in q])
    score_function = (q.detach()[:, None] * (f / r.detach())[:, None] * scores).sum(0)
    torch.testing.assert_close(pathwise + score_function, exact)
    assert (printed - exact).abs().min() > 0.1
    assert (pathwise - exact).abs().min() > 0.05


# ------------------------------------------------------------------ the corrected estimate as a part:
# nf.Proposal


def every_draw(selection: nf.Proposal, values: Tensor) -> list[tuple[float, ImportanceScores]]:
    """Every ordered draw of one anchor's negatives with its chance, made through the part itself: noise that
    puts that order first is handed to it."""
    number, beta = values.shape[1], float(selection.beta)  # type: ignore[arg-type]
    draws = []
    for order in itertools.permutations(range(number), selection.sample):
        left, chance = list(range(number)), 1.0
        for one in order:
            powers = {k: math.exp(beta * float(values[0, k])) for k in left}
            chance *= powers[one] / sum(powers.values())
            left.remove(one)
        uniform = torch.full((1, number), 1e-300, dtype=torch.float64)
        for turn, one in enumerate(order):
            uniform[0, one] = 1 - 2.0 ** -(50 - 12 * turn)
        membership = selection.draw(beta * values, torch.ones_like(values, dtype=torch.bool), uniform)
        assert membership.keep[0].nonzero().flatten().tolist() == sorted(order)
        assert membership.log_chance is not None
        scores = nf.Scores.of(torch.zeros(1, dtype=torch.float64), values, membership.keep)
        draws.append(
            (chance, ImportanceScores(scores.positive, scores.negative, log_weight=membership.log_chance))
        )
    return draws


@pytest.mark.parametrize("beta", [0.0, 0.7, -0.5])
@pytest.mark.parametrize("sample", [1, 2])
@pytest.mark.parametrize("bound", [nf.InfoNCE(), nf.AlphaCPC(1.5)], ids=["infonce", "alpha-cpc"])
def test_a_proposal_has_the_expectation_of_blind_draws(
    beta: float, sample: int, bound: nf.AbstractBound
) -> None:
    """Weights have mean one, and the weighted value the mean over all sets of so many negatives, for every
    beta."""
    values = torch.tensor([[0.4, -1.1, 1.7, 0.2]], dtype=torch.float64)
    draws = every_draw(nf.Proposal(beta, sample), values)
    assert sum(chance for chance, _ in draws) == pytest.approx(1)
    assert sum(chance * float(scores.log_weight.exp()) for chance, scores in draws) == pytest.approx(1)
    blind = [
        float(bound(nf.Scores.of(torch.zeros(1, dtype=torch.float64), values[:, list(part)])))
        for part in itertools.combinations(range(4), sample)
    ]
    weighted = sum(chance * float(bound(scores)) for chance, scores in draws)
    assert weighted == pytest.approx(sum(blind) / len(blind), abs=1e-12)


def test_a_proposal_draws_by_its_chances_and_weighs_what_it_drew() -> None:
    values = torch.tensor([0.0, 1.0, 2.0]).expand(6000, 3)
    torch.manual_seed(0)
    scores = nf.Proposal(1.0, 1)(nf.Scores.of(torch.zeros(6000), values))
    frequency = scores.negative.matrix()[1].double().mean(0)
    chances = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).softmax(0)
    assert ((frequency - chances).abs() < 5 * (chances * (1 - chances) / 6000).sqrt()).all()
    kept = scores.negative.matrix()[1].long().argmax(1)
    torch.testing.assert_close(scores.log_weight.exp(), 1 / (3 * chances[kept]))


def test_what_a_proposal_claims() -> None:
    """Proven where blind draws are, without a limit for a single sample; nothing for what is no mean over
    anchors."""
    sampling = nf.Proposal(0.5, 2).sampling(NegativeSampling(8, 7, held_out=True, batch_statistics=False))
    claim = nf.InfoNCE().certificate(sampling)
    assert (claim.status, claim.ceiling) == ("proven", None)
    assert "weighted by p / q" in claim.condition
    assert nf.AlphaCPC(2.0).certificate(sampling).status == "proven"
    for bound in (nf.NWJ(), nf.TUBA()):
        assert bound.certificate(sampling).status == "not covered"
    queued = NegativeSampling(8, 7, exchangeable=False, reason="queued keys are old")
    assert nf.InfoNCE().certificate(nf.Proposal().sampling(queued)).status == "not covered"
    with pytest.raises(UserError, match="is no mean over anchors"):
        nf.recipe("simclr", "digits", selection="proposal", bound="nwj")


# --------------------------------------------------------------------------------- Song & Ermon 2020: alpha
# above 1


@pytest.mark.parametrize("negatives", [1, 2])
def test_alpha_cpc_from_1_to_m_never_exceeds_the_information(negatives: int) -> None:
    """E of the product of m r+ / (alpha r+ + b S) is convex in alpha and 1 at both ends, 1 and m: 400
    worlds."""
    for seed in range(200):
        world, m = random_world(seed), negatives + 1
        u, v, others = world.outcomes(negatives)
        chance = world.joint[u, v] * world.joint.sum(0)[others].prod(1)
        for share in (0.0, 0.3, 0.999):
            bound = nf.AlphaCPC(1 + share * (m - 1))
            values = torch.func.vmap(lambda f, g, bound=bound: bound(nf.Scores.of(f[None], g[None])))(
                world.critic[u, v], world.critic[u[:, None], others]
            )
            assert float((chance * values).sum()) <= world.information + 1e-12


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 2), (2, 3)])
def test_ml_cpc_from_its_least_alpha_to_m_never_exceeds_the_information(n: int, m: int) -> None:
    """With negatives of each anchor's own; the fair coin and 40 random worlds of two states each."""
    least = smallest_proven_alpha(n, m - 1)
    pairs = torch.cartesian_prod(*[torch.arange(4)] * n).reshape(-1, n)
    others = torch.cartesian_prod(*[torch.arange(2)] * (n * (m - 1))).reshape(-1, n, m - 1)
    u, v = pairs // 2, pairs % 2
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
        joint = (3 * noise[0]).flatten().softmax(0).view(2, 2)
        ratio = (joint / (joint.sum(1, keepdim=True) * joint.sum(0))).log()
        critic = ratio + (0.0, 0.5, 3.0)[seed % 3] * noise[1]
        chance = joint[u, v].prod(1)[:, None] * joint.sum(0)[others].flatten(1).prod(1)
        positive = critic[u, v][:, None].expand(-1, len(others), -1).flatten(0, 1)
        negative = critic[u[:, None, :, None], others[None]].flatten(0, 1)
        for alpha in (least, 1.0, 1 + 0.5 * (m - 1), 1 + 0.999 * (m - 1)):
            bound = nf.MultiLabelCPC(alpha)
            values = torch.func.vmap(lambda f, g, bound=bound: bound(nf.Scores.of(f, g)))(positive, negative)
            excess = float((chance.flatten() * values).sum()) - float(nf.info.mutual_information(joint))
            assert excess <= 1e-12
            claim = bound.certificate(NegativeSampling(n, m - 1, independent=True, held_out=True))
            assert claim.status == "proven"


def test_the_papers_curricula_are_covered_with_negatives_of_ones_own() -> None:
    """Song & Ermon 2020, Table 3: alpha from 10 to 0.1 with 65,536 keys of a queue would be, were they
    independent."""
    own = NegativeSampling(256, 65_536, independent=True, held_out=True, batch_statistics=False)
    for first in (2.0, 5.0, 10.0):
        bound = nf.MultiLabelCPC(nf.geometric(first, 1 / first))
        assert bound.certificate(own).status == "proven"
    assert nf.AlphaCPC(nf.geometric(10.0, 1.0)).certificate(NegativeSampling(64, 63)).status == "proven"


# ------------------------------------------------------------------------------------------- the best critic


def slope(world: World, negatives: int, bound: nf.AbstractBound, critic: Tensor) -> tuple[float, float]:
    """The bound's expectation and the largest entry of its gradient in the critic's table."""
    u, v, others = world.outcomes(negatives)
    f = critic.clone().requires_grad_()
    values = torch.func.vmap(lambda a, b: bound(nf.Scores.of(a[None], b[None])))(
        f[u, v], f[u[:, None], others]
    )
    value = (world.joint[u, v] * world.joint.sum(0)[others].prod(1) * values).sum()
    return float(value.detach()), float(torch.autograd.grad(value, f)[0].abs().max())


@pytest.mark.parametrize("negatives", [1, 2])
def test_infonce_and_nce_are_highest_at_the_log_ratio(negatives: int) -> None:
    """Liu 2022, Eq. 26-27, Sáez Maldonado 2021, Eq. 14: the best critic of InfoNCE is the log ratio, plus anything that
    depends on u alone, and its shares are the posterior of "this one is the positive". Sáez Maldonado 2021, Thm 4.1: that
    of binary NCE is the log ratio and nothing else. By enumeration: there the slope is zero, elsewhere it is not and the
    value is lower (both are concave in the critic)."""
    for seed in range(12):
        world = random_world(seed)
        p_v = world.joint.sum(0)
        best = (world.joint / (world.joint.sum(1, keepdim=True) * p_v)).log()
        u, v, others = world.outcomes(negatives)
        by_row = torch.randn(len(best), 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        wrong = torch.randn(best.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for bound in (nf.InfoNCE(), nf.BinaryNCE()):
            highest, gradient = slope(world, negatives, bound, best)
            assert gradient < 1e-12
            lower, elsewhere = slope(world, negatives, bound, best + wrong)
            assert lower < highest - 1e-6
            assert elsewhere > 1e-4
            middle, _ = slope(world, negatives, bound, best + 0.5 * wrong)
            assert middle > (highest + lower) / 2 + 1e-6  # strictly concave between them
        assert slope(world, negatives, nf.InfoNCE(), best + by_row) == pytest.approx(
            slope(world, negatives, nf.InfoNCE(), best), abs=1e-12
        )
        assert (
            slope(world, negatives, nf.BinaryNCE(), best + by_row)[0]
            < slope(world, negatives, nf.BinaryNCE(), best)[0] - 1e-6
        )
        # the posterior by Bayes: p(x_i | u) times p of the others, over the same for every place
        places = torch.cat([v[:, None], others], dim=1)
        conditional = (world.joint / world.joint.sum(1, keepdim=True))[u[:, None], places]
        weights = conditional * p_v[places].prod(1, keepdim=True) / p_v[places]
        torch.testing.assert_close(
            best[u[:, None], places].softmax(1), weights / weights.sum(1, keepdim=True)
        )


# ---------------------------------------------------------------------------------- divergences of any two samples


def two_distributions(seed: int, states: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """P, Q and log r of as many states; the critic is the log ratio, off by noise."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, states, generator=generator, dtype=torch.float64)
    p, q = (2 * noise[0]).softmax(0), (2 * noise[1]).softmax(0)
    return p, q, (p / q).log() + (0.0, 0.5, 3.0)[seed % 3] * noise[2]


@pytest.mark.parametrize(("n", "m"), [(1, 2), (1, 4), (2, 2), (2, 3)])
def test_cpc_and_ml_cpc_bound_any_divergence(n: int, m: int) -> None:
    """Song & Ermon 2020, Thm 1 with Eq. 3, Thm 2 with Eq. 7 (negatives summed over j and k): positives from P, negatives
    from Q, any P and Q, not only a joint and its product. CPC is n = 1, alpha = 1. Thm 2 up to alpha = m, where it is printed
    to 1 (docs/certificates.md)."""
    for seed in range(40):
        p, q, critic = two_distributions(seed)
        divergence = float(nf.info.kl(p, q))
        positives = torch.cartesian_prod(*[torch.arange(3)] * n).reshape(-1, n)
        negatives = torch.cartesian_prod(*[torch.arange(3)] * (n * (m - 1))).reshape(-1, n, m - 1)
        chance = p[positives].prod(1)[:, None] * q[negatives].flatten(1).prod(1)
        f = critic[positives][:, None].expand(-1, len(negatives), -1).flatten(0, 1)
        g = critic[negatives].expand(len(positives), -1, -1, -1).flatten(0, 1)
        least = smallest_proven_alpha(n, m - 1)
        alphas = (least, 0.6 * least + 0.4, 1.0, 0.5 * (1 + m), 0.001 + 0.999 * m)
        bounds = [nf.InfoNCE(), *map(nf.MultiLabelCPC, alphas)]
        for bound in bounds:
            values = torch.func.vmap(lambda a, b, bound=bound: bound(nf.Scores.of(a, b)))(f, g)
            assert float((chance.flatten() * values).sum()) <= divergence + 1e-12


def test_the_dual_of_kl_is_reached_by_the_log_ratio_and_by_no_other() -> None:
    """Song & Ermon 2020, Lemma 1, Eq. 9-13: E_P[T] - E_Q[e^T] + 1 is at most KL(P | Q), and equal at T = log P / Q."""
    for seed in range(20):
        p, q, critic = two_distributions(seed)
        for t, exact in (((p / q).log(), True), (critic + 0.1, False)):
            dual = float((p * t).sum() - (q * t.exp()).sum() + 1)
            assert (
                dual == pytest.approx(float(nf.info.kl(p, q)), abs=1e-12)
                if exact
                else dual < nf.info.kl(p, q)
            )


@pytest.mark.parametrize("m", [2, 3])
def test_propositions_of_exchangeable_variables(m: int) -> None:
    """Song & Ermon 2020, Prop. 1, Eq. 14-23: at most 1 / alpha, for alpha up to 1. Printed up to 2m / (m + 1), which is false:
    equal variables give 1 > 1 / alpha (the series alternates there). Prop. 2, Eq. 24-27, is true, from 1 to m / 2 and to m,
    by convexity in alpha and not by its proof, which uses Prop. 1 above 1."""
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        values = torch.rand(4, generator=generator, dtype=torch.float64) * 5 + 1e-3
        chance = torch.randn(4, generator=generator, dtype=torch.float64).softmax(0)
        draws = torch.cartesian_prod(*[torch.arange(4)] * m).reshape(-1, m)
        weight, x = chance[draws].prod(1), values[draws]

        def mean(alpha: float, x: Tensor = x, weight: Tensor = weight) -> float:
            share = m * x[:, 0] / (alpha * x[:, 0] + (m - alpha) / (m - 1) * x[:, 1:].sum(1))
            return float((weight * share).sum())

        for alpha in (0.05, 0.5, 1.0):
            assert mean(alpha) <= 1 / alpha + 1e-12
            assert mean(1 + alpha * (m - 1)) <= 1 + 1e-12
        same, alpha = torch.ones_like(x), 2 * m / (m + 1)
        assert mean(alpha, same) == pytest.approx(1)
        assert mean(alpha, same) > 1 / alpha + 0.2


def test_the_proof_of_proposition_2_lacks_a_weight() -> None:
    """Song & Ermon 2020, Eq. 25-26: a share is at most its mean over windows of t negatives, if a window's sum is weighted
    by (m - alpha) / t. Without that weight, as printed, equal variables refute it: 1 > 4 / 5 at m = 4, alpha = 2, t = 3."""
    m, alpha, t = 4, 2.0, 3

    def share(x: Tensor) -> float:
        return float(m * x[0] / (alpha * x[0] + (m - alpha) / (m - 1) * x[1:].sum()))

    def over_windows(x: Tensor, weight: float) -> float:
        sums = [x[1:].roll(-start)[:t].sum() for start in range(m - 1)]
        return sum(float(m * x[0] / (alpha * x[0] + weight * one)) for one in sums) / (m - 1)

    for seed in range(20):
        x = torch.rand(m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1e-3
        assert share(x) <= over_windows(x, (m - alpha) / t) + 1e-12
    equal = torch.ones(m, dtype=torch.float64)
    assert share(equal) == pytest.approx(1)
    assert over_windows(equal, 1.0) == pytest.approx(4 / 5)


def test_donsker_varadhans_gap_is_a_divergence() -> None:
    """Sáez Maldonado 2021, Thm 3.2.1, Eq. 5-6: KL(P | Q) minus E_P[T] + log E_Q[e^T] is KL(P | G), G = e^T Q / Z. So over a
    class of functions (Cor. 2) the highest value is at most KL, and tight where G = P."""
    for seed in range(20):
        p, q, t = two_distributions(seed)
        value = float((p * t).sum() - (q * t.exp()).sum().log())
        g = t.exp() * q / (t.exp() * q).sum()
        assert float(nf.info.kl(p, q)) - value == pytest.approx(float(nf.info.kl(p, g)), abs=1e-12)
        scores = nf.Scores.of(t[torch.arange(3)], t.expand(3, 3))
        weighted = float((p * t).sum() - t.mean()) + float(nf.DonskerVaradhan()(scores))
        uniform = torch.full_like(q, 1 / 3)
        assert weighted == pytest.approx(float((p * t).sum() - (uniform * t.exp()).sum().log()), abs=1e-12)
        class_best = max(
            float((p * (a * t)).sum() - (q * (a * t).exp()).sum().log()) for a in (-1.0, 0.5, 1.0)
        )
        assert class_best <= float(nf.info.kl(p, q)) + 1e-12


def test_barber_agakov_of_any_normalised_q_is_at_most_the_information() -> None:
    """Wu et al. 2020, Lemma A.1, Eq. 12-13; Sáez Maldonado 2021, Prop. 5: H(v) + E[log q(v | u)] is I less a divergence; with
    q = p(v) e^f / Z(u) it is E[f - log Z(u)]."""
    for world in WORLDS[2:]:
        p_v = world.joint.sum(0)
        q = (p_v * world.critic.exp()) / (p_v * world.critic.exp()).sum(1, keepdim=True)
        entropy = float(nf.info.entropy(p_v))
        u, v = torch.cartesian_prod(*(torch.arange(n) for n in world.joint.shape)).unbind(1)
        weights = world.joint[u, v]
        value = entropy + float((weights * q.log()[u, v]).sum())
        rest = sum(
            float(row.sum()) * float(nf.info.kl(row / row.sum(), one))
            for row, one in zip(world.joint, q, strict=True)
        )
        assert value == pytest.approx(world.information - rest, abs=1e-12)
        unnormalised = weights * (world.critic - (p_v * world.critic.exp()).sum(1, keepdim=True).log())[u, v]
        assert float(unnormalised.sum()) == pytest.approx(value, abs=1e-12)
        equal = torch.full_like(weights, 1 / len(weights))  # the part itself weighs all rows alike
        part = float(nf.BarberAgakov(entropy)(nf.Scores.of(q.log()[u, v], torch.zeros(len(u), 0))))
        assert part == pytest.approx(entropy + float((equal * q.log()[u, v]).sum()), abs=1e-12)


def test_nwj_is_the_unnormalised_bound_with_a_constant_in_place_of_z() -> None:
    """Wu et al. 2020, Lemma A.2, Eq. 14: E[f] - E[Z(u)] / e is at most E[f - log Z(u)], hence at most I."""
    for world in WORLDS[2:]:
        z = (world.joint.sum(0) * world.critic.exp()).sum(1)
        mean = float((world.joint * world.critic).sum())
        nwj = mean - float((world.joint.sum(1) * z).sum()) / math.e
        assert nwj <= mean - float((world.joint.sum(1) * z.log()).sum()) + 1e-12
        assert nwj <= world.information + 1e-12


def test_a_thousand_weakly_correlated_dimensions_need_many_negatives() -> None:
    """Song & Ermon 2020, sec. 2.2: I = -500 log(1 - 0.04) = 20.41 (printed 20.5), so m = e^I = 7.3e8 (printed 4e8)."""
    nats = -500 * math.log(1 - 0.2**2)
    assert nats == pytest.approx(20.411, abs=1e-3)
    assert math.exp(nats) == pytest.approx(7.3e8, rel=0.01)


def test_posterior_is_likelihood_times_prior_over_evidence() -> None:
    """Sáez Maldonado 2021, Thm 2.1.1, printed P(B given A) = P(A given B) P(A) / P(B): it is P(A given B) P(B) / P(A)."""
    joint = torch.tensor([[0.1, 0.3], [0.4, 0.2]], dtype=torch.float64)
    a, b = joint.sum(1, keepdim=True), joint.sum(0, keepdim=True)
    posterior, likelihood = joint / a, joint / b
    torch.testing.assert_close(posterior, likelihood * b / a)
    assert (posterior - likelihood * a / b).abs().max() > 0.1


@pytest.mark.parametrize(
    "concave", [torch.log, torch.sqrt, lambda x: -x.square()], ids=["log", "sqrt", "-square"]
)
def test_a_concave_function_of_a_mean_is_at_least_the_mean_of_its_values(
    concave: Callable[[Tensor], Tensor],
) -> None:
    """Sáez Maldonado 2021, Prop. 9: f of a mean is at least the mean of f; equal where all values are, and there alone."""
    for seed in range(10):
        p, q, _ = two_distributions(seed)
        assert float(concave((p * q).sum()) - (p * concave(q)).sum()) > 1e-9
        equal = q[:1].expand(3)
        assert float(concave((p * equal).sum()) - (p * concave(equal)).sum()) == pytest.approx(0, abs=1e-12)
