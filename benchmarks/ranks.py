"""One process against several with the same global batch: largest differences of loss, gradient and weights.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py --ranks 2,4 --steps 100 --batch 256
        [--again] [--float32] [--lr 1e-3] [--size 8] [--cases simclr,moco]

The loss is compared at every step, the first gradient relative to its size, and the weights at the end.
`--again` runs the ranks twice and prints the largest difference between the two runs, which must be 0.

In float64 differences are rounding. In float32 rounding is 1e-7 of each number, and training amplifies it, as
it does between two kinds of CPU."""

import argparse
from typing import Any

import torch

from nearfar.train.equality import CASES, compare

FRAME = 160  # samples of a recording
MUST = "simclr,moco,instdisc,cmc,byol,dim,cpc,vicreg,supcon,simclr-ring,moco-cave,simclr ml-cpc,moco accept"


def sized(name: str, size: int) -> dict[str, Any]:
    """Pixels per side, or frames of a recording."""
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
    arguments = parser.parse_args()
    precision = torch.float32 if arguments.float32 else torch.float64
    settings = {} if arguments.lr is None else {"lr": arguments.lr}
    worlds = [int(count) for count in arguments.ranks.split(",")]
    print(f"{arguments.steps} steps of {arguments.batch}, {precision}, lr {arguments.lr or 'of the cases'}")
    print("| | ranks | loss | first gradient | a weight |" + (" run again |" if arguments.again else ""))
    for world in worlds:
        cases = {}
        for name in arguments.cases.split(","):
            cases[name] = {
                **CASES[name],
                **settings,
                **({} if arguments.size is None else sized(name, arguments.size)),
            }
        compare(world, cases, arguments.steps, precision, arguments.batch, arguments.again, verbose=True)


if __name__ == "__main__":
    main()
