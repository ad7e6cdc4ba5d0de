"""Tested versions are installed: constraints.txt pins every package that the Makefile installs."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNPINNED = {"s3fs"}  # constraints.txt says why


def constraints() -> dict[str, str]:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def installed_requirements(
    requirements: list[str], extras: frozenset[str] = frozenset(), origins: dict[str, str] | None = None
) -> dict[str, str]:
    """Maps every installed package that these requirements need, indirectly too, to who needs it."""
    origins = {} if origins is None else origins
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        applies = (
            [requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}]
            if requirement.marker
            else [True]
        )
        if not any(applies) or name == "nearfar":
            continue
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in origins:
            continue
        origins[key] = str(requirement)
        try:
            further = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # of an extra that `make test` does not install
            del origins[key]
            continue
        installed_requirements(further, frozenset(requirement.extras), origins)
    return origins


def test_every_indirect_requirement_is_pinned() -> None:
    """hydra-core, omegaconf and antlr4, which lightly brings, were not."""
    requirements = [
        *PROJECT["dependencies"],
        *(r for extra in PROJECT["optional-dependencies"].values() for r in extra),
    ]
    packages = {key.partition("[")[0] for key in installed_requirements(requirements)}
    assert {"torch", "hydra-core", "omegaconf", "antlr4-python3-runtime"} <= packages
    # what the extras name themselves, installed here or not
    packages |= {canonicalize_name(Requirement(text).name) for text in requirements} - {"nearfar"} - UNPINNED
    pinned = constraints()
    assert sorted(packages - {"setuptools", "pip", "wheel"} - pinned.keys()) == []


def test_constraints_are_versions_that_the_project_allows() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert all(
        re.fullmatch(r"[\w.-]+==[\w.+!]+", line)
        for line in text.splitlines()
        if line and not line.startswith("#")
    )
    pinned = constraints()
    requirements = [
        *PROJECT["dependencies"],
        *(r for extra in PROJECT["optional-dependencies"].values() for r in extra),
    ]
    for requirement in map(Requirement, requirements):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is None or requirement.specifier.contains(Version(version), prereleases=True), (
            requirement
        )
