"""The commands of one key, sent straight to the server that has it, with outcomes.

Unlike the commands of `Store` none follows a redirect: what is read must be from the server whose failover epoch the
caller has verified, and what is written must not run behind it. `Moved` tells the caller to begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidegate.store.link import Arg
from tidegate.store.node import Node
from tidegate.store.outcome import Failure, Moved, Ok, Unknown, append_failure_of, failure_of, outcome_of
from tidegate.store.redirected import PAUSE_S
from tidegate.store.store import Store

MOVING_PAUSE_S: Final = PAUSE_S
"""How long to wait before a command that found its key moving is sent again."""
_POLL_STREAMS_MAX: Final = 500

OnAppend = Callable[["bytes | Failure"], None]
OnOutcome = Callable[["Ok | Failure"], None]
OnOutcomes = Callable[[list[Any], "Failure | None"], None]


class KeyLanes:
    """The lanes to whatever server has `key` now, and the server that the caller's state was read from."""

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
        """The caller's state is read from here on from the server that has the key now, which is returned."""
        self._read_from = self.node
        return self._read_from

    def depends_on(self, node: Node) -> bool:
        """Whether the caller's state is from that server, or is going to be."""
        return node is self._read_from or node is self.node

    @property
    def has_moved(self) -> bool:
        """Whether the caller's state is from a server that no longer has the key."""
        return self._read_from is not self.node

    def append(self, xadd: Sequence[bytes | memoryview], size: int, message: bytes, on_append: OnAppend) -> None:
        """XADD and, right behind it, a PUBLISH, both written as RESP. `on_append` gets the entry's id or a failure."""
        cluster, key = self._store.cluster, self._key
        node = self._store.metadata_node if cluster is None else cluster.node(key)
        link = node.data_out

        def answered(reply: Any) -> None:
            if not isinstance(reply, bytes):
                on_append(self._noted(node, append_failure_of(reply)))
            elif cluster is None or cluster.node(key) is node:
                on_append(reply)
            else:  # a server that another one replaced may answer before it knows of that
                on_append(Unknown("another server has the log by now"))

        link.send_buffers(xadd, size, answered)
        link.send_buffers([message], len(message), _ignore)

    def read(self, args: Sequence[Arg], on_outcome: OnOutcome) -> None:
        """One read, which may be large."""
        node = self.node
        node.data_in.send(args, lambda reply: on_outcome(self._noted(node, outcome_of(reply))))

    def read_all(self, commands: Sequence[Sequence[Arg]], on_outcomes: OnOutcomes) -> None:
        """Reads that run one after the other; their replies, and None or the first failure."""
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
        return outcome


def poll_streams(store: Store, ends: Mapping[str, str], on_grown: Callable[[str], None]) -> None:
    """Call with each stream that has an entry above its id, or that is at another server by now.

    A failure is nobody's: the next poll asks again.
    """
    keys = list(ends)
    count = _POLL_STREAMS_MAX if store.cluster is None else 1  # Redis Cluster: a command's keys are of one slot
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
    """A PUBLISH tells how many subscribers it reached, which nobody needs."""
