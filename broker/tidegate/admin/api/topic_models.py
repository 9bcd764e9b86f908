"""JSON models of topics and their producers. Null means unknown or absent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidegate.admin.api.endpoint import Model


class ListedTopic(Model):
    """A topic's line of a list; `bytes` and `batches` are what Redis holds, estimated to the second."""

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
    """One partition; below `local_start` only the archive has it. `leader` is whom clients are sent to."""

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
    """A config in force and where it comes from."""

    name: str
    value: str
    source: Literal["topic", "broker", "default"]
    type: str
    doc: str


class Reader(Model):
    """A group that subscribes to the topic or has committed for it."""

    group: str
    state: str
    subscribed: bool
    committed_partitions: int
    lag: int


class Topic(Model):
    """A topic in full."""

    topic: str
    id: str = Field(json_schema_extra={"format": "uuid"})
    partition_count: int
    bytes: int
    partitions: list[TopicPartition]
    configs: list[Config]
    groups: list[Reader]
    groups_not_asked: int


class Producer(Model):
    """An idempotent producer of one partition, as the log knows it."""

    producer_id: int
    epoch: int
    last_sequence: int | None
    last_base_offset: int | None
    last_timestamp_ms: int | None
    last_active_ms: int


class PartitionProducers(Model):
    """The producers of one partition that were seen last."""

    partition: int
    log_end: int
    producer_count: int
    producers: list[Producer]


class Producers(Model):
    """Who wrote to a topic with a producer id."""

    topic: str
    partition_count: int
    partitions: list[PartitionProducers]
    note: str
