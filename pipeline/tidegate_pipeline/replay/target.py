"""One partition that a replay writes to: whole batches at the end of its log, each once, by one script an entry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import redis

from tidegate.store.keys import ClusterKeys, LogKeys
from tidegate.store.scripts import Script
from tidegate_pipeline.errors import DataLoss, PipelineError
from tidegate_pipeline.redis_access import Client, replid_at, retry_while_unavailable, run
from tidegate_pipeline.replay.batches import TargetBatch

REPLAY_APPEND = Script("archive/replay_append")

_NONE: Final = 0
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_FENCED_LEADER_EPOCH: Final = 74
_ASK_AGAIN_S: Final = 0.2
_PREDECESSOR_RETRIES: Final = 10
"""How often a task waits `retry_s` for the task before it, which may read slowly, to make progress."""


class Run(NamedTuple):
    """Source offsets `source_base` to `source_last` stand at `target_base` to `target_last`, in order."""

    source_base: int
    source_last: int
    target_base: int
    target_last: int


class Server(NamedTuple):
    """Which life of the server brokers are in; see tidegate.log.failover_epoch."""

    failover_epoch: int
    replid: str


def read_server(client: Client, prefix: str, keys: LogKeys, retry_s: float) -> Server:
    """The server that has a log, as brokers registered it; waits until one has. Raises PipelineError."""
    deadline = time.monotonic() + retry_s
    info = ClusterKeys(prefix).info
    while True:
        replid = retry_while_unavailable(lambda: replid_at(client, keys.log), retry_s)
        known, failover_epoch = retry_while_unavailable(
            lambda: client.hmget(info, "master_replid", "incarnation"), retry_s
        )
        if known is not None and replid in known.decode().split() and failover_epoch is not None:
            return Server(int(failover_epoch), replid)
        if time.monotonic() > deadline:
            raise PipelineError(
                "no broker has connected to this Redis server since it started: start a broker, then retry"
            )
        time.sleep(_ASK_AGAIN_S)


class Target:
    """The appends of one source partition to one target partition. `source` is its name in `replayed`."""

    def __init__(
        self, client: Client, prefix: str, keys: LogKeys, source: str, first: int, writer: str, retry_s: float
    ) -> None:
        """`first` is the first source offset of the whole replay."""
        self._client = client
        self._prefix = prefix
        self._keys = keys
        self._source = source
        self._first = first
        self._writer = writer
        self._retry_s = retry_s
        self._server: Server | None = None

    def last_source_offset(self) -> int:
        """The last source offset that was written here; the one before the first while there is none."""
        found = retry_while_unavailable(lambda: self._client.hget(self._keys.replayed, self._source), self._retry_s)
        return self._first - 1 if found is None else int(found)

    def append(self, target_batches: Sequence[TargetBatch]) -> int:
        """One entry; returns how many batches it got, those that were there before not counted.

        If another task has yet to write the batch before the first one, waits while that task makes progress. Raises
        PipelineError (away, full), DataLoss (deleted, or what was written before is not there).
        """
        last, deadline = -1, time.monotonic() + _PREDECESSOR_RETRIES * self._retry_s
        while True:
            code, *rest = self._run(target_batches)
            if code == _NONE:
                return int(rest[1])
            if code == _UNKNOWN_TOPIC_OR_PARTITION:
                raise DataLoss(f"the target is gone: {self._keys.log}")
            if code == _FENCED_LEADER_EPOCH:
                self._server = None
            elif rest[0] >= target_batches[0].start:
                raise self._stuck(code, target_batches, rest[0])
            elif rest[0] > last:
                last, deadline = rest[0], time.monotonic() + _PREDECESSOR_RETRIES * self._retry_s
            if time.monotonic() > deadline:
                raise self._stuck(code, target_batches, last)
            time.sleep(_ASK_AGAIN_S)

    def _run(self, target_batches: Sequence[TargetBatch]) -> Any:
        if self._server is None:
            self._server = read_server(self._client, self._prefix, self._keys, self._retry_s)
        failover_epoch, replid = self._server
        keys = self._keys
        names = [keys.log, keys.meta, keys.times, keys.producers, keys.replayed, keys.translations]
        args: list[str | int | bytes] = [self._source, failover_epoch, replid, keys.wake, self._writer, self._first]
        for target_batch in target_batches:
            args += (target_batch.start, target_batch.first, target_batch.last, target_batch.batch)
        try:
            return retry_while_unavailable(lambda: run(self._client, REPLAY_APPEND, names, *args), self._retry_s)
        except redis.exceptions.OutOfMemoryError:
            raise PipelineError("Redis is full (maxmemory): nothing was written; free memory, then retry") from None
        except redis.exceptions.ResponseError as error:
            raise PipelineError(f"{keys.log}: nothing was written: {error}") from error

    def _stuck(self, code: int, target_batches: Sequence[TargetBatch], last: int) -> PipelineError:
        if code == _FENCED_LEADER_EPOCH:
            return PipelineError("the Redis server fails over faster than brokers detect it")
        return DataLoss(
            f"{self._keys.log} has source offsets up to {last} of {self._source},"
            f" the next have {target_batches[0].start} to {target_batches[-1].last}: a fail-over lost those"
            " between, or the source was changed. Without its checkpoint the replay starts again and writes only what"
            " is missing"
        )

    def runs(self, last: int) -> list[Run]:
        """What is not in the archive's table yet, of batches that begin up to source offset `last`."""
        found = retry_while_unavailable(
            lambda: self._client.zrangebylex(self._keys.translations, *self._members(last)), self._retry_s
        )
        return [Run(*map(int, member.rsplit(b" ", 4)[1:])) for member in found]

    def forget(self, last: int) -> None:
        """They are in the table."""
        retry_while_unavailable(
            lambda: self._client.zremrangebylex(self._keys.translations, *self._members(last)), self._retry_s
        )

    def _members(self, last: int) -> tuple[str, str]:
        return f"[{self._source} ", f"({self._source} {last + 1:019d}"
