"""Shapes that the error responses of many APIs have: an error at the top, at each partition, at each thing."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from tidegate.protocol.versions import Fields

NO_TIME: Final = i32Timedelta.parse(datetime.timedelta(0))
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NO_DATETIME: Final = EPOCH - datetime.timedelta(milliseconds=1)
"""A time that is written as -1."""


def at_top(**values: Any) -> Callable[[Any, ErrorCode], Any]:
    """A response with a top-level error code and empty arrays."""

    def build(request: Any, code: ErrorCode) -> Any:
        return Fields(throttle_time=NO_TIME, error_code=code, error_message=None, **values)

    return build


def per_partition(
    topics: str, partitions: str, index: str, answer: str, answer_index: str, results: str, **values: Any
) -> Callable[[Any, ErrorCode], Any]:
    """A response that repeats the error for every requested partition."""

    def build(request: Any, code: ErrorCode) -> Any:
        return Fields(
            throttle_time=NO_TIME,
            error_code=code,
            **{
                answer: tuple(
                    Fields(
                        topic,
                        **{
                            results: tuple(
                                Fields(None, error_code=code, **{answer_index: getattr(partition, index)}, **values)
                                for partition in getattr(topic, partitions)
                            )
                        },
                    )
                    for topic in getattr(request, topics)
                )
            },
        )

    return build


def each(field: str, results: str, answer: Callable[[Any], Any]) -> Callable[[Any, ErrorCode], Any]:
    """A response with one result for each thing in an array of the request."""

    def build(request: Any, code: ErrorCode) -> Any:
        found = tuple(Fields(answer(one), error_code=code, error_message=None) for one in getattr(request, field))
        return Fields(throttle_time=NO_TIME, **{results: found})

    return build


def as_named(one: Any) -> Any:
    """A result that repeats what the request says of the thing."""
    return one
