"""Proof that this broker's subscriptions deliver what the server of its scripts publishes, and until when it holds.

The broker publishes tokens to a channel of its own, on the connection that runs its scripts. Redis writes messages to a
connection in the order in which they were published: when a token arrives, every message that the server published
before the token has arrived, and both connections lead to the same server. The proof counts from the moment at which
the token was sent, by the monotonic clock, so a broker that was stopped for a while (SIGSTOP) finds it expired.

In Redis Cluster a message goes from node to node, where it may be lost on the way: nothing is proven there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final

from tidegate.store.link import Link
from tidegate.store.store import Store

TOKEN_INTERVAL_S: Final = 0.5
PROOF_S: Final = 1.5
"""How long after a token was sent its proof holds, s: the limit of what a missing message can hide."""
_TOKENS_MAX: Final = 8
"""Tokens under way that are remembered; one that takes longer proves nothing any more."""
_NEVER: Final = float("-inf")


class SubscriptionProof:
    """`on_lost()` runs whenever messages may have been lost, and when the proof begins: nothing known from before is
    proven. `clock` is monotonic, in seconds.

    Callers subscribe to their channels before `start`.
    """

    def __init__(self, store: Store, on_lost: Callable[[], None], clock: Callable[[], float]) -> None:
        self.proven_until_s = _NEVER
        """Until when, by `clock`, all messages published more than PROOF_S ago have arrived."""
        self._store, self._on_lost, self._clock = store, on_lost, clock
        self._channel = store.cluster_keys.subscription_proof(secrets.token_hex(8))
        self._sent_s: dict[bytes, float] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Subscribe, and begin to send tokens; does nothing in Redis Cluster. Raises TimeoutError."""
        store = self._store
        if store.is_sharded:
            return
        async with asyncio.timeout(store.settings.redis_command_timeout_ms / 1000):
            await store.pubsub.listen(self._channel, self._on_message)
        for link in (store.push, store.metadata_node.control):
            link.on_down.append(self._link_lost)
        self._send_token()

    def close(self) -> None:
        """Unsubscribe; nothing is proven any more."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        for link in (self._store.push, self._store.metadata_node.control):
            link.on_down.remove(self._link_lost)
        self._store.pubsub.forget(self._channel, self._on_message)
        self._lose()

    def _send_token(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TOKEN_INTERVAL_S, self._send_token)
        if not (self._store.push.connected and self._store.metadata_node.control.connected):
            return
        self._number += 1
        token = str(self._number).encode()
        self._sent_s[token] = self._clock()
        if len(self._sent_s) > _TOKENS_MAX:
            del self._sent_s[next(iter(self._sent_s))]
        self._store.metadata_node.control.send(["PUBLISH", self._channel, token], _ignore)

    def _on_message(self, token: bytes | None) -> None:
        if token is None:
            self._lose()
            return
        sent_s = self._sent_s.pop(token, None)
        if sent_s is None:  # sent before a connection was lost
            return
        if self.proven_until_s == _NEVER:
            self._on_lost()
        self.proven_until_s = max(self.proven_until_s, sent_s + PROOF_S)

    def _link_lost(self, _: Link) -> None:
        self._lose()

    def _lose(self) -> None:
        self.proven_until_s = _NEVER
        self._sent_s.clear()
        self._on_lost()


def _ignore(_: Any) -> None:
    """The message is the answer."""
