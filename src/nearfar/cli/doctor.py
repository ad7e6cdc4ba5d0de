"""`nearfar doctor`: works on a broken install, because it imports none of what it reports on; `--ranks N` tries it out."""

import argparse
import json
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError
from nearfar.system.extras import EXTRAS
from nearfar.system.machine import CORE, DISTRIBUTIONS, broken, busy, look, try_strided_convolution

MOST_RANKS = 64
ROUNDING = 1e-9  # of numbers around 1 in float64, after some steps
UNEQUAL = 1  # exit code


def add(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor", help="what this machine has, what will be used of it, what is missing"
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


def run(given: argparse.Namespace) -> int:
    if given.ranks is not None:
        return _compare(given.ranks, given.json)
    facts = {**look(), "busy_cores": busy(), "strided_convolution": try_strided_convolution()}
    if given.try_import:
        facts["broken"] = broken()
    print(json.dumps(facts) if given.json else "\n".join(_lines(facts)))
    return DONE


def _compare(ranks: int, as_json: bool) -> int:
    """Whether so many processes equal one. Computed in float64, where rounding is some 1e-15 of a number."""
    if not 2 <= ranks <= MOST_RANKS:
        raise UserError(f"--ranks was {ranks}; expected a whole number from 2 to {MOST_RANKS}")
    from nearfar.train.equality import compare

    found = compare(ranks)
    wrong = [name for name, by in found.items() if not max(by.values()) <= ROUNDING]
    if as_json:
        print(json.dumps(found))
        return UNEQUAL if wrong else DONE
    print(f"{'':<20} largest difference of the loss   of the gradient (relative)   of a weight")
    for name, by in found.items():
        loss, gradient, weight = (
            f"{by[key]:.0e}" for key in ("loss_difference", "gradient_difference", "weights_difference")
        )
        print(f"{name:<20} {loss:>30}   {gradient:>26}   {weight:>11}")
    verdict = f"{', '.join(wrong)} differ" if wrong else "equal, up to rounding"
    print(f"one process and {ranks} of them, in float64: {verdict}")
    return UNEQUAL if wrong else DONE


def _how(waiting: str) -> str:
    """How threads wait, with what that means."""
    if waiting == "passive":
        return "passively (OMP_WAIT_POLICY), so that a busy core costs its share and no more"
    return f"by {waiting}, which a busy core makes slow: OMP_WAIT_POLICY=passive"


STRIDED_CONVOLUTION = {
    "works": "a strided 1x1 convolution of 8 channels, channels last: works",
    "crashes": "a strided 1x1 convolution of 8 channels, channels last, crashes this torch; nearfar keeps such layers contiguous",
    "not tried": "a strided 1x1 convolution was not tried: torch cannot be imported",
}


def _lines(facts: dict[str, Any]) -> list[str]:
    packages = facts["packages"]
    lines = [f"{key:<9} {facts[key]}" for key in ("python", "system", "cpu", "cores")]
    precision = "bf16" if facts["bf16"] else "fp32"
    lines += [
        f"{'packages':<9} {', '.join(f'{name} {at}' for name, at in packages.items() if at)}",
        f"{'will use':<9} {facts['device']}, precision {precision}, {facts['threads']} threads, waiting "
        f"{_how(facts['waiting'])}",
    ]
    lines.append(f"{'layout':<9} {STRIDED_CONVOLUTION[facts['strided_convolution']]}")
    working = facts["busy_cores"]
    if working is not None and working > 0.5 and facts["threads"] > 1:
        lines.append(
            f"{'busy':<9} {working:.1f} of {facts['cores']} cores are at work for others: OMP_NUM_THREADS=1 may be faster now, and is with bf16"
        )
    core = [DISTRIBUTIONS.get(module, module) for module in CORE]
    lacking = [name for name in core if packages[name] is None]
    if lacking:
        lines.append(f"{'missing':<9} {', '.join(lacking)}, without which nothing works: pip install nearfar")
    for extra in dict.fromkeys(EXTRAS.values()):
        names = [DISTRIBUTIONS.get(module, module) for module, own in EXTRAS.items() if own == extra]
        lacking = [name for name in names if packages[name] is None]
        if lacking:
            lines.append(f"{'missing':<9} {', '.join(lacking)}: pip install 'nearfar[{extra}]'")
    if all(packages.values()):
        lines.append(f"{'missing':<9} nothing")
    for name, reason in facts.get("broken", {}).items():
        lines.append(f"{'broken':<9} {name}: {reason}")
    if "broken" in facts and not facts["broken"]:
        lines.append(f"{'broken':<9} nothing")
    return lines
