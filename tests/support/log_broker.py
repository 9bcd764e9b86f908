"""The log APIs of one broker without sockets: real store, catalogue and logs; requests through codec and writers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from bench.frames import decode_body, encode_body, request, request_of_version
from tests.support.built import build_broker
from tidegate.apis import registry
from tidegate.apis.call import BrokerContext, Call, Client
from tidegate.apis.registry import error_response
from tidegate.errors import KafkaError
from tidegate.log.logs import Logs
from tidegate.protocol import codec
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog, Topic


@dataclass(slots=True)
class Asked:
    """A request on its way: `answer` is its response, or None for none; `closed` why the connection ended."""

    answer: asyncio.Future[Any]
    closed: str | None = None
    body: bytes = b""
    """The response's bytes."""


@dataclass(slots=True)
class Connection:
    """One client's connection to a broker."""

    broker: LogBroker
    client: Client
    ran_alone: int = 0
    """Requests that had later ones wait for their answer."""
    muted_s: list[float] = field(default_factory=list)
    """The seconds of each time that it was muted."""

    def _run_alone(self) -> None:
        self.ran_alone += 1

    def send(self, request: Any) -> Asked:
        """Give a kio request of any version to its handler; hot ones are answered when they are."""
        schema = type(request)
        api_key, version = int(schema.__api_key__), int(schema.__version__)
        return self.send_bytes(api_key, version, encode_body(request))

    def send_bytes(self, api_key: int, version: int, body: bytes) -> Asked:
        """Give a request's body to its handler."""
        asked = Asked(asyncio.get_running_loop().create_future())

        def reply(body: Any) -> None:
            parts = [body] if isinstance(body, bytes | bytearray | memoryview) else body
            asked.body = b"".join(parts)
            asked.answer.set_result(decode_body(api_key, version, asked.body))

        def close(reason: str) -> None:
            asked.closed = reason
            asked.answer.set_result(None)

        call = Call(
            context=self.broker.context, client=self.client, api_key=api_key, version=version, correlation_id=1,
            client_id="test", arrived_s=perf_counter(), reply=reply,
            drop=lambda: asked.answer.set_result(None), close=close, run_alone=self._run_alone,
            draining=self.broker.draining, mute=self.muted_s.append,
            answer_later=lambda work, request: self.broker.context.tasks.start(work),
        )  # fmt: skip
        api = registry.load_all()[api_key]
        if api.raw:
            api.handler(call, memoryview(body))
        elif api.inline:
            api.handler(call, codec.decode(api_key, version, body))
        else:
            asked.answer = asyncio.ensure_future(self._cold(api, call, codec.decode(api_key, version, body)))  # type: ignore[assignment]
        return asked

    async def _cold(self, api: registry.Api, call: Call, request: Any) -> Any:
        try:
            response = await api.handler(call, request)
        except KafkaError as error:
            response = error_response(call.api_key, request, error.code)
        written = isinstance(response, bytes | list)
        body = b"".join(response) if written else codec.encode(call.api_key, call.version, response)
        return decode_body(call.api_key, call.version, body)

    async def ask(self, request: Any, timeout_s: float = 40.0) -> Any:
        """Send, and wait for the answer."""
        async with asyncio.timeout(timeout_s):
            return await self.send(request).answer

    def close(self) -> None:
        """The client goes."""
        self.client.end()


@dataclass(slots=True)
class LogBroker:
    """One broker over a store of its own."""

    store: Store
    catalog: Catalog
    logs: Logs
    context: BrokerContext
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0

    @classmethod
    async def start(cls, settings: Settings) -> LogBroker:
        """Open everything."""
        store = Store(settings)
        await store.start()
        built = build_broker(store)
        catalog, logs, context = built.catalog, built.logs, built.context
        await catalog.start()
        await logs.start()
        return cls(store, catalog, logs, context)

    async def close(self) -> None:
        """Close everything."""
        await self.catalog.close()
        await self.logs.close()
        await self.store.close()

    def connect(self) -> Connection:
        """A new client."""
        self.connections += 1
        return Connection(self, Client(self.connections, "127.0.0.1", 50_000))

    async def create(self, name: str, partition_count: int = 1, **overrides: str) -> Topic:
        """Make a topic; its configs with underscores for dots."""
        dotted = {key.replace("_", "."): value for key, value in overrides.items()}
        return await self.catalog.create("default", name, partition_count, dotted, uuid.uuid4())


def produce_request(
    topics: Sequence[tuple[str | uuid.UUID, Sequence[tuple[int, bytes | None]]]],
    *,
    version: int = 9,
    acks: int = -1,
    timeout_ms: int = 5_000,
    transactional_id: str | None = None,
) -> Any:
    """A Produce request: per topic (name, or id from v13 on) its (partition, records)."""
    named = "topic_id" if version >= 13 else "name"
    data = [
        {named: topic, "partition_data": [{"index": index, "records": records} for index, records in partitions]}
        for topic, partitions in topics
    ]
    return request(0, version, transactional_id=transactional_id, acks=acks, timeout=timeout_ms, topic_data=data)


def fetch_request(
    topics: Sequence[tuple[str | uuid.UUID, Sequence[tuple[int, int] | tuple[int, int, dict[str, int]]]]],
    *,
    version: int = 12,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    session: tuple[int, int] = (0, -1),
    forgotten: Sequence[tuple[str | uuid.UUID, Sequence[int]]] = (),
) -> Any:
    """A Fetch request: per topic its (partition, offset[, other fields])."""
    named = "topic_id" if version >= 13 else "topic"
    defaults = {
        "partition_max_bytes": partition_max_bytes, "log_start_offset": -1, "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
    }  # fmt: skip

    def partition(index: int, offset: int, more: dict[str, int] | None = None) -> dict[str, int]:
        return {**defaults, "partition": index, "fetch_offset": offset, **(more or {})}

    return request_of_version(
        1, version, replica_id=-1, max_wait=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, rack_id="",
        isolation_level=isolation_level, session_id=session[0], session_epoch=session[1],
        topics=[{named: topic, "partitions": [partition(*one) for one in asked]} for topic, asked in topics],
        forgotten_topics_data=[{named: topic, "partitions": list(indexes)} for topic, indexes in forgotten],
    )  # fmt: skip
