"""promtool and Prometheus: on the PATH, or out of Debian's package, which is unpacked and never installed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import free_port


def tools() -> Path:
    """The folder that holds `promtool` and `prometheus`; skips the test with the reason where there is none."""
    found = shutil.which("promtool")
    if found and shutil.which("prometheus"):
        return Path(found).parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "prometheus"
    if not (cache / "usr/bin/promtool").exists():
        _unpack(cache)
    return cache / "usr/bin"


def _unpack(cache: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("neither promtool and prometheus on the PATH nor apt-get to download Debian's package")
    cache.mkdir(parents=True, exist_ok=True)
    for attempt in (["apt-get", "download", "prometheus"], ["apt-get", "update", "-q"]) * 2:
        subprocess.run(attempt, cwd=cache, capture_output=True, timeout=120, check=False)
        packages = sorted(cache.glob("prometheus_*.deb"))
        if packages:
            subprocess.run(["dpkg-deb", "-x", packages[-1], cache], check=True)
            return
    pytest.skip("Debian's package prometheus cannot be downloaded")


class Prometheus:
    """A running server that scrapes some addresses each second."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        return self._ask("/api/v1/query", query=expression)["result"]  # type: ignore[no-any-return]

    def label_values(self, name: str, label: str) -> list[str]:
        """What `label_values(name, label)` of Grafana shows."""
        return self._ask(f"/api/v1/label/{label}/values", **{"match[]": name})  # type: ignore[no-any-return]

    def ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{self._base}/-/ready", timeout=2).close()
            return True
        return False

    def _ask(self, path: str, **asked: str) -> Any:
        url = f"{self._base}{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{asked}: {error.read().decode()}") from None


@contextlib.contextmanager
def running(directory: Path, rules: Path, targets: list[str]) -> Iterator[Prometheus]:
    """Start a server, and stop it at the end."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{rules}/*.yml"],
        "scrape_configs": [{"job_name": "tidegate", "static_configs": [{"targets": targets}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                tools() / "prometheus",
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        server, ends_s = Prometheus(port), time.monotonic() + 60
        while not server.ready():
            assert process.poll() is None and time.monotonic() < ends_s, (directory / "prometheus.log").read_text()
            time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait(30)
