"""Whether one side finds the other: retrieval both ways, and zero-shot classification where the second side recurs.

Rows with the same second side (the same caption) are one thing to be found. First to second: which of the different captions is the most
similar? Where there are as many as classes, that is zero-shot classification. Second to first: is the most similar of all rows one of the caption's?
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.intervals import with_intervals
from nearfar.core.method import Method
from nearfar.core.schedules import START
from nearfar.errors import UserError
from nearfar.modalities.base import Measure

ROWS, DIM = 256, 64


@torch.no_grad()
def embeddings(networks: Any, data: Any, views: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """What both networks say of both sides, in plain view."""
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    plain = type(views)(_unmoved(views.settings), views.known, device)
    for start in range(0, len(data), ROWS):
        index = np.arange(start, min(start + ROWS, len(data)))
        for network, view, held in zip(networks, plain(data.load(index), 0, 0, index), found, strict=True):
            held.append(network(view.to(device)).float().cpu())
    return torch.cat(found[0]), torch.cat(found[1])


def _unmoved(settings: Any) -> Any:
    return type(settings)(augment=False)


def retrieval_figures(scores: Float[Tensor, "row row"], second: Int[np.ndarray, "row"]) -> dict[str, float]:
    """Shares of rows whose own caption is the first, or among the first five, of all different ones; of captions whose most similar row
    is theirs; and what chance would give. What scores alike is in random order: networks that tell nothing apart are at chance."""
    _, first_of = np.unique(second, return_index=True)
    keys = torch.from_numpy(np.sort(first_of))
    own = torch.from_numpy(
        np.searchsorted(np.sort(first_of), [np.flatnonzero(second == s)[0] for s in second])
    )
    if not scores.isfinite().all():
        raise UserError(
            "scores of these pairs are not finite; the networks' weights are unusable, or too large for these inputs"
        )
    among = scores[:, keys]
    found = among.gather(1, own[:, None])
    better, level = (among > found).sum(dim=1), (among == found).sum(dim=1)
    most = scores[:, keys] == scores[:, keys].amax(dim=0)
    theirs = torch.from_numpy(second)[:, None] == torch.from_numpy(second)[keys]
    chance = float(np.mean([(second == s).mean() for s in second[keys.numpy()]]))
    return {
        "top1": _among_first(1, better, level),
        "top5": _among_first(5, better, level),
        "back_top1": float(((most & theirs).sum(dim=0) / most.sum(dim=0)).double().mean()),
        "chance": 1 / len(keys),
        "back_chance": chance,
        "different": len(keys),
    }


def _among_first(k: int, better: Int[Tensor, "row"], level: Int[Tensor, "row"]) -> float:
    """How often one's own is among the first k when those that score alike, itself included, come in random order."""
    return float(((k - better) / level).clamp(0, 1).double().mean())


def retrieval(modality: Any) -> Measure:
    def figures(networks: Any, critic: Any, test: Any, views: Any, device: torch.device) -> Mapping[str, Any]:
        first, second = embeddings(networks, test, views, device)
        if critic is None:
            scores = nn.functional.normalize(first, dim=1) @ nn.functional.normalize(second, dim=1).T
        else:
            critic = critic.cpu()
            scores = critic.cross(critic.prepare(first), critic.prepare(second), START)
        return retrieval_figures(scores.detach(), test.store.alike[test.rows])

    def learned(
        method: Method, test: Any, views: Any, /, *, device: torch.device, seed: int
    ) -> dict[str, Any]:
        method.eval()
        networks: Any = method.encoders
        found = figures(networks.networks, method.critic, test, views, device)
        return with_intervals(dict(found), len(test))

    def untrained(train: Any, test: Any, views: Any, /, *, seed: int) -> dict[str, Any]:
        choice = {"name": "both"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seen = modality.inputs(modality.smallest_network, choice, views.known)
            bodies = [seen.body(0), seen.body(1)]
            networks = [nn.Sequential(body, nn.Linear(int(body.dim), DIM)).eval() for body in bodies]
        found = figures(networks, None, test, views, torch.device("cpu"))
        return with_intervals(dict(found), len(test))

    return Measure(learned, {"untrained": untrained})
