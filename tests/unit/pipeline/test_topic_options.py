"""Options of `format("tidegate")`: what is taken, and the one line that says what is wrong."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from tidegate.records.record import OPENED_BYTES_MAX
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.sources.options import OPTIONS, TopicOptions, parse_options

URL = "redis://127.0.0.1:6379/0"


def test_defaults() -> None:
    options = parse_options({"subscribe": "a, b", "redis.url": URL})

    assert options.subscribe == ("a", "b")
    assert options.starting_offsets is None
    assert options.bytes_per_trigger == 256 << 20
    assert options.offsets_per_trigger is None
    assert (options.fail_on_data_loss, options.on_corrupt, options.corrupt_limit) == (True, "fail", 100)
    assert (options.decoded_batch_max, options.trigger_delay_s) == (OPENED_BYTES_MAX, 900)
    assert (options.mode, options.include_headers, options.decoder, options.group_size) == (
        "decoded",
        False,
        "auto",
        1 << 20,
    )
    assert (options.tiers, options.isolation, options.key_prefix) == ("both", "read_uncommitted", "tidegate")


def test_names_are_taken_in_any_case_and_values_are_read() -> None:
    options = parse_options(
        {
            "ASSIGN": '{"t": [0, 1]}',
            "startingoffsets": '{"t": {"0": 5, "1": -2}}',
            "MAXOFFSETSPERTRIGGER": "10",
            "groupbytes": "64k",
            "failOnDataLoss": "false",
            "maxDecodedBatch": "1 MiB",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "2h",
        }
    )

    assert options.assign == {"t": (0, 1)}
    assert options.starting_offsets == {"t": {"0": 5, "1": -2}}
    assert (options.offsets_per_trigger, options.bytes_per_trigger) == (10, None)
    assert (options.offsets_per_trigger_min, options.trigger_delay_s) == (5, 7_200)
    assert (options.group_size, options.decoded_batch_max) == (64 << 10, 1 << 20)
    assert options.fail_on_data_loss is False
    assert pickle.loads(pickle.dumps(options)) == options


def test_options_not_given_are_taken_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", "redis://somewhere:1/0")
    monkeypatch.setenv("TIDEGATE_PIPELINE_SOURCE_MAX_BYTES_PER_TRIGGER", "5000")
    monkeypatch.setenv("TIDEGATE_PIPELINE_ARCHIVE_PATH", "/archive")

    options = parse_options({"subscribe": "a"})

    assert (options.url, options.bytes_per_trigger, options.archive_path) == ("redis://somewhere:1/0", 5000, "/archive")


def test_password_of_the_settings_stays_out_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", "redis://user:hush@somewhere:1/0")

    options = parse_options({"subscribe": "a"})

    assert options.url == ""
    assert "hush" not in repr(options)


@pytest.mark.parametrize(
    ("given", "reported_text"),
    [
        ({}, "exactly one of subscribe, subscribePattern, subscribeConfig and assign"),
        ({"subscribe": "a", "assign": '{"t":[0]}'}, "exactly one of subscribe"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "cannot both be set"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "minOffsetsPerTrigger is above"),
        ({"subscribe": "a", "maxTriggerDelay": "0.5m"}, "maxTriggerDelay: a duration, as in 30s"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "x"}, "kafka.bootstrap.servers has no meaning for the source"),
        ({"subscribe": "a", "kafka.max.poll.records": "5"}, "kafka.max.poll.records has no meaning for the source"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": "5"}, 'startingOffsetsByTimestamp: JSON, {"topic": {"0": ms'),
        ({"subscribe": "a", "endingOffsetsByTimestamp": '{"t":{"0":-1}}'}, 't: "0" is to have a time in ms'),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "no"}, "Strategy is 'error' or 'latest', not no"),
        ({"subscribe": "a", "mode": "Raw!"}, "mode is 'decoded', 'raw' or 'ranges', not Raw!"),
        ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss is true or false, not perhaps"),
        ({"subscribe": "a", "maxBytesPerTrigger": "lots"}, "maxBytesPerTrigger: a number of bytes"),
        ({"subscribe": "a", "maxBytesPerTrigger": "0"}, "maxBytesPerTrigger is greater than or equal to 1, not 0"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions is greater than or equal to 1, not 0"),
        ({"subscribe": "a", "startingOffsets": "soon"}, '{"topic": {"0": offset}}, not soon'),
        ({"subscribe": "a", "startingOffsets": "{"}, "startingOffsets: no JSON"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5x"}, "maxOffsetsPerTrigger is a whole number, not 5x"),
        ({"subscribe": "a", "startingOffset": "latest"}, "startingOffset; did you mean startingOffsets?"),
        ({"assign": '{"t":[0,"x"]}'}, "assign.t.1 is a whole number, not x"),
        ({"subscribe": "a", "startingOffsets": '{"t": 5}'}, "startingOffsets: earliest, latest, archive or"),
        ({"subscribe": "a", "startingOffsets": '{"t": {"0": -3}}'}, 'startingOffsets: t: "0" is to have an offset'),
        ({"subscribe": "a", "endingOffsets": '{"t": {"x": 1}}'}, 'endingOffsets: t: "x" is to have an offset'),
        ({"assign": "[0]"}, 'assign is JSON, {"topic": [partition]}, not [0]'),
        ({"assign": "{"}, "assign: no JSON"),
        ({"subscribePattern": "("}, "subscribePattern: no regular expression"),
        ({"subscribe": "a", "redis.url": "redis://user:hush@h:1/0"}, "redis.url: no password in an option"),
    ],
)  # fmt: skip
def test_invalid_options_are_reported_in_one_line(given: dict[str, str], reported_text: str) -> None:
    with pytest.raises(UsageError) as failed:
        parse_options(given)

    assert reported_text in str(failed.value)
    assert "\n" not in str(failed.value)
    assert "hush" not in str(failed.value)


def test_several_faults_are_named_together() -> None:
    with pytest.raises(UsageError, match=r"corruptLimit is .*; mode is "):
        parse_options({"subscribe": "a", "mode": "x", "corruptLimit": "-1"})


def test_every_option_has_a_meaning() -> None:
    assert len(OPTIONS) == len(TopicOptions.model_fields)
    assert all(field.description for field in TopicOptions.model_fields.values())


def test_options_of_the_kafka_connector_are_known() -> None:
    options = parse_options(
        {
            "subscribe": "a", "groupIdPrefix": "g", "kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "1", "kafka.isolation.level": "read_uncommitted", "includeHeaders": "true",
            "startingTimestamp": "1", "startingOffsets": "latest", "startingOffsetsByTimestampStrategy": "LATEST",
            "startingOffsetsByTimestamp": '{"a":{"0":7}}', "endingTimestamp": "2",
            "endingOffsetsByTimestamp": '{"a":{"0":8}}',
        }
    )  # fmt: skip

    assert (options.isolation, options.include_headers, options.timestamp_strategy) == (
        "read_uncommitted",
        True,
        "latest",
    )
    assert options.starting_by_timestamp == {"a": {"0": 7}}
    assert options.ending_by_timestamp == {"a": {"0": 8}}


@pytest.mark.parametrize(
    ("given", "is_open"),
    [
        ({}, True),
        ({"endingOffsets": "latest"}, True),
        ({"endingTimestamp": "5"}, False),
        ({"endingOffsetsByTimestamp": '{"orders":{"0":5}}'}, False),
        ({"pushFilters": "true"}, False),
    ],
)
def test_ending_options_fix_the_end_of_a_query(given: dict[str, str], is_open: bool) -> None:
    assert parse_options({"subscribe": "orders", "redis.url": URL, **given}).is_open_ended is is_open


def test_schema_of_a_query_needs_no_client_of_redis() -> None:
    code = (
        "import sys\n"
        "from tidegate_pipeline.sources.topic_source import TopicSource\n"
        "TopicSource({'subscribe': 't', 'redis.url': 'redis://r'}).schema()\n"
        "print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "tidegate_pipeline.sources.options" in loaded
    assert not loaded & {"redis", "aiokafka", "tidegate_pipeline.sources.topic_readers"}
