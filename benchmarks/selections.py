"""Ring against a full sort of the same scores: the cost of choosing negatives by rank.

    python benchmarks/selections.py [ANCHORS CANDIDATES]        default 256 65536, float32, CPU

Arms are interleaved and medians taken. Each anchor excludes one candidate, itself, as with a bank. The sort
is what a straightforward implementation would call. `ring` is the whole selection, from scores to the mask.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

import nearfar as nf

ROUNDS = 5


def arms(anchors: int, candidates: int) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(anchors, candidates, generator=generator)
    mask = torch.ones_like(values, dtype=torch.bool)
    mask[torch.arange(anchors), torch.arange(anchors) % candidates] = False
    scores = nf.Scores.of(torch.zeros(anchors), values, mask)
    few = (5 * values).round() / 5  # some forty different scores: every edge runs through equals
    tied = nf.Scores.of(torch.zeros(anchors), few, mask)
    rings = {f"ring({lower:g},0.99)": nf.Ring(lower, 0.99) for lower in (0.0, 0.1, 0.5, 0.9)}
    return {
        "sort": lambda: values.sort(dim=1, stable=True),
        **{name: lambda ring=ring: ring(scores) for name, ring in rings.items()},  # type: ignore[misc]
        "sort, ties": lambda: few.sort(dim=1, stable=True),
        **{f"{name}, ties": lambda ring=ring: ring(tied) for name, ring in rings.items()},  # type: ignore[misc]
    }


def main() -> None:
    anchors, candidates = (int(word) for word in sys.argv[1:3] or ("256", "65536"))
    arms_by_name = arms(anchors, candidates)
    times: dict[str, list[float]] = {name: [] for name in arms_by_name}
    for round_ in range(ROUNDS + 1):
        for name, arm in arms_by_name.items():
            start = time.perf_counter()
            arm()
            if round_:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in medians.items():
        sort = medians["sort, ties" if name.endswith("ties") else "sort"]
        print(f"{name:<20} {seconds:8.3f} s   1/{sort / seconds:.1f} of a full sort")


if __name__ == "__main__":
    main()
