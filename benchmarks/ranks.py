"""One process against several with the same global batch: the largest difference of the loss over the steps, of the first gradient
(relative), and of a weight at the end.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py --ranks 2,4 --steps 100 --batch 256 [--again] [--float32] [--lr 1e-3] [--size 8] [--cases simclr,moco]

`--again` lets the ranks do it twice and gives the largest difference of anything between the two, which must be 0.

In float64 differences are rounding. In float32 rounding is 1e-7 of each number, and training carries it on: what grows is not the
exchange but the dynamics, as two float32 runs on two kinds of CPU show too.
"""

import argparse
from typing import Any

import torch

from nearfar.train.equality import CASES, compare

FRAME = 160  # samples of a recording
MUST = "simclr,moco,instdisc,cmc,byol,dim,cpc,vicreg,supcon,simclr-ring,moco-cave,simclr ml-cpc,moco accept"


def sized(name: str, size: int) -> dict[str, Any]:
    """So many pixels a side, or of recordings so many frames."""
    return {"views": {"samples": FRAME * size}} if name == "cpc" else {"image_size": size}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="2,4", help="numbers of processes, separated by commas")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--cases", default=MUST)
    parser.add_argument("--lr", type=float, help="other than the cases' own (0.05, VICReg and accept 1e-3)")
    parser.add_argument(
        "--size", type=int, help="side of a view, other than 16; of recordings, frames, other than 16"
    )
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    precision = torch.float32 if given.float32 else torch.float64
    other = {} if given.lr is None else {"lr": given.lr}
    worlds = [int(count) for count in given.ranks.split(",")]
    print(f"{given.steps} steps of {given.batch}, {precision}, lr {given.lr or 'of the cases'}")
    print("| | ranks | loss | first gradient | a weight |" + (" run again |" if given.again else ""))
    for world in worlds:
        cases = {}
        for name in given.cases.split(","):
            cases[name] = {**CASES[name], **other, **({} if given.size is None else sized(name, given.size))}
        compare(world, cases, given.steps, precision, given.batch, given.again, verbose=True)


if __name__ == "__main__":
    main()
