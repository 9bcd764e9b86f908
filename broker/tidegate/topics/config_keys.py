"""Every topic config: key, type, default, whether it has an effect, and its documentation.

Names, defaults and bounds are Kafka's (LogConfig, TopicConfig of Kafka 4.4). If a broker setting is the default,
`setting` names it and `broker_key` is Kafka's name for it. Configs without effect are accepted, stored and described,
so that tools which set them work.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tidegate.store.keys import BATCH_FORMAT, RECORD_FORMAT
from tidegate.topics.config_values import (
    Check,
    boolean,
    fraction,
    gzip_level,
    one_of,
    some_of,
    throttled_replicas,
    whole,
)

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1
SEQUENCE_BITS_MIN: Final = 8
SEQUENCE_BITS_MAX: Final = 12
"""Offsets stay below 2^53 until 2039, so that tools which compute with doubles show them right."""
FIXED: Final = ("tidegate.format", "tidegate.sequence.bits")
"""Configs that are set when the topic is created and do not change."""
TAKES_DEAD_LETTERS: Final = "errors.deadletterqueue.group.enable"
LEVELS: Final = {
    "gzip": "compression.gzip.level",
    "lz4": "compression.lz4.level",
    "zstd": "compression.zstd.level",
}
"""Value of compression.type -> the config of its level."""
RECORD_BYTES_NO_LIMIT: Final = INT_MAX - 8
"""Default of max.decompressed.message.bytes: the largest array of Java."""


class ConfigType(enum.IntEnum):
    """The type of a value, with the codes of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One config of a topic."""

    name: str
    type: ConfigType
    default: str
    check: Check
    doc: str
    setting: str | None = None
    broker_key: str | None = None
    synonym: str | None = None
    """Kafka's name of the broker config that is its default, where that cannot be set here."""
    lists_default: bool = True
    """Whether the default is among the synonyms, as in Kafka: not where no broker config, or another unit, has it."""


_T: Final = ConfigType


def _unused(
    name: str, type_: ConfigType, default: str, check: Check, why: str, synonym: str | None = None
) -> ConfigKey:
    """A config without effect, and Kafka's broker config that is its default."""
    doc = f"Kept for tools that set it; without effect here: {why}"
    return ConfigKey(name, type_, default, check, doc, synonym=synonym, lists_default=synonym is not None)


_ALL: Final = (
    ConfigKey(
        "cleanup.policy",
        _T.LIST,
        "delete",
        some_of("delete", "compact"),
        "What happens to old records: delete by age and size, compact to the last of each key, both; empty keeps all.",
        broker_key="log.cleanup.policy",
    ),
    ConfigKey(
        "compression.gzip.level",
        _T.INT,
        "-1",
        gzip_level,
        "Level of gzip where compression.type is gzip: 1 to 9; -1 is its default.",
    ),
    ConfigKey("compression.lz4.level", _T.INT, "9", whole(1, 17), "Level of lz4 where compression.type is lz4."),
    ConfigKey(
        "compression.type",
        _T.STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "The codec that batches are stored with; producer: the one that they came with. Other batches are compressed "
        "again by the broker, in a thread.",
        broker_key="compression.type",
    ),
    ConfigKey(
        "compression.zstd.level",
        _T.INT,
        "3",
        whole(-131_072, 22),
        "Level of zstd where compression.type is zstd.",
    ),
    ConfigKey(
        "delete.retention.ms",
        _T.LONG,
        "86400000",
        whole(0, LONG_MAX),
        "How long compaction keeps delete markers, ms.",
        broker_key="log.cleaner.delete.retention.ms",
    ),
    ConfigKey(
        TAKES_DEAD_LETTERS,
        _T.BOOLEAN,
        "false",
        boolean,
        "Whether share groups may use the topic as their dead-letter topic (KIP-1191).",
        lists_default=False,
    ),
    _unused(
        "file.delete.delay.ms",
        _T.LONG,
        "60000",
        whole(0, LONG_MAX),
        "there are no files.",
        "log.segment.delete.delay.ms",
    ),
    _unused(
        "flush.messages",
        _T.LONG,
        str(LONG_MAX),
        whole(1, LONG_MAX),
        "the broker's durability setting decides.",
        "log.flush.interval.messages",
    ),
    _unused("flush.ms", _T.LONG, str(LONG_MAX), whole(0, LONG_MAX), "the broker's durability setting decides."),
    _unused("follower.replication.throttled.replicas", _T.LIST, "", throttled_replicas, "the store replicates."),
    _unused(
        "index.interval.bytes",
        _T.INT,
        "4096",
        whole(0, INT_MAX),
        "there are no index files.",
        "log.index.interval.bytes",
    ),
    _unused("leader.replication.throttled.replicas", _T.LIST, "", throttled_replicas, "the store replicates."),
    ConfigKey(
        "local.retention.bytes",
        _T.LONG,
        "-2",
        whole(-2, LONG_MAX),
        "Bytes of a partition that stay in Redis once they are archived; -2 is as retention.bytes, -1 without limit.",
        broker_key="log.local.retention.bytes",
    ),
    ConfigKey(
        "local.retention.ms",
        _T.LONG,
        "-2",
        whole(-2, LONG_MAX),
        "How long records stay in Redis once they are archived, ms; -2 is as retention.ms, -1 forever.",
        broker_key="log.local.retention.ms",
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        _T.LONG,
        str(LONG_MAX),
        whole(1, LONG_MAX),
        "Longest that a record stays out of compaction, ms.",
        broker_key="log.cleaner.max.compaction.lag.ms",
    ),
    ConfigKey(
        "max.decompressed.message.bytes",
        _T.INT,
        str(RECORD_BYTES_NO_LIMIT),
        whole(1, INT_MAX),
        "Largest record of a compressed batch, bytes (KIP-1189).",
    ),
    ConfigKey(
        "max.message.bytes",
        _T.INT,
        "1048588",
        whole(0, INT_MAX),
        "Largest record batch, bytes, as it is stored.",
        setting="message_max_bytes",
        broker_key="message.max.bytes",
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        _T.LONG,
        "3600000",
        whole(0, LONG_MAX),
        "How far a producer's timestamp may be ahead, ms (CreateTime only).",
        broker_key="log.message.timestamp.after.max.ms",
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        _T.LONG,
        str(LONG_MAX),
        whole(0, LONG_MAX),
        "How far a producer's timestamp may be behind, ms (CreateTime only).",
        broker_key="log.message.timestamp.before.max.ms",
    ),
    ConfigKey(
        "message.timestamp.type",
        _T.STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "Whether records carry the producer's time or the time of the append.",
        broker_key="log.message.timestamp.type",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        _T.DOUBLE,
        "0.5",
        fraction,
        "Share of a log that is not compacted yet at which compaction starts.",
        broker_key="log.cleaner.min.cleanable.ratio",
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        _T.LONG,
        "0",
        whole(0, LONG_MAX),
        "Shortest time that a record stays out of compaction, ms.",
        broker_key="log.cleaner.min.compaction.lag.ms",
    ),
    ConfigKey(
        "min.insync.replicas",
        _T.INT,
        "1",
        whole(1, INT_MAX),
        "Kept; what acks=all waits for is the broker's durability setting.",
        broker_key="min.insync.replicas",
    ),
    _unused("preallocate", _T.BOOLEAN, "false", boolean, "there are no files.", "log.preallocate"),
    _unused(
        "remote.copy.lag.bytes",
        _T.LONG,
        "-1",
        whole(-1, LONG_MAX),
        "the archive job decides when it copies.",
        "log.remote.copy.lag.bytes",
    ),
    _unused(
        "remote.copy.lag.ms",
        _T.LONG,
        "0",
        whole(-1, LONG_MAX),
        "the archive job decides when it copies.",
        "log.remote.copy.lag.ms",
    ),
    ConfigKey(
        "remote.log.copy.disable",
        _T.BOOLEAN,
        "false",
        boolean,
        "Set where no more is archived: local.retention.* must be as retention.*; what is archived is read as before. "
        "The archive job leaves the topic out unless it is named to it.",
        lists_default=False,
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        _T.BOOLEAN,
        "false",
        boolean,
        "Must be true where remote.storage.enable goes back to false: the log then starts where Redis has it. The "
        "archive's files stay.",
        lists_default=False,
    ),
    ConfigKey(
        "remote.storage.enable",
        _T.BOOLEAN,
        "false",
        boolean,
        "Whether what is archived may leave Redis as local.retention.* says, and is read from the archive then; needs "
        "the broker's archive_path. retention.* goes by both tiers together, and by time takes what is not archived "
        "yet as well: keep it longer than the archive job may stand still.",
        lists_default=False,
    ),
    ConfigKey(
        "retention.bytes",
        _T.LONG,
        "-1",
        whole(-1, LONG_MAX),
        "Bytes of a partition that are kept; -1 is without limit.",
        setting="log_retention_bytes",
        broker_key="log.retention.bytes",
    ),
    ConfigKey(
        "retention.ms",
        _T.LONG,
        "604800000",
        whole(-1, LONG_MAX),
        "How long records are kept, ms; -1 keeps them forever.",
        setting="log_retention_ms",
        broker_key="log.retention.ms",
        lists_default=False,
    ),
    _unused(
        "segment.bytes",
        _T.INT,
        "1073741824",
        whole(14, INT_MAX),
        "retention cuts at single entries.",
        "log.segment.bytes",
    ),
    _unused(
        "segment.index.bytes",
        _T.INT,
        "10485760",
        whole(4, INT_MAX),
        "there are no index files.",
        "log.index.size.max.bytes",
    ),
    _unused("segment.jitter.ms", _T.LONG, "0", whole(0, LONG_MAX), "there are no segments."),
    _unused("segment.ms", _T.LONG, "604800000", whole(1, LONG_MAX), "retention cuts at single entries."),
    ConfigKey(
        "tidegate.format",
        _T.STRING,
        BATCH_FORMAT,
        one_of(BATCH_FORMAT, RECORD_FORMAT),
        "What a stream entry is: whole record batches (batch), or one record with fields that Redis programs read and "
        "write (record). Set when the topic is created; it cannot change.",
    ),
    ConfigKey(
        "tidegate.mirror.enable",
        _T.BOOLEAN,
        "true",
        boolean,
        "Whether groups that read the topic are shown as Redis consumer groups; never with cleanup.policy compact.",
        broker_key="mirror.groups",
    ),
    ConfigKey(
        "tidegate.sequence.bits",
        _T.INT,
        "10",
        whole(SEQUENCE_BITS_MIN, SEQUENCE_BITS_MAX),
        "Format record: bits of an offset that are the sequence of the entry's id; the rest is its milliseconds. Raise "
        "it where Redis programs append more than 2^bits records in a millisecond. Set when the topic is created.",
    ),
    ConfigKey(
        "tidegate.validation.enable",
        _T.BOOLEAN,
        "true",
        boolean,
        "Whether compressed batches are decompressed and their records checked before they are stored. false stores "
        "them by checksum and header: for producers that you trust, as a batch with broken records stops its readers. "
        "Compacted topics, format record, and bounds of timestamps or of max.decompressed.message.bytes check always.",
    ),
    _unused(
        "unclean.leader.election.enable",
        _T.BOOLEAN,
        "false",
        boolean,
        "every broker serves every partition.",
        "unclean.leader.election.enable",
    ),
)

CONFIG_KEYS: Final[dict[str, ConfigKey]] = {key.name: key for key in _ALL}
"""Name -> config, in order of name."""
