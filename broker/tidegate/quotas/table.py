"""This broker's cache of the quotas in `{cluster}:quotas`, and the operations that change them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.quotas.entities import AMOUNTS, CLUSTER_ORG, IP, ORG, Entity, Quota, entities_of
from tidegate.settings import Settings
from tidegate.store.change_follower import VersionedCopy
from tidegate.store.keys import ClusterKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

CHANGE_QUOTAS = Script("security/change_quotas")

QUOTAS_MAX: Final = 20_000
"""Quotas of an organisation: every broker holds those of all in memory, about 0.5 kB each."""
POLL_MS: Final = 1_000
"""Upper bound on the delay that a lost notification adds to a change of quotas."""

logger = structlog.get_logger()

Change = tuple[Entity, Quota, float | None]
"""Set a quota of an entity, or remove it."""
Limit = tuple[str, float]
"""Name of a bucket, tokens a second."""


def change_arguments(keys: ClusterKeys, org: str, changes: Iterable[Change]) -> tuple[list[str], list[str | int]]:
    """KEYS and ARGV of CHANGE_QUOTAS."""
    args: list[str | int] = [keys.quota_changes, org, QUOTAS_MAX]
    for entity, quota, value in changes:
        args += [f"{org}/{quota}/{entity.text()}", "" if value is None else repr(value)]
    return [keys.quotas, keys.info], args


@dataclass(slots=True)
class QuotaTable:
    """The quotas of every organisation."""

    values: dict[str, dict[Quota, dict[Entity, float]]] = field(default_factory=dict)

    @classmethod
    def of_stored(cls, stored: Mapping[bytes, bytes]) -> QuotaTable:
        """From the fields of `{cluster}:quotas`. Raises ValueError for one that is no quota."""
        table = cls()
        for name, text in stored.items():
            org, _, rest = name.decode("utf-8", "replace").partition("/")
            quota, _, entity = rest.partition("/")
            table.values.setdefault(org, {}).setdefault(Quota(quota), {})[Entity.of_text(entity)] = float(text)
        return table

    def of_org(self, org: str) -> dict[Entity, dict[Quota, float]]:
        """The quotas that the administrators of an organisation see: entity -> quota -> value."""
        found: dict[Entity, dict[Quota, float]] = {}
        for quota, entities in self.values.get(org, {}).items():
            for entity, value in entities.items():
                found.setdefault(entity, {})[quota] = value
        return dict(sorted(found.items(), key=lambda one: one[0].text()))

    def of_client(self, org: str, user: str, client_id: str, quota: Quota) -> list[Limit]:
        """The limits of one client: that of its most specific entity, and that of its organisation."""
        limits = []
        set_by_org = self.values.get(org, {}).get(quota)
        if set_by_org:
            for entity, sharing in entities_of(user, client_id):
                value = set_by_org.get(entity)
                if value is not None:
                    limits.append((f"{org}/{quota}/{sharing.text()}", value))
                    break
        limits += self._of_cluster(quota, ORG, org)
        return limits

    def of_address(self, address: str) -> list[Limit]:
        """The limit of connections from one address."""
        return self._of_cluster(Quota.CONNECTION, IP, address)

    def amount_of_org(self, org: str, quota: Quota) -> float | None:
        """How much an organisation may have; None without a limit."""
        return next((value for _, value in self._of_cluster(quota, ORG, org)), None)

    def limits(self, *quotas: Quota) -> bool:
        """Whether anybody has one of these quotas."""
        return any(values.get(quota) for values in self.values.values() for quota in quotas)

    @property
    def has_rates(self) -> bool:
        """Whether anything must be counted as requests are served."""
        return self.limits(*(quota for quota in Quota if quota not in AMOUNTS))

    def _of_cluster(self, quota: Quota, kind: str, name: str) -> list[Limit]:
        values = self.values.get(CLUSTER_ORG, {}).get(quota, {})
        own = Entity(((kind, name),))
        value = values.get(own, values.get(Entity(((kind, None),))))
        return [] if value is None else [(f"{CLUSTER_ORG}/{quota}/{own.text()}", value)]


class Quotas:
    """The quotas of every organisation; `on_change` is called after every change of the cache."""

    def __init__(self, store: Store, settings: Settings, on_change: Callable[[], None]) -> None:
        self.table = QuotaTable()
        self._on_change = on_change
        self._store = store
        self._connect_timeout_ms = settings.redis_connect_timeout_ms
        self._keys = store.cluster_keys
        self._copy = VersionedCopy(
            store,
            "quotas",
            self._keys.quota_changes,
            POLL_MS,
            load=self._load,
            stored_version=0,
            on_failed=lambda error: logger.warning("quotas_not_refreshed", reason=str(error)),
        )

    async def start(self) -> None:
        """Load the quotas, then follow changes. Raises StoreUnavailable."""
        await self._copy.start(self._connect_timeout_ms)

    async def close(self) -> None:
        """Stop following."""
        await self._copy.close()

    async def change(self, org: str, changes: Iterable[Change], author: str) -> None:
        """Set and remove quotas in one step. Raises PolicyViolation for new ones above QUOTAS_MAX, StoreUnavailable."""
        wanted = list(changes)
        if not wanted:
            return
        keys, args = change_arguments(self._keys, org, wanted)
        await self._store.run(CHANGE_QUOTAS, keys, *args)
        await self.refresh()
        for entity, quota, value in wanted:
            logger.info("quota_changed", org=org, entity=entity.text(), quota=quota.value, value=value, by=author)

    async def refresh(self) -> None:
        """Read changes that were made before this call. Raises StoreUnavailable."""
        await self._copy.refresh()

    async def _load(self) -> None:
        try:
            # In a thread: 20,000 quotas take 0.15 s.
            stored = _pairs(await self._store.command("HGETALL", self._keys.quotas))
            self.table = await asyncio.to_thread(QuotaTable.of_stored, stored)
        except ValueError as error:
            raise StoreUnavailable(f"{self._keys.quotas}: {error}") from None
        self._on_change()


def _pairs(reply: Any) -> dict[bytes, bytes]:
    """A hash reply of RESP2 (flat) or RESP3 (mapping)."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
