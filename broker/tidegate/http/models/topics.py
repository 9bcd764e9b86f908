"""JSON models of topics and their producers. Null means unknown or absent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidegate.http.models.base import Model


class ListedTopic(Model):
    """A topic in a list; `bytes` and `batches` are estimates of its data in Redis."""

    topic: str
    id: str = Field(json_schema_extra={"format": "uuid"})
    partition_count: int
    bytes: int
    batches: int
    cleanup_policy: str
    retention_ms: int
    retention_bytes: int
    tiered: bool
    configs_set: int


class Topics(Model):
    """A page of topics, in order of name; `next` is the `after` of the next page."""

    topics: list[ListedTopic]
    next: str | None


class TopicPartition(Model):
    """One partition; records below `local_start` are only in the archive. `leader` is where clients are directed to."""

    partition: int
    leader: int | None
    leader_epoch: int | None
    log_start: int | None
    local_start: int | None
    high_watermark: int | None
    log_end: int | None
    stray_entry: str | None
    """Why appends are refused: the stream contains an entry that no broker wrote."""
    bytes: int
    batches: int


class Config(Model):
    """The effective value of a config and its source."""

    name: str
    value: str
    source: Literal["topic", "broker", "default"]
    type: str
    doc: str


class Reader(Model):
    """A group that subscribes to the topic or has committed for it; `lag` is null if it cannot be counted now."""

    group: str
    state: str
    subscribed: bool
    committed_partitions: int
    lag: int | None


class Topic(Model):
    """A topic with its partitions, configs and groups."""

    topic: str
    id: str = Field(json_schema_extra={"format": "uuid"})
    partition_count: int
    bytes: int
    partitions: list[TopicPartition]
    configs: list[Config]
    groups: list[Reader]
    groups_not_asked: int


class Producer(Model):
    """The state of a producer with an id in one partition; the start offset is that of its open transaction there."""

    producer_id: int
    epoch: int
    last_sequence: int | None
    last_base_offset: int | None
    last_timestamp_ms: int | None
    last_active_ms: int
    transaction_start_offset: int | None


class PartitionProducers(Model):
    """The most recently active producers of one partition."""

    partition: int
    log_end: int
    producer_count: int
    producers: list[Producer]


class Producers(Model):
    """Idempotent producers of a topic."""

    topic: str
    partition_count: int
    partitions: list[PartitionProducers]


class Transaction(Model):
    """A transactional id and the state of its last transaction."""

    transactional_id: str
    state: str
    producer_id: int
    started_ms: int | None


class Transactions(Model):
    """Transactional ids, those with a transaction in progress first; `total` counts those left out too."""

    transactions: list[Transaction]
    total: int
