"""The commands' Kafka client, speaking to the broker that it runs in, whatever its listeners ask for; of any org."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tidegate.admin.audit import Actor
from tidegate.admin.kafka_client import KafkaClient
from tidegate.admin.kafka_wire import STREAM_BYTES, Connection
from tidegate.admin.places import Brokers
from tidegate.apis.call import BrokerContext
from tidegate.groups.formatting import COMMAND

_HERE: Final = "this broker"

Dial = Callable[[], Awaitable[socket.socket]]


class InsideConnection(Connection):
    """A connection that `dial` makes."""

    def __init__(self, dial: Dial, client_id: str) -> None:
        super().__init__(_HERE, client_id)
        self._dial = dial

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(sock=await self._dial(), limit=STREAM_BYTES)


@dataclass(slots=True)
class InsideClient(KafkaClient):
    """Every address is this broker: any of Tidegate's serves every group and partition."""

    dial: Dial | None = None

    def _connection(self, address: str) -> Connection:
        assert self.dial is not None
        return InsideConnection(self.dial, self.client_id)

    async def _at(self, address: str) -> Connection:
        if self._first is None:
            self._first = self._connection(_HERE)
            self._connections[_HERE] = self._first
            await self._first.open()
        return self._first


def inside(context: BrokerContext, actor: Actor, org: str) -> InsideClient:
    """A client for what `actor` asked for; the events of groups name him and where he is."""
    dial = context.dial
    assert dial is not None

    return InsideClient(Brokers(_HERE), f"{COMMAND}@{actor.name}", dial=lambda: dial(org, actor.remote))
