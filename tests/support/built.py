"""Brokers as `build` connects them; a test starts, and replaces, what it needs."""

from __future__ import annotations

import math
from typing import Any

from tidegate.broker import Broker, build
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.store.store import Store

ENDPOINTS = {"PLAINTEXT": ("127.0.0.1", 9092)}


def build_broker(store: Store, node_id: int = 1, **replaced: Any) -> Broker:
    """A broker of which nothing has started, with a lease as if it were alone in the cluster.

    `replaced` are services of its context. Its logs do no retention by themselves, its heartbeats are answered at once.
    """
    broker = build(store.settings, store, ENDPOINTS)
    lease = broker.lease
    lease.node_id, lease.held, lease.ends_s = node_id, True, math.inf
    alone = [BrokerInfo(node_id, ENDPOINTS, None, "test", "serving")]
    lease._live = lease._preferred = alone
    broker.logs.retention = None
    broker.context.delayed_heartbeats = None
    for name, value in replaced.items():
        setattr(broker.context, name, value)
    return broker
