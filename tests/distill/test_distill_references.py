"""Every objective of distillation equals a slow float64 reference from its paper: value and gradient."""

import itertools
import math
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar import (
    AlphaCPC,
    Bank,
    Batch,
    ConstantNCE,
    Cosine,
    Distillation,
    Distilled,
    Method,
    MultiLabelCPC,
    Network,
    Others,
    Progress,
    geometric,
)
from nearfar.core.abstract import AbstractBound
from nearfar.core.encoding import Encoding
from nearfar.core.types import TeacherOutput
from nearfar.parts.bounds import PARTS, Agreement, InfoNCE
from nearfar.parts.negatives import InBatch, NoNegatives
from nearfar.parts.selections import Everyone

INSTANCES, CLASSES, PIXELS, FEATURES, WIDTH, DIM, TAU = 12, 3, 6, 5, 7, 4, 0.07
LABELS = torch.arange(INSTANCES) % CLASSES
KD_WEIGHT, CE_WEIGHT, CONTRAST = 0.7, 0.4, 0.8


class Frozen:
    """A teacher: features and class scores of a view, by fixed matrices."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(5)
        self.features = torch.randn(PIXELS, WIDTH, generator=draw, dtype=torch.float64)
        self.scores = torch.randn(WIDTH, CLASSES, generator=draw, dtype=torch.float64)

    def __call__(self, view: Tensor) -> TeacherOutput:
        activations = torch.tanh(view @ self.features)
        return TeacherOutput(activations, 3 * activations @ self.scores)


def student(weight: float = CONTRAST, direction: Literal["both", "student"] = "both") -> Distilled:
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(PIXELS, FEATURES), nn.Tanh())
    network = Network(body, nn.Linear(FEATURES, DIM), dim=DIM, backbone_width=FEATURES)
    projection = nn.Linear(WIDTH, DIM) if weight else None
    table = nn.Linear(FEATURES, CLASSES)
    role = Distilled(
        network, width=WIDTH, classes=CLASSES, weight=weight, direction=direction, projection=projection,
        table=table
    )  # fmt: skip
    role.attach_teacher(Frozen())
    return role


def batches(steps: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(2)
    pictures = torch.randn(steps, 6, PIXELS, generator=draw, dtype=torch.float64)
    rows = torch.stack([torch.randperm(INSTANCES, generator=draw)[:6] for _ in range(steps)])
    return [Batch((views,), index, LABELS[index]) for views, index in zip(pictures, rows, strict=True)]


def contrasting(bound: AbstractBound, prior: Distillation | None = None) -> Method:
    selection = Others("label", instances=INSTANCES)
    selection.assign(LABELS)
    bank = Bank(INSTANCES, 0.5, dim=DIM, views=2)
    method = Method(student(), Cosine(TAU), bank, selection, bound, prior=prior).double()
    draw = torch.Generator().manual_seed(3)
    bank.rows.copy_(F.normalize(torch.randn(2, INSTANCES, DIM, generator=draw, dtype=torch.float64), dim=2))
    bank.index.copy_(torch.arange(INSTANCES))
    return method


class Reference:
    """Embeddings and memory banks of student (0) and teacher (1), updated as in Wu et al. 2018."""

    def __init__(self, method: Method) -> None:
        self.role: Any = method.encoders
        self.teacher = Frozen()
        self.bank = method.negatives.rows.clone()  # type: ignore[attr-defined]
        self.z: float | None = None

    def embedded(self, batch: Batch) -> tuple[Tensor, Tensor]:
        role, x = self.role, batch.views[0]
        ours = torch.tanh(x @ role.network.backbone[0].weight.T + role.network.backbone[0].bias)
        ours = ours @ role.network.head.weight.T + role.network.head.bias
        theirs = self.teacher(x).features @ role.projection.weight.T + role.projection.bias
        return tuple(rows / rows.square().sum(1, keepdim=True).sqrt() for rows in (ours, theirs))

    def scores(self, batch: Batch) -> list[list[tuple[Tensor, list[Tensor]]]]:
        """Per direction and anchor: f with its own row of the other's bank, and with every row of another
        class."""
        pairs = []
        for anchors, bank in zip(self.embedded(batch), (self.bank[1], self.bank[0]), strict=True):
            rows = []
            for u, i in zip(anchors, batch.index.tolist(), strict=True):
                negatives = [(u * bank[j]).sum() / TAU for j in range(INSTANCES) if LABELS[j] != LABELS[i]]
                rows.append(((u * bank[i]).sum() / TAU, negatives))
            pairs.append(rows)
        return pairs

    def advance(self, batch: Batch) -> None:
        with torch.no_grad():
            for place, embedding in enumerate(self.embedded(batch)):
                for z, i in zip(embedding, batch.index.tolist(), strict=True):
                    moved = 0.5 * self.bank[place, i] + 0.5 * z
                    self.bank[place, i] = moved / moved.square().sum().sqrt()

    def crd(self, batch: Batch) -> Tensor:
        """Tian et al. 2020b, Eq. 9-11: h(u, v) = (e^f / Z) / (e^f / Z + N / M), Z from the first step;
        -E[log h(u, v+)] - N E[log(1 - h(u, v))]."""
        scores, total = self.scores(batch), torch.zeros((), dtype=torch.float64)
        constants = []
        for rows in scores:
            every = [f for positive, negatives in rows for f in (positive, *negatives)]
            first = sum(math.exp(float(f.detach())) for f in every) / len(every)
            constants.append(first if self.z is None else self.z)
            for positive, negatives in rows:
                n, big = len(negatives), constants[-1] * INSTANCES  # Z = M times the mean
                chance = lambda f, n=n, big=big: (f.exp() / big) / (f.exp() / big + n / INSTANCES)
                total = total - (
                    chance(positive).log() + sum((1 - chance(f)).log() for f in negatives)
                ) / len(rows)
        if self.z is None:
            self.z = sum(constants) / len(constants)
        return CONTRAST * total

    def l_alpha(self, batch: Batch, alpha: float) -> Tensor:
        """Song & Ermon 2020, Eq. 4, as a loss: log(m / alpha) - L_alpha."""
        total = torch.zeros((), dtype=torch.float64)
        for rows in self.scores(batch):
            for positive, negatives in rows:
                m = 1 + len(negatives)
                b = (m - alpha) / (m - 1)
                value = (
                    m * positive.exp() / (alpha * positive.exp() + b * sum(f.exp() for f in negatives))
                ).log()
                total = total + (self.ceiling(alpha) - value) / len(rows)
        return CONTRAST * total

    def j_alpha(self, batch: Batch, alpha: float) -> Tensor:
        """Song & Ermon 2020, Eq. 6: one sum over all anchors j and their negatives k, as in their
        appendix."""
        total = torch.zeros((), dtype=torch.float64)
        for rows in self.scores(batch):
            n, m = len(rows), 1 + len(rows[0][1])
            b = (m - alpha) / (m - 1)
            denominator = alpha * sum(positive.exp() for positive, _ in rows)
            denominator = denominator + b * sum(f.exp() for _, negatives in rows for f in negatives)
            value = sum((n * m * positive.exp() / denominator).log() for positive, _ in rows) / n
            total = total + self.ceiling(alpha) - value
        return CONTRAST * total

    @staticmethod
    def ceiling(alpha: float) -> float:
        return math.log(
            INSTANCES / alpha
        )  # of all rows of the bank: which of them a selection drops is not known before


def kd_reference(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Hinton et al. 2015, sec. 2: cross-entropy with soft targets, less their entropy, times T^2."""
    total = torch.zeros((), dtype=torch.float64)
    for ours, theirs in zip(logits, teacher, strict=True):
        p = (theirs / temperature).exp() / (theirs / temperature).exp().sum()
        q = (ours / temperature).exp() / (ours / temperature).exp().sum()
        total = total + sum(p[c] * (p[c].log() - q[c].log()) for c in range(len(p)))
    return temperature**2 * total / len(logits)


def assert_same(method: Method, loss: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=1e-12)
    weights = [w for w in method.parameters() if w.requires_grad]
    ours, theirs = (torch.autograd.grad(value, weights, allow_unused=True) for value in (loss, reference))
    assert any(gradient is not None and bool(gradient.any()) for gradient in theirs)
    for one, expected in zip(ours, theirs, strict=True):
        if one is not None or expected is not None:
            assert one is not None
            torch.testing.assert_close(
                one, torch.zeros_like(one) if expected is None else expected, rtol=1e-9, atol=1e-12
            )


def test_crd_equals_its_equation_over_steps_with_the_constant_of_the_first() -> None:
    bound = ConstantNCE()
    method = contrasting(bound)
    reference = Reference(method)
    for batch in batches(3):
        outcome = method(batch)
        assert_same(method, outcome.loss, reference.crd(batch))
        reference.advance(batch)
        method.advance(outcome)
        torch.testing.assert_close(method.negatives.rows, reference.bank, rtol=1e-12, atol=1e-12)  # type: ignore[attr-defined]
        assert reference.z is not None
        assert float(bound.log_z) == pytest.approx(
            math.log(reference.z), rel=1e-6
        )  # the buffer's own precision


@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.01])
def test_l_alpha_and_j_alpha_equal_their_equations(alpha: float) -> None:
    bounds: dict[str, AbstractBound] = {"l_alpha": AlphaCPC(alpha), "j_alpha": MultiLabelCPC(alpha)}
    for batch, (name, bound) in itertools.product(batches(1), bounds.items()):
        method = contrasting(bound)
        reference = getattr(Reference(method), name)(batch, alpha)
        assert_same(method, method(batch).loss, reference)


def test_alpha_may_be_a_curriculum() -> None:
    """Song & Ermon 2020, sec. 5.3: geometrically from 10 to 0.1, through 1 half-way; here from 2, since m is
    small."""
    method, (batch,) = contrasting(MultiLabelCPC(geometric(2.0, 0.5))), batches(1)
    for step, alpha in ((0, 2.0), (50, 1.0)):
        loss = method(batch, Progress(step, 100, 10)).loss
        assert_same(method, loss, Reference(method).j_alpha(batch, alpha))


def test_a_sum_is_the_sum_of_its_terms() -> None:
    """crd + kd + cross-entropy share one student: the loss is the weighted sum of the three references."""
    torch.manual_seed(4)
    prior = Distillation(CE_WEIGHT, KD_WEIGHT, 4.0, dim=FEATURES, teacher_width=WIDTH)
    method, (batch,) = contrasting(ConstantNCE(), prior), batches(1)
    role: Any = method.encoders
    x = batch.views[0]
    logits = torch.tanh(role.network.backbone[0](x)) @ role.table.weight.T + role.table.bias
    kd = kd_reference(logits, Frozen()(x).logits, 4.0)  # type: ignore[arg-type]
    assert batch.labels is not None
    ce = -sum(row.log_softmax(0)[label] for row, label in zip(logits, batch.labels, strict=True)) / len(
        logits
    )
    assert_same(method, method(batch).loss, Reference(method).crd(batch) + KD_WEIGHT * kd + CE_WEIGHT * ce)


def test_several_contrasts_sum_and_have_separate_banks() -> None:
    """crd + infonce + ml-cpc of the same scores, with moving banks and constant; no ceiling, since crd has
    none."""
    alpha = 0.1
    bound = PARTS["nce-constant+alpha-cpc+ml-cpc"](alpha=alpha)
    method = contrasting(bound)
    reference = Reference(method)
    for batch in batches(3):
        outcome = method(batch)
        sums = [reference.l_alpha(batch, alpha), reference.j_alpha(batch, alpha)]
        shifted = [loss - 2 * CONTRAST * reference.ceiling(alpha) for loss in sums]  # both directions
        assert_same(method, outcome.loss, reference.crd(batch) + sum(shifted))
        reference.advance(batch)
        method.advance(outcome)
        assert reference.z is not None
        assert float(bound.parts[0].log_z) == pytest.approx(math.log(reference.z), rel=1e-6)
    assert [name for name in method.state_dict() if "log_z" in name] == ["bound.remembered.0.log_z"]


def with_weights(**weights: float) -> Method:
    torch.manual_seed(4)
    prior = Distillation(**{"labels": 0.0, **weights}, dim=FEATURES, teacher_width=WIDTH)
    return Method(student(0.0), Cosine(1.0), NoNegatives(), Everyone(), Agreement(), prior=prior).double()


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kd_equals_hinton_2015_and_needs_no_labels(temperature: float) -> None:
    method, (batch,) = with_weights(kd=1.0, temperature=temperature), batches(1)
    unlabelled = Batch(batch.views, batch.index)
    logits = method.encoders.classifier()(method.encoders.network.backbone(batch.views[0]))  # type: ignore[attr-defined,misc]
    reference = kd_reference(logits, Frozen()(batch.views[0]).logits, temperature)  # type: ignore[arg-type]
    assert_same(method, method(unlabelled).loss, reference)
    assert method(unlabelled).nats is None


def test_instances_without_labels_are_skipped() -> None:
    method, (batch,) = with_weights(labels=1.0), batches(1)
    assert batch.labels is not None
    some = batch.labels.clone()
    some[::2] = -1
    logits = method.encoders.classifier()(method.encoders.network.backbone(batch.views[0]))  # type: ignore[attr-defined,misc]
    expected = F.cross_entropy(logits[1::2], batch.labels[1::2])
    torch.testing.assert_close(method(Batch(batch.views, batch.index, some)).loss, expected)
    assert method(Batch(batch.views, batch.index)).loss.item() == 0.0


def test_cosine_and_relational_equal_their_equations() -> None:
    """1 - cos(W h, t); Park et al. 2019, Eq. 5-7: Huber's loss of distances over their mean, for all
    pairs."""
    (batch,) = batches(1)
    teacher = Frozen()(batch.views[0]).features
    method = with_weights(cosine=1.0)
    features = method.encoders.network.backbone(batch.views[0])  # type: ignore[attr-defined]
    matched = features @ method.prior.match.weight.T + method.prior.match.bias  # type: ignore[union-attr]
    cosines = [(a @ b) / (a.norm() * b.norm()) for a, b in zip(matched, teacher, strict=True)]
    assert_same(method, method(batch).loss, 1 - sum(cosines) / len(cosines))
    method = with_weights(relational=1.0)
    features = method.encoders.network.backbone(batch.views[0])  # type: ignore[attr-defined]
    pairs = list(itertools.combinations(range(len(teacher)), 2))
    ours, theirs = (
        torch.stack([(rows[i] - rows[j]).square().sum().sqrt() for i, j in pairs])
        for rows in (features, teacher)
    )
    differences = (ours / ours.mean() - theirs / theirs.mean()).abs()
    huber = torch.where(differences <= 1, differences.square() / 2, differences - 0.5).mean()
    assert_same(method, method(batch).loss, huber)


def test_chunks_do_not_change_loss_and_gradient() -> None:
    torch.manual_seed(4)
    prior = Distillation(CE_WEIGHT, KD_WEIGHT, dim=FEATURES, teacher_width=WIDTH)
    method, (batch,) = contrasting(MultiLabelCPC(0.5), prior), batches(1)
    unchunked = method(batch).loss
    method.encoding = Encoding(chunk=2)
    assert_same(method, method(batch).loss, unchunked)


def test_in_batch_candidates_of_students_and_teachers() -> None:
    """A student's anchor meets only the teacher's keys: with two views 2N - 2 of them (SimCLR's batch)."""
    method = Method(student(), Cosine(TAU), InBatch("both"), Everyone(), InfoNCE()).double()
    first, second = batches(2)
    batch = Batch((first.views[0], second.views[0]), torch.arange(6))
    role: Any = method.encoders
    ours, theirs = ([], [])
    for view in batch.views:
        ours.append(F.normalize(role.network(view), dim=1))
        theirs.append(F.normalize(role.projection(Frozen()(view).features), dim=1))
    total = torch.zeros((), dtype=torch.float64)
    for anchors, keys in ((ours, theirs), (theirs, ours)):
        every = torch.cat(keys) / TAU
        for place, rows in enumerate(anchors):
            for i, u in enumerate(rows):
                negatives = [every[k] @ u for k in range(12) if k % 6 != i]
                positive = keys[place][i] @ u / TAU
                total = total - (positive - torch.stack([positive, *negatives]).logsumexp(0)) / 12
    assert_same(method, method(batch).loss, CONTRAST * total)


def test_one_direction_contrasts_the_student_only() -> None:
    assert len(student(direction="student").pairs(1, True)) == 1
    pairs = student().pairs(2, True)
    assert {(p.anchor, p.key) for p in pairs} == {(0, 1), (2, 3), (1, 0), (3, 2)}
    assert sum(p.weight for p in pairs) == pytest.approx(2 * CONTRAST)
    assert student(0.0).pairs(1, True) == ()
