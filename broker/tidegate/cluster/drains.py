"""Request a drain of a broker from another process."""

from __future__ import annotations

from typing import Final

from tidegate.store.scripts import Script
from tidegate.store.store import Store

REQUEST_DRAIN: Final = Script("cluster/request_drain")


async def request_drain(store: Store, node_id: int) -> None:
    """Request that a broker drains and exits as after SIGTERM; it observes the request within `broker_lease_renew_ms`.

    Idempotent. A broker that cannot renew its lease observes the request later. Raises BrokerIdNotRegistered if no live
    broker has this node id, StoreUnavailable.
    """
    keys = store.cluster_keys
    await store.run(
        REQUEST_DRAIN, [keys.leases, keys.brokers, keys.info], *(node_id, store.settings.broker_lease_timeout_ms)
    )
