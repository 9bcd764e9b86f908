"""A topic's effective config: its own values over the broker's defaults; and the description of both."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidConfig, InvalidRequest
from tidegate.list_configs import appended, check_length, split_list, subtracted
from tidegate.records.recompression import CODECS
from tidegate.settings import SECRETS, Settings
from tidegate.store.keys import BATCH_FORMAT, RECORD_FORMAT
from tidegate.topics.config_keys import (
    CONFIG_KEYS,
    FIXED,
    LEVELS,
    RECORD_BYTES_NO_LIMIT,
    TAKES_DEAD_LETTERS,
    ConfigKey,
    ConfigType,
)
from tidegate.topics.config_values import DEFAULT_LEVEL
from tidegate.topics.tiers import SAME_AS_RETENTION, check_tiers


class Source(enum.IntEnum):
    """The origin of a value, with the codes of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Operation(enum.IntEnum):
    """What IncrementalAlterConfigs does to one config (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Change = tuple[str, int, str | None]
"""Config, operation, value."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective config that the log uses. Sizes in bytes, times in ms; -1 is no limit."""

    cleanup_policy: frozenset[str]
    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_insync_replicas: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    mirror: bool
    """Whether groups are mirrored as Redis consumer groups."""
    remote_storage: bool
    """Whether archived records may be trimmed from Redis; brokers read them from the archive (KIP-405)."""
    local_retention_ms: int
    local_retention_bytes: int
    compression_codec: int | None = None
    """The codec that batches are stored with; None: as the producer sent them."""
    compression_level: int | None = None
    """The codec's level; None for its default."""
    record_bytes_max: int | None = None
    """Limit of a record of a compressed batch; None: no limit below that of a batch."""
    is_record: bool = False
    """Whether the log has format `record`: one stream entry for each record."""
    sequence_bits: int = 10
    takes_dead_letters: bool = False
    """Whether share groups may write their dead letters to the topic."""
    validates: bool = True
    """Whether the records of compressed batches are always checked before they are stored."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """One source of a config's value, by its name there."""

    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """A config for DescribeConfigs; `synonyms` in order of precedence, the effective one first."""

    name: str
    type: ConfigType
    value: str
    source: Source
    doc: str
    synonyms: tuple[Synonym, ...]
    read_only: bool = False


def parse(settings: Settings, given: Mapping[str, str | None], before: Mapping[str, str]) -> dict[str, str]:
    """Check configs that a client sets on a topic whose configs were `before`; returns the values to store.

    Raises InvalidConfig.
    """
    kept: dict[str, str] = {}
    for name, value in given.items():
        key = CONFIG_KEYS.get(name)
        if key is None:
            raise InvalidConfig(f"unknown topic config {name!r}")
        if value is None:
            raise InvalidConfig(f"{name} has no value")
        try:
            check_length(value)
            kept[name] = key.check(value)
        except InvalidConfig as error:
            raise InvalidConfig(f"{name}: {error.message}") from None
    shortest = int(kept.get("min.compaction.lag.ms", CONFIG_KEYS["min.compaction.lag.ms"].default))
    longest = int(kept.get("max.compaction.lag.ms", CONFIG_KEYS["max.compaction.lag.ms"].default))
    if shortest > longest:
        raise InvalidConfig(f"min.compaction.lag.ms {shortest} is above max.compaction.lag.ms {longest}")
    _check_record_format(settings, kept)
    check_tiers(kept, lambda name: _value(settings, CONFIG_KEYS[name], kept), before, settings.archive_path is not None)
    return kept


def format_of(overrides: Mapping[str, str]) -> str:
    """The format of a topic's log."""
    return overrides.get("tidegate.format", BATCH_FORMAT)


def _check_record_format(settings: Settings, kept: Mapping[str, str]) -> None:
    """Raises InvalidConfig for what a log of format record does not do."""
    if format_of(kept) != RECORD_FORMAT:
        return
    if split_list(_value(settings, CONFIG_KEYS["cleanup.policy"], kept)) != ["delete"]:
        raise InvalidConfig("tidegate.format: a topic of format record is not compacted: cleanup.policy must be delete")
    if kept.get("remote.storage.enable") == "true":
        raise InvalidConfig("tidegate.format: a topic of format record has no second tier: remote.storage.enable")


def check_operations(changes: Sequence[Change]) -> None:
    """Raises what is wrong with changes of whatever topic: InvalidRequest for an unknown operation or without a value,
    InvalidConfig for a list operation on what is not a list.
    """
    for name, operation, value in changes:
        if value is None and operation != Operation.DELETE:
            raise InvalidRequest(f"{name} has no value to set")
    for name, operation, _ in changes:
        if operation not in tuple(Operation):
            raise InvalidRequest(f"there is no operation {operation}")
        if operation in (Operation.APPEND, Operation.SUBTRACT):
            key = CONFIG_KEYS.get(name)
            if key is None or key.type is not ConfigType.LIST:
                raise InvalidConfig(f"{name} is not a list")


def altered(
    settings: Settings, overrides: Mapping[str, str], changes: Sequence[Change], *, replace: bool = False
) -> dict[str, str]:
    """A topic's configs after changes, incremental or replacing all; list operations apply to the effective value.

    Raises as `check_operations`, and InvalidConfig.
    """
    check_operations(changes)
    after: dict[str, str | None] = {name: value for name, value in overrides.items() if not replace or name in FIXED}
    for name, operation, value in changes:
        if operation == Operation.DELETE or value is None:
            after.pop(name, None)
        elif operation == Operation.SET:
            after[name] = value
        else:
            change = appended if operation == Operation.APPEND else subtracted
            after[name] = change(_value(settings, CONFIG_KEYS[name], overrides), value)
    for name in FIXED:
        default = CONFIG_KEYS[name].default
        if (after.get(name) or default) != overrides.get(name, default):
            raise InvalidConfig(f"{name} cannot change: create another topic")
    return parse(settings, after, overrides)


def effective(settings: Settings, overrides: Mapping[str, str]) -> TopicConfig:
    """The topic's effective config."""

    def number(name: str) -> int:
        return int(_value(settings, CONFIG_KEYS[name], overrides))

    def local(unit: str) -> bool:
        return number(f"local.retention.{unit}") != SAME_AS_RETENTION

    cleanup_policy = frozenset(split_list(_value(settings, CONFIG_KEYS["cleanup.policy"], overrides)))
    compression_type = _value(settings, CONFIG_KEYS["compression.type"], overrides)
    record_bytes_max = number("max.decompressed.message.bytes")
    mirror = _value(settings, CONFIG_KEYS["tidegate.mirror.enable"], overrides) == "true"
    is_record = format_of(overrides) == RECORD_FORMAT
    return TopicConfig(
        cleanup_policy=cleanup_policy,
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        max_message_bytes=number("max.message.bytes"),
        message_timestamp_type=_value(settings, CONFIG_KEYS["message.timestamp.type"], overrides),
        message_timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        min_insync_replicas=number("min.insync.replicas"),
        delete_retention_ms=number("delete.retention.ms"),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=float(_value(settings, CONFIG_KEYS["min.cleanable.dirty.ratio"], overrides)),
        mirror=mirror and "compact" not in cleanup_policy and not is_record,
        remote_storage=_value(settings, CONFIG_KEYS["remote.storage.enable"], overrides) == "true",
        local_retention_ms=number("local.retention.ms" if local("ms") else "retention.ms"),
        local_retention_bytes=number("local.retention.bytes" if local("bytes") else "retention.bytes"),
        compression_codec=None if is_record else CODECS.get(compression_type),
        compression_level=_level(number(LEVELS[compression_type])) if compression_type in LEVELS else None,
        record_bytes_max=record_bytes_max if record_bytes_max < RECORD_BYTES_NO_LIMIT else None,
        is_record=is_record,
        sequence_bits=number("tidegate.sequence.bits"),
        takes_dead_letters=_value(settings, CONFIG_KEYS[TAKES_DEAD_LETTERS], overrides) == "true",
        validates=is_record or _value(settings, CONFIG_KEYS["tidegate.validation.enable"], overrides) == "true",
    )


def _level(level: int) -> int | None:
    return level if level != DEFAULT_LEVEL else None


def describe_topic(settings: Settings, overrides: Mapping[str, str]) -> list[Described]:
    """Every config of a topic, in order of name."""
    described = []
    for key in CONFIG_KEYS.values():
        synonyms = broker_synonyms(settings, key)
        if key.name in overrides:
            synonyms = (Synonym(key.name, overrides[key.name], Source.TOPIC), *synonyms)
        first = synonyms[0]
        shown = synonyms if key.lists_default else tuple(one for one in synonyms if one.source is not Source.DEFAULT)
        described.append(Described(key.name, key.type, first.value, first.source, key.doc, shown))
    return described


_DEFAULT_REPLICATION: Final = Described(
    "default.replication.factor",
    ConfigType.INT,
    "1",
    Source.DEFAULT,
    "Replicas of a topic that is created without a count, as Metadata shows them: one, for the store replicates.",
    (Synonym("default.replication.factor", "1", Source.DEFAULT),),
    read_only=True,
)
"""No setting; tools that create topics ask for it."""


def describe_broker(settings: Settings) -> list[Described]:
    """A broker's settings by names in the form of Kafka's, in order of name; all are read-only.

    Those that are defaults of topic configs are left out: see `dynamic_defaults.describe`.
    """
    taken = {key.setting for key in CONFIG_KEYS.values() if key.setting and key.broker_key}
    described = [_DEFAULT_REPLICATION]
    for field_name, field in type(settings).model_fields.items():
        if field_name in SECRETS or field_name in taken:
            continue
        value = getattr(settings, field_name)
        source = Source.STATIC_BROKER if field_name in settings.model_fields_set else Source.DEFAULT
        name = field_name.replace("_", ".")
        text = _text(value)
        described.append(
            Described(
                name,
                _type_of(value),
                text,
                source,
                field.description or "",
                (Synonym(name, text, source),),
                read_only=True,
            )
        )
    return sorted(described, key=lambda one: one.name)


def _value(settings: Settings, key: ConfigKey, overrides: Mapping[str, str]) -> str:
    own = overrides.get(key.name)
    return own if own is not None else broker_synonyms(settings, key)[0].value


def broker_synonyms(settings: Settings, key: ConfigKey) -> tuple[Synonym, ...]:
    """What is set for the broker at run time, by its settings, then the default."""
    name = key.broker_key or key.synonym or key.name
    dynamic: tuple[Synonym, ...] = settings.dynamic_configs.get(name, ())
    synonyms: tuple[Synonym, ...] = (Synonym(name, key.default, Source.DEFAULT),)
    if key.setting is not None and key.setting in settings.model_fields_set:
        synonyms = (Synonym(name, _text(getattr(settings, key.setting)), Source.STATIC_BROKER), *synonyms)
    return (*dynamic, *synonyms)


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_of(value: object) -> ConfigType:
    match value:
        case bool():
            return ConfigType.BOOLEAN
        case int():
            return ConfigType.LONG if abs(value) > 1 << 31 else ConfigType.INT
        case _:
            return ConfigType.STRING
