"""The only broker of `tidegate dev` imports while the embedded server starts, and serves when it has its address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli.dev.children import SingleBroker
from tidegate.cli.dev.command import DevCluster, DevOptions

WAIT_S = 60.0
BAD_SETTING = {"PATH": os.environ["PATH"], "TIDEGATE_PORT": "nonsense"}


def deferred_serve(received: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tidegate.deferred_serve"]
    return subprocess.run(command, input=received, capture_output=True, timeout=WAIT_S, check=False)


class Starter:
    """Notes what a cluster does."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def start(self) -> None:
        self.steps.append("import")

    def start_broker(self, name: str, environment: dict[str, str], log: Path) -> None:
        self.steps.append(f"serve {environment['TIDEGATE_REDIS_URL']}")

    def signal(self, name: str, number: int) -> None:
        raise NotImplementedError

    def ended(self, name: str) -> int | None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


def test_dev_broker_imports_while_the_server_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    cluster, starter = DevCluster(DevOptions(brokers=1)), Starter()
    assert isinstance(cluster.starter, SingleBroker)
    cluster.starter = starter

    def start_server(self: DevCluster) -> None:
        starter.steps.append("server")
        self.redis_url = "redis://127.0.0.1:1/0"

    monkeypatch.setattr("tidegate.cli.dev.command.port_is_free", lambda port: True)
    monkeypatch.setattr(DevCluster, "_start_server", start_server)
    monkeypatch.setattr(DevCluster, "_wait_ready", lambda self: None)
    cluster.start()

    assert starter.steps == ["import", "server", "serve redis://127.0.0.1:1/0"]


def test_deferred_serve_without_environment_ends() -> None:
    done = deferred_serve(b"")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_deferred_serve_runs_with_the_environment_received() -> None:
    done = deferred_serve(json.dumps(BAD_SETTING).encode() + b"\n")

    assert done.returncode == 2
    assert b"TIDEGATE_PORT" in done.stderr and done.stderr.count(b"\n") == 1


def test_single_broker_reports_why_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    starter = SingleBroker(log)
    starter.start()
    try:
        assert starter.ended("9092") is None
        starter.start_broker("9092", BAD_SETTING, log)
        assert starter._process is not None
        starter._process.wait(WAIT_S)

        assert starter.ended("9092") == 2 and "TIDEGATE_PORT" in log.read_text()
    finally:
        starter.stop()


def test_import_broker_leaves_out_the_admin_http() -> None:
    code = """
import sys
from tidegate import serve, startup
startup.prepare()
serve.import_broker()
assert "tidegate.app" in sys.modules and "aiohttp.web" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_S)
