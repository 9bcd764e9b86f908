"""The payload of a push (KIP-714, OpenTelemetry MetricsData v1): one sum per metric.

The library parses a message under the interpreter lock, and an empty message of two bytes becomes an object. The fields
are therefore counted before it parses them.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from tidegate.errors import InvalidRecord, KafkaError
from tidegate.startup import CannotStart

PUSHED_BYTES_MAX: Final = 1 << 20
"""Of one push, compressed (Kafka's telemetry.max.bytes)."""
DECODED_BYTES_MAX: Final = 8 << 20
FIELDS_MAX: Final = 100_000
"""Protobuf fields of one push, parsed in about 20 ms; the gauges of 1,000 partitions have 90,000."""
METRICS_MAX: Final = 500
"""Metrics that are counted one by one, in a push and in a broker; the rest are `other`."""
OTHER: Final = "other"
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,120}")
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf; groups (3 and 4) are in no message of OpenTelemetry."""
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}

K = TypeVar("K")
Sums: TypeAlias = dict[K, tuple[float, int]]
"""The sum and the number of the values by metric."""


class TelemetryTooLarge(KafkaError):
    """Client metrics above the limits of bytes or fields (KIP-714)."""

    code = ErrorCode.telemetry_too_large


def load_decoder() -> Any:
    """The class of a push's payload. Raises CannotStart if the library is not installed."""
    try:
        from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
    except ImportError as error:
        needs = "TIDEGATE_CLIENT_METRICS_ENABLED needs pip install tidegate[client-metrics]"
        raise CannotStart(f"{needs}: {error}") from None
    return MetricsData


def decode(payload: bytes | memoryview) -> Sums[str]:
    """The sums of at most METRICS_MAX metrics, and of OTHER. Raises InvalidRecord, TelemetryTooLarge."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    decoder, data = load_decoder(), bytes(payload)
    check_fields(data, decoder.DESCRIPTOR)
    try:
        return _sums(decoder.FromString(data))
    except DecodeError as error:
        raise InvalidRecord(f"no metrics of OpenTelemetry: {error}") from None


def _sums(data: Any) -> Sums[str]:
    sums: Sums[str] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                name = label(metric.name, sums)
                for point in metric.gauge.data_points or metric.sum.data_points:
                    add(sums, name, _number(point), 1)
    return sums


def add(sums: Sums[K], key: K, value: float, count: int) -> None:
    """Add a value; one that is not finite, or makes the sum so, is left out: it would stay in the sum for ever.

    The mean of no values is NaN in Java clients.
    """
    total, counted = sums.get(key, (0.0, 0))
    if math.isfinite(total + value):
        sums[key] = total + value, counted + count


def _number(point: Any) -> float:
    return float(point.as_int if point.HasField("as_int") else point.as_double)


def label(name: str, counted: Any) -> str:
    """The name by which a metric is counted beside those of the collection `counted`."""
    if name in counted or (len(counted) < METRICS_MAX and _NAME.fullmatch(name) is not None):
        return name
    return OTHER


def check_fields(data: bytes, descriptor: Any) -> None:
    """Count the fields of an encoded message and of those in it. Raises InvalidRecord, TelemetryTooLarge."""
    count, messages = 0, [(0, len(data), descriptor)]
    while messages:
        position, end, message = messages.pop()
        fields = message.fields_by_number
        while position < end:
            count += 1
            if count > FIELDS_MAX:
                raise TelemetryTooLarge(f"the metrics have more than {FIELDS_MAX} fields")
            tag, position = _varint(data, position, end)
            start, position = _value(data, position, end, tag & 7)
            if tag & 7 == _LENGTH_DELIMITED and (field := fields.get(tag >> 3)) is not None and field.message_type:
                messages.append((start, position, field.message_type))


def _value(data: bytes, position: int, end: int, wire_type: int) -> tuple[int, int]:
    """Where a field's content starts and ends."""
    if wire_type == _VARINT:
        return position, _varint(data, position, end)[1]
    if wire_type == _LENGTH_DELIMITED:
        length, start = _varint(data, position, end)
    elif wire_type in _FIXED_BYTES:
        length, start = _FIXED_BYTES[wire_type], position
    else:
        raise InvalidRecord(f"no metrics of OpenTelemetry: a field of wire type {wire_type}")
    if start + length > end:
        raise InvalidRecord("no metrics of OpenTelemetry: a field is cut")
    return start, start + length


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """An unsigned varint of at most ten bytes, and the next position."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise InvalidRecord("no metrics of OpenTelemetry: a varint does not end")
