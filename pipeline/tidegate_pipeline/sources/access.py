"""A query's way to its topics: one connection a process, made when it is first needed, never pickled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from tidegate.store.keys import ClusterKeys, LogKeys
from tidegate_pipeline.archive.index import ArchiveIndex, ArchiveState, state_of
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import Client, connect_by_option, kept_client, retry_while_unavailable
from tidegate_pipeline.sources.committed import Transactions, reading_transactions
from tidegate_pipeline.sources.offset_ranges import OffsetRange
from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.reads import Planning, Read, plan_together
from tidegate_pipeline.sources.tiers import PartitionTiers
from tidegate_pipeline.sources.walking import UNLIMITED, Epochs, LogWalker, Walked, walk_of
from tidegate_pipeline.topics import Condition, RecordKeys, Topic, keys_of, read_topics, with_configs

Result = TypeVar("Result")

_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_LOG_APPEND_TIME: Final = b"LogAppendTime"


class Access:
    """Connections to Redis and the archive of a query's options."""

    def __init__(self, options: TopicOptions, client: Client | None = None) -> None:
        """`client` is another's: it stays open."""
        self.options = options
        self._client = client
        self._is_own = client is None
        self._filesystem: Any = None
        self._transactions: dict[str, tuple[Epochs, Transactions]] = {}
        """Of logs by key: what was read of their transactions, and the leader epochs then."""

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_client": None, "_is_own": True, "_filesystem": None, "_transactions": {}}

    @classmethod
    def kept(cls, options: TopicOptions) -> Access:
        """For tasks: with the connection that this process has kept from the tasks before, where it has one."""
        address = (options.url, options.password_variable)
        return cls(options, retry_while_unavailable(lambda: kept_client(*address), options.retry_s))

    @property
    def client(self) -> Client:
        """The connection of this process."""
        if self._client is None:
            options = self.options
            self._client = retry_while_unavailable(
                lambda: connect_by_option(options.url, options.password_variable), options.retry_s
            )
        return self._client

    def close(self) -> None:
        """End the connection."""
        if self._client is not None and self._is_own:
            self._client.close()
            self._client = None

    def topics(self) -> dict[str, Topic]:
        """The organisation's topics."""
        options = self.options
        return retry_while_unavailable(
            lambda: read_topics(self.client, options.key_prefix, options.org), options.retry_s
        )

    def configured(self, topics: Iterable[Topic], conditions: Sequence[Condition]) -> list[Topic]:
        """Those of the topics that have these configs, set for the topic itself."""
        options = self.options
        return retry_while_unavailable(
            lambda: with_configs(self.client, options.key_prefix, topics, conditions), options.retry_s
        )

    def has_append_time(self, topic: str) -> bool:
        """Whether a topic's own config sets LogAppendTime."""
        key = ClusterKeys(self.options.key_prefix).topic(self.options.org, topic)
        found = retry_while_unavailable(lambda: self.client.hget(key, _TIMESTAMP_TYPE), self.options.retry_s)
        return bool(found == _LOG_APPEND_TIME)

    def keys(self, topic: str, topic_id: str, partition: int, bits: int = 0) -> LogKeys:
        """The keys of a partition; `bits` as of Topic."""
        return keys_of(self.options.key_prefix, self.options.org, topic, partition, topic_id, bits)

    def walker(self, keys: LogKeys) -> LogWalker:
        """What walks a log."""
        return LogWalker(self.client, keys, self.options.retry_s)

    def index(self, keys: LogKeys) -> ArchiveIndex:
        """A partition's archive."""
        return ArchiveIndex(self.client, keys)

    def plan(self, plans: Sequence[Planning[Result]]) -> list[Result]:
        """What is planned for each of many partitions, in step. Raises PipelineError."""
        return plan_together(self.client, plans, self.options.retry_s)

    def reading_tiers(self, keys: LogKeys, start: int = 0) -> Planning[PartitionTiers]:
        """What each tier that is read holds of a partition now, from `start` on. Raises LogGone, PipelineError."""
        options = self.options
        walked: Walked = yield walk_of(keys, UNLIMITED)
        end, archived_end_max = walked.offsets.end, UNLIMITED
        if options.isolation == "read_committed" and not isinstance(keys, RecordKeys):
            epochs, known = self._transactions.get(keys.log, (walked.offsets.epochs, None))
            if epochs != walked.offsets.epochs:
                known = None  # the log may have lost what was read of it
            transactions = yield from reading_transactions(keys, known)
            self._transactions[keys.log] = walked.offsets.epochs, transactions
            end = archived_end_max = transactions.last_stable(end)
        redis, archived = walked.offsets, None  # the archive after it: what is cut meanwhile is there already
        if options.tiers == "archive" or (options.tiers == "both" and start < redis.redis_start):
            state: ArchiveState = yield Read(("HMGET", keys.archive, *ArchiveState._fields), state_of)
            archived = OffsetRange(state.start, min(state.end, archived_end_max)) if state.end >= 0 else None
        shown = OffsetRange(redis.redis_start, end) if options.tiers != "archive" else None
        if shown is None:
            return PartitionTiers(redis.log_start, None, archived)
        return PartitionTiers(redis.log_start, shown, archived, redis.epochs, redis.end)

    def archive(self) -> tuple[Any, str]:
        """Where the archive's files are: pyarrow's filesystem, and the root in it. Raises UsageError."""
        from tidegate.records.segment_file import open_archive

        if not self.options.archive_path:
            raise UsageError("archive.path, the root of the archive, is not set")
        if self._filesystem is None:
            try:
                self._filesystem = open_archive(self.options.archive_path)
            except ValueError as error:
                raise UsageError(str(error)) from None
        filesystem: tuple[Any, str] = self._filesystem
        return filesystem
