"""The lists with hashes that the images install are those of constraints.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LISTS = ("broker", "archive", "otel", "pipeline", "build")
ONLY_ELSEWHERE = {"colorama", "tzdata"}
"""Windows alone installs these."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    return {normalised(name): version for name, version in re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", text, re.M)}


def locked(name: str) -> str:
    return (REPOSITORY / "requirements" / f"{name}.txt").read_text()


def names(requirements: list[str]) -> set[str]:
    return {normalised(found[0]) for one in requirements if (found := re.match(r"[\w.-]+", one))}


@pytest.mark.parametrize("name", LISTS)
def test_requirements_have_the_constraints_versions_and_hashes(name: str) -> None:
    constraints = pinned((REPOSITORY / "constraints.txt").read_text())
    entries = [one for one in re.split(r"\n(?=[\w.-]+(?:\[|==))", locked(name)) if not one.startswith("#")]

    differing = {
        package: version
        for package, version in pinned(locked(name)).items()
        if package not in ONLY_ELSEWHERE and constraints.get(package) != version
    }
    assert entries
    assert differing == {}
    assert all("--hash=sha256:" in entry for entry in entries)


def test_requirements_name_every_dependency_of_the_wheel() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]

    assert names(project["project"]["dependencies"]) <= pinned(locked("broker")).keys()
    for extra in ("archive", "otel"):
        assert names(extras[extra]) <= pinned(locked(extra)).keys()
    assert names(project["build-system"]["requires"]) <= pinned(locked("build")).keys()


def test_requirements_name_every_dependency_of_the_pipeline() -> None:
    project = tomllib.loads((REPOSITORY / "pipeline" / "pyproject.toml").read_text())["project"]
    makefile = (REPOSITORY / "Makefile").read_text()
    found = re.search(r"^PIPELINE_EXTRAS := (.*)$", makefile, re.M)
    assert found is not None
    wanted = [
        *project["dependencies"],
        *(one for extra in found[1].split() for one in project["optional-dependencies"][extra]),
    ]

    assert names(wanted) - {"tidegate"} <= pinned(locked("pipeline")).keys()
    assert pinned(locked("broker")).keys() <= pinned(locked("pipeline")).keys()
    assert "tidegate" not in pinned(locked("pipeline"))


@pytest.mark.parametrize("name", LISTS)
def test_requirements_name_no_host_and_no_path(name: str) -> None:
    assert [line for line in locked(name).splitlines() if "://" in line or line.startswith(("-", "/"))] == []


def test_image_is_built_from_pinned_files() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text()

    assert re.search(r"^ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}$", dockerfile, re.M)
    steps = re.split(r"\n(?=[A-Z])", re.sub(r"\\\n\s*", "", dockerfile))
    commands = [one.strip() for step in steps for one in re.split(r"&&|; do", step)]
    installing = [one for one in commands if re.search(r"^\$pip |pip .*\b(install|wheel) ", one) and "pip=" not in one]
    checked = [one for one in installing if "--require-hashes --only-binary :all:" in one]

    assert len(checked) == 3
    assert [one for one in installing if one not in checked and "--no-deps" not in one] == []
