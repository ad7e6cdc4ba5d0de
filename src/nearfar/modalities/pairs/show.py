"""Pairs in reports, and retrieval: which second side is the most similar to a first side, and the reverse.

Rows with equal second sides (the same caption) count as one candidate. First to second: which of the
different captions is the most similar? With one caption per class, that is zero-shot classification. Second
to first: does the most similar row have this caption?
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from nearfar.core.method import Method
from nearfar.core.results import Figure, Measurement
from nearfar.core.schedules import START
from nearfar.errors import UserError
from nearfar.modalities.base import AbstractPresenter, Measure
from nearfar.modalities.pairs.data import SIDES, Pairs, PairsDescription, SideStore
from nearfar.modalities.pairs.views import BothSides, PairsNetworks, PairViews

ROWS, DIM = 256, 64  # rows at a time; width of untrained embeddings


class PairsPresenter(AbstractPresenter):
    def measures(self) -> dict[str, Measure]:
        return {"retrieval": Measure(trained_retrieval, {"untrained": untrained_retrieval})}

    def pictures(self, loaded: tuple[Any, Any], description: PairsDescription) -> list[Image.Image]:
        first, second = (
            SIDES[kind].presenter.pictures(side, side_description)
            for kind, side, side_description in zip(
                description.kinds, loaded, description.of_sides(), strict=True
            )
        )
        return [_side_by_side(*pair) for pair in zip(first, second, strict=True)]

    def view_pictures(
        self, views: PairViews, view: Tensor, description: PairsDescription
    ) -> list[Image.Image]:
        """Pictures of the first side, which evaluation sees."""
        presenter = SIDES[description.kinds[0]].presenter
        return presenter.view_pictures(views.sides[0], view, description.of_sides()[0])


def _side_by_side(first: Image.Image, second: Image.Image) -> Image.Image:
    page = Image.new("RGB", (first.width + second.width, max(first.height, second.height)), "white")
    page.paste(first, (0, 0))
    page.paste(second, (first.width, 0))
    return page


@torch.no_grad()
def embeddings(
    networks: Any, data: Pairs, description: PairsDescription, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The embeddings of both sides in plain view."""
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    make_views = PairViews(BothSides(augment=False), description, device)
    for start in range(0, len(data), ROWS):
        index = np.arange(start, min(start + ROWS, len(data)))
        for network, view, part in zip(
            networks, make_views(data.load(index), 0, 0, index), parts, strict=True
        ):
            part.append(network(view.to(device)).float().cpu())
    return torch.cat(parts[0]), torch.cat(parts[1])


def retrieval_figures(scores: Float[Tensor, "row row"], second: Int[np.ndarray, "row"]) -> dict[str, float]:
    """Shares of rows whose caption is ranked first, or among the first five, of all different captions; of
    captions whose most similar row has them; and what chance gives. Equal scores are ranked in random order,
    so constant scores are at chance."""
    _, first_of = np.unique(second, return_index=True)
    keys = torch.from_numpy(np.sort(first_of))
    caption = torch.from_numpy(
        np.searchsorted(np.sort(first_of), [np.flatnonzero(second == s)[0] for s in second])
    )
    if not scores.isfinite().all():
        raise UserError(
            "scores of these pairs are not finite; the networks' weights are unusable, or too large for "
            "these inputs"
        )
    candidates = scores[:, keys]
    true_score = candidates.gather(1, caption[:, None])
    better, equal = (candidates > true_score).sum(dim=1), (candidates == true_score).sum(dim=1)
    nearest_rows = candidates == candidates.amax(dim=0)
    matches = torch.from_numpy(second)[:, None] == torch.from_numpy(second)[keys]
    chance = float(np.mean([(second == s).mean() for s in second[keys.numpy()]]))
    return {
        "top1": _share_among_first(1, better, equal),
        "top5": _share_among_first(5, better, equal),
        "back_top1": float(((nearest_rows & matches).sum(dim=0) / nearest_rows.sum(dim=0)).double().mean()),
        "chance": 1 / len(keys),
        "back_chance": chance,
        "different": len(keys),
    }


def _share_among_first(k: int, better: Int[Tensor, "row"], equal: Int[Tensor, "row"]) -> float:
    """How often the true candidate is among the first k; ties come in random order."""
    return float(((k - better) / equal).clamp(0, 1).double().mean())


def _measurement(scores: Tensor, test: Pairs) -> Measurement:
    store = test.store
    assert isinstance(store, SideStore)
    values = retrieval_figures(scores, store.equal[test.rows])
    shares = {name: Figure.share(values[name], len(test)) for name in ("top1", "top5")}
    rest = {name: Figure(values[name]) for name in ("chance", "back_top1", "back_chance")}
    return Measurement({**shares, **rest}, {"different": values["different"]})


def trained_retrieval(
    method: Method, test: Pairs, views: PairViews, /, *, device: torch.device, seed: int
) -> Measurement:
    """Retrieval by the critic's scores of the trained networks."""
    method.eval()
    networks: Any = method.encoders
    first, second = embeddings(networks.networks, test, views.description, device)
    critic: Any = method.critic
    critic = critic.cpu()
    scores = critic.cross(critic.prepare(first), critic.prepare(second), START)
    return _measurement(scores.detach(), test)


def untrained_retrieval(train: Pairs, test: Pairs, views: PairViews, /, *, seed: int) -> Measurement:
    """Retrieval by cosine similarity of untrained networks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sides = PairsNetworks()
        inputs = sides.inputs(sides.smallest, {"name": "both"}, views.description)
        bodies: list[Any] = [inputs.body(0), inputs.body(1)]
        networks = [nn.Sequential(body, nn.Linear(int(body.dim), DIM)).eval() for body in bodies]
    first, second = embeddings(networks, test, views.description, torch.device("cpu"))
    return _measurement(
        nn.functional.normalize(first, dim=1) @ nn.functional.normalize(second, dim=1).T, test
    )
