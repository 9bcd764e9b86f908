"""Java's share consumer and the administration of share groups, kafka-clients 4.4, against three brokers."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from bench.cluster import Cluster
from bench.jars import PeerUnavailable, share_clients
from tests.conformance.test_java import java

pytestmark = pytest.mark.peer

PROGRAM = Path(__file__).parents[1] / "clients" / "java" / "ShareReader.java"


def test_java_share_consumer_releases_accepts_and_administers(cluster: Cluster) -> None:
    try:
        jars = share_clients()
    except PeerUnavailable as error:
        pytest.skip(str(error))
    topic, group = f"java-share-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"

    output = java(jars, str(PROGRAM), cluster.bootstrap, topic, group)

    assert "state=Stable members=1" in output
    assert "done=300 twice=43 max=2" in output
    assert output.count("startOffset=150") == 2
    assert output.count("lag=0") == 2
    assert "deleted" in output
