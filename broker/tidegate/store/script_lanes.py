"""Run a script with large arguments or a large reply on a data lane, so that it delays no heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import hiredis

from tidegate.errors import from_code
from tidegate.store.link import Arg
from tidegate.store.node import Lane
from tidegate.store.outcome import script_failure_of
from tidegate.store.scripts import Script
from tidegate.store.store import Store

READS: Final[Lane] = "data_in"
WRITES: Final[Lane] = "data_out"


async def run_on(store: Store, lane: Lane, script: Script, keys: Sequence[str], *args: Arg) -> list[Any]:
    """As `Store.run`. Raises the KafkaError of a code other than NONE; StoreRefused for an error reply;
    StoreUnavailable without a reply.
    """
    command: list[Arg] = ["EVALSHA", script.sha, len(keys), *keys, *args]
    try:
        if store.cluster is None:
            reply = await store.metadata_node.lane(lane).call(*command)
        else:
            reply = await store.cluster.call(lane, *command)
    except hiredis.ReplyError as error:
        if str(error).startswith("NOSCRIPT"):
            return await store.run(script, keys, *args)  # loads it
        store.wrong_types.check(str(error), keys)
        raise script_failure_of(str(error)).error from error
    if reply[0] != 0:
        raise from_code(reply[0])
    found: list[Any] = reply[1:]
    return found
