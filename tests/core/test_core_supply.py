"""What is installed is what was tested: every package that a command of the Makefile brings has its version in constraints.txt."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# torch pins them itself, and they differ by platform
TORCHS_OWN = re.compile(r"nvidia-.*|cuda-.*|triton|pytorch-triton.*|.*-cu\d+")


def constraints() -> dict[str, str]:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def brought(
    requirements: list[str], extras: frozenset[str] = frozenset(), seen: dict[str, str] | None = None
) -> dict[str, str]:
    """name: who asks for it, of all that these requirements bring along, as far as it is installed here."""
    seen = {} if seen is None else seen
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        wanted = (
            [requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}]
            if requirement.marker
            else [True]
        )
        if not any(wanted) or TORCHS_OWN.fullmatch(name) or name == "nearfar":
            continue
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in seen:
            continue
        seen[key] = str(requirement)
        try:
            further = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # of an extra that `make test` does not install
            del seen[key]
            continue
        brought(further, frozenset(requirement.extras), seen)
    return seen


def test_every_package_that_is_brought_along_is_pinned() -> None:
    """hydra-core, omegaconf and antlr4, which lightly brings, were not."""
    asked = [
        *PROJECT["dependencies"],
        *(r for extra in PROJECT["optional-dependencies"].values() for r in extra),
    ]
    found = {key.partition("[")[0] for key in brought(asked)}
    assert {"torch", "hydra-core", "omegaconf", "antlr4-python3-runtime"} <= found
    pinned = constraints()
    assert sorted(found - {"setuptools", "pip", "wheel"} - pinned.keys()) == []


def test_constraints_are_versions_alone_and_such_as_the_project_asks_for() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert all(
        re.fullmatch(r"[\w.-]+==[\w.+!]+", line)
        for line in text.splitlines()
        if line and not line.startswith("#")
    )
    pinned = constraints()
    asked = [
        *PROJECT["dependencies"],
        *(r for extra in PROJECT["optional-dependencies"].values() for r in extra),
    ]
    for requirement in map(Requirement, asked):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is None or requirement.specifier.contains(Version(version), prereleases=True), (
            requirement
        )
