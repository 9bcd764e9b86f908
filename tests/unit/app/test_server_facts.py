"""What INFO says of a server, as metrics."""

from __future__ import annotations

from tidegate.store.server_facts import values_of
from tidegate.telemetry import declared_cluster as own


def test_eviction_and_failed_writes_are_reported() -> None:
    facts = {"maxmemory": "100", "maxmemory_policy": "allkeys-lru", "evicted_keys": "3", "aof_enabled": "1",
             "aof_last_write_status": "err", "rdb_last_bgsave_status": "ok"}  # fmt: skip

    assert values_of(facts) == {
        own.REDIS_MEMORY_MAX: 100, own.REDIS_MAY_EVICT: 1, own.REDIS_EVICTED: 3, own.REDIS_AOF: 1,
        own.REDIS_PERSISTENCE_OK: 0,
    }  # fmt: skip


def test_absent_server_fields_are_omitted() -> None:
    assert values_of({"redis_version": "7.2", "connected_slaves": "2", "rdb_last_bgsave_status": "ok"}) == {
        own.REDIS_REPLICAS: 2, own.REDIS_PERSISTENCE_OK: 1,
    }  # fmt: skip
