"""Topic configs and names: what is taken, what is refused, and where a value comes from."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.errors import InvalidConfig
from tidegate.list_configs import subtracted
from tidegate.settings import SECRETS, Settings
from tidegate.topics import configs, names
from tidegate.topics.config_keys import CONFIG_KEYS
from tidegate.topics.configs import Operation, Source

SETTINGS = Settings()


def test_defaults_are_legal_and_the_settings_own() -> None:
    for key in CONFIG_KEYS.values():
        if key.default:
            assert key.check(key.default) == key.default
        if key.setting:
            assert configs._text(Settings.model_fields[key.setting].default) == key.default
            assert key.broker_key


def test_nothing_set_is_kafkas_default() -> None:
    config = configs.effective(SETTINGS, {})

    assert config.cleanup_policy == {"delete"}
    assert (config.retention_ms, config.retention_bytes) == (604_800_000, -1)
    assert config.max_message_bytes == 1_048_588
    assert config.message_timestamp_type == "CreateTime"
    assert config.message_timestamp_before_max_ms == (1 << 63) - 1
    assert config.message_timestamp_after_max_ms == 3_600_000
    assert config.min_insync_replicas == 1
    assert config.min_cleanable_dirty_ratio == 0.5


def test_topic_value_overrides_the_broker_and_the_broker_the_default() -> None:
    settings = Settings(log_retention_ms=5, message_max_bytes=9)
    config = configs.effective(settings, {"retention.ms": "7", "cleanup.policy": "compact,delete"})

    assert (config.retention_ms, config.max_message_bytes) == (7, 9)
    assert config.cleanup_policy == {"compact", "delete"}


def test_config_of_all_brokers_switches_mirrors_at_run_time() -> None:
    settings = Settings()
    of_all = configs.Synonym("mirror.groups", "false", Source.DYNAMIC_DEFAULT_BROKER)

    settings.set_dynamic_configs({"mirror.groups": (of_all,)})

    assert not configs.effective(settings, {}).mirror
    assert configs.effective(settings, {"tidegate.mirror.enable": "true"}).mirror


@pytest.mark.parametrize(("topic_format", "validates"), [("batch", False), ("record", True)])
def test_records_of_trusted_producers_are_checked_where_each_is_an_entry(topic_format: str, validates: bool) -> None:
    trusted = {"tidegate.validation.enable": "false", "tidegate.format": topic_format}

    assert configs.effective(SETTINGS, {}).validates
    assert configs.effective(SETTINGS, trusted).validates == validates


def test_config_value_has_its_source() -> None:
    settings = Settings(log_retention_ms=5)
    described = {one.name: one for one in configs.describe_topic(settings, {"retention.ms": "7"})}

    assert [(one.name, one.value, one.source) for one in described["retention.ms"].synonyms] == [
        ("retention.ms", "7", Source.TOPIC),
        ("log.retention.ms", "5", Source.STATIC_BROKER),
    ]
    assert list(described) == sorted(described)


def test_synonyms_of_defaults_are_those_of_kafka() -> None:
    """As Kafka 4.4.0 describes a topic without configs; `min.insync.replicas` is a dynamic default there."""
    described = {one.name: [synonym.name for synonym in one.synonyms] for one in configs.describe_topic(Settings(), {})}
    others = {
        "cleanup.policy": ["log.cleanup.policy"],
        "delete.retention.ms": ["log.cleaner.delete.retention.ms"],
        "errors.deadletterqueue.group.enable": [],
        "file.delete.delay.ms": ["log.segment.delete.delay.ms"],
        "flush.messages": ["log.flush.interval.messages"],
        "flush.ms": [],
        "follower.replication.throttled.replicas": [],
        "index.interval.bytes": ["log.index.interval.bytes"],
        "leader.replication.throttled.replicas": [],
        "local.retention.bytes": ["log.local.retention.bytes"],
        "local.retention.ms": ["log.local.retention.ms"],
        "max.compaction.lag.ms": ["log.cleaner.max.compaction.lag.ms"],
        "max.message.bytes": ["message.max.bytes"],
        "message.timestamp.after.max.ms": ["log.message.timestamp.after.max.ms"],
        "message.timestamp.before.max.ms": ["log.message.timestamp.before.max.ms"],
        "message.timestamp.type": ["log.message.timestamp.type"],
        "min.cleanable.dirty.ratio": ["log.cleaner.min.cleanable.ratio"],
        "min.compaction.lag.ms": ["log.cleaner.min.compaction.lag.ms"],
        "preallocate": ["log.preallocate"],
        "remote.copy.lag.bytes": ["log.remote.copy.lag.bytes"],
        "remote.copy.lag.ms": ["log.remote.copy.lag.ms"],
        "remote.log.copy.disable": [],
        "remote.log.delete.on.disable": [],
        "remote.storage.enable": [],
        "retention.bytes": ["log.retention.bytes"],
        "retention.ms": [],
        "segment.bytes": ["log.segment.bytes"],
        "segment.index.bytes": ["log.index.size.max.bytes"],
        "segment.jitter.ms": [],
        "segment.ms": [],
        "tidegate.mirror.enable": ["mirror.groups"],
    }
    assert described == {name: others.get(name, [name]) for name in described}
    assert set(others) <= set(described)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("retention.ms", " 12 ", "12"),
        ("retention.ms", "-1", "-1"),
        ("cleanup.policy", "delete, compact", "delete,compact"),
        ("cleanup.policy", "", ""),
        ("preallocate", "TRUE", "true"),
        ("remote.storage.enable", "false", "false"),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    ],
)
def test_config_value_is_normalized(name: str, value: str, kept: str) -> None:
    assert configs.parse(Settings(), {name: value}, {}) == {name: kept}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("foo", "bar"),
        ("retention.ms", None),
        ("retention.ms", "-2"),
        ("retention.ms", "1e3"),
        ("retention.ms", "1_000"),
        ("retention.ms", ""),
        ("retention.ms", str(1 << 63)),
        ("max.message.bytes", str(1 << 31)),
        ("min.insync.replicas", "0"),
        ("cleanup.policy", "delete,shred"),
        ("cleanup.policy", "delete,delete"),
        ("compression.type", "brotli"),
        ("preallocate", "yes"),
        ("remote.storage.enable", "true"),
        ("message.format.version", "2.0"),
        ("message.downconversion.enable", "true"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
    ],
)
def test_invalid_config_value_is_refused(name: str, value: str | None) -> None:
    with pytest.raises(InvalidConfig):
        configs.parse(Settings(), {name: value}, {})


def test_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig):
        configs.parse(Settings(), {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, {})


def test_whole_number_between_control_characters_is_read() -> None:
    """`strip` removes them, and `int` alone does not."""
    assert configs.parse(Settings(), {"retention.ms": "\x1f7\x1f"}, {}) == {"retention.ms": "7"}


@given(st.sampled_from(sorted(CONFIG_KEYS)), st.text(max_size=20))
@example("compression.gzip.level", "0\x1f")  # `str.strip` strips it, `int` does not
def test_parsed_config_value_is_stable_and_effective(name: str, value: str) -> None:
    try:
        kept = configs.parse(Settings(), {name: value}, {})
    except InvalidConfig:
        return
    assert configs.parse(Settings(), dict(kept), {}) == kept
    configs.effective(SETTINGS, kept)


def test_broker_shows_its_settings_and_no_password() -> None:
    settings = Settings(redis_url="redis://user:hunter2@h:1/0", port=1234)
    described = {one.name: one for one in configs.describe_broker(settings)}

    assert (described["port"].value, described["port"].source) == ("1234", Source.STATIC_BROKER)
    assert described["auto.create.topics.enable"].value == "true"
    assert "hunter2" not in repr(described)


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_broker_shows_no_secret(name: str) -> None:
    secret = "s3://AKIA:hunter2hunter2hunter2@bucket/archive"
    described = configs.describe_broker(Settings(**{name: secret}))

    assert name.replace("_", ".") not in {one.name for one in described}
    assert "hunter2" not in repr(described)


@given(
    st.text(st.sampled_from("ab._-"), min_size=1, max_size=6), st.text(st.sampled_from("ab._-"), min_size=1, max_size=6)
)
def test_names_collide_when_metric_names_would(one: str, other: str) -> None:
    """`plain` finds exactly the pairs that differ only by . and _."""
    alike = one != other and one.replace(".", "_") == other.replace(".", "_")

    assert alike == (one != other and names.plain(one) == names.plain(other) != "")


_LIST = "leader.replication.throttled.replicas"


def _replicas(broker: int, count: int) -> str:
    return ",".join(f"{partition}:{broker}" for partition in range(count))


@pytest.mark.parametrize(
    ("operation", "value"), [(Operation.APPEND, _replicas(2, 1_000)), (Operation.SET, _replicas(2, 6_000))]
)
def test_config_value_longer_than_a_string_of_a_reply_is_refused(operation: Operation, value: str) -> None:
    with pytest.raises(InvalidConfig, match="bytes"):
        configs.altered(SETTINGS, {_LIST: _replicas(1, 5_000)}, [(_LIST, operation, value)])


def test_config_list_of_the_greatest_length_is_subtracted_from_in_linear_time() -> None:
    now = ",".join(f"{number}:1" for number in range(5_000))
    started_s = process_time()

    assert subtracted(now, _replicas(2, 5_000)) == now
    assert process_time() - started_s < 0.1  # with a search for each element, 0.6 s
