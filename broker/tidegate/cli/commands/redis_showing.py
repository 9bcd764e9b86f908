"""Decodes a key's content: JSON, Kafka's binary formats, times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tidegate.cli.client.redis_access import server_of
from tidegate.cli.client.redis_keys import OurKey
from tidegate.diagnosis.formatting import format_timestamp
from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.protocol.consumer_blobs import assigned_partitions, subscribed_topics
from tidegate.records.batch import Batch

ELEMENTS_MAX: Final = 50
"""Maximum elements shown per key; of a stream the newest."""
_TIMES: Final = frozenset(
    {
        "created",
        "state_since",
        "join_deadline",
        "sync_deadline",
        "reset_at",
        "offsets_deleted_at",
        "commits_fenced_until",
        "spared_at",
        "until",
        "time",
    }
)
_TIMED_SCORES: Final = frozenset({"leases", "upkeep", "deadlines", "sessions"})


def held(client: Any, key: OurKey) -> dict[str, Any] | None:
    """Type, size, memory, expiry and elements of a key as JSON; None when it does not exist."""
    kind = client.type(key.name).decode()
    if kind == "none":
        return None
    read = {"hash": _hash, "zset": _zset, "stream": _stream, "string": _string}.get(kind, _unknown)
    count, elements = read(client, key)
    expires_ms = client.pttl(key.name)
    return {
        "key": key.name,
        "kind": key.kind.name,
        "holds": key.kind.holds,
        "type": kind,
        "of": dict(key.of()),
        "bytes": client.memory_usage(key.name),
        "expires_in_ms": expires_ms if expires_ms >= 0 else None,
        "count": count,
        "elements": elements,
    }


def _hash(client: Any, key: OurKey) -> tuple[int, list[dict[str, Any]]]:
    decode = _VALUES.get(key.kind.name, _text)
    pairs: dict[bytes, bytes] = {}
    for name, value in client.hscan_iter(key.name, count=ELEMENTS_MAX):
        pairs[name] = value
        if len(pairs) == ELEMENTS_MAX:
            break
    rows = [
        {"field": _string_of(name), "value": _timed(_string_of(name), decode(value))}
        for name, value in sorted(pairs.items())
    ]
    return client.hlen(key.name), rows


def _zset(client: Any, key: OurKey) -> tuple[int, list[dict[str, Any]]]:
    rows = []
    for member, score in client.zrange(key.name, 0, ELEMENTS_MAX - 1, withscores=True):
        row: dict[str, Any] = {"member": _text(member), "score": int(score)}
        if key.kind.name in _TIMED_SCORES:
            row["time"] = format_timestamp(int(score))
        rows.append(row)
    return client.zcard(key.name), rows


def _stream(client: Any, key: OurKey) -> tuple[int, list[dict[str, Any]]]:
    client = server_of(client, key.name)
    client.set_response_callback("XREVRANGE", lambda reply, **_: reply)  # redis-py would keep one field of each name
    newest = client.execute_command("XREVRANGE", key.name, "+", "-", "COUNT", ELEMENTS_MAX)
    rows = []
    for entry_id, fields in reversed(newest):
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        row: dict[str, Any] = {"id": _string_of(entry_id)}
        if key.kind.name in ("log", "restored"):
            base = int(entry_id.split(b"-")[0])
            row |= {"writer": next((_string_of(v) for k, v in pairs if k == b"w"), None)}
            row["batches"] = _batches(base, (value for name, value in pairs if name == b"b"))
        else:
            row["fields"] = {_string_of(name): _timed(_string_of(name), _text(value)) for name, value in pairs}
        rows.append(row)
    return client.xlen(key.name), rows


def _batches(base: int, blobs: Iterable[bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for blob in blobs:
        try:
            batch = Batch.parse(blob)
        except (InvalidRecord, CorruptMessage) as error:
            found.append({"unreadable": str(error)})
            continue
        found.append(
            {
                "offsets": f"{base}-{base + batch.last_offset_delta}",
                "records": batch.record_count,
                "bytes": batch.size,
                "codec": batch.codec,
                "time": format_timestamp(batch.max_timestamp) if batch.max_timestamp >= 0 else None,
                "producer_id": batch.producer_id if batch.producer_id >= 0 else None,
                "control": batch.is_control,
            }
        )
        base += batch.last_offset_delta + 1
    return found


def _string(client: Any, key: OurKey) -> tuple[int, list[dict[str, Any]]]:
    return 1, [{"value": _text(client.get(key.name) or b"")}]


def _unknown(client: Any, key: OurKey) -> tuple[int, list[dict[str, Any]]]:
    return 0, []


# -- values


def _string_of(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _text(value: bytes) -> Any:
    text = _string_of(value)
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _timed(name: str, value: Any) -> Any:
    if name in _TIMES and isinstance(value, str) and value.isdigit() and len(value) == 13:
        return f"{value} ({format_timestamp(int(value))})"
    return value


def _assignment(value: bytes) -> Any:
    owned = assigned_partitions(value)
    return value.hex() if owned is None else owned


def _subscription(value: bytes) -> Any:
    """Parse uint16 length, protocol name, uint32 length, metadata."""
    found: dict[str, Any] = {}
    at = 0
    while at + 2 <= len(value):
        size = int.from_bytes(value[at : at + 2])
        name, at = value[at + 2 : at + 2 + size].decode("utf-8", "replace"), at + 2 + size
        size = int.from_bytes(value[at : at + 4])
        metadata, at = value[at + 4 : at + 4 + size], at + 4 + size
        topics = subscribed_topics(metadata)
        found[name] = metadata.hex() if topics is None else sorted(topics)
    return found


_VALUES: Final[Mapping[str, Callable[[bytes], Any]]] = {"assignments": _assignment, "subscriptions": _subscription}
