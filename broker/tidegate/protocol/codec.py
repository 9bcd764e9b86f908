"""Converts every served version of a request or response to and from kio's newest shape.

A decoded request is an instance of kio's class for the client's version. Fields missing in that version are class
attributes with the defaults of Kafka's message definitions (`shapes.py` adds fields that moved), so handlers always use
the newest version's names. A response is encoded by the writer of the client's version, which reads fields by name from
any object.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from tidegate.protocol import old_requests, old_responses, shapes
from tidegate.protocol.primitives import STRING_BYTES_MAX, Buffer, DecodeError
from tidegate.protocol.recent_requests import OFTEN_EQUAL, Decoder, remembering
from tidegate.protocol.schema_check import array_check, whole_check
from tidegate.protocol.schema_walk import Plan, plan_of
from tidegate.protocol.schemas import load_request_schema, load_response_schema
from tidegate.protocol.versions import is_old

__all__ = ["Buffer", "DecodeError", "decode", "encode", "request_class", "response_class"]


@cache
def request_class(api_key: int, version: int) -> type[Any]:
    """kio's class of a request version, with absent and moved fields added."""
    shapes.complete(api_key)
    return load_request_schema(api_key, version)


@cache
def response_class(api_key: int, version: int) -> type[Any]:
    """kio's class of a response; handlers use the newest version."""
    return load_response_schema(api_key, version)


@cache
def decoder(api_key: int, version: int) -> Decoder:
    """The decoder of one version of an API."""
    decode_body = (
        old_requests.decoder(api_key, version) if is_old(api_key, version) else _body_decoder(api_key, version)
    )
    return remembering(decode_body) if api_key in OFTEN_EQUAL else decode_body


def _body_decoder(api_key: int, version: int) -> Decoder:
    entity = request_class(api_key, version)
    read: Callable[[Buffer, int], tuple[Any, int]] = entity_reader(entity)
    plan = plan_of(entity)  # type: ignore[arg-type]  # a class is hashable
    check = array_check(entity)  # type: ignore[arg-type]  # a class is hashable
    whole = whole_check(entity)  # type: ignore[arg-type]  # a class is hashable

    def decode_body(data: Buffer, start: int, end: int) -> Any:
        if whole is not None and end - start > STRING_BYTES_MAX:
            whole(data, start, end)
        elif check is not None:
            check(data, start, end)
        try:
            request, size = read(data, start)
        except (SerialError, ValueError, LookupError, OverflowError):
            return _read_again(plan, read, data, start, end)
        if start + size > end:
            raise DecodeError("ends too early")
        return request

    return decode_body


def _read_again(plan: Plan, read: Callable[[Buffer, int], tuple[Any, int]], data: Buffer, start: int, end: int) -> Any:
    """Decode again after removing what the native reader rejects and the protocol allows. Raises DecodeError."""
    body = plan.rewrite(data, start, end)
    try:
        request, _ = read(body, 0)
    except (SerialError, ValueError, LookupError, OverflowError) as error:
        raise DecodeError(str(error)) from error
    return request


def decode(api_key: int, version: int, body: Buffer) -> Any:
    """Decode a request from its body (bytes or memoryview). Raises DecodeError.

    Bytes behind a complete request are ignored, as in Kafka: clients send them. librdkafka 2.16 asks for all topics
    with a 4-byte null, and ends AlterUserScramCredentials with two tag sections; so does kafka-go with DescribeAcls.
    """
    if isinstance(body, memoryview) and not body.readonly:
        body = body.toreadonly()
    return decoder(api_key, version)(body, 0, len(body))


def written(entity: type[Any], value: Any) -> bytes:
    """The bytes of an instance of one of kio's classes."""
    buffer = io.BytesIO()
    entity_writer(entity)(buffer, value)
    return buffer.getvalue()


@cache
def _encoder(api_key: int, version: int) -> Callable[[Any], bytes]:
    if is_old(api_key, version):
        return old_responses.encoder(api_key, version)
    write = entity_writer(response_class(api_key, version))
    adapt = shapes.response_adapter(api_key, version)

    def encode_response(response: Any) -> bytes:
        buffer = io.BytesIO()
        write(buffer, response if adapt is None else adapt(response))
        return buffer.getvalue()

    return encode_response


def encode(api_key: int, version: int, response: Any) -> bytes:
    """Encode a response body in the client's version, from any object with the newest version's fields."""
    return _encoder(api_key, version)(response)
