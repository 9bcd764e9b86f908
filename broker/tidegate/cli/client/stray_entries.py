"""Finds stream entries of logs that no broker appended, directly in Redis, so without a running broker too.

Checking the end of every log is cheap (`examine_ends`), and finds those that a fail-over truncated as well; a whole log
is read on request only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import redis
from kio.schema.errors import ErrorCode

from tidegate.log.entries import Entry, StrayEntry, parse_entry, parse_id
from tidegate.store.keys import BATCH_FORMAT, ClusterKeys, LogKeys
from tidegate.store.scripts import Script
from tidegate.topics.model import Record, TopicState

EXAMINE_END = Script("log/examine_end")

_AT_ONCE: Final = 64
_PAGE: Final = 64
_COMMANDS: Final = ("XRANGE", "XREVRANGE")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a topic that clients can list."""

    org: str
    topic: str
    index: int
    topic_id: str
    keys: LogKeys

    @property
    def full_topic(self) -> str:
        """The topic, with its organisation unless that is the default."""
        return self.topic if self.org == "default" else f"{self.org}/{self.topic}"

    def __str__(self) -> str:
        return f"{self.full_topic} partition {self.index}"


_LOST: Final = ErrorCode.kafka_storage_error.value


class LostStream(StrayEntry):
    """Not an entry: the stream itself does not exist any more."""

    def __init__(self) -> None:
        super().__init__((0, 0), "the stream does not exist any more", removed=True)


@dataclass(frozen=True, slots=True)
class Stopped:
    """A log that refuses appends, and the reason."""

    partition: Partition
    stray: StrayEntry


@dataclass(frozen=True, slots=True)
class Truncated:
    """A log that lost records in a fail-over, as brokers noted: where it ended then, when, and how long ago."""

    partition: Partition
    end: int
    lost_records: int
    at_ms: int
    age_ms: int


@dataclass(slots=True)
class Ends:
    """What the ends of all logs show."""

    stopped: list[Stopped] = field(default_factory=list)
    truncated: list[Truncated] = field(default_factory=list)


@dataclass(slots=True)
class Scanned:
    """The defects of a whole log: entries to leave out, and whether one of them blocks appends."""

    end: int = 0
    entries: int = 0
    strays: list[StrayEntry] = field(default_factory=list)
    stopped: StrayEntry | None = None


def with_plain_entries(client: Any) -> Any:
    """The client with raw XRANGE replies: redis-py would convert an entry to a dict and lose duplicate fields."""
    nodes = client.get_nodes() if hasattr(client, "get_primaries") else ()
    for node in [client.get_redis_connection(node) for node in nodes] or [client]:
        for command in _COMMANDS:
            node.set_response_callback(command, lambda reply, **_: reply)
    return client


def partitions(client: Any, prefix: str) -> Iterator[Partition]:
    """Every partition of every topic of format batch, in order of name."""
    for field_, text in sorted(client.hgetall(ClusterKeys(prefix).topics).items()):
        org, _, topic = field_.decode().partition("/")
        record = Record.parse(text)
        if record.state is TopicState.READY and record.format == BATCH_FORMAT:  # any entry is a record otherwise
            for index in range(record.partitions):
                topic_id = record.topic_id.hex
                yield Partition(org, topic, index, topic_id, LogKeys.of(prefix, org, topic, index, topic_id))


def examine_ends(client: Any, prefix: str) -> Ends:
    """The logs that refuse appends or were truncated; one small script per partition, many per round trip."""
    client = with_plain_entries(client)
    every, found = partitions(client, prefix), Ends()
    while some := list(islice(every, _AT_ONCE)):
        for one, (code, *where) in zip(some, _ends(client, [one.keys for one in some]), strict=True):
            stray = _stopping(client, one.keys, code, where)
            if stray is not None:
                found.stopped.append(Stopped(one, stray))
            if not code and where[2]:
                end, lost_records, _, at_ms = (int(part) for part in where[2].split())
                found.truncated.append(Truncated(one, end, lost_records, at_ms, max(where[3] - at_ms, 0)))
    return found


def _ends(client: Any, logs: Sequence[LogKeys]) -> list[list[Any]]:
    """The script's replies: by EVAL_RO for read-only users; by EVAL for brokers' users, which lack that right."""

    def ask(verb: str) -> list[list[Any]]:
        with client.pipeline(transaction=False) as pipe:
            for keys in logs:
                getattr(pipe, verb)(EXAMINE_END.source, 2, keys.log, keys.meta)
            return list(pipe.execute())

    try:
        return ask("eval_ro")
    except redis.exceptions.NoPermissionError:
        return ask("eval")


def _stopping(client: Any, keys: LogKeys, code: int, where: Sequence[Any]) -> StrayEntry | None:
    if code:
        return LostStream() if code == _LOST else None
    return _behind(client, keys.log, where[0], parse_id(where[1]))


def _behind(client: Any, log: str, end: int, last_id: tuple[int, int]) -> StrayEntry | None:
    """The entry that blocks appends; if it was deleted, only the stream's last id is left of it."""
    removed = StrayEntry(last_id, "it was removed, and Redis takes no id below it", removed=True)
    if not removed.stops(end):
        return None
    for item in client.execute_command("XREVRANGE", log, "+", f"{end}-1", "COUNT", 1):
        try:
            parse_entry(item)
        except StrayEntry as stray:
            return stray
    return removed


def read_log(client: Any, log: str, after: str = "-") -> Iterator[tuple[bytes, list[bytes], Entry | StrayEntry]]:
    """Entries after an id, raw and parsed."""
    first = after if after == "-" else f"({after}"
    while reply := client.execute_command("XRANGE", log, first, "+", "COUNT", _PAGE):
        for item in reply:
            try:
                parsed: Entry | StrayEntry = parse_entry(item)
            except StrayEntry as stray:
                parsed = stray
            yield item[0], item[1], parsed
        first = f"({reply[-1][0].decode()}"


def scan(client: Any, keys: LogKeys) -> Scanned:
    """Read a whole log."""
    scanned = Scanned()
    for _, _, parsed in read_log(with_plain_entries(client), keys.log):
        if isinstance(parsed, StrayEntry):
            scanned.strays.append(parsed)
        else:
            scanned.end, scanned.entries = parsed.end, scanned.entries + 1
    ((code, *where),) = _ends(client, [keys])
    scanned.stopped = _stopping(client, keys, code, where)
    return scanned
