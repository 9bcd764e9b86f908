"""A query's way to its topics: one connection a process, made when it is first needed, never pickled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.store.keys import LogKeys
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import Client, connect_by_option, retry_while_unavailable
from tidegate_pipeline.sources.offset_ranges import OffsetRange
from tidegate_pipeline.sources.options import TopicOptions
from tidegate_pipeline.sources.tiers import PartitionTiers
from tidegate_pipeline.sources.walking import LogWalker
from tidegate_pipeline.topics import Condition, Topic, read_topics, with_configs


class Access:
    """Connections to Redis and the archive of a query's options."""

    def __init__(self, options: TopicOptions) -> None:
        self.options = options
        self._client: Client | None = None
        self._filesystem: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_client": None, "_filesystem": None}

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
        if self._client is not None:
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

    def keys(self, topic: str, topic_id: str, partition: int) -> LogKeys:
        """The keys of a partition."""
        return LogKeys.of(self.options.key_prefix, self.options.org, topic, partition, topic_id)

    def walker(self, keys: LogKeys) -> LogWalker:
        """What walks a log."""
        return LogWalker(self.client, keys, self.options.retry_s)

    def index(self, keys: LogKeys) -> ArchiveIndex:
        """A partition's archive."""
        return ArchiveIndex(self.client, keys)

    def tiers(self, keys: LogKeys, start: int = 0) -> PartitionTiers:
        """What each tier that is read holds of a partition now, from `start` on. Raises LogGone, PipelineError."""
        options = self.options
        redis = self.walker(keys).offsets()  # first: what is cut from it meanwhile is in the archive already
        archived = None
        if options.tiers == "archive" or (options.tiers == "both" and start < redis.redis_start):
            state = retry_while_unavailable(self.index(keys).state, options.retry_s)
            archived = OffsetRange(state.start, state.end) if state.end >= 0 else None
        shown = OffsetRange(redis.redis_start, redis.end) if options.tiers != "archive" else None
        return PartitionTiers(redis.log_start, shown, archived, redis.epochs if shown else ())

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
