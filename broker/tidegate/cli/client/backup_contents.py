"""What a backup contains, read from Redis line by line while brokers run.

Each value is one that was valid at some time between the beginning and the end. Offsets are read before the ends of
logs, so no restored group is ahead of a restored log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import tidegate
from tidegate.cli.client.backup_file import FORMAT, HEADER, VERSION, Line
from tidegate.cli.client.backup_transactions import LogTransactions
from tidegate.cli.client.redis_access import server_of
from tidegate.cli.failures import CommandFailed
from tidegate.store.keys import ClusterKeys, GroupKeys, LogKeys, ShardKeys
from tidegate.store.redis_clock import time_ms
from tidegate.store.scripts import Script

READ_STARTS = Script("share/read_starts")
DESCRIBE_LOG = Script("log/describe_log")

GROUP_FIELDS: Final = (
    "id", "org", "tier", "locator", "created", "type", "protocol_type", "generation", "generation_floor",
    "session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms",
)  # fmt: skip
"""What remains of a group without members."""
_AT_ONCE: Final = 500
_LOST: Final = 56
_TRIES: Final = 3
"""To read the transactions of a log that is trimmed meanwhile."""

T = TypeVar("T")


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists that one script call takes."""
    rest = iter(items)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


def text(value: bytes) -> str:
    """Text of Redis; bytes that are no UTF-8 survive a JSON string."""
    return value.decode("utf-8", "surrogateescape")


class ClusterReader:
    """Reads one cluster. `warnings` names what could not be included."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client, self._prefix, self._keys = client, prefix, ClusterKeys(prefix)
        self.warnings: list[str] = []
        self.header = self._header()

    def _header(self) -> Line:
        """The first line. Raises CommandFailed if there is no cluster."""
        info = {text(name): text(value) for name, value in self._client.hgetall(self._keys.info).items()}
        if "cluster_id" not in info:
            raise CommandFailed(f"there is no cluster with the prefix {self._prefix!r}")
        if "restoring" in info:
            raise CommandFailed("this cluster is being restored, or its restore was interrupted: repeat that first")
        next_producer_id = (self._client.get(self._keys.producer_ids) or b"").partition(b" ")[0]
        return {
            "kind": HEADER,
            "format": FORMAT,
            "version": VERSION,
            "made_by": f"tidegate {tidegate.__version__}",
            "begun_ms": time_ms(server_of(self._client, self._keys.info).time()),
            "cluster_id": info["cluster_id"],
            "layout": info["layout"],
            "coordinator_shards": int(info["coordinator_shards"]),
            "failover_epoch": int(info.get("incarnation", 0)),
            "groups_failover_epoch": info.get("groups_incarnation"),
            "next_producer_id": text(next_producer_id),
        }

    def lines(self) -> Iterator[Line]:
        """Every line but the last. Raises CommandFailed if the cluster failed over meanwhile."""
        yield self.header
        yield from self._pairs("user", self._keys.users)
        yield from self._pairs("acl", self._keys.acls)
        yield from self._pairs("quota", self._keys.quotas)
        yield from self._pairs("config", self._keys.resource_configs)
        for shard in range(self.header["coordinator_shards"]):
            yield from self._groups(ShardKeys(self._prefix, shard))
        yield from self._topics()
        failover_epoch = int(self._client.hget(self._keys.info, "incarnation") or 0)
        if failover_epoch != self.header["failover_epoch"]:
            raise CommandFailed("Redis failed over while it was read: make the backup again")

    def _pairs(self, kind: str, key: str) -> Iterator[Line]:
        for name, value in self._client.hscan_iter(key, count=_AT_ONCE):
            yield {"kind": kind, "name": text(name), "value": text(value)}

    # -- groups

    def _groups(self, shard: ShardKeys) -> Iterator[Line]:
        refs = {*self._client.hkeys(shard.groups), *self._client.hkeys(shard.configured)}
        for ref in sorted(refs):
            org, _, encoded = text(ref).partition("/")
            keys = GroupKeys.of(self._prefix, self.header["coordinator_shards"], org, unquote(encoded))
            fields = self._fields(keys)
            configs = {text(name): text(value) for name, value in self._client.hgetall(keys.configs).items()}
            if fields or configs:
                yield {
                    "kind": "group", "org": org, "group": keys.group_id, "fields": fields, "configs": configs,
                    "shares": list(self._shares(keys)),
                }  # fmt: skip
            if fields:
                yield from self._offsets(keys)

    def _fields(self, keys: GroupKeys) -> dict[str, str]:
        values = self._client.hmget(keys.group, GROUP_FIELDS)
        if values[0] is None:  # only a floor for its next generation, or deleted meanwhile
            return {}
        return {name: text(value) for name, value in zip(GROUP_FIELDS, values, strict=True) if value is not None}

    def _shares(self, keys: GroupKeys) -> Iterator[list[Any]]:
        """`[<topic id>:<partition>, topic, start offset]` of each share-partition of a share group."""
        places = [(text(place), text(topic)) for place, topic in self._client.hgetall(keys.shares).items()]
        for some in slices(sorted(places)):
            names = [name for place, _ in some for name in _share_keys(keys, place)]
            _, *starts = self._client.eval(READ_STARTS.source, len(names), *names)
            yield from ([place, topic, start] for (place, topic), start in zip(some, starts, strict=True) if start >= 0)

    def _offsets(self, keys: GroupKeys) -> Iterator[Line]:
        found = self._client.hscan_iter(keys.offsets, count=_AT_ONCE)
        stored = ((text(place), text(value)) for place, value in found)
        committed = ((place, value) for place, value in stored if not place.endswith(":-1"))  # -1: of open transactions
        for some in slices(committed):
            yield {"kind": "offsets", "org": keys.org, "group": keys.group_id, "offsets": dict(some)}

    # -- topics

    def _topics(self) -> Iterator[Line]:
        for name in sorted(self._client.hkeys(self._keys.topics)):
            stored = self._client.hget(self._keys.topics, name)
            record: Line = json.loads(stored) if stored else {"state": "deleting"}
            if record["state"] == "deleting":
                continue
            org, _, topic = text(name).partition("/")
            configs = self._client.hgetall(self._keys.topic(org, topic)) if record["config"] else {}
            logs = []
            for partition in range(record["wanted"]):
                described, segments = self._log(
                    LogKeys.of(self._prefix, org, topic, partition, record["id"], record["format"])
                )
                logs.append(described)
                for some in slices(segments):
                    place = {"org": org, "topic": topic, "id": record["id"], "partition": partition}
                    yield {"kind": "segments", **place, "segments": some}
            yield {
                "kind": "topic", "org": org, "topic": topic, "id": record["id"], "format": record["format"],
                "config": record["config"], "configs": {text(key): text(value) for key, value in configs.items()},
                "logs": logs,
            }  # fmt: skip

    def _log(self, keys: LogKeys) -> tuple[Line | None, list[list[Any]]]:
        """Where the log begins and ends, and its archived segments; None for a log that is not created yet."""
        log, segments = self._described(keys)
        if log is None or keys.is_record or not log["archive"]:
            return log, segments
        for _ in range(_TRIES):
            transactions = LogTransactions(self._client, keys)
            log, segments = self._described(keys)  # again: its end is not below the snapshot's offset
            if log is None:
                break
            is_whole = transactions.read_up_to(int(log["end"]))
            log["aborted"] = transactions.aborted_at(int(log["end"]), log["archive"][1])
            if is_whole:
                break
        else:
            self.warnings.append(
                f"{keys.log}: entries behind its snapshot of producers are lost: some records of "
                "aborted transactions may be restored as committed"
            )
        return log, segments

    def _described(self, keys: LogKeys) -> tuple[Line | None, list[list[Any]]]:
        names = [keys.log, keys.meta, keys.archive, keys.segments]
        code, *described = self._client.eval(DESCRIBE_LOG.source, len(names), *names)
        if code:
            if code == _LOST:
                self.warnings.append(f"{keys.log}: its stream is lost; a restore creates it empty, from offset 0 on")
            return None, []
        log_start, end, epochs, failover_epoch, index, *archive = described
        segments = [[int(last), text(segment)] for segment, last in zip(index[::2], index[1::2], strict=True)]
        return {
            "start": int(log_start), "end": text(end), "epochs": text(epochs), "failover_epoch": int(failover_epoch),
            "archive": [int(one) for one in archive if one is not None],
        }, segments  # fmt: skip


def _share_keys(keys: GroupKeys, place: str) -> Sequence[str]:
    topic_id, _, partition = place.partition(":")
    return keys.share(topic_id, int(partition))


def share_hashes(keys: GroupKeys, places: Iterable[str]) -> list[str]:
    """The hash of each share-partition, named `<topic id>:<partition>`."""
    return [_share_keys(keys, place)[0] for place in places]
