"""`tidegate broker drain` beside a running `tidegate dev` of the same user: it drains the cluster that is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cluster import BrokerProcess, Cluster, free_port
from tests.kit.forked_cluster import ForkedCluster
from tidegate.cli import named_cluster
from tidegate.cli.dev import running
from tidegate.command_line import command_line

TOKEN = "0123456789abcdef"
SETTINGS = {"TIDEGATE_NODE_ID": "7", "TIDEGATE_ADMIN_OPERATOR_TOKEN": TOKEN}
"""The brokers of both clusters have one node id, so that each cluster can drain its own by it."""
EXITS_S = 60.0


@pytest.fixture(scope="module")
def clusters() -> Iterator[list[Cluster]]:
    """The cluster of the running `tidegate dev`, and another."""
    with ExitStack() as stack:
        yield [stack.enter_context(ForkedCluster(brokers=1, settings=SETTINGS)) for _ in range(2)]


@pytest.fixture
def of_dev(clusters: list[Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """The broker of the running `tidegate dev`, which is started again afterwards.

    Nothing is exported, and no broker is at the default ports.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("TIDEGATE_"):
            monkeypatch.delenv(name)
    monkeypatch.setitem(named_cluster.DEFAULTS, "admin", f"http://127.0.0.1:{free_port()}")  # type: ignore[arg-type]
    [dev, _] = clusters
    running.note(running.DevCluster(os.getpid(), dev.bootstrap, dev.redis_url, (admin_of(dev),)))
    yield dev.brokers[0]
    running.forget(os.getpid())
    start_again(dev.brokers[0])


@pytest.fixture
def other(clusters: list[Cluster]) -> Iterator[Cluster]:
    """The other cluster; its broker is started again afterwards."""
    [_, other] = clusters
    yield other
    start_again(other.brokers[0])


def start_again(broker: BrokerProcess) -> None:
    """Unless it runs."""
    if broker.process is not None and broker.process.poll() is not None:
        broker.start()
        broker.wait_ready()


def admin_of(cluster: Cluster) -> str:
    return f"http://127.0.0.1:{cluster.brokers[0].admin_port}"


def drain(*words: str) -> int:
    """The exit code of `tidegate broker drain 7`."""
    return CliRunner().invoke(command_line, ["broker", "drain", "7", "--yes", *words]).exit_code


def serves(broker: BrokerProcess) -> bool:
    """Whether its process runs, and is ready to serve."""
    broker.wait_ready()
    return broker.process is not None and broker.process.poll() is None


@pytest.mark.parametrize("way", ["TIDEGATE_REDIS_URL", "--redis-url", "TIDEGATE_CLI_ADMIN", "--admin"])
def test_drain_of_the_named_cluster_leaves_the_running_dev_alone(
    way: str, of_dev: BrokerProcess, other: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_redis = "redis" in way.lower()
    address = other.redis_url if through_redis else admin_of(other)
    words = [] if through_redis else ["--token", TOKEN]
    if way.startswith("--"):
        words += [way, address]
    else:
        monkeypatch.setenv(way, address)

    assert drain(*words) == 0  # also where the admin HTTP of the only broker is gone with it
    assert other.brokers[0].process is not None and other.brokers[0].process.wait(EXITS_S) == 0
    assert serves(of_dev)


def test_drain_with_only_brokers_of_another_cluster_named_drains_nothing(
    of_dev: BrokerProcess, other: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_CLI_BOOTSTRAP", other.bootstrap)

    assert drain("--token", TOKEN) != 0
    assert serves(of_dev) and serves(other.brokers[0])


def test_drain_without_a_named_cluster_is_of_the_running_dev(of_dev: BrokerProcess, other: Cluster) -> None:
    assert drain() == 0
    assert of_dev.process is not None and of_dev.process.wait(EXITS_S) == 0
    assert serves(other.brokers[0])
