"""`tidegate topic compact`: stores a request for each partition and waits until brokers have served them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any, Final

from tidegate.cli.client.stray_entries import Partition
from tidegate.store.keys import ClusterKeys

REQUESTED: Final = "requested"
_EXPIRES_MS: Final = 3_600_000
"""When requests that nobody reads any more are removed."""
_POLL_S: Final = 1.0

Row = dict[str, Any]


def compact(
    client: Any, keys: ClusterKeys, partitions: Sequence[Partition], timeout_s: float, poll_s: float = _POLL_S
) -> list[Row]:
    """Request and wait; a row for each partition, with an error where it was not compacted in time.

    The message is published again each time: a broker that died, or that was not connected, misses none.
    """
    items = [item_of(one) for one in partitions]
    request(client, keys, items)
    deadline_s = monotonic() + timeout_s
    while True:
        client.publish(keys.compaction_requests, "")
        states = [_text(state) for state in client.hmget(keys.compactions, items)]
        if all(map(_is_final, states)) or monotonic() >= deadline_s:
            return [_row(one, state, timeout_s) for one, state in zip(partitions, states, strict=True)]
        sleep(poll_s)


def request(client: Any, keys: ClusterKeys, items: Sequence[str]) -> None:
    """Store requests; one that another command stored and that is not served yet serves this one too."""
    states = client.hmget(keys.compactions, items)
    open_items = [item for item, state in zip(items, states, strict=True) if state is None or _is_final(_text(state))]
    with client.pipeline() as changes:
        for item in open_items:
            changes.hset(keys.compactions, item, REQUESTED)
        changes.pexpire(keys.compactions, _EXPIRES_MS)
        changes.execute()


def item_of(one: Partition) -> str:
    """A partition's field in the hash of requests."""
    return f"{one.org}/{one.topic}:{one.index}:{one.topic_id}"


def _text(state: bytes | None) -> str:
    return "" if state is None else state.decode()


def _is_final(state: str) -> bool:
    return state.startswith(("done ", "failed "))


def _row(one: Partition, state: str, timeout_s: float) -> Row:
    row: Row = {"topic": one.topic, "partition": one.index}
    kind, _, rest = state.partition(" ")
    if kind == "done":
        return {**row, **json.loads(rest), "error": ""}
    error = rest
    if kind != "failed":
        what = "no broker took the request" if kind == REQUESTED else "a broker still compacts it"
        error = f"not done within {timeout_s:g} s: {what}"
    return {**row, "offset": None, "records_dropped": None, "bytes_before": None, "bytes_after": None, "error": error}
