"""Metrics that clients push (KIP-714): who is asked for what, and the sums of what was pushed.

Subscriptions are configs of resources of kind client-metrics, the same at every broker; a subscription's id follows
from them and from the client, so that any broker takes a push of what another one asked for.

Labels are bounded: METRICS_MAX names of Kafka's metrics, and known client software. Values of all clients are added up.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import InvalidConfig, InvalidRequest
from tidegate.list_configs import appended, check_length, split_list, subtracted
from tidegate.regular_expressions import InvalidRegularExpression, compile_regex
from tidegate.telemetry.metrics_payload import Sums, add, label

INTERVAL: Final = "interval.ms"
METRICS: Final = "metrics"
MATCH: Final = "match"
INTERVAL_MS_DEFAULT: Final = 300_000
_INTERVAL_MS: Final = range(100, 3_600_001)
EVERYTHING: Final = "*"
ATTRIBUTES: Final = (
    "client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address",
    "client_source_port",
)  # fmt: skip
"""What a subscription may match, as regular expressions (`ClientMetricsConfigs.java`)."""
_PATTERN_LENGTH_MAX: Final = 200
_DIGITS_MAX: Final = 20
_SHOWN_MAX: Final = 100
"""Characters of a refused value in the error."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a client is asked for. `metrics` are prefixes of names; empty is nothing, `*` everything."""

    id: int
    metrics: tuple[str, ...]
    interval_ms: int


def check(name: str, value: str) -> str:
    """The text to store for a config of client metrics. Raises InvalidRequest, InvalidConfig."""
    check_length(value)
    match name:
        case "interval.ms":
            text = value.strip()  # it strips more than `int` does
            if not text.isdecimal() or len(text) > _DIGITS_MAX or int(text) not in _INTERVAL_MS:
                raise InvalidRequest(
                    f"{name} {value[:_SHOWN_MAX]!r} is not between {_INTERVAL_MS[0]} and {_INTERVAL_MS[-1]}"
                )
            return str(int(text))
        case "metrics":
            return ",".join(split_list(value))
        case "match":
            patterns_of(value)
            return ",".join(split_list(value))
        case _:
            raise InvalidRequest(f"unknown config of client metrics {name!r}")


def patterns_of(value: str) -> dict[str, Any]:
    """The compiled patterns of a `match` config by attribute. Raises InvalidConfig."""
    patterns = {}
    for one in split_list(value):
        attribute, equals, pattern = one.partition("=")
        if not equals or attribute not in ATTRIBUTES or len(pattern) > _PATTERN_LENGTH_MAX:
            raise InvalidConfig(f"{one!r} is not ATTRIBUTE=PATTERN of one of {', '.join(ATTRIBUTES)}")
        try:
            patterns[attribute] = compile_regex(pattern)
        except InvalidRegularExpression as error:
            raise InvalidConfig(f"{one!r}: {error}") from None
    return patterns


def subscription_of(configs: Iterable[Mapping[str, str]], client: Mapping[str, str]) -> Subscription:
    """What the client with these attributes is asked for: the union of the subscriptions that match it."""
    metrics: set[str] = set()
    intervals: list[int] = []
    for stored in configs:
        patterns = patterns_of(stored.get(MATCH, ""))
        if all(pattern.fullmatch(client.get(attribute, "")) for attribute, pattern in patterns.items()):
            metrics.update(split_list(stored.get(METRICS, "")))
            intervals.append(int(stored.get(INTERVAL, INTERVAL_MS_DEFAULT)))
    asked = (EVERYTHING,) if EVERYTHING in metrics else tuple(sorted(metrics))
    interval_ms = min(intervals, default=INTERVAL_MS_DEFAULT)
    text = f"{client['client_instance_id']} {interval_ms} {','.join(asked)}"
    return Subscription(zlib.crc32(text.encode()) & 0x7FFFFFFF, asked, interval_ms)


class ClientMetrics:
    """Sums of pushed values by metric and software. A mean is the sum divided by the count."""

    def __init__(self) -> None:
        self.pushes = 0
        self._names: set[str] = set()
        self._sums: Sums[tuple[str, ...]] = {}

    def add(self, pushed: Sums[str], software: str) -> None:
        """Add the sums of one push."""
        self.pushes += 1
        for name, (total, count) in pushed.items():
            labels = label(name, self._names), software
            self._names.add(labels[0])
            add(self._sums, labels, total, count)

    def sums(self) -> Mapping[tuple[str, ...], float]:
        """(metric, software) -> sum of the values."""
        return {labels: total for labels, (total, _) in self._sums.items()}

    def counts(self) -> Mapping[tuple[str, ...], float]:
        """(metric, software) -> number of values."""
        return {labels: count for labels, (_, count) in self._sums.items()}


Change = tuple[str, int, str | None]
"""Config, operation, value."""


def changes_of(stored: Mapping[str, str], changes: Sequence[Change]) -> tuple[dict[str, str], list[str]]:
    """The configs to set and to delete. Raises InvalidRequest, InvalidConfig."""
    changed: dict[str, str] = {}
    deleted: list[str] = []
    for name, operation, value in changes:
        if operation == _DELETE:
            check(name, str(_INTERVAL_MS[0]) if name == INTERVAL else "")
            deleted.append(name)
            continue
        if value is None:
            raise InvalidRequest(f"{name} has no value to set")
        if operation in (_APPEND, _SUBTRACT):
            if name == INTERVAL:
                raise InvalidConfig(f"{name} is not a list")
            value = (appended if operation == _APPEND else subtracted)(stored.get(name, ""), value)
        elif operation != _SET:
            raise InvalidRequest(f"there is no operation {operation}")
        changed[name] = check(name, value)
    return changed, deleted


_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
