"""Run helm over the chart. What it renders, as documents; what it refuses, as text."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

CHART: Final = Path(__file__).resolve().parents[2] / "helm"
CASES: Final = sorted((CHART / "ci").glob("*.yaml"))
REDIS: Final = "redis.url=redis://r:6379/0"
_BUILT: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate" / "bin"

Document = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it. Skips where there is none."""
    program = shutil.which("helm", path=f"{_BUILT}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("helm is not on the PATH (`make test SUITE=chart` builds it where Go is)")
    return subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=120)


@cache
def _template(options: tuple[str, ...], chart: Path, version: str) -> subprocess.CompletedProcess[str]:
    words = [word for option in options for word in ("-f" if option.endswith(".yaml") else "--set", option)]
    return helm("template", "test", str(chart), "--namespace", "streams", "--kube-version", version, *words)


def render(*options: str, chart: Path = CHART, version: str = "1.32.0") -> list[Document]:
    """Documents; `options` are `key=value`, or paths of values."""
    done = _template(options, chart, version)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def refused(*options: str) -> str:
    """What helm says where it renders nothing."""
    done = _template(options, CHART, "1.32.0")
    assert done.returncode != 0, done.stdout
    return done.stderr


def only(documents: Sequence[Document], kind: str, name: str = "") -> Document:
    """The one of a kind, or of a name."""
    (found,) = [one for one in documents if one["kind"] == kind and (not name or one["metadata"]["name"] == name)]
    return found


def broker_pod(documents: Sequence[Document]) -> Document:
    """The spec of the brokers' pods."""
    (workload,) = [
        one
        for one in documents
        if one["kind"] in ("Deployment", "StatefulSet") and one["metadata"]["name"] == "test-tidegate"
    ]
    spec: Document = workload["spec"]["template"]["spec"]
    return spec


def environment(container: Document) -> dict[str, Any]:
    """Variable -> its value, or where it comes from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def pods(documents: Sequence[Document]) -> list[Document]:
    """The spec of every pod that would be made, hooks and tests too."""
    found = []
    for one in documents:
        spec = one.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if one["kind"] == "Pod":
            found.append(spec)
        elif "template" in spec:
            found.append(spec["template"]["spec"])
    return found
