"""Tell an orderly stop of all brokers from a crash, as Kafka does by the file `.kafka_cleanshutdown`.

The last broker to end its lease notes `clean_shutdown` if Redis has an append-only file, which loses nothing but its
end: a server that starts with the note has every generation that was opened before. Whoever serves next removes the
note first, and waits until the disk has that: otherwise a crash could bring it back.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.store.outcome import Ok, Refused, outcome_of_call
from tidegate.store.scripts import Script
from tidegate.store.store import Store

logger = structlog.get_logger()

BEGIN_SERVING = Script("cluster/begin_serving")

_MARK: Final = "clean_shutdown"
_PROVE_MS: Final = 4_000
"""`appendfsync everysec` takes up to 1 s, and 2 s more while a rewrite of the file occupies the disk."""
_PROBE_MS: Final = 1


async def begin_serving(store: Store, failover_epoch: int | None) -> bool:
    """End a clean shutdown. Returns whether generations may be lost that no broker remembers.

    Without a failover epoch, for a broker that remembers generations, never. Raises StoreUnavailable.
    """
    wanted = "" if failover_epoch is None else failover_epoch
    is_behind, is_unproved = await store.run(BEGIN_SERVING, [store.cluster_keys.info], wanted)
    if is_unproved:
        await _prove(store)
        await store.command("HDEL", store.cluster_keys.info, _MARK)
    return bool(is_behind)


async def _prove(store: Store) -> None:
    """Wait until the disk has what was written so far. Raises StoreUnavailable."""
    match await outcome_of_call(_synced(store, _PROVE_MS)):
        case Ok([int(files), *_]) if files:
            return
        case Refused(text):  # it was possible when the note was made
            logger.warning("clean_shutdown_not_forgotten", reason=text)
        case _:
            raise StoreUnavailable("the append-only file was not synced: is the disk full?")


async def can_note(store: Store) -> bool:
    """Whether a note is true after any restart of Redis: one server without replicas, with an append-only file."""
    if store.is_sharded or store.primary.by_sentinels:
        return False
    replication = await outcome_of_call(store.metadata_node.control.call("INFO", "replication"))
    file = await outcome_of_call(_synced(store, _PROBE_MS))
    match replication, file:
        case Ok(bytes(facts)), Ok([int(), int()]):
            return b"\r\nconnected_slaves:0\r\n" in facts
    return False


def _synced(store: Store, timeout_ms: int) -> asyncio.Future[Any]:
    """How many append-only files have a write made now: 1 or, after the timeout, 0."""
    lane = store.metadata_node.durable
    lane.send(["SET", store.cluster_keys.proof, "1"], lambda _: None)
    return lane.call("WAITAOF", 1, 0, timeout_ms, timeout_ms=timeout_ms + _PROVE_MS)
