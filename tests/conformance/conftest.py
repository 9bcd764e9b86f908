"""One cluster of three broker processes for all client tests of the session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.cluster import Cluster
from tests.conftest import ON_CLUSTER
from tests.kit.forked_cluster import ForkedCluster
from tests.support.redis_cluster import Sharded


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three brokers; groups form without the usual delay of 3 s, lag and retention are looked at each second."""
    settings = {
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100",
        "TIDEGATE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "300",
        "TIDEGATE_LAG_SAMPLE_INTERVAL_MS": "1000",
    }
    constants = {"tidegate.log.upkeep.CHECK_INTERVAL_MS": 1_000, "tidegate.monitoring.lag_sampler.HANDOVER_MS": 0}
    with ExitStack() as stack:
        redis_url = stack.enter_context(Sharded(replicas=0)).url if ON_CLUSTER else None
        yield stack.enter_context(ForkedCluster(brokers=3, settings=settings, redis_url=redis_url, constants=constants))
