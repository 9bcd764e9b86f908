"""The quota of partition mutations (`controller_mutation_rate`, KIP-599)."""

from __future__ import annotations

from typing import Final

from tidegate.apis.call import Call
from tidegate.protocol.api_keys import ApiKey
from tidegate.quotas.errors import ThrottlingQuotaExceeded

_STRICT_FROM: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""Version whose clients know THROTTLING_QUOTA_EXCEEDED; older ones are throttled only (KIP-599)."""


async def spend(call: Call, count: int) -> None:
    """Spend the client's quota for a topic that its request names. Raises ThrottlingQuotaExceeded, StoreUnavailable."""
    leases, client = call.context.quotas, call.client
    if leases is None:
        return
    strict = call.version >= _STRICT_FROM[call.api_key]
    try:
        throttle_s = await leases.mutate(client.org, client.principal, call.client_id, count, strict=strict)
    except ThrottlingQuotaExceeded:
        throttle_s = leases.mutation_wait_s(client.org, client.principal, call.client_id)
        client.mutation_throttle_s = max(client.mutation_throttle_s, throttle_s)
        raise
    client.mutation_throttle_s = max(client.mutation_throttle_s, throttle_s)


async def spend_unthrottled(call: Call, count: int) -> None:
    """Spend it for a topic that a request of another API creates. Raises ThrottlingQuotaExceeded, StoreUnavailable.

    The topic is refused and asked for again later; nothing is throttled, so that a member's session does not end.
    """
    leases, client = call.context.quotas, call.client
    if leases is not None:
        await leases.mutate(client.org, client.principal, call.client_id, count, strict=True)
