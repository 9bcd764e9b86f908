"""`format("tidegate-replay")`: raw rows of one topic into another, each record once, in the order of its partition.

The rows are of mode raw with includeRange, so they leave no hole: a target takes what continues behind what it has, and
where tasks share a source partition the later one waits for its turn. What is tried again finds in the target how far
it was; where records came to stand is in the target too, until `commit` has it in the archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.addresses import check_option
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.format_options import FormatOptions
from tidegate_pipeline.redis_access import Client, connect_by_option, retry_while_unavailable
from tidegate_pipeline.replay.batches import TargetBatch, convert_batch, entries_of
from tidegate_pipeline.replay.rate_limiter import RateLimiter
from tidegate_pipeline.replay.target import Target
from tidegate_pipeline.replay.translation import Row, Table
from tidegate_pipeline.spark_errors import reports_one_line
from tidegate_pipeline.topics import Topic, read_topics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OPTIONS: Final = (
    "topic", "topicId", "job", "sourceTopic", "sourceId", "archive.path", "repartition", "recordsPerSecond", "ranges",
    "org", "redis.url", "redis.passwordVariable", "redis.keyPrefix", "redis.retry",
)  # fmt: skip
COLUMNS_READ: Final = ("partition", "from_offset", "base_offset", "last_offset", "batch")
MAX_OFFSET: Final = 1 << 62
_MESSAGE_BYTES_MAX: Final = 1_048_588
"""Kafka's default of max.message.bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay copies, from its options. Offsets of `ranges` by source partition; ends exclusive.

    `records_per_s` is for one task, 0 unlimited; `spread` the partitions that keys are spread over, 0: none.
    """

    url: str
    prefix: str
    job: str
    source_topic: str
    source_id: str
    target: Topic
    spread: int
    records_per_s: float
    batch_bytes_max: int
    archive: str
    retry_s: float
    password_variable: str = ""
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        """Where the translations go."""
        return Table(self.archive, self.job, self.source_topic, self.source_id, self.target.name)

    def source(self, partition: int) -> str:
        """A source partition's name in the target."""
        return source_name(self.job, self.source_topic, self.source_id, partition)

    def range(self, partition: int) -> tuple[int, int]:
        """The first source offset of the replay, and the one after its last."""
        return self.ranges.get(partition, (0, MAX_OFFSET))

    def connect(self) -> Client:
        """A connection of one's own."""
        return connect_by_option(self.url, self.password_variable)


@dataclass(frozen=True)
class Replayed(WriterCommitMessage):
    """What a task found to be in the target when it had ended."""

    rows: tuple[Row, ...]
    lasts: Mapping[int, int]


@reports_one_line
class ReplayWriter(DataSourceStreamArrowWriter):
    """Writes on executors, notes on the driver. Holds no connection: it is pickled."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Replayed:
        """Put the rows of one task into the target."""
        with closing(self.plan.connect()) as client:
            return _Task(self.plan, client).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Note where the records of a micro-batch stand; then the target need not know it any more."""
        replayed = [message for message in messages if isinstance(message, Replayed)]
        rows = {row for message in replayed for row in message.rows}  # tasks of one partition saw the same
        if not rows:
            return
        self.plan.table.add(rows)
        with closing(self.plan.connect()) as client:
            targets = Targets(self.plan, client)
            for source, target in {(row.partition, row.target_partition) for row in rows}:
                targets.of(source, target).forget(max(message.lasts.get(source, -1) for message in replayed))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: what was written is found when it is tried again."""


class Targets:
    """The target partitions of one process."""

    def __init__(self, plan: Plan, client: Client) -> None:
        self._plan = plan
        self._client = client
        self._known: dict[tuple[int, int], Target] = {}

    def of(self, source: int, target: int) -> Target:
        """The appends of a source partition to a target partition."""
        known = self._known.get((source, target))
        if known is None:
            plan = self._plan
            first, _ = plan.range(source)
            known = self._known[source, target] = Target(
                self._client, plan.prefix, plan.target.keys(plan.prefix, target), plan.source(source), first,
                f"replay:{plan.job}", plan.retry_s,
            )  # fmt: skip
        return known


class _Task:
    """One task: rows in order of offset, of one source partition or of several."""

    def __init__(self, plan: Plan, client: Client) -> None:
        self._plan = plan
        self._client = client
        self._targets = Targets(plan, client)
        self._rate_limiter = RateLimiter(plan.records_per_s)
        self._next: dict[tuple[int, int], int] = {}
        self._lasts: dict[int, int] = {}
        self._holes: dict[int, int] = {}
        self._left_open = False

    def run(self, iterator: Iterator[pa.RecordBatch]) -> Replayed:
        """Every row, and then that the rest of the offsets has nothing more."""
        for rows in iterator:
            columns = [rows.column(name) for name in COLUMNS_READ]
            target_batches: dict[tuple[int, int], list[TargetBatch]] = {}
            for source, start, base, last, batch in zip(*columns, strict=True):
                self._take(target_batches, source.as_py(), start.as_py(), base.as_py(), last.as_py(), batch.as_buffer())
            for (source, target), found in target_batches.items():
                self._append(source, target, found)
        for (source, target), start in self._next.items():
            last = self._passed(source, start)
            if start <= last:
                self._targets.of(source, target).append([TargetBatch(start, start, last, b"", 0)])
        return Replayed(
            tuple(
                Row(source, run.source_base, run.source_last, target, run.target_base, run.target_last)
                for source, target in sorted(self._next)
                for run in self._targets.of(source, target).runs(self._lasts[source])
            ),
            self._lasts,
        )

    def _passed(self, source: int, start: int) -> int:
        """The last source offset behind which a target that continues at `start` gets nothing more from this task.

        Where the rows end with a hole this may be the first part of a batch that is the next task's row, whole. That
        task can have all that is wanted of it if the replay's range continues behind the hole, and nothing of it was
        written. Otherwise that task decides: see `_begin`.
        """
        last, end = self._lasts[source], self._plan.range(source)[1]
        hole = self._holes.get(source)
        if hole is not None and hole < end and (end <= last + 1 or hole < start):
            return hole - 1
        return min(last, end - 1)

    def _take(
        self,
        target_batches: dict[tuple[int, int], list[TargetBatch]],
        source: int,
        start: int,
        base: int,
        last: int,
        stored: Any,
    ) -> None:
        """File what of a stored batch is wanted and not written yet; offsets without a batch have none."""
        plan = self._plan
        first, end = plan.range(source)
        if source not in self._lasts:
            self._begin(source, start, base)
        elif start != self._lasts[source] + 1:
            raise PipelineError(
                f"partition {source}: offset {start} follows {self._lasts[source]}: offsets are missing"
            )
        self._lasts[source] = last
        if not len(stored):
            self._holes[source] = start
            return
        self._holes.pop(source, None)
        for target, target_batch in convert_batch(bytes(stored), base, source, first, end, plan.spread):
            if len(target_batch.batch) > plan.batch_bytes_max:
                raise UsageError(
                    f"the batch at offset {base} of partition {source} has {len(target_batch.batch)} bytes, the target"
                    f" takes {plan.batch_bytes_max}: raise max.message.bytes of {plan.target.name}"
                )
            behind = self._next[source, target]
            # A run with another range ended within the batch: the rest is wanted. Where a row starts within its batch
            # instead, the task before left all of it to this one.
            if target_batch.first < behind <= target_batch.last and (start != behind or self._left_open):
                rest = dict(convert_batch(bytes(stored), base, source, behind, end, plan.spread))
                target_batch = rest.get(target, target_batch._replace(last=behind - 1))
            if target_batch.last >= behind:
                target_batches.setdefault((source, target), []).append(target_batch._replace(start=behind))
                self._next[source, target] = target_batch.last + 1

    def _begin(self, source: int, start: int, base: int) -> None:
        """Find how far each target is: what is there already is passed over.

        The first row may start within its batch, which begins at `base`; then the row before it, another task's, was a
        hole up to here. Where the range ends in there, or a run with such a range was here before, it left that open.
        """
        first, end = self._plan.range(source)
        self._left_open = base < start and (end <= start or self._has_part(source, base))
        for target in self._target_partitions(source):
            written = self._targets.of(source, target).last_source_offset()
            self._next[source, target] = max(base if self._left_open else start, first, written + 1)
            self._note_upkeep(target)

    def _target_partitions(self, source: int) -> Sequence[int]:
        return range(self._plan.spread) if self._plan.spread else [source]

    def _has_part(self, source: int, offset: int) -> bool:
        """Whether records from an offset on are in the target; what a target says it passed may have had none."""
        reported = [run.source_last for target in self._target_partitions(source)
                for run in self._targets.of(source, target).runs(MAX_OFFSET)]  # fmt: skip
        return max([*reported, *(row.source_last for row in self._plan.table.read(source))], default=-1) >= offset

    def _append(self, source: int, target: int, target_batches: list[TargetBatch]) -> None:
        for entry in entries_of(target_batches, self._rate_limiter.records_max):
            self._rate_limiter.take(sum(target_batch.records for target_batch in entry))
            self._targets.of(source, target).append(entry)

    def _note_upkeep(self, target: int) -> None:
        """Retention finds a partition by this list; brokers add only where they append themselves."""
        topic = self._plan.target
        item = f"{topic.org}/{topic.name}:{target}:{topic.topic_id}"
        upkeep = ClusterKeys(self._plan.prefix).upkeep
        retry_while_unavailable(lambda: self._client.zadd(upkeep, {item: 0}, nx=True), self._plan.retry_s)


@reports_one_line
class ReplaySink(DataSource):
    """Options: see `plan_of`."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-replay"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ReplayWriter:
        """A writer for raw rows. Raises UsageError."""
        missing = set(COLUMNS_READ) - set(schema.fieldNames())
        if missing:
            raise UsageError(
                f"tidegate-replay takes rows of mode=raw and includeRange=true; {sorted(missing)} are not there"
            )
        return ReplayWriter(plan_of(self.options))


def source_name(job: str, topic: str, topic_id: str, partition: int) -> str:
    """A source partition's name in the target's `replayed` and `translations`."""
    return f"{job}|{topic}/{topic_id}:{partition}"


def plan_of(options: Mapping[str, str]) -> Plan:
    """The plan that the options describe. Raises UsageError, PipelineError.

    `topic`, `job`, `sourceTopic`, `sourceId` and `archive.path` must be given. `topicId`: the target must
    be this one. `repartition=true`: by key. `ranges`: as `ranges_of` reads them. `recordsPerSecond`: of one task.
    """
    given = FormatOptions("tidegate-replay", OPTIONS, options)
    url, prefix = check_option(given.text("redis.url")), given.text("redis.keyPrefix", "tidegate")
    password_variable = given.text("redis.passwordVariable")
    org, name = given.text("org", "default"), given.required_text("topic")
    retry_s = given.number("redis.retry", 30.0)
    with closing(connect_by_option(url, password_variable)) as client:
        topic = retry_while_unavailable(lambda: read_topics(client, prefix, org), retry_s).get(name)
        limit = retry_while_unavailable(
            lambda: client.hget(ClusterKeys(prefix).topic(org, name), "max.message.bytes"), retry_s
        )
    if topic is None:
        raise UsageError(f"there is no topic {name}")
    if given.text("topicId", topic.topic_id) != topic.topic_id:
        raise UsageError(f"the topic {name} was created again since this replay began: give the replay another --job")
    return Plan(
        url=url, prefix=prefix, job=given.required_text("job"),
        source_topic=given.required_text("sourceTopic"), source_id=given.required_text("sourceId"),
        target=topic, spread=topic.partition_count if given.flag("repartition", False) else 0,
        records_per_s=given.number("recordsPerSecond", 0.0), batch_bytes_max=int(limit or _MESSAGE_BYTES_MAX),
        archive=given.required_text("archive.path"), retry_s=retry_s, password_variable=password_variable,
        ranges=ranges_of(given.text("ranges")),
    )  # fmt: skip


def ranges_of(text: str) -> dict[int, tuple[int, int]]:
    """`0:100-200,1:5-9` by partition; ends exclusive. Raises UsageError."""
    ranges = {}
    for item in filter(None, text.split(",")):
        partition, _, offsets = item.partition(":")
        first, _, end = offsets.partition("-")
        if not (partition.isdecimal() and first.isdecimal() and end.isdecimal()):
            raise UsageError(f"ranges are <partition>:<start>-<end>, separated by commas, not {item}")
        ranges[int(partition)] = (int(first), int(end))
    return ranges
