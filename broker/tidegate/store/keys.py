"""Every key name, with its type and hash tag (docs/redis-layout.md describes each).

The keys of one hash tag can be changed atomically by one script: `{cluster}`, `{co:<shard>}`,
`{<org>/<topic>:<partition>}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote

_MIN_INT: Final = -(1 << 31)
CACHED_NAME_LENGTH_MAX: Final = 256
"""Longest group name whose derived keys are cached: a name of 32 kB would take 1 MB."""


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode` over UTF-16 units: what Kafka's `__consumer_offsets` partitioner uses."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def shard_of(group_id: str, shards: int) -> int:
    """Kafka's rule: |hashCode| mod shards, with the minimum integer taken as 0."""
    value = java_string_hash(group_id)
    return (0 if value == _MIN_INT else abs(value)) % shards


def encode_free_text(text: str) -> str:
    """Percent-encode free text (group ids, transactional ids) for a key name."""
    return quote(text, safe="")


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """Keys of the whole cluster, all in slot `{cluster}`."""

    prefix: str
    info: str = field(
        init=False
    )  # hash: cluster id, layout version, failover epoch, master_replid, settings all must share
    replids: str = field(init=False)  # hash: master_replid of each primary -> its failover epoch
    brokers: str = field(init=False)  # hash: node id -> JSON of process, listeners, rack, version, state
    leases: str = field(init=False)  # zset: node id -> time of the last lease renewal, Redis ms
    topics: str = field(init=False)  # hash: <org>/<topic> -> JSON of id, partitions, wanted, format, state, config
    topic_names: str = field(init=False)  # hash: <org>/<topic with . as _> -> the topic that has this name
    topic_changes: str = field(init=False)  # pub/sub channel: <version> <org>/<topic>
    upkeep: str = field(init=False)  # zset: due retention work, score = Redis ms
    producer_ids: str = field(init=False)  # string: <next producer id> <replication id of the last server>
    lag: str = field(init=False)  # stream: samples of every group's lag
    lag_sampler: str = field(init=False)  # hash: the broker that takes the samples, and the end of its lease
    usage: str = field(init=False)  # stream: usage of each broker, by topic
    proof: str = field(init=False)  # string: a small write ahead of each WAIT or WAITAOF
    probe: str = field(init=False)  # string, PX, and a channel: written and removed to test a user's rights
    audit: str = field(init=False)  # stream: changes by administrators, refused ones too

    def __post_init__(self) -> None:
        base = f"{self.prefix}:{{cluster}}"
        for name, suffix in (
            ("info", "info"),
            ("replids", "replids"),
            ("brokers", "brokers"),
            ("leases", "leases"),
            ("topics", "topics"),
            ("topic_names", "topic-names"),
            ("topic_changes", "topic-changes"),
            ("upkeep", "upkeep"),
            ("producer_ids", "producer-ids"),
            ("lag", "lag"),
            ("lag_sampler", "lag-sampler"),
            ("usage", "usage"),
            ("proof", "proof"),
            ("probe", "probe"),
            ("audit", "audit"),
        ):
            object.__setattr__(self, name, f"{base}:{suffix}")

    def proof_at(self, number: int) -> str:
        """string: `proof` at a node of Redis Cluster; each number has its own slot (`Store.key_at`)."""
        return f"{self.prefix}:{{at:{number}}}:proof"

    def probe_at(self, number: int) -> str:
        """string, PX, and a channel: the same for `probe`."""
        return f"{self.prefix}:{{at:{number}}}:probe"

    def topic(self, org: str, topic: str) -> str:
        """hash: the configs of a topic that differ from the defaults."""
        return f"{self.prefix}:{{cluster}}:topic:{org}:{topic}"

    def figures(self, node_id: int) -> str:
        """string, PX: JSON of a broker's own measurements, for humans."""
        return f"{self.prefix}:{{cluster}}:figures:{node_id}"


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """Keys that the groups of one shard share, all in slot `{co:<shard>}`."""

    prefix: str
    shard: int
    groups: str = field(init=False)  # hash: <org>/<group> -> "<type> <state> <protocol type>"
    deadlines: str = field(init=False)  # zset: <kind>|<org>/<group> -> earliest deadline, Redis ms
    events: str = field(init=False)  # stream: every transition of every group of the shard
    wake: str = field(init=False)  # pub/sub channel: <org>/<group>:<generation>:<state>:<version or 0>

    def __post_init__(self) -> None:
        base = f"{self.prefix}:{{co:{self.shard}}}"
        for name in ("groups", "deadlines", "events", "wake"):
            object.__setattr__(self, name, f"{base}:{name}")


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Keys of one group, all in its shard's slot `{co:<shard>}`. Make them with `GroupKeys.of`."""

    org: str
    group_id: str
    shard_keys: ShardKeys
    ref: str  # <org>/<percent-encoded group id>: the group's name in the shard's shared keys
    group: str  # hash: id, type, state, generation, version, protocol type and name, leader, ...
    members: str  # hash: member id -> JSON for humans
    subscriptions: str  # hash: member id -> its protocols and their metadata, packed
    assignments: str  # hash: member id -> the protocol's bytes
    protocols: str  # hash: tallies over members: supports:<protocol>, offers:<list>, timeouts -> how many
    instances: str  # hash: static instance id -> member id
    sessions: str  # zset: member id -> session deadline, Redis ms
    pending: str  # hash: member ids issued but not joined yet -> JSON
    offsets: str  # hash: <topic>:<partition> -> JSON of offset, leader epoch, commit time, topic id, metadata

    @staticmethod
    @lru_cache(maxsize=16_384)
    def of(prefix: str, shards: int, org: str, group_id: str) -> GroupKeys:
        """The keys of a group; `shards` is the cluster's `coordinator_shards`."""
        shard = ShardKeys(prefix, shard_of(group_id, shards))
        encoded = encode_free_text(group_id)
        base = f"{prefix}:{{co:{shard.shard}}}:group:{org}:{encoded}"
        names = (
            "members",
            "subscriptions",
            "assignments",
            "protocols",
            "instances",
            "sessions",
            "pending",
            "offsets",
        )
        return GroupKeys(org, group_id, shard, f"{org}/{encoded}", base, *(f"{base}:{name}" for name in names))


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Keys of one partition's log, all in slot `{<org>/<topic>:<partition>}`. Make them with `LogKeys.of`."""

    log: str  # stream: the record batches; entry id <base offset>-1
    meta: str  # hash: log start offset, leader epochs, failover epoch, log version, bytes and batches, state
    times: str  # zset: base offset -> largest timestamp so far, about one a second
    producers: str  # hash: snapshot of the producer table at an offset
    owners: str  # hash: group -> member that owns the partition (for the mirror)
    acknowledged: str  # hash: group -> its last committed offset (for the mirror)
    wake: str  # pub/sub channel: <end offset>:<writer>, published with each append
    segments: str  # zset: JSON of each archived segment, score = its last offset
    archive: str  # hash: start and end offset of the archive, fence of the archiver
    replayed: str  # hash: <job>|<source> -> the last source offset that a replay wrote here
    restored: str  # stream: replaces the log once a restore has filled it
    translations: str  # zset: source offset -> offset here, until written to the archive's table

    @staticmethod
    @lru_cache(maxsize=65_536)
    def of(prefix: str, org: str, topic: str, partition: int, topic_id: str) -> LogKeys:
        """The keys of a partition; `topic_id` is the UUID in hex, so a topic made again has other keys."""
        base = f"{prefix}:{{{org}/{topic}:{partition}}}:{topic_id}"
        names = (
            "log",
            "meta",
            "times",
            "producers",
            "owners",
            "acknowledged",
            "wake",
            "segments",
            "archive",
            "replayed",
            "restored",
            "translations",
        )
        return LogKeys(*(f"{base}:{name}" for name in names))
