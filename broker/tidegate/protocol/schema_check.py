"""Checks array lengths against the frame before the native reader allocates memory for them.

The check of each schema is compiled once to straight-line Python, as `dataclasses` does, because it is on the hot path;
it ends at the last array. The native reader finds all other errors of a body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from tidegate.protocol.primitives import STRING_BYTES_MAX, Buffer, DecodeError, read_uvarint, skip_tags
from tidegate.protocol.schema_walk import ELEMENTS_MAX, FEW_ELEMENTS_MAX, Kind, Plan, Step, plan_of

_MANY: Final = frozenset({2, 8, 9, 23, 47})
"""ListOffsets, OffsetCommit, OffsetFetch, OffsetForLeaderEpoch, OffsetDelete."""

STRIDE_MIN: Final = 4
"""From this many fixed-size elements on, their tag bytes are checked with one slice."""

Check = Callable[[Buffer, int, int], None]
"""(bytes, start of the body, end of the frame). Raises DecodeError."""


@cache
def array_check(entity: type[Any]) -> Check | None:
    """The check of a kio class; None when it has no arrays."""
    plan = plan_of(entity)  # type: ignore[arg-type]  # a class is hashable
    return _compiled(entity, plan, to_end=False) if plan.has_arrays else None


@cache
def whole_check(entity: type[Any]) -> Check | None:
    """The check of arrays and of every string, for bodies above `STRING_BYTES_MAX`; None where none can be longer.

    Kafka refuses longer strings in every version, but only an int16 length enforces it.
    """
    plan = plan_of(entity)  # type: ignore[arg-type]  # a class is hashable
    return _compiled(entity, plan, to_end=True) if entity.__flexible__ else None


def _compiled(entity: type[Any], plan: Plan, to_end: bool) -> Check:
    source = _Source()
    source.entity(plan, 2, 0, to_end)
    text = "\n".join(
        [
            "def check(d, p, end):",
            f"    left = {_elements_max(entity)}",
            "    try:",
            *source.lines,
            "    except (IndexError, StructError):",
            "        raise DecodeError('ends too early') from None",
        ]
    )
    names: dict[str, Any] = {
        "DecodeError": DecodeError,
        "StructError": struct.error,
        "int32": struct.Struct(">i").unpack_from,
        "refuse": _refuse,
        "skip_tags": skip_tags,
        "too_long": _too_long,
        "untagged": _untagged,
        "uvarint": read_uvarint,
    }
    exec(text, names)  # noqa: S102 - made from Kafka's schemas alone, at the first request of a version
    check: Check = names["check"]
    return check


def _elements_max(entity: type[Any]) -> int:
    return ELEMENTS_MAX if int(entity.__api_key__) in _MANY else FEW_ELEMENTS_MAX


def _refuse(count: int, left: int) -> None:
    if count < 0:
        raise DecodeError("null, or a negative length, where the schema has an array")
    raise DecodeError("too many array elements" if left < 0 else "an array longer than its frame")


def _too_long(length: int) -> None:
    raise DecodeError(f"a string of {length} bytes")


def _untagged(data: Buffer, position: int, count: int, size: int) -> bool:
    """Whether none of `count` elements of `size` bytes has tagged fields, that is, the last byte of each is 0."""
    return bytes(data[position + size - 1 : position + count * size : size]).count(0) == count


class _Source:
    """Generates a check's lines: `d` bytes, `p` position, `end` of frame, `left` element budget, `n<depth>` a count."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, indent: int, *lines: str) -> None:
        self.lines += ["    " * indent + line for line in lines]

    def entity(self, plan: Plan, indent: int, depth: int, to_end: bool) -> None:
        """Generate the steps of an entity; `to_end`: whether the position after it is needed."""
        for step in plan.steps:
            last = step is plan.last_array and not to_end
            self.step(step, indent, depth, to_end=not last)
            if last:
                return

    def step(self, step: Step, indent: int, depth: int, to_end: bool) -> None:
        match step.kind:
            case Kind.FIXED:
                self.add(indent, f"p += {step.size}")
            case Kind.COMPACT:
                self.add(
                    indent,
                    "n = d[p]",
                    "if n < 128: p += n or 1",
                    "else:",
                    "    n, p = uvarint(d, p, end)",
                    "    p += n - 1",
                )
                if step.type_name == "string":
                    self.add(indent, f"    if n > {STRING_BYTES_MAX + 1}: too_long(n - 1)")
            case Kind.SHORT:
                self.add(indent, "n = d[p] << 8 | d[p + 1]", "p += n + 2 if n < 32768 else 2")
            case Kind.LONG:
                self.add(indent, "n = int32(d, p)[0]", "p += n + 4 if n > 0 else 4")
            case Kind.TAGS:
                self.add(indent, "if d[p]:", "    left -= d[p]", "    p = skip_tags(d, p, end)", "else: p += 1")
            case Kind.ARRAY:
                self.array(step, indent, depth, to_end)
            case Kind.ENTITY:
                assert step.plan is not None
                if step.nullable:  # an int8 before it, negative for null
                    self.add(indent, "p += 1", "if d[p - 1] < 128:")
                    self.entity(step.plan, indent + 1, depth, to_end=True)
                else:
                    self.entity(step.plan, indent, depth, to_end)

    def array(self, step: Step, indent: int, depth: int, to_end: bool) -> None:
        count, size = f"n{depth}", step.element_size
        if step.compact:
            self.add(
                indent,
                f"{count} = d[p]",
                f"if {count} < 128: p += 1",
                f"else: {count}, p = uvarint(d, p, end)",
                f"{count} -= 1",
            )
        else:
            self.add(indent, f"{count} = int32(d, p)[0]", "p += 4")
        self.add(
            indent,
            f"left -= {count}",
            f"if {count} < {-1 if step.nullable else 0} or {count} * {size} > end - p or left < 0:",
            f"    refuse({count}, left)",
        )
        if step.plan is None:
            if to_end:
                self.primitives(step, indent, count, depth)
        elif to_end or step.plan.has_arrays:
            self.elements(step.plan, indent, count, depth, to_end)

    def primitives(self, step: Step, indent: int, count: str, depth: int) -> None:
        assert step.element is not None
        if step.element.kind is Kind.FIXED:
            self.add(indent, f"if {count} > 0: p += {count} * {step.element.size}")
        else:
            self.add(indent, f"for _ in range({count}):")
            self.step(step.element, indent + 1, depth + 1, to_end=True)

    def elements(self, plan: Plan, indent: int, count: str, depth: int, to_end: bool) -> None:
        tagged, size = plan.steps[-1].kind is Kind.TAGS, plan.flat_size
        if size and not tagged:
            self.add(indent, f"if {count} > 0: p += {count} * {size}")
            return
        if size:
            self.add(indent, f"if {count} >= {STRIDE_MIN} and untagged(d, p, {count}, {size}): p += {count} * {size}")
        elif not to_end:  # usually one element: nothing behind its last array matters
            self.add(indent, f"if {count} == 1:")
            self.entity(plan, indent + 1, depth + 1, to_end=False)
        else:
            self.add(indent, "if False: pass")
        self.add(indent, "else:", f"    for _ in range({count}):")
        self.entity(plan, indent + 2, depth + 1, to_end=True)
