"""`nearfar doctor`: reports on this machine without importing what it reports on, so it works on a broken
install."""

import argparse
import json
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.core.tables import text_table
from nearfar.errors import check_whole, counted
from nearfar.system.extras import EXTRAS
from nearfar.system.machine import (
    CORE,
    DISTRIBUTIONS,
    broken_packages,
    busy_cores,
    machine_facts,
    try_strided_convolution,
)

MAX_RANKS = 64
TOLERANCE = 1e-9  # for values around 1 in float64, after a few steps
UNEQUAL = 1  # exit code


def add(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="versions, devices and missing extras of this machine",
        description="Shows versions, cores and devices, what a run would use of them, and which extras are missing.",
    )
    doctor.add_argument("--import", action="store_true", dest="try_import", help="also import every package")
    doctor.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="start N processes here and show how their loss and gradient differ from those of one, for each recipe",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    doctor.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    if args.ranks is not None:
        return _compare(args.ranks, args.json)
    facts = {**machine_facts(), "busy_cores": busy_cores(), "strided_convolution": try_strided_convolution()}
    if args.try_import:
        facts["broken"] = broken_packages()
    print(json.dumps(facts) if args.json else "\n".join(_lines(facts)))
    return DONE


def _compare(ranks: int, as_json: bool) -> int:
    """Compares N processes with one, in float64, and prints the differences."""
    check_whole("--ranks", ranks, 2, MAX_RANKS)
    from nearfar.train.equality import compare

    differences = compare(ranks)
    unequal = [name for name, by in differences.items() if not max(by.values()) <= TOLERANCE]
    if as_json:
        print(json.dumps(differences))
        return UNEQUAL if unequal else DONE
    keys = ("loss_difference", "gradient_difference", "weights_difference")
    rows = [["", "largest difference of the loss", "of the gradient (relative)", "of a weight"]]
    rows += [[name, *(f"{by[key]:.0e}" for key in keys)] for name, by in differences.items()]
    print(*text_table(rows, numbers=True), sep="\n")
    verdict = f"{', '.join(unequal)} differ" if unequal else "equal, up to rounding"
    print(f"one process and {ranks} of them, in float64: {verdict}")
    return UNEQUAL if unequal else DONE


def _wait_policy(waiting: str) -> str:
    """Describes how OpenMP threads wait."""
    if waiting == "passive":
        return "passively (OMP_WAIT_POLICY=passive), robust when another process uses a core"
    return f"by {waiting}, slow when another process uses a core; set OMP_WAIT_POLICY=passive"


STRIDED_CONVOLUTION = {
    "works": "a strided 1x1 convolution of 8 channels, channels last: works",
    "crashes": "a strided 1x1 convolution of 8 channels, channels last, crashes this torch; nearfar keeps such layers contiguous",
    "not tried": "a strided 1x1 convolution was not tried: torch cannot be imported",
}


def _lines(facts: dict[str, Any]) -> list[str]:
    packages = facts["packages"]
    rows = [(key, str(facts[key])) for key in ("python", "system", "cpu", "cores")]
    precision, threads = facts["precision"], counted(facts["threads"], "threads")
    waiting = _wait_policy(facts["waiting"])
    rows += [
        ("packages", ", ".join(f"{name} {at}" for name, at in packages.items() if at)),
        ("will use", f"{facts['device']}, precision {precision}, {threads}, waiting {waiting}"),
        ("layout", STRIDED_CONVOLUTION[facts["strided_convolution"]]),
    ]
    in_use = facts["busy_cores"]
    if in_use is not None and in_use > 0.5 and facts["threads"] > 1:
        usage = f"{in_use:.1f} of {facts['cores']} cores are in use by other processes"
        rows.append(("busy", f"{usage}; OMP_NUM_THREADS=1 may be faster, and is with bf16"))
    core = [DISTRIBUTIONS.get(module, module) for module in CORE]
    missing = [name for name in core if packages[name] is None]
    if missing:
        rows.append(("missing", f"{', '.join(missing)}, required: pip install nearfar"))
    for extra in dict.fromkeys(EXTRAS.values()):
        names = [DISTRIBUTIONS.get(module, module) for module, owner in EXTRAS.items() if owner == extra]
        missing = [name for name in names if packages[name] is None]
        if missing:
            rows.append(("missing", f"{', '.join(missing)}: pip install 'nearfar[{extra}]'"))
    if all(packages.values()):
        rows.append(("missing", "nothing"))
    rows += [("broken", f"{name}: {reason}") for name, reason in facts.get("broken", {}).items()]
    if "broken" in facts and not facts["broken"]:
        rows.append(("broken", "nothing"))
    return text_table(rows)
