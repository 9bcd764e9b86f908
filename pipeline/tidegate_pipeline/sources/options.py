"""The options of `format("tidegate")`: one table, checked before anything is read.

Options go into every task and are shown by `explain`, so no password may be in them: `redis.passwordVariable` names
where each process finds it. What is not given comes from the settings of the pipeline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from tidegate.records.record import OPENED_BYTES_MAX
from tidegate_pipeline.addresses import has_password
from tidegate_pipeline.decode.schema import decoded_schema, ranges_schema, raw_schema
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.format_options import check_names, given_options
from tidegate_pipeline.sources.connector_options import from_connector
from tidegate_pipeline.sources.durations import parse_duration
from tidegate_pipeline.sources.offsets import RESERVED
from tidegate_pipeline.topics import Condition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SIZE: Final = re.compile(r"(\d+) *([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_WORDS: Final = ("earliest", "latest", "archive")
UNLIMITED: Final = 1 << 53
LATEST: Final = -1
"""As an offset in JSON, like Kafka's."""
EARLIEST: Final = -2


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("option", "{message}", {"message": message})


def _size(text: Any) -> Any:
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise _wrong("a number of bytes, as in 1048576, 64k or 256m")
    return int(match[1]) << _UNITS[match[2].lower()]


def _duration(text: Any) -> Any:
    try:
        return parse_duration(str(text))
    except ValueError:
        raise _wrong("a duration, as in 30s, 15m or 1h; a number alone is milliseconds") from None


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise _wrong(f"no JSON: {error}") from None


def _names(text: Any) -> Any:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if isinstance(text, str) else text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise _wrong(f"no regular expression: {error}") from None
    return text


def _config(text: str) -> tuple[Condition, ...]:
    found = []
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            raise _wrong("configs and their values, as in remote.storage.enable=true,remote.log.copy.disable!=true")
        found.append(Condition(name.removesuffix("!").strip(), value.strip(), not name.endswith("!")))
    return tuple(found)


def _offsets(text: Any) -> Any:
    """`earliest`, `latest`, `archive`, or `{"topic": {"0": offset}}` with -1 for latest and -2 for earliest."""
    if not isinstance(text, str) or text.strip().lower() in _WORDS:
        return text.strip().lower() if isinstance(text, str) else text
    value = _json(text) if text.lstrip().startswith(("{", "[")) else None
    if not isinstance(value, dict) or not all(isinstance(of_topic, dict) for of_topic in value.values()):
        raise _wrong(f'{", ".join(_WORDS)} or {{"topic": {{"0": offset}}}}, not {text}')
    for topic, of_topic in value.items():
        for partition, offset in of_topic.items():
            number = topic in RESERVED or (partition.isdecimal() and type(offset) is int and offset >= EARLIEST)
            if not number:
                raise _wrong(f"{topic}: {json.dumps(partition)} is to have an offset, -1 (latest) or -2 (earliest)")
    return value


def _timestamps(text: Any) -> Any:
    """`{"topic": {"0": ms}}`."""
    value = _json(text)
    if not isinstance(value, dict) or not all(isinstance(of_topic, dict) for of_topic in value.values()):
        raise _wrong('JSON, {"topic": {"0": ms}}')
    for topic, of_topic in value.items():
        for partition, timestamp_ms in of_topic.items():
            if not (partition.isdecimal() and type(timestamp_ms) is int and timestamp_ms >= 0):
                raise _wrong(f"{topic}: {json.dumps(partition)} is to have a time in ms")
    return value


def _lower(text: Any) -> Any:
    return str(text).lower()


Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
TimestampsOption = Annotated[dict[str, dict[str, int]], BeforeValidator(_timestamps)]
OffsetsOption = Annotated[str | dict[str, dict[str, Any]], BeforeValidator(_offsets)]


class TopicOptions(BaseModel):
    """What a query reads, and how. Names are Spark's, whatever their case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subscribe: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), alias="subscribe", description="topics, separated by commas"
    )
    pattern: Annotated[str | None, BeforeValidator(_pattern)] = Field(
        None, alias="subscribePattern", description="a regular expression that whole names of topics match"
    )
    config: Annotated[tuple[Condition, ...] | None, BeforeValidator(_config)] = Field(
        None,
        alias="subscribeConfig",
        description="topics with these configs, as in `remote.storage.enable=true,remote.log.copy.disable!=true`",
    )
    assign: Annotated[dict[str, tuple[int, ...]], BeforeValidator(_json)] = Field(
        default_factory=dict, alias="assign", description='partitions as JSON, `{"t":[0,1]}`'
    )
    starting_offsets: OffsetsOption | None = Field(
        None,
        alias="startingOffsets",
        description='`earliest`, `latest`, `archive` (continue where the archive ended), or JSON `{"t":{"0":5}}`, '
        "-1 latest, -2 earliest; default `earliest` for a batch, `latest` for a stream",
    )
    starting_timestamp: int | None = Field(
        None, ge=0, alias="startingTimestamp", description="ms: from the first record of then or later"
    )
    starting_by_timestamp: TimestampsOption | None = Field(
        None, alias="startingOffsetsByTimestamp", description='the same for each partition, `{"t":{"0":1795280000000}}`'
    )
    timestamp_strategy: Annotated[Literal["error", "latest"], BeforeValidator(_lower)] = Field(
        "error",
        alias="startingOffsetsByTimestampStrategy",
        description="what a partition without such a record does: fail the query, or begin at its end",
    )
    ending_offsets: OffsetsOption | None = Field(
        None, alias="endingOffsets", description="batch only: `latest` (default) or JSON, exclusive, -1 latest"
    )
    ending_timestamp: int | None = Field(
        None, ge=0, alias="endingTimestamp", description="batch only, ms: up to the first record of then or later"
    )
    ending_by_timestamp: TimestampsOption | None = Field(
        None, alias="endingOffsetsByTimestamp", description="batch only: the same for each partition, as JSON"
    )
    offsets_per_trigger: Count | None = Field(
        None,
        alias="maxOffsetsPerTrigger",
        description="streams: most records of a micro-batch; one at least of each partition that is behind",
    )
    offsets_per_trigger_min: Count | None = Field(
        None,
        alias="minOffsetsPerTrigger",
        description="streams: a micro-batch begins when there are as many to read, or after maxTriggerDelay",
    )
    bytes_per_trigger: Size | None = Field(
        None, alias="maxBytesPerTrigger", description="streams: most stored bytes of a micro-batch; one of the two"
    )
    bytes_per_partition: Annotated[int, BeforeValidator(_size), Field(ge=0)] = Field(
        0, alias="minBytesPerPartition", description="streams: a partition is read when it has as much, or has waited"
    )
    trigger_delay_s: Annotated[float, BeforeValidator(_duration)] = Field(
        900.0,
        alias="maxTriggerDelay",
        description="duration, as in `30s` or `15m` (the default), for which the two minima are waited for",
    )
    min_partitions: Count | None = Field(
        None, alias="minPartitions", description="tasks at least; a topic partition is split between entries"
    )
    records_per_partition: Count | None = Field(
        None, alias="maxRecordsPerPartition", description="records of a task at most; an entry is never split"
    )
    fail_on_data_loss: bool = Field(
        True, alias="failOnDataLoss", description="`false`: continue where data begins, and note the gap"
    )
    on_corrupt: Literal["quarantine", "fail"] = Field(
        "fail", alias="onCorrupt", description="a corrupt batch fails the query, or is quarantined and counted"
    )
    corrupt_limit: int = Field(
        100, ge=0, alias="corruptLimit", description="corrupt batches of a micro-batch above which the query fails"
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_uncommitted",
        alias="isolation",
        description="`read_uncommitted`, as Kafka's consumers: also open and aborted records; `read_committed` reads "
        "up to the first open transaction, without aborted ones",
    )
    mode: Literal["decoded", "raw", "ranges"] = Field(
        "decoded",
        alias="mode",
        description="rows: records, stored batches, or ranges that `tidegate-archive` reads itself",
    )
    include_headers: bool = Field(False, alias="includeHeaders", description="decoded: whether there is `headers`")
    include_range: bool = Field(
        False, alias="includeRange", description="raw: also `topic_id` and `from_offset`, rows that leave no hole"
    )
    decoder: Literal["auto", "numpy", "numba"] = Field(
        "auto", alias="decoder", description="`auto`: numba if installed"
    )
    group_size: Size = Field(1 << 20, alias="groupBytes", description="decoded bytes of one Arrow batch, about")
    decoded_batch_max: Size = Field(
        OPENED_BYTES_MAX,
        alias="maxDecodedBatch",
        description="bytes of a decompressed batch, by default the brokers' own limit; more is corrupt",
    )
    push_filters: bool = Field(
        False,
        alias="pushFilters",
        description="batch: filters make fewer tasks and shorter ranges; only for a DataFrame with one set of filters",
    )
    tiers: Literal["redis", "archive", "both"] = Field(
        "both", alias="tiers", description="`both`: what Redis no longer holds comes from the archive"
    )
    org: str = Field("default", alias="org", description="organisation of the topics")
    url: str = Field("", alias="redis.url", description="address of Redis, without a password")
    password_variable: str = Field(
        "", alias="redis.passwordVariable", description="environment variable, or path of the file, with the password"
    )
    key_prefix: str = Field("", alias="redis.keyPrefix", description="prefix of the cluster's keys")
    retry_s: float = Field(30.0, ge=0, alias="redis.retry", description="seconds for which Redis may be away")
    archive_path: str = Field("", alias="archive.path", description="root of the archive")

    @property
    def is_open_ended(self) -> bool:
        """Whether a batch query reads up to what each partition has when it is read."""
        by_time = self.ending_timestamp is not None or self.ending_by_timestamp is not None
        fixed = by_time or self.push_filters or self.mode == "ranges"
        return self.ending_offsets in (None, "latest") and not fixed

    @property
    def splits(self) -> bool:
        """Whether a topic partition may be read by several tasks."""
        return self.min_partitions is not None or self.records_per_partition is not None

    @model_validator(mode="after")
    def _fit_together(self) -> TopicOptions:
        if sum(map(bool, (self.subscribe, self.pattern, self.config, self.assign))) != 1:
            raise _wrong("exactly one of subscribe, subscribePattern, subscribeConfig and assign must be given")
        if self.offsets_per_trigger is not None and self.bytes_per_trigger is not None:
            raise _wrong("maxOffsetsPerTrigger and maxBytesPerTrigger cannot both be set")
        if (self.offsets_per_trigger_min or 0) > (self.offsets_per_trigger or UNLIMITED):
            raise _wrong("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
        if has_password(self.url):
            raise _wrong(
                "redis.url: no password in an option, which Spark shows; redis.passwordVariable names where it is"
            )
        return self


OPTIONS: Final[dict[str, str]] = {
    str(field.alias).lower(): str(field.alias) for field in TopicOptions.model_fields.values()
}
"""Every option, by its name in lower case."""


def parse_options(given: Mapping[str, str]) -> TopicOptions:
    """The options of a query, the rest from the settings. Raises UsageError, one line that names all that is wrong."""
    given = from_connector(given_options(given))
    check_names("tidegate", given, OPTIONS.values())
    values = {**_configured(), **{OPTIONS[name.lower()]: text for name, text in given.items()}}
    if "maxoffsetspertrigger" in map(str.lower, given) and "maxbytespertrigger" not in map(str.lower, given):
        del values["maxBytesPerTrigger"]
    try:
        return TopicOptions.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"options of tidegate: {'; '.join(map(_reported, error.errors()))}") from None


_TYPES: Final = {
    "bool_parsing": "true or false",
    "dict_type": 'JSON, {"topic": [partition]}',
    "float_parsing": "a number",
    "int_parsing": "a whole number",
}


def _reported(item: ErrorDetails) -> str:
    """An option, the rule and the value."""
    option, rule = ".".join(map(str, item["loc"])), _TYPES.get(item["type"], item["msg"])
    if not option or (rule == item["msg"] and not rule.startswith("Input should be ")):
        return f"{option}: {rule}" if option else rule
    return f"{option} is {rule.removeprefix('Input should be ')}, not {item['input']}"


CONFIGURED: Final = {
    "redis.url": "redis.url",
    "redis.keyPrefix": "redis.key_prefix",
    "redis.retry": "redis.retry_s",
    "archive.path": "archive.path",
    "maxBytesPerTrigger": "source.max_bytes_per_trigger",
    "decoder": "source.decoder",
    "onCorrupt": "source.on_corrupt",
    "corruptLimit": "source.corrupt_limit",
    "maxDecodedBatch": "source.max_decoded_batch",
}
"""Option -> the setting that it is, where a query does not give it."""


def _configured() -> dict[str, Any]:
    """Defaults of options from the settings."""
    from tidegate_pipeline.settings import load  # tasks and planning have these options already

    found = load()
    values = {option: attrgetter(setting)(found) for option, setting in CONFIGURED.items()}
    return {**values, "redis.url": found.redis.option_url}


def schema_of(options: TopicOptions) -> StructType:
    """The columns of the mode."""
    if options.mode == "ranges":
        return ranges_schema()
    if options.mode == "raw":
        return raw_schema(options.include_range)
    return decoded_schema(options.include_headers)
