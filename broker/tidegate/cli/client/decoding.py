"""Formats keys and values for people: JSON, text or hex."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.records.record import Record


class Decode(enum.StrEnum):
    """How bytes are shown; `auto` selects the first of JSON, text and hex that applies."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A key or value: `form` is `json`, `text`, `hex` or `null`; `value` is the JSON value, or a string."""

    form: str
    value: Any

    def __str__(self) -> str:
        if self.form == "json":
            return json.dumps(self.value, ensure_ascii=False, separators=(",", ":"))
        return "null" if self.form == "null" else str(self.value)


def decode(data: bytes | None, how: Decode) -> Decoded:
    """Never fails: bytes that are not JSON are shown as text, and bytes that are not UTF-8 as hex."""
    if data is None:
        return Decoded("null", None)
    if how is not Decode.HEX:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            pass
        else:
            if how is Decode.JSON or (how is Decode.AUTO and text[:1] in ("{", "[")):
                try:
                    return Decoded("json", json.loads(text))
                except ValueError:
                    pass
            if how is not Decode.AUTO or all(char.isprintable() or char in "\t\r\n" for char in text):
                return Decoded("text", text)
    return Decoded("hex", data.hex())


def as_row(topic: str, partition: int, record: Record, how: Decode) -> Mapping[str, Any]:
    """A record as JSON with stable field names."""
    key, value = decode(record.key, how), decode(record.value, how)
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": key.value,
        "key_form": key.form,
        "value": value.value,
        "value_form": value.form,
        "headers": [{"name": name, "value": str(decode(data, Decode.AUTO))} for name, data in record.headers],
    }
