"""Classifies key names: kind, organisation, topic or group, and content (docs/redis-layout.md has the full layout)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of key: the pattern of its name below the prefix, its type, its content."""

    name: str
    form: str
    type: str
    holds: str


_CLUSTER: Final = "{cluster}:"
_AT: Final = "{at:<number>}:"
_SHARD: Final = "{co:<n>}:"
_GROUP: Final = "{co:<n>}:group:<org>:<group>"
_PARTITION: Final = "{<org>/<topic>:<p>}:<topic id>:"

KINDS: Final = (
    Kind("info", f"{_CLUSTER}info", "hash", "cluster id, layout, incarnation, what every broker must agree on"),
    Kind("replids", f"{_CLUSTER}replids", "hash", "replication id of each primary that was seen -> its incarnation"),
    Kind("brokers", f"{_CLUSTER}brokers", "hash", "node id -> what the broker says of itself"),
    Kind("leases", f"{_CLUSTER}leases", "zset", "node id -> when its lease was last renewed"),
    Kind("figures", f"{_CLUSTER}figures:<node id>", "string", "what a broker measures of itself, for 20 s"),
    Kind("topics", f"{_CLUSTER}topics", "hash", "topic -> id, partitions, format, state"),
    Kind("topic-names", f"{_CLUSTER}topic-names", "hash", "name with . as _ -> the topic that has it"),
    Kind("topic-configs", f"{_CLUSTER}topic:<org>:<topic>", "hash", "configs of the topic that differ from defaults"),
    Kind("upkeep", f"{_CLUSTER}upkeep", "zset", "partition -> when its retention is due"),
    Kind("producer-ids", f"{_CLUSTER}producer-ids", "string", "next producer id, replication id of who counted"),
    Kind("lag", f"{_CLUSTER}lag", "stream", "samples of every group's lag"),
    Kind("lag-sampler", f"{_CLUSTER}lag-sampler", "hash", "which broker takes them, until when"),
    Kind("usage", f"{_CLUSTER}usage", "stream", "what each broker served, by topic and group"),
    Kind("audit", f"{_CLUSTER}audit", "stream", "what administrators changed, or tried to"),
    Kind("proof", f"{_CLUSTER}proof", "string", "written ahead of WAIT and WAITAOF; means nothing"),
    Kind("probe", f"{_CLUSTER}probe", "string", "written and removed to try a user's rights"),
    Kind("proof-at", f"{_AT}proof", "string", "proof, at a node of Redis Cluster"),
    Kind("probe-at", f"{_AT}probe", "string", "probe, at a node of Redis Cluster"),
    Kind("groups", f"{_SHARD}groups", "hash", "groups of the shard -> type, state, protocol type"),
    Kind("deadlines", f"{_SHARD}deadlines", "zset", "kind|group -> its earliest deadline"),
    Kind("events", f"{_SHARD}events", "stream", "every transition of the shard's groups"),
    Kind("group", _GROUP, "hash", "the group: id, state, generation, leader, protocol, barriers"),
    Kind("members", f"{_GROUP}:members", "hash", "member id -> who it is, its timeouts, its place in the round"),
    Kind("subscriptions", f"{_GROUP}:subscriptions", "hash", "member id -> its protocols and their metadata"),
    Kind("assignments", f"{_GROUP}:assignments", "hash", "member id -> the partitions that the leader gave it"),
    Kind("protocols", f"{_GROUP}:protocols", "hash", "tallies over the members"),
    Kind("instances", f"{_GROUP}:instances", "hash", "static instance id -> member id"),
    Kind("sessions", f"{_GROUP}:sessions", "zset", "member id -> when its session ends"),
    Kind("pending", f"{_GROUP}:pending", "hash", "ids handed out and not yet used -> who asked"),
    Kind("offsets", f"{_GROUP}:offsets", "hash", "topic:partition -> the committed offset"),
    Kind("log", f"{_PARTITION}log", "stream", "the records: entry <base offset>-1 holds whole batches"),
    Kind("meta", f"{_PARTITION}meta", "hash", "log start, leader epochs, incarnation, estimates of size"),
    Kind("times", f"{_PARTITION}times", "zset", "base offset -> largest timestamp up to it"),
    Kind("producers", f"{_PARTITION}producers", "hash", "producer id -> its state, at an offset"),
    Kind("owners", f"{_PARTITION}owners", "hash", "group -> the member that owns the partition"),
    Kind("acknowledged", f"{_PARTITION}acknowledged", "hash", "group -> the offset that it committed last"),
    Kind("segments", f"{_PARTITION}segments", "zset", "archived segments -> their last offset"),
    Kind("archive", f"{_PARTITION}archive", "hash", "start and end of the archive, its fence"),
    Kind("replayed", f"{_PARTITION}replayed", "hash", "job and source -> last source offset written here"),
    Kind("restored", f"{_PARTITION}restored", "stream", "what will take the log's place"),
    Kind("translations", f"{_PARTITION}translations", "zset", "which source offsets stand where here"),
)

_PLACES: Final = {
    "<org>": r"(?P<org>[a-z0-9-]{1,63})",
    "<group>": r"(?P<group>[^:]*)",
    "<topic>": r"(?P<topic>[A-Za-z0-9._-]+)",
    "<topic id>": r"(?P<topic_id>[0-9a-f]{32})",
    "<node id>": r"(?P<node_id>\d+)",
    "<p>": r"(?P<partition>\d+)",
    "<number>": r"\d+",
    "<n>": r"(?P<shard>\d+)",
}


def _pattern(form: str) -> re.Pattern[str]:
    text = re.escape(form)
    for place, pattern in _PLACES.items():
        text = text.replace(re.escape(place), pattern)
    return re.compile(text)


_PATTERNS: Final = [(_pattern(kind.form), kind) for kind in KINDS]


@dataclass(frozen=True, slots=True)
class OurKey:
    """A classified key: its kind and owner; parts that its kind lacks are None."""

    name: str
    kind: Kind
    org: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    topic_id: str | None = None
    shard: int | None = None

    def of(self) -> Iterator[tuple[str, str]]:
        """Its parts, labelled for people."""
        for name in ("org", "group", "topic", "partition", "topic_id", "shard"):
            value = getattr(self, name)
            if value is not None:
                yield name.replace("_", " "), str(value)


def classify(name: str, prefix: str) -> OurKey | None:
    """Classify a key; None for a foreign key or an unknown kind."""
    if not name.startswith(f"{prefix}:"):
        return None
    rest = name[len(prefix) + 1 :]
    for pattern, kind in _PATTERNS:
        if found := pattern.fullmatch(rest):
            parts = found.groupdict()
            group = parts.get("group")
            partition, shard = parts.get("partition"), parts.get("shard")
            return OurKey(
                name,
                kind,
                parts.get("org"),
                unquote(group) if group is not None else None,
                parts.get("topic"),
                int(partition) if partition else None,
                parts.get("topic_id"),
                int(shard) if shard else None,
            )
    return None
