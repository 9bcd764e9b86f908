"""Every key name, with its type and hash tag (docs/redis-layout.md describes each).

The keys of one hash tag can be changed atomically by one script: `{cluster}`, `{co:<shard>}`, `{tx:<shard>}`,
`{<org>/<topic>:<partition>}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

_RECORDS: Final = ":records"
_MIN_INT: Final = -(1 << 31)
BATCH_FORMAT: Final = "batch"
"""Format of a log: an entry is one or more whole record batches."""
RECORD_FORMAT: Final = "record"
"""Format of a log: an entry is one record, with fields that Redis programs read and write."""
GROUP_ID_LENGTH_MAX: Final = 256
"""Characters of a group id: brokers hold the ids of many groups, and each several times with the names of its keys."""

_STRING_BYTES: Final = 64
"""Memory of a string beside the characters that the names of one owner have in common."""


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
    changed_logs: str = field(init=False)  # zset, scores unused: logs that changed since the last lag samples
    changed_groups: str = field(init=False)  # zset, scores unused: groups whose offsets changed since the last samples
    compactions: str = field(init=False)  # hash: <org>/<topic>:<p>:<topic id> -> state of a requested compaction
    compaction_requests: str = field(init=False)  # pub/sub channel: compactions were requested
    producer_ids: str = field(init=False)  # string: <next producer id> <replication id of the last server>
    lag: str = field(init=False)  # stream: samples of every group's lag
    lag_sampler: str = field(init=False)  # hash: the broker that takes the samples, and the end of its lease
    usage: str = field(init=False)  # stream: usage of each broker, by topic
    proof: str = field(init=False)  # string: a small write ahead of each WAIT or WAITAOF
    probe: str = field(init=False)  # string, PX, and a channel: written and removed to test a user's rights
    audit: str = field(init=False)  # stream: changes by administrators, refused ones too
    audit_events: str = field(init=False)  # stream: security audit events, JSON (OCSF)
    transaction_shards: str = field(init=False)  # hash: shards that have transactional ids -> ""
    acls: str = field(init=False)  # hash: <org>/<access rule> -> JSON of who added it and when
    acl_changes: str = field(init=False)  # pub/sub channel: <version of the access rules>
    users: str = field(init=False)  # hash: user name -> JSON of the organisation and the SCRAM credentials
    user_changes: str = field(init=False)  # pub/sub channel: <user name>
    quotas: str = field(init=False)  # hash: <org>/<quota>/<entity> -> its value
    quota_changes: str = field(init=False)  # pub/sub channel: <version of the quotas>
    org_connections: str = field(init=False)  # hash: process of a broker -> its connections of each organisation
    resource_configs: str = field(init=False)  # hash: <kind>/<resource>/<config> -> value
    resource_config_changes: str = field(init=False)  # pub/sub channel: <version of these configs>

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
            ("changed_logs", "changed-logs"),
            ("changed_groups", "changed-groups"),
            ("compactions", "compactions"),
            ("compaction_requests", "compaction-requests"),
            ("producer_ids", "producer-ids"),
            ("lag", "lag"),
            ("lag_sampler", "lag-sampler"),
            ("usage", "usage"),
            ("proof", "proof"),
            ("probe", "probe"),
            ("audit", "audit"),
            ("audit_events", "audit-events"),
            ("transaction_shards", "transaction-shards"),
            ("acls", "acls"),
            ("acl_changes", "acl-changes"),
            ("users", "users"),
            ("user_changes", "user-changes"),
            ("quotas", "quotas"),
            ("quota_changes", "quota-changes"),
            ("org_connections", "org-connections"),
            ("resource_configs", "resource-configs"),
            ("resource_config_changes", "resource-config-changes"),
        ):
            object.__setattr__(self, name, f"{base}:{suffix}")

    def proof_at(self, number: int) -> str:
        """string: `proof` at a node of Redis Cluster; each number has its own slot (`Store.key_at`)."""
        return f"{self.prefix}:{{at:{number}}}:proof"

    def probe_at(self, number: int) -> str:
        """string, PX, and a channel: the same for `probe`."""
        return f"{self.prefix}:{{at:{number}}}:probe"

    def subscription_proof(self, nonce: str) -> str:
        """pub/sub channel: numbers that one broker publishes to itself (`store.subscription_proof`)."""
        return f"{self.prefix}:{{cluster}}:subscription-proof:{nonce}"

    def topic(self, org: str, topic: str) -> str:
        """hash: the configs of a topic that differ from the defaults."""
        return f"{self.prefix}:{{cluster}}:topic:{org}:{topic}"

    def quota_bucket(self, name: str) -> str:
        """string, PX: the tokens of one limit and the leases of brokers; name: <org>/<quota>/<entity>."""
        return f"{self.prefix}:{{cluster}}:quota-bucket:{name}"

    def org_groups(self, org: str) -> str:
        """hash: group of the organisation -> time of its last reservation, Redis ms."""
        return f"{self.prefix}:{{cluster}}:org-groups:{org}"

    def query_ends(self, query: str) -> str:
        """string, EX: JSON of what a task of a Spark query up to the latest offsets read; query: plan, query, task."""
        return f"{self.prefix}:{{cluster}}:query-ends:{query}"

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
    configured: str = field(init=False)  # hash: <org>/<group> that has configs -> how many
    ended_transactions: str = field(init=False)  # zset: <producer id> <org>/<group> -> ended_ms of its last transaction
    events: str = field(init=False)  # stream: every transition of every group of the shard
    wake: str = field(init=False)  # pub/sub channel: <org>/<group>:<generation>:<state>:<version or 0>
    available: str = field(init=False)  # pub/sub channel: <org>/<share group> whose records are available again

    def __post_init__(self) -> None:
        base = f"{self.prefix}:{{co:{self.shard}}}"
        for name in ("groups", "deadlines", "configured", "ended-transactions", "events", "wake", "available"):
            object.__setattr__(self, name.replace("-", "_"), f"{base}:{name}")


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
    staged: str  # hash: <producer id>:<topic>:<partition> -> offset in an open transaction
    consumers: str  # hash: member id -> JSON of a member of a KIP-848 group
    targets: str  # hash: member id -> JSON of its target assignment, topic id -> partitions
    consumer_sessions: str  # zset: member id -> session deadline, Redis ms
    revocations: str  # zset: member id -> deadline to confirm a revocation, Redis ms
    configs: str  # hash: configs of the group, which may be set before there is a group
    shares: str  # hash: share-partitions of a share group, <topic id in hex>:<partition> -> topic name
    dead_letters: str  # stream: records of a share group that wait to be written to its dead-letter topic

    def share(self, topic_id: str, partition: int) -> tuple[str, str, str, str]:
        """Keys of one share-partition of a KIP-932 group; `topic_id` in hex.

        hash: end of the window, state epoch, number of unfinished records, and rows of records in flight
        zset: first offset of each row that is available
        zset: first offset of each row that is acquired
        zset: first offset of each row that is acquired -> deadline of its lock, Redis ms
        """
        base = f"{self.group}:share:{topic_id}:{partition}"
        return base, f"{base}:available", f"{base}:acquired", f"{base}:locks"

    @property
    def held_bytes(self) -> int:
        """Upper bound of their memory: strings that begin alike, the group id, and the shard's keys."""
        return (len(self.group) + _STRING_BYTES) * 22 * (1 if self.group.isascii() else 4)

    @staticmethod
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
            "staged",
            "consumers",
            "targets",
            "consumer-sessions",
            "revocations",
            "configs",
            "shares",
            "dead-letters",
        )
        return GroupKeys(org, group_id, shard, f"{org}/{encoded}", base, *(f"{base}:{name}" for name in names))


@dataclass(frozen=True, slots=True)
class TransactionKeys:
    """Keys of one transactional id, all in its shard's slot `{tx:<shard>}`. Make them with `TransactionKeys.of`."""

    org: str
    transactional_id: str
    shard: int
    ref: str  # <org>/<percent-encoded transactional id>: its name in the shard's shared keys
    transaction: str  # hash: producer id, epoch, state, partitions, groups, times, version
    transactions: str  # hash: the shard's transactional ids -> "<state> <producer id> <start, ms>"
    deadlines: str  # zset: the shard's transactional ids -> when a broker must look at it, Redis ms

    @staticmethod
    def of(prefix: str, shards: int, org: str, transactional_id: str) -> TransactionKeys:
        """The keys of a transactional id; `shards` is the cluster's `coordinator_shards`."""
        shard, encoded = shard_of(transactional_id, shards), encode_free_text(transactional_id)
        transactions, deadlines = TransactionKeys.of_shard(prefix, shard)
        base = f"{prefix}:{{tx:{shard}}}:transaction:{org}:{encoded}"
        return TransactionKeys(org, transactional_id, shard, f"{org}/{encoded}", base, transactions, deadlines)

    @staticmethod
    def of_shard(prefix: str, shard: int) -> tuple[str, str]:
        """`transactions` and `deadlines` of a shard."""
        return f"{prefix}:{{tx:{shard}}}:transactions", f"{prefix}:{{tx:{shard}}}:deadlines"


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Keys of one partition's log, all in slot `{<org>/<topic>:<partition>}`. Make them with `LogKeys.of`."""

    log: str  # stream: the record batches, entry id <base offset>-1; of format record: `records`, one entry a record
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
    readers: str  # hash: group -> the member that reads the partition (format record)
    writers: str  # hash: writer -> its last append and the reply (format record)
    staged: str  # hash: <producer id>:<number> -> a batch of an open transaction (format record)

    @property
    def held_bytes(self) -> int:
        """Upper bound of their memory: the strings, which begin alike, and the names."""
        return (len(self.log) + _STRING_BYTES) * 16

    @staticmethod
    def of(prefix: str, org: str, topic: str, partition: int, topic_id: str, log_format: str = BATCH_FORMAT) -> LogKeys:
        """The keys of a partition; `topic_id` is the UUID in hex, so a topic made again has other keys.

        The stream of format `record` has no id in its name, so that Redis programs can know it.
        """
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
            "readers",
            "writers",
            "staged",
        )
        keys = LogKeys(*(f"{base}:{name}" for name in names))
        if log_format != RECORD_FORMAT:
            return keys
        return replace(keys, log=f"{prefix}:{{{org}/{topic}:{partition}}}{_RECORDS}")

    def compacted(self, run: str) -> str:
        """Stream: replaces the log once the compaction `run` (hex) has filled it."""
        return f"{self.meta.removesuffix('meta')}compacted:{run}"

    @property
    def is_record(self) -> bool:
        """Whether the log has format `record`."""
        return self.log.endswith(_RECORDS)
