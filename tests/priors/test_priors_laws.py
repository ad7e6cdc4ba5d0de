"""Priors: each equals its paper's formula, has its minimum where the paper says, and reads only
embeddings."""

import math
from collections.abc import Callable, Sequence

import lightly.loss
import pytest
import torch
from lightly.loss.lejepa_loss import LeJEPALoss
from lightly.loss.lejepa_loss import SIGReg as PeersSIGReg
from torch import Tensor, nn

from nearfar.core.abstract import AbstractPrior
from nearfar.core.method import Method
from nearfar.core.schedules import START, Progress, linear
from nearfar.core.types import Batch, Encoded
from nearfar.errors import UserError
from nearfar.parts.bounds import BarberAgakov, InfoNCE
from nearfar.parts.critics import Cosine, Distance
from nearfar.parts.encoders import Momentum, Network, Shared, linear_head
from nearfar.parts.negatives import InBatch, NoNegatives
from nearfar.parts.priors import PARTS, Adversarial, CrossCorrelation, SIGReg, VarianceCovariance
from nearfar.parts.selections import Everyone

N, DIM = 16, 5
PRIORS: dict[str, Callable[..., AbstractPrior]] = {
    "variance-covariance": VarianceCovariance,
    "cross-correlation": CrossCorrelation,
    "sigreg": SIGReg,
    "adversarial": lambda **settings: Adversarial(dim=DIM, **settings).double(),
}


def clouds(count: int = 2, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randn(count, N, DIM, generator=generator, dtype=torch.float64)
    return list((sample @ torch.randn(DIM, DIM, generator=generator, dtype=torch.float64) + 1).unbind())


def as_encoded(views: Sequence[Tensor]) -> Encoded:
    return Encoded({}, {}, embeddings=dict(enumerate(views)))


def network() -> Network:
    torch.manual_seed(0)
    return Network(nn.Flatten(), linear_head(12, DIM)).double()


def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = torch.randn(2, N, 3, 2, 2, generator=generator, dtype=torch.float64)
    return Batch(tuple(views), torch.arange(N))


def test_every_prior_is_in_the_suite() -> None:
    # one reads no clouds but what labels and a teacher say: tests/distill
    assert set(PRIORS) == set(PARTS) - {"none", "distillation"}
    assert PARTS["none"]() is None


@pytest.mark.parametrize("seed", range(3))
def test_vicreg_equals_lightly(seed: int) -> None:
    """25 mse + 25 variance + covariance, whole method against the peer's loss and its gradient."""
    net, views = network(), batch()
    critic = Distance(1 / 25, unit=False, mean=True)
    method = Method(
        Shared(net), critic, NoNegatives(), Everyone(), BarberAgakov(), prior=VarianceCovariance()
    )
    ours = method(views).loss
    theirs = lightly.loss.VICRegLoss()(*(net(view) for view in views.views))
    weights = list(net.parameters())
    for got, expected in zip(
        (ours, *torch.autograd.grad(ours, weights)),
        (theirs, *torch.autograd.grad(theirs, weights)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("step", [0, 7])
def test_lejepa_equals_lightly(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """(1 - λ) mean |z_v - z̄|² + λ SIGReg with the same directions; two views: mean |z_v - z̄|² = mse(z_1,
    z_2) / 4, and our weight is λ / (1 - λ)."""
    share = 0.05
    prior = SIGReg(weight=share / (1 - share), directions=64)
    monkeypatch.setattr(
        PeersSIGReg, "_generate_unit_vectors", lambda self, device, dtype, num: prior.sketch(num, step)
    )
    net, example = network(), batch()
    critic = Distance(4.0, unit=False, mean=True)
    method = Method(Shared(net), critic, NoNegatives(), Everyone(), BarberAgakov(), prior=prior)
    ours = (1 - share) * method(example, Progress(step, 100)).loss
    peer = LeJEPALoss(lambda_param=share).double()
    embedded = torch.stack([net(view) for view in example.views])
    # theirs wants local views too; the same two, once more, change neither mean
    theirs = peer(local_proj=embedded, global_proj=embedded)
    weights = list(net.parameters())
    for got, expected in zip(
        (ours, *torch.autograd.grad(ours, weights)),
        (theirs, *torch.autograd.grad(theirs, weights)),
        strict=True,
    ):
        # theirs keeps the knots of the integral in float32
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_sigreg_equals_the_statistic_summed_by_hand() -> None:
    """n ∫ |phi_n(t) - e^(-t²/2)|² e^(-t²/2) dt over [-3, 3], per direction and knot, with complex numbers."""
    prior, (cloud,) = SIGReg(weight=1.0, directions=3), clouds(1)
    knots = torch.linspace(-3, 3, 33, dtype=torch.float64)
    total = 0.0
    for direction in prior.sketch(DIM, 4).T:
        values = []
        for t in knots:
            observed = sum(complex(math.cos(t * x), math.sin(t * x)) for x in (cloud @ direction)) / N
            values.append(abs(observed - math.exp(-(t**2) / 2)) ** 2 * math.exp(-(t**2) / 2))
        total += N * float(torch.trapezoid(torch.tensor(values, dtype=torch.float64), knots)) / 3
    assert float(prior(as_encoded([cloud]), Progress(4, 10))) == pytest.approx(total, rel=1e-9)


def test_directions_are_a_function_of_the_step_alone() -> None:
    prior, observed = SIGReg(), as_encoded(clouds())
    torch.manual_seed(0)
    first = prior(observed, Progress(5, 10))
    torch.manual_seed(99)
    torch.testing.assert_close(prior(observed, Progress(5, 10)), first, rtol=0, atol=0)
    assert prior(observed, Progress(6, 10)) != first
    state = torch.get_rng_state()
    prior(observed, START)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("prior", "ratio"), [(VarianceCovariance(), 2.0), (SIGReg(weight=1.0), 3.0)], ids=["moments", "sigreg"]
)
def test_collapsed_embeddings_cost_more_than_normal_ones(prior: AbstractPrior, ratio: float) -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(4096, 4, generator=generator, dtype=torch.float64)
    line = normal[:, :1].expand(-1, 4).contiguous()
    for collapsed in (torch.zeros_like(normal), line, 3 * normal * torch.tensor([1.0, 0, 0, 0])):
        assert prior(as_encoded([collapsed])) > ratio * prior(as_encoded([normal]))


@pytest.mark.parametrize("name", PRIORS)
def test_weights_are_values_or_schedules(name: str) -> None:
    values = []
    for weight in (1.0, linear(0.0, 2.0), linear(0.0, 6.0)):  # all evaluated at the same step, half-way
        torch.manual_seed(1)
        values.append(PRIORS[name](weight=weight)(as_encoded(clouds()), Progress(5, 10)).item())
    torch.testing.assert_close(values, [values[0], values[0], 3 * values[0]])
    assert values[0] != 0
    with pytest.raises(UserError, match=r"prior\.weight was -1; it must be at least 0"):
        PRIORS[name](weight=-1.0)


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_is_added_to_any_bound_and_changes_no_certificate(name: str) -> None:
    net, views = network(), batch()
    prior = PRIORS[name](weight=0.3)
    for role in (Shared(net), Momentum(net, predictor=linear_head(DIM, DIM).double())):
        baseline = Method(role, Cosine(0.2), InBatch("one"), Everyone(), InfoNCE())
        shaped = Method(role, Cosine(0.2), InBatch("one"), Everyone(), InfoNCE(), prior=prior)
        torch.manual_seed(2)
        outcome = shaped(views)
        # as the network gives them: before the predictor, before unit length, each view by itself
        observed = [net(view) for view in views.views]
        torch.manual_seed(2)
        expected = prior(as_encoded(observed))
        torch.testing.assert_close(outcome.prior, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(outcome.loss, baseline(views).loss + expected, rtol=1e-9, atol=1e-12)
        assert outcome.nats == baseline(views).nats
        assert shaped.certificate(N, held_out=True) == baseline.certificate(N, held_out=True)


@pytest.mark.parametrize("target", ["uniform", "gaussian"])
def test_discriminator_and_encoder_have_opposite_gradients(target: str) -> None:
    """Liu 2022, Eq. 38: D maximises E ln D(v) + E ln(1 - D(y)), the encoder minimises it."""
    torch.manual_seed(0)
    match = Adversarial(1.0, target, dim=DIM).double()  # type: ignore[arg-type]
    y = torch.randn(N, DIM, dtype=torch.float64, requires_grad=True)

    def target_sample() -> Tensor:
        torch.manual_seed(3)
        return torch.rand_like(y) if target == "uniform" else torch.randn_like(y)

    def divergence(y: Tensor) -> Tensor:
        ours = torch.sigmoid(y) if target == "uniform" else y
        of_prior, of_ours = (torch.sigmoid(match.discriminator(z)) for z in (target_sample(), ours))
        return (of_prior.log() + (1 - of_ours).log()).mean()

    torch.manual_seed(3)
    penalty = match(as_encoded([y]))
    torch.testing.assert_close(penalty, -divergence(y))
    weights = list(match.discriminator.parameters())
    of_y, *of_weights = torch.autograd.grad(penalty, [y, *weights])
    true_y, *true_weights = torch.autograd.grad(divergence(y), [y, *weights])
    torch.testing.assert_close(of_y, true_y)  # a step against it lowers the divergence
    for ours, theirs in zip(of_weights, true_weights, strict=True):
        torch.testing.assert_close(ours, -theirs)  # a step against it raises the divergence


def test_the_adversarial_prior_shapes_embeddings() -> None:
    """Trained against the prior alone, embeddings that were all alike spread over the cube."""
    torch.manual_seed(0)
    y = nn.Parameter(0.1 * torch.randn(256, 2) + 2.0)
    match = Adversarial(1.0, "uniform", dim=2)
    optimiser = torch.optim.Adam([{"params": [y], "lr": 0.02}, {"params": match.parameters(), "lr": 0.005}])
    initial = torch.sigmoid(y).detach()
    for _ in range(400):
        optimiser.zero_grad()
        match(as_encoded([y])).backward()
        optimiser.step()
    final = torch.sigmoid(y).detach()
    assert initial.std(dim=0).max() < 0.02
    assert (final.mean(dim=0) - 0.5).abs().max() < 0.15
    assert final.std(dim=0).min() > 0.15


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SIGReg(directions=0), r"prior\.directions was 0; expected a whole number from 1"),
        (lambda: VarianceCovariance(variance=-2.0), r"prior\.variance was -2; it must be at least 0"),
        (lambda: Adversarial(target="cauchy", dim=2), r"prior\.target was 'cauchy'; expected"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_of_priors_get_a_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
