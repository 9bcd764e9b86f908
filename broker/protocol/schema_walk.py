"""A walk over a request's bytes by its schema, before and beside the native reader.

Two things that reader does not do. It reserves room for as many elements as an array's length claims
(five bytes of input can ask for gigabytes and end the process), and reads a null array where the schema
has none: `Plan.check` refuses both. And it refuses tagged fields that it does not know, durations beyond
Python's and booleans other than 0 and 1, all of which the protocol allows: `Plan.rewrite` gives an equal
body without them.
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

ELEMENTS_MAX: Final = 2_000_000
"""Most array elements of one request, nested ones included: they cost far more memory than bytes."""

DURATION_MS_MAX: Final = 9_000_000_000_000_000 // 1000
"""Longest duration that is handed to the reader, ms (285 years); longer ones mean the same."""

Buffer = bytes | memoryview


class DecodeError(Exception):
    """Bytes that are not the request that they claim to be. The connection closes."""


class Kind(enum.IntEnum):
    """How a step finds its end."""

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
    """One field, or several fixed ones in a row. `size` is the least number of bytes it takes."""

    kind: Kind
    size: int
    type_name: str = ""
    plan: Plan | None = None
    """Of an array's element, an entity, or None for an array of primitives (then `element`)."""
    element: Step | None = None
    compact: bool = False
    nullable: bool = False
    tags: dict[int, Step] | None = None


def read_uvarint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes and the position behind it. Raises DecodeError."""
    value = shift = 0
    while True:
        if position >= end or shift > 28:
            raise DecodeError("a varint that does not end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def write_uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(data: Buffer, position: int, end: int) -> int:
    """The position behind a section of tagged fields, whatever they are. Raises DecodeError."""
    count, position = read_uvarint(data, position, end)
    for _ in range(count):
        _, position = read_uvarint(data, position, end)
        size, position = read_uvarint(data, position, end)
        position += size
        if position > end:
            raise DecodeError("a tagged field that ends beyond its frame")
    return position


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
        """Size of an element of fixed fields, its tag byte included; 0 for others."""

    def check(self, data: Buffer, position: int, end: int) -> None:
        """Refuse array lengths that the rest of the frame cannot hold, and nulls. Raises DecodeError."""
        try:
            self._check(data, position, end, [ELEMENTS_MAX], False)
        except IndexError:
            raise DecodeError("ends too early") from None

    def _check(self, data: Buffer, position: int, end: int, budget: list[int], to_end: bool) -> int:
        """`to_end`: whether the caller needs the position behind the entity."""
        for step in self.steps:
            kind = step.kind
            if kind is Kind.FIXED:
                position += step.size
            elif kind is Kind.COMPACT:
                size = data[position]
                if size < 0x80:
                    position += size or 1
                else:
                    size, position = read_uvarint(data, position, end)
                    position += size - 1
            elif kind is Kind.SHORT:
                size = data[position] << 8 | data[position + 1]
                position += 2 + size if size < 0x8000 else 2
            elif kind is Kind.ARRAY:
                if step is self.last_array and not to_end:
                    return _check_array(step, data, position, end, budget, False)
                position = _check_array(step, data, position, end, budget, True)
            elif kind is Kind.TAGS:
                position = position + 1 if data[position] == 0 else skip_tags(data, position, end)
            else:
                position = _skip_rare(step, data, position, end, budget)
        return position

    def rewrite(self, data: Buffer, position: int, end: int) -> bytes:
        """An equal body that the native reader takes. Raises DecodeError."""
        out = bytearray()
        try:
            position = self._rewrite(data, position, end, out)
        except IndexError:
            raise DecodeError("ends too early") from None
        if position > end:
            raise DecodeError("ends too early")
        out += data[position:end]
        return bytes(out)

    def _rewrite(self, data: Buffer, position: int, end: int, out: bytearray) -> int:
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
    """An array's or a text's length, -1 for null, and the position behind it."""
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


def _check_array(step: Step, data: Buffer, position: int, end: int, budget: list[int], to_end: bool) -> int:
    count, position = _read_length(step, data, position, end)
    if count <= 0:
        return position
    plan = step.plan
    element_size = plan.size if plan is not None else _element_size(step)
    if count * element_size > end - position:
        raise DecodeError("an array longer than its frame")
    budget[0] -= count
    if budget[0] < 0:
        raise DecodeError(f"more than {ELEMENTS_MAX} array elements")
    if plan is None:
        return _skip_primitives(step, count, data, position, end) if to_end else position
    if not plan.has_arrays:
        if not to_end:
            return position
        size = plan.flat_size
        if size and (plan.steps[-1].kind is not Kind.TAGS or _all_zero(data, position + size - 1, count, size)):
            return position + count * size
    for index in range(count):
        position = plan._check(data, position, end, budget, to_end or index + 1 < count)
    return position


def _element_size(step: Step) -> int:
    assert step.element is not None
    return step.element.size


def _all_zero(data: Buffer, start: int, count: int, stride: int) -> bool:
    return bytes(data[start : start + count * stride : stride]).count(0) == count


def _skip_primitives(step: Step, count: int, data: Buffer, position: int, end: int) -> int:
    element = step.element
    assert element is not None
    if element.kind is Kind.FIXED:
        return position + count * element.size
    for _ in range(count):
        size, position = _read_length(element, data, position, end)
        position += max(size, 0)
    return position


def _skip_rare(step: Step, data: Buffer, position: int, end: int, budget: list[int]) -> int:
    """Behind a long byte string or an entity."""
    if step.kind is Kind.LONG:
        size, position = _read_length(step, data, position, end)
        return position + max(size, 0)
    assert step.kind is Kind.ENTITY and step.plan is not None
    if step.nullable:
        position += 1
        if data[position - 1] == 0xFF:
            return position
    return step.plan._check(data, position, end, budget, True)


def _rewrite_step(step: Step, data: Buffer, position: int, end: int, out: bytearray) -> int:
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
            position += max(length, 0)
            out += data[start:position]
    if position > end:
        raise DecodeError("ends too early")
    return position


def _fixed(type_name: str, value: Buffer) -> bytes:
    if type_name == "bool":
        return b"\0" if value[0] == 0 else b"\1"
    if type_name == "timedelta_i64":
        ms = int.from_bytes(value, "big", signed=True)
        return max(-DURATION_MS_MAX, min(ms, DURATION_MS_MAX)).to_bytes(8, "big", signed=True)
    return bytes(value)


def _rewrite_tags(step: Step, data: Buffer, position: int, end: int, out: bytearray) -> int:
    count, position = read_uvarint(data, position, end)
    known: list[bytes] = []
    for _ in range(count):
        tag, position = read_uvarint(data, position, end)
        size, position = read_uvarint(data, position, end)
        if position + size > end:
            raise DecodeError("a tagged field that ends beyond its frame")
        tagged = (step.tags or {}).get(tag)
        if tagged is not None:
            value = bytearray()
            _rewrite_step(tagged, data, position, position + size, value)
            known.append(write_uvarint(tag) + write_uvarint(len(value)) + value)
        position += size
    out += write_uvarint(len(known))
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
