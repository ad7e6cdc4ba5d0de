"""One process against several with the same global batch: the largest difference of the loss over the steps, of the first gradient
(relative), and of a weight at the end.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py --ranks 2 --steps 100 --batch 64 [--float32] [--cases simclr,moco]

In float64 differences are rounding. In float32 rounding is 1e-7 of each number, and training carries it on: what grows is not the
exchange but the dynamics, as two float32 runs on two kinds of CPU show too.
"""

import argparse

import torch

from nearfar.train.equality import CASES, compare

MUST = "simclr,moco,instdisc,cmc,byol,dim,cpc,vicreg,supcon,simclr-ring,moco-cave,simclr ml-cpc,moco accept"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--cases", default=MUST)
    given = parser.parse_args()
    precision = torch.float32 if given.float32 else torch.float64
    print(f"{given.ranks} ranks, {given.steps} steps of {given.batch}, {precision}")
    for name in given.cases.split(","):
        found = compare(given.ranks, {name: CASES[name]}, given.steps, precision, given.batch)[name]
        print(f"| {name} | " + " | ".join(f"{value:.0e}" for value in found.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
