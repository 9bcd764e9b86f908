"""Asking a broker to drain, from any other process that reaches the store."""

from __future__ import annotations

from typing import Final

from tidegate.store.scripts import Script
from tidegate.store.store import Store

REQUEST_DRAIN: Final = Script("cluster/request_drain")


async def request_drain(store: Store, node_id: int) -> None:
    """Have a broker drain and end as by SIGTERM; it hears of it within `lease_renew_ms`.

    May be repeated. A broker that cannot renew its lease hears of it when it can. Raises BrokerIdNotRegistered where
    no live broker has this node id, StoreUnavailable.
    """
    keys = store.cluster_keys
    await store.run(REQUEST_DRAIN, [keys.leases, keys.brokers, keys.info], *(node_id, store.settings.lease_gone_ms))
