"""The durability that acknowledged writes wait for: memory of the primary, replicas (WAIT), or disk (WAITAOF).

WAIT covers only the writes of its own connection. The broker therefore sends a small write on the durable lane with
WAIT directly after it. Replication and the append-only file preserve the order of writes, so this proof covers every
write that the same node answered before. All callers of one event-loop tick share one proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

from tidegate.errors import ChangeNotConfirmed
from tidegate.store.durability_level import DurabilityLevel
from tidegate.store.node import Node
from tidegate.store.store import Store
from tidegate.store.write_proofs import WriteProofs

OnProved = Callable[[bool], None]
"""Called with whether everything written before the call is as durable as the setting requires."""

_SLACK_MS: Final = 1_000


class Durability:
    """The proofs of one broker, by its `durability` setting. With `immediate` no proof is needed.

    `writing_to` names the one server that a node's lanes are connected to, None while they are not, or it is not known.
    """

    def __init__(self, store: Store, writing_to: Callable[[Node], str | None]) -> None:
        self._store, self._writing_to = store, writing_to
        self._level = DurabilityLevel.of(store.settings.durability)
        self._timeout_ms = store.settings.durability_timeout_ms
        self.immediate = self._level.immediate
        self._nodes: dict[Node, WriteProofs] = {}
        store.follow_nodes(self._added, self._removed)

    @property
    def prover(self) -> Callable[[Node, OnProved], None] | None:
        """`prove`, for those who have nothing to prove with `immediate`."""
        return None if self.immediate else self.prove

    def prove(self, node: Node, on_proved: OnProved) -> None:
        """Prove the writes that a node has answered so far, then call. Never calls before it returns.

        Nothing is proved if a connection that writes ended meanwhile, or the one that proves is to another server.
        """
        proofs, server = self._nodes.get(node), self._writing_to(node)
        if proofs is None or server is None:  # the node was removed meanwhile, or its server is being replaced
            asyncio.get_running_loop().call_soon(on_proved, False)
            return
        control, data = node.control.failover_epoch, node.data_out.failover_epoch

        def proved(held: bool) -> None:
            is_same = (node.control.failover_epoch, node.data_out.failover_epoch) == (control, data)
            on_proved(held and is_same and self._writing_to(node) == server)

        proofs.prove(proved)

    @asynccontextmanager
    async def confirmed(self, *nodes: Node) -> AsyncIterator[None]:
        """Prove what the body has written to the nodes, by default to all that it may write to; not if it raises.

        Raises ChangeNotConfirmed if that is not proved, or a connection ended: the proof may be another server's then.
        """
        if self.immediate:
            yield
            return
        cluster, began = self._store.cluster, asyncio.get_running_loop().time()

        def connections() -> dict[Node, int]:
            written = nodes or (self._store.nodes if cluster is None else cluster.written_since(began))
            return {node: node.control.failover_epoch for node in written}

        written = connections()
        yield
        if not all(await asyncio.gather(*map(self._is_proved, written))) or written != connections():
            raise ChangeNotConfirmed("the change is stored, but not as durable as the setting `durability` says")

    def confirmed_if_sharded(self, node: Node) -> AbstractAsyncContextManager[None]:
        """As `confirmed`, for what writes to other servers follow: on one server their proof covers it."""
        return self.confirmed(node) if self._store.is_sharded else nullcontext()

    async def _is_proved(self, node: Node) -> bool:
        proved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.prove(node, lambda held: None if proved.done() else proved.set_result(held))
        return await proved

    def _added(self, node: Node) -> None:
        wait = self._level.wait(self._timeout_ms)
        self._nodes[node] = WriteProofs(self._store, node, wait, self._level.holds, self._timeout_ms + _SLACK_MS)

    def _removed(self, node: Node) -> None:
        self._nodes.pop(node, None)
