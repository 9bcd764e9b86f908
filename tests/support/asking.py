"""Ask a handler as a client would, without sockets: request and answer in the client's version."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from bench.frames import decode_body, encode_body
from tidegate.apis import registry
from tidegate.apis.call import Body, BrokerContext, Call, Client
from tidegate.apis.registry import error_response
from tidegate.errors import KafkaError
from tidegate.protocol import codec
from tidegate.server.pending_request import code_of


async def ask(context: BrokerContext, request: Any, client: Client | None = None, client_id: str = "test") -> Any:
    """The answer to a kio request of any version, read by kio; an error of the whole request is its error response."""
    key, version = int(type(request).__api_key__), int(type(request).__version__)
    try:
        return await ask_handler(context, request, client, client_id)
    except KafkaError as error:
        decoded = codec.decode(key, version, encode_body(request))
        code = code_of(registry.load_all()[key].away, error)
        return decode_body(key, version, codec.encode(key, version, error_response(key, decoded, code)))


async def ask_handler(
    context: BrokerContext, request: Any, client: Client | None = None, client_id: str = "test"
) -> Any:
    """The same. Raises what the handler raises."""
    key, version = int(type(request).__api_key__), int(type(request).__version__)
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def reply(body: Any) -> None:
        answered.set_result(body if isinstance(body, Body) else b"".join(body))

    def close(reason: str) -> None:
        raise AssertionError(f"closed: {reason}")

    call = Call(
        context=context,
        client=client or Client(1, "127.0.0.1", 1),
        api_key=key,
        version=version,
        correlation_id=1,
        client_id=client_id,
        arrived_s=perf_counter(),
        reply=reply,
        drop=lambda: None,
        close=close,
        run_alone=lambda: None,
        mute=lambda seconds: None,
        draining=asyncio.Event(),
        answer_later=lambda work, request: context.tasks.start(work),
    )
    body, api = encode_body(request), registry.load_all()[key]
    decoded = memoryview(body) if api.raw else codec.decode(key, version, body)
    assert api.serves(version)
    if api.inline:
        api.handler(call, decoded)
    else:
        response = await api.handler(call, decoded)
        reply(response if isinstance(response, bytes | list) else codec.encode(key, version, response))
    async with asyncio.timeout(40):
        return decode_body(key, version, bytes(await answered))
