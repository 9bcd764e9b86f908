"""Commands of one key, sent directly to the server that owns it; replies become `Outcome`s.

Unlike the commands of `Store` none follows a redirect: reads must come from the server whose failover epoch the caller
verified, and writes must not run at another one. After `Moved` the caller reloads its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import hiredis

from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.outcome import Failure, Moved, Ok, Refused, Unknown, append_failure_of, failure_of, outcome_of
from tidegate.store.redirected import PAUSE_S
from tidegate.store.scripts import Script
from tidegate.store.store import Store

MOVING_PAUSE_S: Final = PAUSE_S
"""Pause before a command is sent again while its key is migrating."""
_POLL_STREAMS_MAX: Final = 500

OnAppend = Callable[["bytes | Failure"], None]
OnOutcome = Callable[["Ok | Failure"], None]
OnOutcomes = Callable[[list[Any], "Failure | None"], None]


class KeyLanes:
    """The lanes to the current server of `key`, and the server from which the caller's state was read."""

    __slots__ = ("_key", "_read_from", "_store")

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._read_from = self.node

    @property
    def node(self) -> Node:
        """The server that has the key now."""
        return self._store.node(self._key)

    @property
    def up(self) -> bool:
        """Whether the server that has the key is connected."""
        return self.node.up

    def bind(self) -> Node:
        """Record, and return, the key's current server as the source of the caller's state."""
        self._read_from = self.node
        return self._read_from

    def depends_on(self, node: Node) -> bool:
        """Whether the caller's state was read from that server, or is about to be."""
        return node is self._read_from or node is self.node

    @property
    def has_moved(self) -> bool:
        """Whether the caller's state was read from a server that no longer has the key."""
        return self._read_from is not self.node

    def append(self, xadd: Sequence[bytes | memoryview], size: int, message: bytes, on_append: OnAppend) -> None:
        """Send XADD followed by PUBLISH, both encoded as RESP. `on_append` gets the entry's id or a failure."""
        cluster, key = self._store.cluster, self._key
        node = self._store.metadata_node if cluster is None else cluster.node(key)
        link = node.data_out

        def answered(reply: Any) -> None:
            if not isinstance(reply, bytes):
                on_append(self._noted(node, append_failure_of(reply)))
            elif cluster is None or cluster.node(key) is node:
                on_append(reply)
            else:  # a replaced server may answer before it is demoted
                on_append(Unknown("another server has the log by now"))

        link.send_buffers(xadd, size, answered)
        link.send_buffers([message], len(message), _ignore)

    def append_control(self, script: Script, args: Sequence[Arg], message: bytes, on_append: OnAppend) -> None:
        """As `append`, by a script, which a full server runs too; `args` are its key count, keys and arguments."""
        node = self.node
        command: list[Arg] = ["EVALSHA", script.sha, *args]

        def answered(reply: Any, loaded: bool = False) -> None:
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT") and not loaded:
                node.data_out.send(["SCRIPT", "LOAD", script.source], _ignore)
                node.data_out.send(command, lambda again: answered(again, loaded=True))
            elif not isinstance(reply, bytes):
                on_append(self._noted(node, append_failure_of(reply)))
            elif self.node is node:
                on_append(reply)
            else:
                on_append(Unknown("another server has the log by now"))

        node.data_out.send(command, answered)
        node.data_out.send_buffers([message], len(message), _ignore)

    def read(self, args: Sequence[Arg], on_outcome: OnOutcome) -> None:
        """Send one read with a possibly large reply."""
        node = self.node
        node.data_in.send(args, lambda reply: on_outcome(self._noted(node, outcome_of(reply))))

    def read_all(self, commands: Sequence[Sequence[Arg]], on_outcomes: OnOutcomes) -> None:
        """Send reads that run in order; `on_outcomes` gets their replies, and None or the first failure."""
        node = self.node
        replies: list[Any] = []

        def answered(last: Any) -> None:
            failure = next(filter(None, map(failure_of, (*replies, last))), None)
            on_outcomes([*replies, last], self._noted(node, failure))

        for args in commands[:-1]:
            node.data_in.send(args, replies.append)
        node.data_in.send(commands[-1], answered)

    def _noted(self, node: Node, outcome: Any) -> Any:
        if isinstance(outcome, Moved):
            self._store.refused(node, outcome.text)
        elif isinstance(outcome, Refused):
            self._store.wrong_types.check(outcome.text, [self._key])
        return outcome


def poll_streams(store: Store, ends: Mapping[str, str], on_grown: Callable[[str], None]) -> None:
    """Call `on_grown` with each stream that has an entry above its id, or whose server changed.

    Failures are ignored: the next poll repeats the read.
    """
    keys = list(ends)
    count = _POLL_STREAMS_MAX if store.cluster is None else 1  # Redis Cluster: a command's keys must share one slot
    for i in range(0, len(keys), count):
        _poll(store, {key: ends[key] for key in keys[i : i + count]}, on_grown)


def _poll(store: Store, ends: Mapping[str, str], on_grown: Callable[[str], None]) -> None:
    first = next(iter(ends))

    def answered(outcome: Ok | Failure) -> None:
        match outcome:
            case Ok(reply):
                for key in reply or ():
                    on_grown(key.decode())
            case Moved():
                on_grown(first)

    KeyLanes(store, first).read(["XREAD", "COUNT", 1, "STREAMS", *ends, *ends.values()], answered)


def _ignore(_: Any) -> None:
    """Discard the reply to PUBLISH, the number of subscribers."""
