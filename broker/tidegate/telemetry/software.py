"""Names of client software (KIP-511) as a closed set of labels; unknown names become `other`."""

from __future__ import annotations

from typing import Final

KNOWN: Final = (
    "apache-kafka-java",
    "librdkafka",
    "confluent-kafka-python",
    "confluent-kafka-go",
    "confluent-kafka-dotnet",
    "confluent-kafka-javascript",
    "node-rdkafka",
    "rdkafka-ruby",
    "kafka-python",
    "aiokafka",
    "kafkajs",
    "kgo",
    "sarama",
    "kafka-go",
    "rskafka",
    "tidegate",
)
"""`client.software.name` values of these libraries; `kgo` is franz-go."""


class Software:
    """Counters of one client library. Connections keep a reference to it, so counting a request is one addition."""

    __slots__ = ("connections", "name", "requests")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.connections = 0


UNKNOWN: Final = Software("unknown")
"""Clients that have not sent a name: before ApiVersions, or with ApiVersions below v3."""
_OTHER: Final = Software("other")
_BY_NAME: Final = {name: Software(name) for name in KNOWN}


def software_of(name: str) -> Software:
    """The counters of a client software name."""
    return _BY_NAME.get(name.lower(), _OTHER)


def every() -> list[Software]:
    """All counters in use, in order of name."""
    return sorted((*_BY_NAME.values(), _OTHER, UNKNOWN), key=lambda one: one.name)
