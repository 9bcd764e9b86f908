"""How many groups each organisation may have.

Groups are in shards, each in a slot of its own, so the script that creates one cannot count the others. A request that
may create a group reserves a place for it first. The places are counted by one script for all brokers; groups that
were deleted leave theirs at the next count. Without a limit nothing is sent.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import PolicyViolation
from tidegate.quotas.entities import Quota
from tidegate.quotas.table import Quotas
from tidegate.store.batching import SingleFlight
from tidegate.store.calls import gather_readable, log_faulty
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ADMIT_GROUP = Script("security/admit_group")

RESERVED_MS: Final = 10_000
"""Between a reservation and the creation of its group."""
COUNTED_MS: Final = 60_000
"""Groups are counted again after this time: a broker that did not know the limit yet may have created some."""
FULL_MS: Final = 1_000
"""The same while the limit is reached: a group may have been deleted by then."""
_SHARDS_AT_ONCE: Final = 10
_SCANNED: Final = 1_000


class GroupLimits:
    """One broker's side."""

    def __init__(self, store: Store, quotas: Quotas) -> None:
        self._store, self.quotas = store, quotas
        self._counts = SingleFlight[str]()

    def has_limit(self, org: str) -> bool:
        """Whether `admit` must be asked before a group of the organisation may be created."""
        return self.quotas.table.amount_of_org(org, Quota.GROUPS) is not None

    async def admit(self, keys: GroupKeys) -> None:
        """Reserve a place for a group, which may exist. Raises PolicyViolation, StoreUnavailable."""
        if not self.has_limit(keys.org):
            return
        if not await self._reserve(keys):
            names = await self._counts.do(keys.org, lambda: self._count(keys.org))
            await self._reserve(keys, names)

    async def _reserve(self, keys: GroupKeys, counted: list[bytes] | None = None) -> bool:
        """False: the groups must be counted. Raises PolicyViolation, StoreUnavailable."""
        cluster = self._store.cluster_keys
        has_count = int(counted is not None)
        try:
            (admitted,) = await self._store.run(
                ADMIT_GROUP,
                [cluster.org_groups(keys.org), cluster.quotas, cluster.info],
                *(keys.org, keys.ref, RESERVED_MS, COUNTED_MS, FULL_MS, has_count, *(counted or ())),
            )
        except PolicyViolation:
            raise PolicyViolation("the organisation's limit of groups is reached (quota groups_max)") from None
        return bool(admitted)

    async def _count(self, org: str) -> list[bytes]:
        """The names of all groups of an organisation. Raises StoreUnavailable."""
        names: list[bytes] = []
        shards = range(self._store.settings.coordinator_shards)
        for start in range(0, len(shards), _SHARDS_AT_ONCE):
            some = shards[start : start + _SHARDS_AT_ONCE]
            found, faulty = await gather_readable(
                {self._store.shard_keys(shard).groups: self._count_shard(org, shard) for shard in some}
            )
            log_faulty("groups-of-org", faulty)
            for of_shard in found.values():
                names += of_shard
        return names

    async def _count_shard(self, org: str, shard: int) -> list[bytes]:
        key, cursor = self._store.shard_keys(shard).groups, "0"
        names: list[bytes] = []
        while True:
            reply, page = await self._store.command("HSCAN", key, cursor, "MATCH", f"{org}/*", "COUNT", _SCANNED)
            names += page if isinstance(page, dict) else page[::2]
            cursor = reply.decode()
            if cursor == "0":
                return names
