"""Which software clients say they are (KIP-511), as a closed set of labels: what is not known here is `other`."""

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
"""`client.software.name` as these libraries send it; `kgo` is franz-go."""


class Software:
    """What clients of one library did. Connections hold on to it: counting a request is one addition."""

    __slots__ = ("connections", "name", "requests")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.connections = 0


UNKNOWN: Final = Software("unknown")
"""Clients that did not say, or not yet: ApiVersions below version 3."""
_OTHER: Final = Software("other")
_BY_NAME: Final = {name: Software(name) for name in KNOWN}


def software_of(name: str) -> Software:
    """The counters for a name that a client sent."""
    return _BY_NAME.get(name.lower(), _OTHER)


def every() -> list[Software]:
    """All that any client was counted under, in order of name."""
    return sorted((*_BY_NAME.values(), _OTHER, UNKNOWN), key=lambda one: one.name)
