"""What a broker decodes of a push (KIP-714): it is bounded before the library parses it."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from tidegate.errors import InvalidRecord
from tidegate.protocol.primitives import uvarint
from tidegate.telemetry import metrics_payload
from tidegate.telemetry.client_metrics import ClientMetrics
from tidegate.telemetry.metrics_payload import FIELDS_MAX, METRICS_MAX, OTHER, TelemetryTooLarge, decode


def _field(number: int, content: bytes) -> bytes:
    return uvarint(number << 3 | 2) + uvarint(len(content)) + content


def _metric(content: bytes) -> bytes:
    return _field(1, _field(2, _field(2, content)))


_GAUGE, _SUM = 5, 7
BOMBS = {
    "resources": _field(1, b"") * (FIELDS_MAX + 1),
    "metrics": _field(1, _field(2, _field(2, b"") * FIELDS_MAX)),
    "gauge-points": _metric(_field(_GAUGE, _field(1, b"") * FIELDS_MAX)),
    "sum-points": _metric(_field(_SUM, _field(1, b"") * FIELDS_MAX)),
    "attributes": _metric(_field(_GAUGE, _field(1, _field(7, b"") * FIELDS_MAX))),
    "resource-array": _field(1, _field(1, _field(1, _field(2, _field(5, _field(1, b"") * FIELDS_MAX))))),
}


@pytest.mark.parametrize("payload", BOMBS.values(), ids=BOMBS)
def test_decode_many_fields_refused_before_parsing(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Decoder:
        DESCRIPTOR = MetricsData.DESCRIPTOR

        @staticmethod
        def FromString(data: bytes) -> Any:
            raise AssertionError(f"{len(data)} bytes are parsed")

    monkeypatch.setattr(metrics_payload, "load_decoder", lambda: Decoder)
    with pytest.raises(TelemetryTooLarge, match="fields"):
        decode(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff",
        b"\xff" * 11,
        b"\x0a\x05\x00",
        b"\x09\x00",
        b"\x0b\x0c",
        _metric(b"\x0a\x7f"),
        _field(1, b"\x12"),
        _metric(b"\x0a\x01\xff"),
    ],
)
def test_decode_malformed_refused(payload: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode(payload)


def test_decode_fields_of_all_kinds_are_counted() -> None:
    unknown = b"\xa0\x06\x01" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + _field(100, b"\xff")
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.sum.data_points.add(as_int=-(1 << 60), time_unix_nano=1 << 63).attributes.add(key="k")
    assert decode(data.SerializeToString() + unknown) == {"m": (-float(1 << 60), 1)}


def test_decode_consumer_of_many_partitions_is_summed_by_metric() -> None:
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    for partition in range(1000):
        for name in ("lag", "lag.avg", "lag.max", "lead", "lead.avg", "lead.min"):
            point = metrics.add(name=name).gauge.data_points.add(
                as_double=1.5, time_unix_nano=7, start_time_unix_nano=3
            )
            point.attributes.add(key="topic").value.string_value = "payments"
            point.attributes.add(key="partition").value.string_value = str(partition)
    sums = decode(data.SerializeToString())
    assert len(sums) == 6
    assert set(sums.values()) == {(1500.0, 1000)}


def test_decode_many_metrics_are_counted_together() -> None:
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    for number in range(METRICS_MAX + 10):
        metrics.add(name=f"m{number}").sum.data_points.add(as_int=2)
    metrics.add(name='"}\n').sum.data_points.add(as_int=2)
    sums = decode(data.SerializeToString())
    assert len(sums) == METRICS_MAX + 1
    assert sums[OTHER] == (22.0, 11)


def test_decode_values_not_finite_are_left_out() -> None:
    """The Java client's mean of no values is NaN."""
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    for value in (math.nan, 1.5, math.inf, -math.inf):
        metrics.add(name="latency").gauge.data_points.add(as_double=value)
    metrics.add(name="idle").gauge.data_points.add(as_double=math.nan)
    assert decode(data.SerializeToString()) == {"latency": (1.5, 1)}


def test_client_metrics_sums_stay_finite() -> None:
    data = MetricsData()
    points = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points
    points.add(as_double=sys.float_info.max)
    points.add(as_double=sys.float_info.max)
    metrics = ClientMetrics()
    for _ in range(2):
        metrics.add(decode(data.SerializeToString()), "librdkafka")
    assert metrics.sums() == {("m", "librdkafka"): sys.float_info.max}
    assert metrics.counts() == {("m", "librdkafka"): 1}
