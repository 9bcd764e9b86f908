"""Walks a request's bytes by its schema, to find what the native reader rejects and the protocol allows.

These are unknown tagged fields, durations beyond Python's range, negative times, booleans other than 0 and 1, and
strings that are not UTF-8.
`Plan.rewrite` returns an equivalent body without them; a negative time, which stands for none, becomes 0.
`schema_check.py` uses the same plans.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

from tidegate.protocol.primitives import TAGS_MAX, Buffer, DecodeError, read_uvarint, replaced, uvarint

DURATION_MS_MAX: Final = 9_000_000_000_000_000 // 1000
"""Maximum duration passed to the reader, ms (285 years); longer ones are clamped."""

ELEMENTS_MAX: Final = 1 << 17
"""Maximum array elements and tagged fields per request, nested ones included: each costs more memory than its bytes.

Clients send up to one per partition in OffsetCommit and ListOffsets.
"""

FEW_ELEMENTS_MAX: Final = 1 << 15
"""The same limit for APIs with fewer elements: topics, groups, members, and fetched partitions."""


class Kind(enum.IntEnum):
    """How a step determines the end of its field."""

    FIXED = 0
    COMPACT = 1
    """Unsigned varint of length + 1, then that many bytes; 0 is null."""
    SHORT = 2
    """int16 length, then that many bytes; -1 is null."""
    LONG = 3
    """int32 length, then that many bytes; -1 is null."""
    ARRAY = 4
    ENTITY = 5
    TAGS = 6


_SIZES: Final = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One field, or several consecutive fixed-size ones. `size` is its minimum size, bytes."""

    kind: Kind
    size: int
    type_name: str = ""
    plan: Plan | None = None
    """Plan of an array's element if it is an entity; None for an array of primitives (then `element`)."""
    element: Step | None = None
    compact: bool = False
    nullable: bool = False
    tags: dict[int, Step] | None = None

    @property
    def element_size(self) -> int:
        """Minimum size of an array's element, bytes."""
        if self.plan is not None:
            return self.plan.size
        assert self.element is not None
        return self.element.size


class _Body(bytearray):
    """The rewritten body, and its remaining budget of tagged fields."""

    tags_left = ELEMENTS_MAX


class Plan:
    """The steps of one entity."""

    __slots__ = ("fields", "flat_size", "has_arrays", "last_array", "size", "steps")

    def __init__(self, steps: Sequence[Step]) -> None:
        self.fields = tuple(steps)
        self.steps = _merge_fixed(self.fields)
        self.size = sum(step.size for step in steps)
        holding = [step for step in self.steps if _holds_array(step)]
        self.has_arrays = bool(holding)
        self.last_array = holding[-1] if holding else None
        kinds = [step.kind for step in self.steps]
        self.flat_size = self.size if kinds in ([Kind.FIXED], [Kind.FIXED, Kind.TAGS]) else 0
        """Size of an element with fixed-size fields only, including its tag byte; 0 otherwise."""

    def rewrite(self, data: Buffer, position: int, end: int) -> bytes:
        """An equivalent body that the native reader accepts. Raises DecodeError."""
        out = _Body()
        try:
            position = self._rewrite(data, position, end, out)
        except IndexError:
            raise DecodeError("ends too early") from None
        if position > end:
            raise DecodeError("ends too early")
        out += data[position:end]
        return bytes(out)

    def _rewrite(self, data: Buffer, position: int, end: int, out: _Body) -> int:
        for step in self.fields:
            position = _rewrite_step(step, data, position, end, out)
        return position


def _merge_fixed(steps: Sequence[Step]) -> tuple[Step, ...]:
    merged: list[Step] = []
    for step in steps:
        if step.kind is Kind.FIXED and merged and merged[-1].kind is Kind.FIXED:
            merged[-1] = Step(Kind.FIXED, merged[-1].size + step.size)
        else:
            merged.append(step)
    return tuple(merged)


def _holds_array(step: Step) -> bool:
    if step.kind is Kind.ARRAY:
        return True
    return step.plan is not None and step.plan.has_arrays


def _read_length(step: Step, data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Decode the length of an array or string, -1 for null; returns it and the next position."""
    if step.kind is Kind.SHORT:
        length = int.from_bytes(data[position : position + 2], "big", signed=True)
        position += 2
    elif step.compact or step.kind is Kind.COMPACT:
        length, position = read_uvarint(data, position, end)
        length -= 1
    else:
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
    if position > end:
        raise DecodeError("ends too early")
    if length < -1:
        raise DecodeError("a negative length")
    if length < 0 and not step.nullable:
        raise DecodeError("null where the schema has none")
    return length, position


def _rewrite_step(step: Step, data: Buffer, position: int, end: int, out: _Body) -> int:
    start = position
    if step.kind is Kind.FIXED:
        position += step.size
        out += _fixed(step.type_name, data[start:position])
    elif step.kind is Kind.TAGS:
        return _rewrite_tags(step, data, position, end, out)
    elif step.kind is Kind.ENTITY:
        assert step.plan is not None
        if step.nullable:
            out += data[position : position + 1]
            position += 1
            if data[position - 1] == 0xFF:
                return position
        return step.plan._rewrite(data, position, end, out)
    else:
        length, position = _read_length(step, data, position, end)
        if step.kind is Kind.ARRAY:
            out += data[start:position]
            for _ in range(length):
                if step.plan is not None:
                    position = step.plan._rewrite(data, position, end, out)
                else:
                    assert step.element is not None
                    position = _rewrite_step(step.element, data, position, end, out)
        else:
            value, position = position, position + max(length, 0)
            out += data[start:position] if length < 1 else _bytes(step, data[start:value], data[value:position])
    if position > end:
        raise DecodeError("ends too early")
    return position


def _bytes(step: Step, length: Buffer, raw: Buffer) -> bytes:
    """A string or bytes with their length; strings as UTF-8, with U+FFFD for what is none, as Kafka reads them."""
    if step.type_name != "string":
        return bytes(length) + bytes(raw)
    text = replaced(raw).encode()
    if step.kind is Kind.COMPACT:
        return uvarint(len(text) + 1) + text
    return len(text).to_bytes(2, "big") + text


def _fixed(type_name: str, value: Buffer) -> bytes:
    if type_name == "bool":
        return b"\0" if value[0] == 0 else b"\1"
    if type_name == "timedelta_i64":
        ms = int.from_bytes(value, "big", signed=True)
        return max(-DURATION_MS_MAX, min(ms, DURATION_MS_MAX)).to_bytes(8, "big", signed=True)
    if type_name == "datetime_i64" and value[0] & 0x80:
        return bytes(8)  # negative: no time
    return bytes(value)


def _rewrite_tags(step: Step, data: Buffer, position: int, end: int, out: _Body) -> int:
    count, position = read_uvarint(data, position, end)
    out.tags_left -= count
    if count > TAGS_MAX or out.tags_left < 0:
        raise DecodeError("too many tagged fields")
    known: list[bytes] = []
    for _ in range(count):
        tag, position = read_uvarint(data, position, end)
        size, position = read_uvarint(data, position, end)
        if position + size > end:
            raise DecodeError("a tagged field that ends beyond its frame")
        tagged = (step.tags or {}).get(tag)
        if tagged is not None:
            value = _Body()
            _rewrite_step(tagged, data, position, position + size, value)
            known.append(uvarint(tag) + uvarint(len(value)) + value)
        position += size
    out += uvarint(len(known))
    for field in known:
        out += field
    return position


def _primitive(type_name: str, flexible: bool, nullable: bool) -> Step:
    if type_name in _SIZES:
        return Step(Kind.FIXED, _SIZES[type_name], type_name)
    if flexible:
        return Step(Kind.COMPACT, 1, type_name, nullable=nullable)
    if type_name == "string":
        return Step(Kind.SHORT, 2, type_name, nullable=nullable)
    return Step(Kind.LONG, 4, type_name, nullable=nullable)


def _step(field: Any, flexible: bool) -> Step:
    nullable = is_optional(field)
    found = classify_field(field)
    length_size = 1 if flexible else 4
    match found:
        case EntityTupleField(inner):
            return Step(Kind.ARRAY, length_size, plan=plan_of(inner), compact=flexible, nullable=nullable)
        case PrimitiveTupleField():
            element = _primitive(get_schema_field_type(field), flexible, False)
            return Step(Kind.ARRAY, length_size, element=element, compact=flexible, nullable=nullable)
        case EntityField(inner):
            plan = plan_of(inner)
            if get_field_tag(field) is not None:
                nullable = False
            return Step(Kind.ENTITY, 1 if nullable else plan.size, plan=plan, nullable=nullable)
        case _:
            return _primitive(get_schema_field_type(field), flexible, nullable)


@cache
def plan_of(entity: type[Any]) -> Plan:
    """The plan of a kio class."""
    flexible: bool = entity.__flexible__
    steps = [_step(field, flexible) for field in fields(entity) if get_field_tag(field) is None]
    if flexible:
        tagged = {int(tag): _step(field, True) for field in fields(entity) if (tag := get_field_tag(field)) is not None}
        assert not any(_holds_array(step) for step in tagged.values()), f"{entity}: arrays in tagged fields"
        steps.append(Step(Kind.TAGS, 1, tags=tagged))
    return Plan(steps)
