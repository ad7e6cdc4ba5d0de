"""Candidates by their rank in similarity: the nearest (Ball), or those between two ranks (Ring, annulus)."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from nearfar.core.abstract import AbstractSelection
from nearfar.core.schedules import Progress, Value, as_text, at, ends, parse_within
from nearfar.core.scores import Dense, Membership, Scores
from nearfar.core.types import Context, Coverage, NegativeSampling, Remark
from nearfar.errors import UserError
from nearfar.parts.selections.draws import checked_number, sample_candidates, step_seed
from nearfar.parts.selections.ranks import between_edges, beyond_edges, places

SAMPLE_REMARK: Remark = ("sample", ..., "of these {sample} drawn for each u")
SLACK = 1e-9  # nats: equal scores are not below their own mean because of rounding


@dataclass(frozen=True)
class Ring(AbstractSelection):
    """Of an anchor's K candidates in rising order of similarity (ties by position) those at places
    round(lower K) .. round(upper K) - 1, at least one (Wu et al. 2021, sec. 4; Wu et al. 2020's annulus).

    K counts what the source offers that anchor: not the positive, not the anchor itself, no empty places.
    Halves round to the even neighbour, as Python's `round` does. Where the places would be empty, the one at
    round(lower K) is kept, or the last. Ring(0, 1) keeps everyone.

    `sample` draws that many of the kept for each anchor, uniformly and without replacement: first the ring,
    then the sample, as in Wu et al. 2021. (A source's own `sample` comes before any ranking and is shared by
    the batch.)
    """

    ranks_by_score = True
    drop_reason = "not drawn"
    equation = "places round(l K) to round(h K) - 1 in rising order of f(u, v_k), l = {lower}, h = {upper}"
    remarks = (SAMPLE_REMARK,)
    lower: Value = 0.5
    upper: Value = 0.99
    sample: int | None = None

    def __post_init__(self) -> None:
        lower, upper = _share(self.lower, "lower"), _share(self.upper, "upper")
        if any(low > high for low, high in zip(ends(lower), ends(upper), strict=True)):
            raise UserError(
                f"selection.lower was {as_text(lower)}; it must not exceed selection.upper, {as_text(upper)}"
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        object.__setattr__(self, "sample", checked_number(self.sample, "sample"))

    def __call__(self, scores: Scores, context: Context | Progress | None = None) -> Scores:
        """In a loop of one's own, where edges move by schedule, `context` may be how far the run is."""
        progress = _progress_of(context)
        seed = step_seed() if self.sample is not None else 0
        first = context.first if isinstance(context, Context) else 0  # of this rank's anchors among all

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            inside = self._inside(values, offered, progress)
            return Membership(
                inside if self.sample is None else sample_candidates(inside, self.sample, seed, rows + first)
            )

        return replace(scores, negative=scores.negative.divide(rule, unweighted=True).negatives)

    def _inside(
        self, values: Tensor, candidates: Tensor, progress: Progress | None
    ) -> Bool[Tensor, "anchor candidate"]:
        with torch.no_grad():
            return between_edges(values, candidates, at(self.lower, progress), at(self.upper, progress))

    @torch.no_grad()
    def coverage(self, scores: Scores, context: Context | None = None) -> Coverage:
        """For which share of anchors all kept e^f reach the mean of e^f over that anchor's candidates.

        It is the condition of Wu et al. 2021, Thm 3.1 for every anchor, with c(u) measured. Takes the scores
        before selection. Give it to `Method.certificate(..., coverage=...)` or put it into the
        `NegativeSampling`: the claim is then "measured", never proven, since a critic that varies fails for
        some anchors sooner or later. Without context it speaks for the whole run, as a certificate does: for
        the lowest lower edge, which alone determines the lowest kept score.
        """
        values, candidates = (part.cpu() for part in scores.negative.matrix())  # not every device has float64
        values = values.double()
        log_mean = Dense(values, candidates).logsumexp() - candidates.sum(dim=1).clamp_min(1).double().log()
        lower = min(ends(self.lower)) if context is None else at(self.lower, context.progress)
        inside = Ring(lower, 1.0)._inside(values, candidates, None)
        lowest = -Dense(-values, inside).hardest()
        some = candidates.any(dim=1)  # an anchor without candidates shows nothing
        share = ((lowest >= log_mean - SLACK) & some).sum() / some.sum().clamp_min(1)
        return Coverage(float(share), int(some.sum()))

    def startup_warning(self) -> str | None:
        return _hard_from_start_warning(self.lower)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        lowers = ends(self.lower) if progress is None else (at(self.lower, progress),)
        uppers = ends(self.upper) if progress is None else (at(self.upper, progress),)
        return reduce_sampling(cut_sampling(source, lowers, uppers), self.sample)


@dataclass(frozen=True)
class Ball(AbstractSelection):
    """The most similar candidates, those at places round(lower K) and above, and of these no more than
    `nearest`: a `Ring` whose upper edge is 1.

    Of all selections by rank it is the one that keeps a bound at any cut (see docs/certificates.md).
    """

    ranks_by_score = True
    drop_reason = "not drawn"
    equation = "places round(l K) to K - 1 in rising order of f(u, v_k), l = {lower}"
    remarks = (SAMPLE_REMARK, ("nearest", ..., "of these the {nearest} nearest"))
    lower: Value = 0.5
    sample: int | None = None
    nearest: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", _share(self.lower, "lower"))
        object.__setattr__(self, "sample", checked_number(self.sample, "sample"))
        object.__setattr__(self, "nearest", checked_number(self.nearest, "nearest"))

    def __call__(self, scores: Scores, context: Context | Progress | None = None) -> Scores:
        if self.nearest is None:
            return Ring(self.lower, 1.0, self.sample)(scores, context)
        lower = at(self.lower, _progress_of(context))

        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> Membership:
            with torch.no_grad():
                return Membership(beyond_edges(values, offered, lower, 1.0, self.nearest)[0])

        ring_scores = replace(scores, negative=scores.negative.divide(rule, unweighted=True).negatives)
        return ring_scores if self.sample is None else Ring(0.0, 1.0, self.sample)(ring_scores, context)

    def startup_warning(self) -> str | None:
        return _hard_from_start_warning(self.lower)

    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        cut = Ring(self.lower, 1.0).sampling(source, progress)
        if self.nearest is not None and self.nearest < cut.negatives:
            cut = replace(cut, cut="above" if cut.cut == "above" else "below")
        return reduce_sampling(reduce_sampling(cut, self.nearest), self.sample)


def _hard_from_start_warning(lower: Value) -> str | None:
    """What to say of negatives that are hard from the first step on; None if they are not."""
    if at(lower) < 0.5:
        return None
    return (
        f"selection.lower is {at(lower):g} from the first step: an untrained encoder does not know which "
        "negatives are similar, and choosing by it can settle on a poor representation (Wu et al. 2021, "
        "sec. 4). Let it rise: selection.lower=linear(0,0.9)."
    )


def _progress_of(context: Context | Progress | None) -> Progress | None:
    return context.progress if isinstance(context, Context) else context


def _share(value: Value, key: str) -> Value:
    return parse_within(value, f"selection.{key}", 0, 1)


def cut_sampling(
    source: NegativeSampling, lowers: tuple[float, ...], uppers: tuple[float, ...]
) -> NegativeSampling:
    """The sampling after cuts between these edges, the widest of which keeps most."""
    first, last = places(source.negatives, min(lowers), max(uppers))
    min_negatives = source.negatives if source.min_negatives is None else source.min_negatives
    narrow_first, narrow_last = places(min_negatives, max(lowers), min(uppers))
    cut = source.cut
    if narrow_last < min_negatives:
        cut = "above"
    elif cut == "none" and first > 0:
        cut = "below"
    return replace(source, negatives=last - first, min_negatives=narrow_last - narrow_first, cut=cut)


def reduce_sampling(source: NegativeSampling, sample: int | None) -> NegativeSampling:
    """The sampling after drawing `sample` of the kept: fewer negatives (docs/certificates.md)."""
    if sample is None:
        return source
    min_negatives = source.negatives if source.min_negatives is None else source.min_negatives
    return replace(source, negatives=min(source.negatives, sample), min_negatives=min(min_negatives, sample))
