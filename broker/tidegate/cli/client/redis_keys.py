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
_SHARE: Final = f"{_GROUP}:share:<topic id>:<p>"
_TX: Final = "{tx:<n>}:"
_TRANSACTION: Final = "{tx:<n>}:transaction:<org>:<transactional id>"
_PARTITION: Final = "{<org>/<topic>:<p>}:<topic id>:"

KINDS: Final = (
    Kind(
        "info", f"{_CLUSTER}info", "hash", "cluster id, layout version, failover epoch, settings that all brokers share"
    ),
    Kind("replids", f"{_CLUSTER}replids", "hash", "replication id of each primary so far -> its failover epoch"),
    Kind("brokers", f"{_CLUSTER}brokers", "hash", "node id -> addresses, rack, version and state of the broker"),
    Kind("leases", f"{_CLUSTER}leases", "zset", "node id -> when its lease was last renewed"),
    Kind("quotas", f"{_CLUSTER}quotas", "hash", "quotas of clients, by organisation, kind and entity"),
    Kind("quota-bucket", f"{_CLUSTER}quota-bucket:<org>/<quota>", "string", "tokens of a quota, leases of brokers"),
    Kind("org-connections", f"{_CLUSTER}org-connections", "hash", "process -> its connections of each organisation"),
    Kind("org-groups", f"{_CLUSTER}org-groups:<org>", "hash", "groups that count for the organisation's limit"),
    Kind("figures", f"{_CLUSTER}figures:<node id>", "string", "figures of a broker, for 20 s"),
    Kind("topics", f"{_CLUSTER}topics", "hash", "topic -> id, partitions, format, state"),
    Kind("topic-names", f"{_CLUSTER}topic-names", "hash", "name with . as _ -> the topic that has it"),
    Kind("topic-configs", f"{_CLUSTER}topic:<org>:<topic>", "hash", "configs of the topic that differ from defaults"),
    Kind("changed-logs", f"{_CLUSTER}changed-logs", "zset", "partitions that changed since the last lag samples"),
    Kind("changed-groups", f"{_CLUSTER}changed-groups", "zset", "groups that changed since the last lag samples"),
    Kind("compactions", f"{_CLUSTER}compactions", "hash", "partition -> state of its requested compaction"),
    Kind("upkeep", f"{_CLUSTER}upkeep", "zset", "partition -> when its retention is due"),
    Kind("producer-ids", f"{_CLUSTER}producer-ids", "string", "next producer id, replication id of its primary"),
    Kind("lag", f"{_CLUSTER}lag", "stream", "samples of every group's lag"),
    Kind("lag-sampler", f"{_CLUSTER}lag-sampler", "hash", "the broker that takes the samples, until when"),
    Kind("usage", f"{_CLUSTER}usage", "stream", "what each broker served, by topic and group"),
    Kind("audit", f"{_CLUSTER}audit", "stream", "changes by administrators, refused ones too"),
    Kind("audit-events", f"{_CLUSTER}audit-events", "stream", "security audit events, as OCSF"),
    Kind("acls", f"{_CLUSTER}acls", "hash", "access rules, with author and time"),
    Kind("users", f"{_CLUSTER}users", "hash", "name -> organisation and SCRAM credentials"),
    Kind("resource-configs", f"{_CLUSTER}resource-configs", "hash", "configs of brokers and client metrics"),
    Kind("proof", f"{_CLUSTER}proof", "string", "written before WAIT and WAITAOF; its value has no meaning"),
    Kind("probe", f"{_CLUSTER}probe", "string", "written and removed to check a user's rights"),
    Kind("proof-at", f"{_AT}proof", "string", "proof, at a node of Redis Cluster"),
    Kind("probe-at", f"{_AT}probe", "string", "probe, at a node of Redis Cluster"),
    Kind("groups", f"{_SHARD}groups", "hash", "groups of the shard -> type, state, protocol type"),
    Kind("deadlines", f"{_SHARD}deadlines", "zset", "kind|group -> its earliest deadline"),
    Kind("configured", f"{_SHARD}configured", "hash", "groups of the shard that have configs -> how many"),
    Kind(
        "ended-transactions", f"{_SHARD}ended-transactions", "zset", "producer id, group -> its last transaction's end"
    ),
    Kind("events", f"{_SHARD}events", "stream", "every transition of the shard's groups"),
    Kind("group", _GROUP, "hash", "the group: id, state, generation, leader, protocol, barriers"),
    Kind("members", f"{_GROUP}:members", "hash", "member id -> client id, host, timeouts, state in the rebalance"),
    Kind("subscriptions", f"{_GROUP}:subscriptions", "hash", "member id -> its protocols and their metadata"),
    Kind("assignments", f"{_GROUP}:assignments", "hash", "member id -> the partitions that the leader gave it"),
    Kind("protocols", f"{_GROUP}:protocols", "hash", "counts over the members"),
    Kind("instances", f"{_GROUP}:instances", "hash", "static instance id -> member id"),
    Kind("sessions", f"{_GROUP}:sessions", "zset", "member id -> when its session ends"),
    Kind("pending", f"{_GROUP}:pending", "hash", "member ids handed out and not yet used -> the client"),
    Kind("staged", f"{_GROUP}:staged", "hash", "producer id:topic:partition -> an offset in an open transaction"),
    Kind("offsets", f"{_GROUP}:offsets", "hash", "topic:partition -> the committed offset"),
    Kind("consumers", f"{_GROUP}:consumers", "hash", "member id of a KIP-848 group -> its record"),
    Kind("targets", f"{_GROUP}:targets", "hash", "member id -> its target assignment"),
    Kind("consumer-sessions", f"{_GROUP}:consumer-sessions", "zset", "member id -> end of its session"),
    Kind("revocations", f"{_GROUP}:revocations", "zset", "member id -> until when it must confirm a revocation"),
    Kind("configs", f"{_GROUP}:configs", "hash", "configs of the group"),
    Kind("dead-letters", f"{_GROUP}:dead-letters", "stream", "records that wait for the group's dead-letter topic"),
    Kind("shares", f"{_GROUP}:shares", "hash", "share-partitions of the share group -> topic name"),
    Kind("share", _SHARE, "hash", "a share-partition: end of its window, and the records in flight by first offset"),
    Kind("share-available", f"{_SHARE}:available", "zset", "first offsets of records that may be acquired"),
    Kind("share-acquired", f"{_SHARE}:acquired", "zset", "first offsets of records that a member has acquired"),
    Kind("share-locks", f"{_SHARE}:locks", "zset", "first offset of acquired records -> when the lock expires"),
    Kind("transaction-shards", f"{_CLUSTER}transaction-shards", "hash", "shards that have transactional ids"),
    Kind("transactions", f"{_TX}transactions", "hash", "transactional ids of the shard -> state, producer id, start"),
    Kind("transaction-deadlines", f"{_TX}deadlines", "zset", "transactional id -> when a broker must check it"),
    Kind("transaction", _TRANSACTION, "hash", "the transactional id: producer id, epoch, state, partitions, groups"),
    Kind("log", f"{_PARTITION}log", "stream", "the records: entry <base offset>-1 holds whole batches"),
    Kind("meta", f"{_PARTITION}meta", "hash", "log start, leader epochs, failover epoch, estimates of size"),
    Kind("times", f"{_PARTITION}times", "zset", "base offset -> largest timestamp up to it"),
    Kind("producers", f"{_PARTITION}producers", "hash", "producer id -> its state, at an offset"),
    Kind("owners", f"{_PARTITION}owners", "hash", "group -> the member that owns the partition"),
    Kind("acknowledged", f"{_PARTITION}acknowledged", "hash", "group -> the offset that it committed last"),
    Kind("records", "{<org>/<topic>:<p>}:records", "stream", "the log of format record: an entry is one record"),
    Kind("readers", f"{_PARTITION}readers", "hash", "format record: group -> the member that reads the partition"),
    Kind("writers", f"{_PARTITION}writers", "hash", "format record: writer -> its last append and the reply"),
    Kind("staged-records", f"{_PARTITION}staged", "hash", "format record: batches of open transactions"),
    Kind("segments", f"{_PARTITION}segments", "zset", "archived segments -> their last offset"),
    Kind("archive", f"{_PARTITION}archive", "hash", "start and end of the archive, its fence"),
    Kind("replayed", f"{_PARTITION}replayed", "hash", "job and source -> last source offset written here"),
    Kind("restored", f"{_PARTITION}restored", "stream", "the restored log, until it replaces the log"),
    Kind("compacted", f"{_PARTITION}compacted:<run>", "stream", "the compacted log, until it replaces the log"),
    Kind("translations", f"{_PARTITION}translations", "zset", "source offset -> offset in this log"),
)

_PLACES: Final = {
    "<org>": r"(?P<org>[a-z0-9-]{1,63})",
    "<group>": r"(?P<group>[^:]*)",
    "<transactional id>": r"(?P<transactional_id>[^:]*)",
    "<topic>": r"(?P<topic>[A-Za-z0-9._-]+)",
    "<topic id>": r"(?P<topic_id>[0-9a-f]{32})",
    "<node id>": r"(?P<node_id>\d+)",
    "<quota>": r"[a-z_]+/[^:]+",
    "<p>": r"(?P<partition>\d+)",
    "<number>": r"\d+",
    "<run>": r"[0-9a-f]{32}",
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
    transactional_id: str | None = None

    def of(self) -> Iterator[tuple[str, str]]:
        """Its parts, labelled for people."""
        for name in ("org", "group", "transactional_id", "topic", "partition", "topic_id", "shard"):
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
            transactional_id = parts.get("transactional_id")
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
                unquote(transactional_id) if transactional_id is not None else None,
            )
    return None
