"""The error codes of a response."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from kio.schema.errors import ErrorCode


def codes_in(value: Any) -> Iterator[ErrorCode]:
    """All of them, at any depth."""
    if isinstance(value, ErrorCode):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from codes_in(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from codes_in(getattr(value, field.name))
