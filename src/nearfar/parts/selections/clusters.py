"""Which instances belong together, by k-means on what the network last said of them."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.core.schedules import Progress
from nearfar.errors import UserError
from nearfar.system.extras import need

UNKNOWN_CLUSTER = -1
ROUNDS = 20  # of k-means


class Clusters(nn.Module):
    """For each of several k-means runs, the cluster of every instance; checkpoints hold it.

    Before the first refresh nobody is known, and who is not known shares a cluster with nobody. Clusters are renewed
    at the start of every `every`-th epoch once `after` epochs are over: an untrained network's clusters mean nothing.
    """

    ids: Int[Tensor, "run instance"]

    def __init__(self, clusters: int, runs: int, every: int, instances: int, after: float = 1.0) -> None:
        super().__init__()
        if not 0 < after < math.inf:
            raise UserError(f"selection.after was {after}; it must be a number of epochs above 0")
        for key, value, least in (("clusters", clusters, 2), ("runs", runs, 1), ("every", every, 1)):
            if not isinstance(value, (int, np.integer)) or value < least:
                raise UserError(f"selection.{key} was {value}; it must be a whole number from {least} up")
        self.clusters, self.every, self.after = clusters, every, after
        self.register_buffer("ids", torch.full((runs, instances), UNKNOWN_CLUSTER, dtype=torch.int32))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Made without a number of instances, it takes that of what it is given."""
        held = state.get(f"{prefix}ids")
        if held is not None and self.ids.shape[1] == 0 and len(held) == len(self.ids):
            self.ids = self.ids.new_empty(held.shape)
        super()._load_from_state_dict(state, prefix, *rest)

    def due(self, progress: Progress) -> bool:
        return progress.epoch >= self.after and progress.step % (self.every * progress.steps_per_epoch) == 0

    @torch.no_grad()
    def refresh(self, embedding: Float[Tensor, "instance dim"]) -> None:
        """Clusters the instances anew; a row of zeros or with a number that is not finite stays unknown."""
        rows = embedding.detach().float().cpu()
        known = rows.isfinite().all(dim=1) & (rows != 0).any(dim=1)
        ids = torch.full((len(self.ids), len(rows)), UNKNOWN_CLUSTER, dtype=torch.int32)
        directions = F.normalize(rows[known], dim=1).numpy()
        for run in range(len(ids) if known.any() else 0):
            ids[run, known] = torch.from_numpy(spherical_kmeans(directions, self.clusters, seed=run + 1))
        self.ids = ids.to(self.ids.device)

    def of(self, index: Int[Tensor, "item"]) -> Int[Tensor, "run item"]:
        """Clusters of these instances; -1 for an instance nobody clustered, or that is itself not known."""
        known = (index >= 0) & (index < self.ids.shape[1])
        if self.ids.shape[1] == 0:
            return self.ids.new_full((len(self.ids), len(index)), UNKNOWN_CLUSTER)
        return torch.where(known, self.ids[:, torch.where(known, index, 0)], UNKNOWN_CLUSTER)

    def together(
        self, anchor: Int[Tensor, "anchor"], candidate: Int[Tensor, "candidate"]
    ) -> Bool[Tensor, "anchor candidate"]:
        """Who shares a cluster in at least one run: for C_i the union over the runs."""
        shared = torch.zeros(len(anchor), len(candidate), dtype=torch.bool, device=anchor.device)
        for mine, theirs in zip(self.of(anchor), self.of(candidate), strict=True):
            shared |= (mine[:, None] == theirs[None, :]) & (mine != UNKNOWN_CLUSTER)[:, None]
        return shared

    def knows(self, index: Int[Tensor, "item"]) -> Bool[Tensor, "item"]:
        return (self.of(index) != UNKNOWN_CLUSTER).any(dim=0)


def spherical_kmeans(
    directions: Float[np.ndarray, "item dim"], clusters: int, seed: int
) -> Int[np.ndarray, "item"]:
    """Cluster of each unit vector, centres being unit vectors too; the same vectors give the same clusters."""
    faiss = need("faiss")  # here, so that losses and bounds work without it

    kmeans = faiss.Kmeans(
        directions.shape[1],
        min(clusters, len(directions)),
        niter=ROUNDS,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,  # faiss would warn, not refuse
    )
    kmeans.train(directions)
    return kmeans.index.search(directions, 1)[1][:, 0].astype(np.int32)
