"""One network for each view (CMC, end-to-end), and Deep InfoMax: against losses written out by hand."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar.core.method import Method
from nearfar.core.schedules import START
from nearfar.core.types import Batch, Certificate
from nearfar.errors import UserError
from nearfar.parts.bounds import PARTS as BOUNDS
from nearfar.parts.bounds import DonskerVaradhan, InfoNCE, JensenShannon
from nearfar.parts.critics import Cosine
from nearfar.parts.encoders import HeadConfig, InfoMax, Network, PerView, backbone, linear_head, pictured
from nearfar.parts.encoders.per_view import ConcatFeatures
from nearfar.parts.encoders.stages import map_and_features
from nearfar.parts.negatives import Bank, InBatch
from nearfar.parts.selections import Everyone

N, DIM, T = 6, 5, 0.3


def networks() -> list[Network]:
    torch.manual_seed(0)
    return [Network(nn.Flatten(), linear_head(4 * channels, DIM)).double() for channels in (1, 2)]


def colours() -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = [torch.randn(N, c, 2, 2, generator=generator, dtype=torch.float64) for c in (1, 2)]
    return Batch(tuple(views), torch.arange(N) + 3)


def test_cmc_is_two_instance_discriminations_with_the_banks_swapped() -> None:
    """Wu et al. 2021, sec. 2: luminance is contrasted with the bank of colours and colour with that of
    luminances."""
    nets, example = networks(), colours()
    bank = Bank(20, dim=DIM, views=2).double()
    rows = F.normalize(torch.randn(2, 20, DIM, dtype=torch.float64), dim=2)
    bank.advance({0: rows[0], 1: rows[1]}, torch.arange(20), START)
    loss = Method(PerView(nets), Cosine(T), bank, Everyone(), InfoNCE())(example).loss
    z = [F.normalize(net(view), dim=1) for net, view in zip(nets, example.views, strict=True)]
    swapped = [F.cross_entropy(z[a] @ rows[1 - a].T / T, example.index) for a in (0, 1)]
    torch.testing.assert_close(loss, torch.stack(swapped).mean(), rtol=1e-9, atol=1e-9)


def test_cmc_of_three_views_is_the_mean_over_all_ordered_pairs() -> None:
    """The full graph of contrastive multiview coding: each view is contrasted with the bank of each other."""
    torch.manual_seed(0)
    nets = [Network(nn.Flatten(), linear_head(4, DIM)).double() for _ in range(3)]
    generator = torch.Generator().manual_seed(1)
    views = [torch.randn(N, 1, 2, 2, generator=generator, dtype=torch.float64) for _ in range(3)]
    example = Batch(tuple(views), torch.arange(N) + 3)
    bank = Bank(20, dim=DIM, views=3).double()
    rows = F.normalize(torch.randn(3, 20, DIM, dtype=torch.float64, generator=generator), dim=2)
    bank.advance(dict(enumerate(rows)), torch.arange(20), START)
    loss = Method(PerView(nets), Cosine(T), bank, Everyone(), InfoNCE())(example).loss
    z = [F.normalize(net(view), dim=1) for net, view in zip(nets, views, strict=True)]
    item = [
        F.cross_entropy(z[a] @ rows[b].T / T, example.index) for a, b in itertools.permutations(range(3), 2)
    ]
    torch.testing.assert_close(loss, torch.stack(item).mean(), rtol=1e-9, atol=1e-9)


def test_both_banks_follow_their_own_network() -> None:
    nets, example = networks(), colours()
    bank = Bank(20, dim=DIM, views=2, momentum=0.0).double()
    method = Method(PerView(nets), Cosine(T), bank, Everyone(), InfoNCE())
    method.prime(example)
    for view in (0, 1):
        expected = F.normalize(nets[view](example.views[view]), dim=1)
        torch.testing.assert_close(bank.rows[view, example.index], expected)


def test_end_to_end_contrast_trains_both_networks() -> None:
    """Liu 2022, Eq. 34: -log e^(q.k+ / t) / sum over the batch's keys; the gradient reaches both networks."""
    nets = [network for network in networks() for _ in (0,)]
    nets[1] = Network(nn.Flatten(), linear_head(4, DIM)).double()
    first = colours().views[0]
    views = Batch((first, first.flip(0) + 0.1), torch.arange(N))
    loss = Method(PerView(nets), Cosine(T), InBatch("one"), Everyone(), InfoNCE(), symmetric=False)(
        views
    ).loss
    q, k = (F.normalize(net(view), dim=1) for net, view in zip(nets, views.views, strict=True))
    torch.testing.assert_close(loss, F.cross_entropy(q @ k.T / T, torch.arange(N)), rtol=1e-9, atol=1e-9)
    loss.backward()
    assert all(float(p.grad.abs().max()) > 0 for net in nets for p in net.parameters() if p.grad is not None)
    assert all(p.grad is not None for net in nets for p in net.parameters())


def backbone_in(network: nn.Module) -> nn.Module:
    assert isinstance(network, Network)
    return network.backbone


def test_backbones_of_separate_networks() -> None:
    role = PerView(HeadConfig(hidden=8, dim=4), keep="all")
    role.meet(pictured("resnet8-w16", (1, 2), 16))
    role.eval()
    picture = torch.randn(3, 3, 16, 16)
    first, second = (backbone_in(network) for network in role.networks)
    extra = role.backbone()
    assert isinstance(extra, ConcatFeatures)
    torch.testing.assert_close(
        extra(picture), torch.cat([first(picture[:, :1]), second(picture[:, 1:])], dim=1)
    )
    assert extra.dim == 256
    single = PerView(HeadConfig(hidden=8, dim=4), keep="first")
    single.meet(pictured("resnet8-w16", (3, 3), 16))
    single.eval()
    torch.testing.assert_close(single.backbone()(picture), backbone_in(single.networks[0])(picture))
    full = PerView(HeadConfig(hidden=8, dim=4), keep="all")
    full.meet(pictured("resnet8-w16", (3, 3), 16))
    full.eval()
    assert full.backbone()(picture).shape == (3, 256)


def test_more_views_than_networks_is_one_sentence() -> None:
    with pytest.raises(UserError, match="3 views"):
        PerView(networks()).pairs(3, True)


# ------------------------------------------------------------------------------------------- Deep InfoMax


def infomax(**settings: object) -> InfoMax:
    torch.manual_seed(0)
    plan = HeadConfig(hidden=16, dim=DIM, head="linear")
    encoders = InfoMax(plan, **settings)  # type: ignore[arg-type]
    encoders.meet(pictured("resnet8-w16", (3,), 16))
    return encoders.double()


def photographs(views: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(2)
    example = [torch.randn(N, 3, 16, 16, generator=generator, dtype=torch.float64) for _ in range(views)]
    return Batch(tuple(example), torch.arange(N))


def codes(role: InfoMax, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summary, whole map and places of each picture, unit vectors, by the role's own networks."""
    inner, features = map_and_features(role.network.backbone, x)
    places = torch.stack([role.place_network(inner)[:, :, i, j] for i in range(4) for j in range(4)], dim=1)
    parts = role.network.head(features), role.map_network(inner), places
    return tuple(F.normalize(part, dim=-1) for part in parts)  # type: ignore[return-value]


def bound_value(value: Tensor, positive: Tensor, negatives: Tensor, form: str) -> Tensor:
    """The three forms of DIM's estimator, each from scores of one positive and all negatives of an anchor."""
    if form == "infonce":  # Liu 2022, Eq. 36 with the positive in the sum, plus log m
        return positive - torch.cat([positive[None], negatives]).logsumexp(0) + math.log(1 + len(negatives))
    if form == "js":  # Hjelm et al. 2018: -softplus(-T) - mean softplus(T')
        return -F.softplus(-positive) - F.softplus(negatives).mean()
    raise AssertionError(form)


@pytest.mark.parametrize(("form", "bound"), [("infonce", InfoNCE()), ("js", JensenShannon())])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)])
def test_dim_equals_global_and_local_terms_written_out(
    form: str, bound: object, alpha: float, beta: float
) -> None:
    """Liu 2022, Eq. 37: alpha I(X; E(X)) + beta / M^2 sum_i I(X^(i); E(X)), negatives from other images."""
    role = infomax(global_weight=alpha, local_weight=beta)
    views = photographs()
    outcome = Method(role, Cosine(T), InBatch("one"), Everyone(), bound)(views)  # type: ignore[arg-type]
    y, full, places = codes(role, views.views[0])
    values = []
    for i in range(N):
        rest = [j for j in range(N) if j != i]
        of_whole, of_places = full[rest] @ y[i] / T, (places[rest].flatten(0, 1) @ y[i]) / T
        glob = bound_value(y, full[i] @ y[i] / T, of_whole, form)
        local = torch.stack(
            [bound_value(y, places[i, p] @ y[i] / T, of_places, form) for p in range(16)]
        ).mean()
        values.append(alpha * glob + beta * local)
    ceiling = 0.0
    if form == "infonce":
        ceiling = alpha * math.log(N) + beta * math.log(1 + 16 * (N - 1))
    expected = ceiling - torch.stack(values).mean()
    if form == "js":  # its value may be offset; only gradients and differences are the objective's
        head = list(role.network.head.parameters())
        ours, theirs = (torch.autograd.grad(loss, head) for loss in (outcome.loss, expected))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    else:
        torch.testing.assert_close(outcome.loss, expected, rtol=1e-6, atol=1e-6)


def test_dim_in_its_donsker_varadhan_form_has_finite_gradients_everywhere() -> None:
    role = infomax()
    Method(role, Cosine(T), InBatch("one"), Everyone(), DonskerVaradhan())(photographs()).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in role.parameters())


def test_with_two_views_a_summary_is_contrasted_with_the_maps_of_the_other() -> None:
    role = infomax(global_weight=1.0, local_weight=0.0)
    views = photographs(2)
    loss = Method(role, Cosine(T), InBatch("one"), Everyone(), InfoNCE())(views).loss
    summaries, wholes = zip(*(codes(role, view)[:2] for view in views.views), strict=True)
    terms = [F.cross_entropy(summaries[a] @ wholes[1 - a].T / T, torch.arange(N)) for a in (0, 1)]
    torch.testing.assert_close(loss, torch.stack(terms).mean(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("direction", "share"), [("summaries", 1.0), ("both", 0.5)])
def test_dim_with_maps_as_anchors(direction: str, share: float) -> None:
    """A map, whole or at one place, is contrasted once with each other image's summary; places are
    averaged."""
    role = infomax(global_weight=0.5, local_weight=2.0, direction=direction)
    views = photographs()
    loss = Method(role, Cosine(T), InBatch("one"), Everyone(), InfoNCE())(views).loss
    y, full, places = codes(role, views.views[0])
    own_ids = torch.arange(N)
    back = (
        0.5 * F.cross_entropy(full @ y.T / T, own_ids)
        + 2.0 * torch.stack([F.cross_entropy(places[:, p] @ y.T / T, own_ids) for p in range(16)]).mean()
    )
    forth = infomax(global_weight=0.5, local_weight=2.0)
    present = Method(forth, Cosine(T), InBatch("one"), Everyone(), InfoNCE())(views).loss
    torch.testing.assert_close(loss, share * back + (1 - share) * present, rtol=1e-6, atol=1e-6)


def test_the_certificate_of_dim_is_that_of_its_weakest_term() -> None:
    """The global term has one key per image and is proven; places of one image are not independent draws."""

    def claim(**settings: float) -> Certificate:
        method = Method(infomax(**settings), Cosine(T), InBatch("one"), Everyone(), InfoNCE())
        return method.eval().certificate(N, 1, held_out=True)

    assert claim(local_weight=0.0).status == "proven"
    assert claim(local_weight=0.0).ceiling == pytest.approx(math.log(N))
    assert claim().status == "not covered"
    mean = (0.5 * math.log(N) + 1.0 * math.log(1 + 16 * (N - 1))) / 1.5
    assert claim().ceiling == pytest.approx(mean)


@pytest.mark.parametrize(
    "name", ["resnet8-w16", "resnet6-w32", "resnet18", "resnet20", "resnet8x4", "wrn-16-2", "shufflenetv1"]
)
def test_features_of_dim_are_those_of_the_backbone(name: str) -> None:
    body = backbone(name, 3, 32).eval()
    picture = torch.randn(2, 3, 32, 32)
    inner, features = map_and_features(body, picture)
    torch.testing.assert_close(features, body(picture))
    assert inner.shape[2] > 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"local_weight": -1.0}, "encoders.local_weight was -1"),
        ({"local_weight": 0.0, "global_weight": 0.0}, "both 0"),
    ],
)
def test_bad_weights_get_a_sentence(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        infomax(**settings)


def test_a_bank_holds_the_mean_of_a_maps_places() -> None:
    role, example = infomax(), photographs()
    bank = Bank(N, momentum=0.25, dim=DIM, views=3).double()
    method = Method(role, Cosine(T), bank, Everyone(), InfoNCE()).double()
    method.prime(example)
    maps, _ = map_and_features(role.network.backbone, example.views[0])
    places = F.normalize(role._places(maps), dim=2)
    torch.testing.assert_close(bank.rows[1], F.normalize(places.mean(dim=1), dim=1))
    summary = F.normalize(role.encode(example, (0,), ()).anchors[0], dim=1)
    scores, _ = method.score(method.encode_batch(example)[0], example.index, 0, 1, START)
    torch.testing.assert_close(scores.positive[:, 0], (summary * bank.rows[1]).sum(dim=1) / T)


def test_every_bound_takes_several_positives_an_anchor() -> None:
    """DIM's places are several positives: any bound gives a finite loss and gradient of them."""
    names = [name for name in BOUNDS if name not in ("agreement", "barber-agakov")]
    for name, views in itertools.product(names, (1, 2)):
        role = infomax()
        loss = Method(role, Cosine(T), InBatch("one"), Everyone(), BOUNDS[name]())(photographs(views)).loss
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in role.parameters()), name
