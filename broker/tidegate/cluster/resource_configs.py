"""Configs of brokers and of client metrics, which administrators set at run time; every broker follows them.

A broker's configs are stored under its node id, those of all brokers under no name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from tidegate.errors import RequestTimedOut
from tidegate.settings import Settings
from tidegate.store.change_follower import VersionedCopy
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ALTER_RESOURCE_CONFIGS: Final = Script("cluster/alter_resource_configs")

BROKER: Final = "broker"
CLIENT_METRICS: Final = "client-metrics"
CONFIGS_MAX: Final = 10_000
"""Configs of all resources: every broker holds them in memory."""
POLL_MS: Final = 5_000
"""Upper bound on the delay that a lost notification adds to a change."""

_ALTER_TRIES: Final = 20

logger = structlog.get_logger()

Configs = Mapping[str, str]
Plan = Callable[[Configs], tuple[Configs, Sequence[str]]]
"""Maps the present configs of a resource to those to set and those to delete."""


class ResourceConfigs:
    """This broker's cache; `on_changed` is called after each change of it."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.on_changed: list[Callable[[], None]] = []
        self._store, self._keys = store, store.cluster_keys
        self._connect_timeout_ms = settings.redis_connect_timeout_ms
        self._kinds: dict[str, dict[str, dict[str, str]]] = {}
        self._copy = VersionedCopy(
            store,
            "resource-configs",
            self._keys.resource_config_changes,
            POLL_MS,
            load=self._load,
            on_failed=lambda error: logger.warning("resource_configs_not_refreshed", reason=str(error)),
        )

    async def start(self) -> None:
        """Load the configs, then follow changes. Raises StoreUnavailable."""
        await self._copy.start(self._connect_timeout_ms)

    async def close(self) -> None:
        """Stop following."""
        await self._copy.close()

    def of(self, kind: str, name: str) -> Configs:
        """The configs of one resource; empty if it has none."""
        return self._kinds.get(kind, {}).get(name, {})

    def names(self, kind: str) -> list[str]:
        """The resources of a kind that have configs, in order of name."""
        return sorted(self._kinds.get(kind, {}))

    async def alter(self, kind: str, name: str, plan: Plan, validate_only: bool = False) -> None:
        """Set and delete what `plan(current)` returns; after a concurrent change `plan` is called again.

        Raises PolicyViolation above CONFIGS_MAX, what `plan` raises, RequestTimedOut, StoreUnavailable.
        """
        for _ in range(_ALTER_TRIES):
            await self.refresh()
            planned_on = self._copy.version
            changed, deleted = plan(self.of(kind, name))
            if validate_only:
                return
            if await self._alter_if(planned_on, f"{kind}/{name}/", changed, deleted):
                logger.info(
                    "resource_configs_changed", kind=kind, resource=name, changed=dict(changed), deleted=list(deleted)
                )
                await self.refresh()
                return
        raise RequestTimedOut("others change configs of brokers or of client metrics all the time")

    async def _alter_if(self, planned_on: int, prefix: str, changed: Configs, deleted: Sequence[str]) -> bool:
        """Make changes; False if any config changed since version `planned_on`."""
        pairs = [text for config, value in changed.items() for text in (prefix + config, value)]
        keys = [self._keys.resource_configs, self._keys.info]
        channel = self._keys.resource_config_changes
        fields = [prefix + config for config in deleted]
        limits = channel, CONFIGS_MAX, planned_on
        (version,) = await self._store.run(ALTER_RESOURCE_CONFIGS, keys, *limits, len(changed), *pairs, *fields)
        return bool(version)

    async def refresh(self) -> None:
        """Read changes that were made before this call. Raises StoreUnavailable."""
        await self._copy.refresh()

    async def _load(self) -> None:
        reply: Any = await self._store.command("HGETALL", self._keys.resource_configs)
        pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        kinds: dict[str, dict[str, dict[str, str]]] = {}
        for field, value in pairs:
            kind, _, rest = field.decode("utf-8", "replace").partition("/")
            name, _, config = rest.rpartition("/")
            kinds.setdefault(kind, {}).setdefault(name, {})[config] = value.decode("utf-8", "replace")
        changed, self._kinds = kinds != self._kinds, kinds
        if changed:
            for listener in self.on_changed:
                listener()
