"""Requests that fit their schemas and mean nothing, and frames that nearly fit them.

Values come from the edges of each type and from names that exist, so that requests get past the first check; batches
are real ones, whole or broken. A third of the frames is broken after it was encoded.
"""

from __future__ import annotations

import datetime
import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

from tests.kit.wire import encode_request
from tests.support.versions import VERSIONS
from tidegate.protocol.schemas import load_request_schema
from tidegate.protocol.versions import is_old
from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch, seal

TOPICS: Final = ("fuzz", "fuzz-2", "unknown", "__consumer_offsets", "Ü" * 300, "", ".", "a/b", "\x00")
LONG: Final = "x" * 32_767
GROUPS: Final = ("group", "group-2", "consumer", "range", "")
WAITING: Final = frozenset({1, 11, 14})
"""Fetch, JoinGroup and SyncGroup wait for as long as the request says, a JoinGroup for others of its group."""
_WAIT_MAX: Final = datetime.timedelta(milliseconds=100)
_EDGES: Final = {bits: (0, 1, -1, 2, 7, (1 << bits - 1) - 1, -(1 << bits - 1)) for bits in (8, 16, 32, 64)}
_WAITS: Final = ("max_wait", "rebalance_timeout")
PRODUCE: Final = 0
_BATCH_BYTES_KEPT: Final = 61
_DRAWS_MAX: Final = 1_000


def batch(rng: random.Random) -> bytes:
    """A record batch: whole, with a broken header under a right CRC, or with broken bytes."""
    records = [
        NewRecord(None if rng.random() < 0.2 else b"k" * rng.randrange(9), b"v" * rng.randrange(200))
        for _ in range(rng.randrange(1, 6))
    ]
    made = bytearray(build_batch(records, codec=rng.choice(list(Codec))))
    drawn = rng.random()
    if drawn < 0.4:
        for _ in range(rng.randrange(1, 5)):
            made[rng.randrange(len(made))] = rng.randrange(256)
        if rng.random() < 0.7 and len(made) > _BATCH_BYTES_KEPT:
            made = bytearray(seal(made))
    elif drawn < 0.5:
        del made[rng.randrange(len(made)) :]
    elif drawn < 0.6:
        made += made[: rng.randrange(len(made))]
    return bytes(made)


def _text(rng: random.Random) -> str:
    return LONG if rng.random() < 0.01 else rng.choice(rng.choice((TOPICS[:3], TOPICS, GROUPS)))


def _bytes(rng: random.Random) -> bytes:
    drawn = rng.random()
    if drawn < 0.3:  # a subscription, or an assignment
        topic = rng.choice(TOPICS[:3]).encode()
        subscribed = struct.pack(">hih", rng.randrange(4), 1, len(topic)) + topic
        return subscribed + struct.pack(">i", rng.choice((-1, 0)))
    if drawn < 0.5:
        return batch(rng)
    return rng.randbytes(rng.choice((0, 1, 7, 100)))


def _integer(bits: int) -> Callable[[random.Random], int]:
    return lambda rng: rng.choice(_EDGES[bits]) if rng.random() < 0.6 else rng.randrange(8)


def _duration(rng: random.Random) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=rng.choice((0, 1, 100, 6_000, -1, (1 << 31) - 1)))


_MAKERS: Final[dict[str, Callable[[random.Random], Any]]] = {
    "int8": _integer(8),
    "int16": _integer(16),
    "int32": _integer(32),
    "int64": _integer(64),
    "uint16": lambda rng: rng.choice((0, 9092, 65_535)),
    "string": _text,
    "bytes": _bytes,
    "records": batch,
    "bool": lambda rng: rng.random() < 0.5,
    "error_code": lambda rng: rng.choice(list(ErrorCode)),
    "uuid": lambda rng: uuid.UUID(int=rng.choice((0, 1, rng.getrandbits(128)))),
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "float64": lambda rng: rng.choice((0.0, -1.5, float("nan"), float("inf"))),
}


def instance(schema: type[Any], rng: random.Random) -> Any:
    """Any value of a schema."""
    values: dict[str, Any] = {}
    for field in fields(schema):
        if get_field_tag(field) is not None and rng.random() < 0.5:
            continue
        if is_optional(field) and rng.random() < 0.2:
            values[field.name] = None
            continue
        match classify_field(field):
            case EntityField(inner):
                values[field.name] = instance(inner, rng)
            case EntityTupleField(inner):
                values[field.name] = tuple(instance(inner, rng) for _ in range(_count(rng)))
            case PrimitiveField():
                values[field.name] = _MAKERS[get_schema_field_type(field)](rng)
            case PrimitiveTupleField():
                make = _MAKERS[get_schema_field_type(field)]
                values[field.name] = tuple(make(rng) for _ in range(_count(rng)))
    return schema(**values)


def _count(rng: random.Random) -> int:
    return rng.randrange(40) if rng.random() < 0.02 else rng.choice((0, 1, 1, 1, 2, 2, 3))


def frame(api_key: int, version: int, rng: random.Random) -> tuple[bytes, bool]:
    """A whole frame of one API and version, and whether it must be answered soon.

    Produce with acks=0 is not answered, and a broken request of `WAITING` may wait for long. What a schema's writer
    refuses is drawn again. Versions that kio has no schema of are made from the first one that it has, so that most of
    them are malformed.
    """
    old = is_old(api_key, version)
    schema = load_request_schema(api_key, VERSIONS[api_key][0] if old else version)
    for _ in range(_DRAWS_MAX):
        try:
            drawn = _waiting_briefly(instance(schema, rng)) if api_key in WAITING else instance(schema, rng)
            made = encode_request(drawn, rng.randrange(1 << 31))
        except (ValueError, OverflowError, struct.error, TypeError):
            continue
        if old:
            return made[:6] + version.to_bytes(2, "big") + made[8:], api_key not in {PRODUCE, *WAITING}
        if rng.random() < 0.35:
            return _broken(made, rng), api_key not in {PRODUCE, *WAITING}
        return made, getattr(drawn, "acks", 1) != 0
    raise AssertionError(f"the writer of API {api_key} v{version} refuses whatever is drawn")


def _waiting_briefly(drawn: Any) -> Any:
    """The same with short waits, in a group without members of broken requests, for which it would have to wait."""
    names = {one.name for one in fields(drawn)}  # a broker in this process gives old versions further attributes
    waits = {name: min(getattr(drawn, name), _WAIT_MAX) for name in _WAITS if name in names}
    groups = {"group_id": f"{drawn.group_id}-brief"} if getattr(drawn, "group_id", "") in GROUPS[:-1] else {}
    return replace(drawn, **waits, **groups)


def _broken(made: bytes, rng: random.Random) -> bytes:
    """The same with broken bytes after its header's first eight; its length is right again."""
    body = bytearray(made[4:])
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(8, len(body)) if len(body) > 8 else len(body)
        match rng.randrange(4):
            case 0 if place < len(body):
                body[place] = rng.randrange(256)
            case 1:
                del body[place : place + rng.randrange(1, 9)]
            case 2:
                body[place:place] = rng.randbytes(rng.randrange(1, 9))
            case _:
                edge = rng.choice(_EDGES[32])
                body[place : place + 4] = struct.pack(">i", edge)
    return struct.pack(">i", len(body)) + bytes(body)
