"""One cluster of three broker processes for all client tests of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three brokers; groups form without the usual initial delay of 3 s."""
    with Cluster(brokers=3, settings={"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100"}) as running:
        yield running
