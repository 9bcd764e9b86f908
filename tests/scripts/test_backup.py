"""`tidegate backup`: what a restored cluster has, what an interrupted restore leaves, which damage is named."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kit.wire import request
from tests.scripts.test_cold_reads import given_two_tiers
from tests.support.logs import TOPIC, append, batch_bytes, batches_of, broker, given_log, read, read_all
from tests.support.markers import build_marker
from tests.support.segments import archive
from tests.support.transactions import transactional
from tests.support.whole_broker import WholeBroker
from tidegate.cli.client import backup_contents
from tidegate.cli.client.backup_restore import Restore
from tidegate.cli.client.backup_transactions import LogTransactions
from tidegate.cli.failures import DONE, FAILED, CommandFailed
from tidegate.cli.main import command_line
from tidegate.cluster.identity import open_cluster
from tidegate.errors import OffsetOutOfRange
from tidegate.log.partition import PartitionLog
from tidegate.log.state import LogState
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store

OTHER = "other"
"""The prefix of the cluster that is restored to: an empty one on the same server."""
CREDENTIALS = {"org": "default", "credentials": {"SCRAM-SHA-256": {"salt": "c2FsdA==", "iterations": 4096}}}


async def typed(*words: object, code: int = DONE) -> str:
    """Run `tidegate backup WORDS`; what it prints."""
    done = await asyncio.to_thread(CliRunner().invoke, command_line, ["backup", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def at(settings: Settings, prefix: str = "tidegate") -> list[str]:
    return ["--redis-url", settings.redis_url, "--key-prefix", prefix]


def parsed(file: Path) -> list[dict[str, Any]]:
    """The lines of a backup but its header and its end."""
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()][1:-1]


def rewrite(file: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of a backup."""
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    file.write_bytes(gzip.compress(b"".join(change(lines))))


@pytest.fixture
async def cluster(store: Store, settings: Settings) -> AsyncIterator[WholeBroker]:
    """A broker with groups of three types, topics of both formats, and somebody who may use them."""
    await open_cluster(store, settings)
    keys = store.cluster_keys
    await store.command("HSET", keys.users, "alice", json.dumps(CREDENTIALS))
    await store.command("HSET", keys.acls, "default/User:alice|*|ALLOW|READ|TOPIC|LITERAL|t", '{"by":"me","at":1}')
    await store.command("HSET", keys.quotas, "default/producer_byte_rate/user=alice", "1000.0")
    await store.command("HSET", keys.resource_configs, "broker//log.retention.ms", "1000")
    opened = await WholeBroker(settings).start()
    await opened.create("t", 2, retention_ms="-1")
    await opened.create("r.1", 1, tidegate_format="record")
    reader = opened.client()
    await reader.produce("t", 3, 2)
    await reader.produce("r.1", 2)
    await reader.commit("t", 4)
    classic = opened.client()
    classic.group_id = "größer/kleiner"
    await classic.own("t")
    await classic.commit("t", 1, index=1)
    shares = request(
        91, 0, group_id="jobs",
        topics=[{"topic_name": "t", "partitions": [
            {"partition_index": 0, "start_offset": 2}]}],
    )  # fmt: skip
    assert (await reader.ask(shares)).error_code == 0
    configs = request(
        44, 1, validate_only=False,
        resources=[{"resource_type": 32, "resource_name": "jobs", "configs": [
            {"name": "share.session.timeout.ms", "config_operation": 0, "value": "50000"}]}],
    )  # fmt: skip
    assert (await reader.ask(configs)).responses[0].error_code == 0
    yield opened
    await opened.close()


def without_ends(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what a restore without records changes on purpose: where logs begin."""
    logs = [log and {**log, "start": 0} for log in line.get("logs", [])]
    return {**line, **({"logs": logs} if "logs" in line else {})}


async def end_of(one: WholeBroker, name: str) -> int:
    topic = await one.context.catalog.find("default", name)
    return (await one.context.logs.partition(topic, 0).end_offset()).log_end_offset


async def test_backup_of_restored_cluster_is_the_same(cluster: WholeBroker, settings: Settings, tmp_path: Path) -> None:
    first, second = tmp_path / "first.gz", tmp_path / "second.gz"

    await typed("create", first, *at(settings))
    await typed("restore", first, *at(settings, OTHER))
    await typed("create", second, *at(settings, OTHER))

    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert {line["kind"] for line in parsed(first)} == {
        "user", "acl", "quota", "config", "group", "offsets", "topic",
    }  # fmt: skip
    assert [*map(without_ends, parsed(second))] == [*map(without_ends, parsed(first))]


async def test_restored_groups_and_logs_continue(cluster: WholeBroker, settings: Settings, tmp_path: Path) -> None:
    await typed("create", tmp_path / "backup", *at(settings))
    await typed("restore", tmp_path / "backup", *at(settings, OTHER))

    restored = await WholeBroker(settings.model_copy(update={"key_prefix": OTHER}), node_id=2).start()
    try:
        reader, classic = restored.client(), restored.client()
        classic.group_id = "größer/kleiner"
        assert sorted(await reader.list_groups()) == ["größer/kleiner", "jobs", "orders"]
        assert (await reader.committed("t"), await classic.committed("t", 1)) == (4, 1)
        generation_before = cluster.client().generation
        await classic.own("t")
        assert classic.generation > max(generation_before, 1)
        await reader.produce("t", 1)
        found = await reader.fetch("t", 5)
        assert found.high_watermark == 6
        topic = await restored.context.catalog.find("default", "t")
        with pytest.raises(OffsetOutOfRange):
            await read(restored.context.logs.partition(topic, 0), 4)
        ends = [await end_of(one, "r.1") for one in (cluster, restored)]
        assert ends[0] == ends[1] > 0
        await reader.produce("r.1", 1)
    finally:
        await restored.close()


async def test_interrupted_restore_keeps_brokers_out_until_it_is_repeated(
    cluster: WholeBroker, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later, again = (tmp_path / name for name in ("first", "later", "again"))
    await typed("create", first, *at(settings))
    await cluster.client().commit("t", 5)
    await typed("create", later, *at(settings))

    def interrupted(self: Restore, line: dict[str, Any]) -> bool:
        raise CommandFailed("the connection is lost")

    with monkeypatch.context() as patched:
        patched.setattr(Restore, "_offsets", interrupted)
        assert "the connection is lost" in await typed("restore", first, *at(settings, OTHER), code=FAILED)
    other = Store(settings.model_copy(update={"key_prefix": OTHER}))
    await other.start()
    try:
        with pytest.raises(CannotStart, match="is being restored; if the restore was interrupted, repeat it"):
            await open_cluster(other, other.settings)
        for words in (["create", again], ["restore", later], ["restore", first, "--into-existing"]):
            assert "restore" in await typed(*words, *at(settings, OTHER), code=FAILED)

        await typed("restore", first, *at(settings, OTHER))

        await open_cluster(other, other.settings)
    finally:
        await other.close()
    await typed("create", again, *at(settings, OTHER))
    assert [*map(without_ends, parsed(again))] == [*map(without_ends, parsed(first))]


async def test_existing_cluster_gets_what_it_lacks(cluster: WholeBroker, settings: Settings, tmp_path: Path) -> None:
    file, store = tmp_path / "backup", cluster.store
    reader = cluster.client()
    await typed("create", file, *at(settings))
    await store.command("HDEL", store.cluster_keys.users, "alice")
    await store.command("HSET", store.cluster_keys.quotas, "default/producer_byte_rate/user=alice", "5.0")
    await reader.commit("t", 5)
    jobs = cluster.client()
    jobs.group_id = "jobs"
    assert await jobs.delete() == 0

    printed = await typed("restore", file, "--into-existing", "-o", "json", *at(settings))

    rows = {row["what"]: (row["restored"], row["present"]) for row in json.loads(printed[printed.index("[") :])}
    assert rows["users"] == (1, 0)
    assert rows["quotas"] == (0, 1)
    assert rows["groups"] == (1, 2)
    assert rows["topics"] == (0, 2)
    assert await store.command("HGET", store.cluster_keys.quotas, "default/producer_byte_rate/user=alice") == b"5.0"
    assert await reader.committed("t") == 5
    assert "jobs" in await reader.list_groups()


async def test_deleted_topic_is_left_out_by_name(cluster: WholeBroker, settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    await typed("create", file, *at(settings))
    await cluster.context.catalog.delete("default", "t")

    printed = await typed("restore", file, "--into-existing", *at(settings))

    assert "topic default/t was deleted there within a day: it is not restored" in printed
    assert await cluster.store.command("HEXISTS", cluster.store.cluster_keys.topics, "default/t") == 0


async def test_existing_cluster_is_neither_replaced_nor_assumed(
    cluster: WholeBroker, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    await typed("create", file, *at(settings))

    assert "there is a cluster" in await typed("restore", file, *at(settings), code=FAILED)
    assert "leave --into-existing out" in await typed(
        "restore", file, "--into-existing", *at(settings, OTHER), code=FAILED
    )
    assert "choose another path" in await typed("create", file, *at(settings), code=FAILED)
    assert "no cluster with the prefix" in await typed("create", tmp_path / "none", *at(settings, OTHER), code=FAILED)
    assert os.listdir(tmp_path) == ["backup"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def plain(file: Path) -> None:
    file.write_bytes(b"users\n")


def lose_end(file: Path) -> None:
    rewrite(file, lambda lines: lines[:-1])


def lose_line(file: Path) -> None:
    rewrite(file, lambda lines: [*lines[:2], *lines[3:]])


def change_value(file: Path) -> None:
    rewrite(file, lambda lines: [line.replace(b"alice", b"carol") for line in lines])


def break_line(file: Path) -> None:
    rewrite(file, lambda lines: [*lines[:3], b"{\n", *lines[4:]])


def newer_version(file: Path) -> None:
    rewrite(file, lambda lines: [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]])


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (cut, "damaged after line"),
        (flip, "damaged"),
        (plain, "not a backup, or damaged"),
        (lose_end, "without its last line"),
        (lose_line, "its checksum does not match its lines"),
        (change_value, "its checksum does not match its lines"),
        (break_line, "damaged: line 4"),
        (newer_version, "version 2 of the format; this tidegate reads version 1"),
        (Path.unlink, "No such file"),
    ],
)
async def test_damaged_backup_is_named_and_changes_nothing(
    store: Store, settings: Settings, tmp_path: Path, damage: Callable[[Path], None], reported: str
) -> None:
    file = tmp_path / "backup"
    await open_cluster(store, settings)
    for name in ("alice", "bob"):
        await store.command("HSET", store.cluster_keys.users, name, json.dumps(CREDENTIALS))
    await typed("create", file, *at(settings))
    damage(file)

    for words in (["restore", file, *at(settings, OTHER)], ["verify", file]):
        printed = await typed(*words, code=FAILED)
        assert f"{file}: " in printed
        assert reported in printed
    assert await store.command("EXISTS", "other:{cluster}:info", "other:{cluster}:users") == 0


async def test_restored_log_is_read_from_its_archive(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_contents, "_AT_ONCE", 2)
    file, root = tmp_path / "backup", tmp_path / "archive"
    record = {"id": TOPIC.topic_hex, "partitions": 1, "wanted": 1, "format": "batch", "state": "ready", "config": 0}
    await open_cluster(store, settings)
    await given_log(store)
    await store.command("HSET", store.cluster_keys.topics, "default/orders", json.dumps(record))
    async with broker(settings, archive_path=str(root), entry_bytes_max=1) as logs:
        before = await given_two_tiers(logs.partition(TOPIC, 0), root)  # 0 to 68 are archived, the log ends at 80
        producers = logs.partition(TOPIC, 0).keys.producers
    await store.command("HSET", producers, "aborted", "7:10:13:14")
    await typed("create", file, *at(settings))
    await typed("restore", file, *at(settings, OTHER))

    async with broker(settings, archive_path=str(root), key_prefix=OTHER) as logs:
        log = logs.partition(TOPIC, 0)
        assert (await log.refresh()).transactions.aborted == [(7, 10, 13, 14)]
        assert await log.offset_for_timestamp(1_010) == (20, 1_010)
        assert await log.offset_for_timestamp(1_034) is None, "it was not archived"
        known = await log.end_offset()
        assert (known.log_start_offset, known.local_start_offset, known.log_end_offset) == (0, 68, 80)
        assert (await append(log, count=2, value=b"new")).base_offset == 80
        *archived, lost, new = await read_all(log)

    assert [bytes(batch.buffer) for batch in archived] == before[:34]
    assert (lost.base_offset, lost.last_offset_delta, lost.record_count) == (68, 11, 0)
    assert (new.base_offset, new.record_count) == (80, 2)


def _records(producer_id: int) -> bytes:
    return transactional(batch_bytes(1, producer_id, 0, 0))


def _marker(producer_id: int, *, commits: bool) -> bytes:
    return build_marker(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, committed=commits, timestamp_ms=5
    )


async def _add(log: PartitionLog, *batches: bytes) -> LogState:
    """Append batches, an entry each, as another broker does; the state after them."""
    base = (await log.refresh()).end
    for at, one in enumerate(batches, base):
        await log.store.command("XADD", log.keys.log, f"{at}-1", "w", "other:1", "b", one)
    return await log.refresh()


async def test_restored_log_has_the_transactions_behind_the_snapshot_of_producers(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    """Those that were open at the end are aborted: no marker of theirs follows in the restored log."""
    file, root = tmp_path / "backup", tmp_path / "archive"
    record = {"id": TOPIC.topic_hex, "partitions": 1, "wanted": 1, "format": "batch", "state": "ready", "config": 0}
    await open_cluster(store, settings)
    await given_log(store)
    await store.command("HSET", store.cluster_keys.topics, "default/orders", json.dumps(record))
    async with broker(settings, archive_path=str(root)) as logs:
        log = logs.partition(TOPIC, 0)
        state = await _add(log, batch_bytes(1), _records(1), _records(2), _records(3), _records(4), batch_bytes(1))
        await log.save_producers(state, 6)
        await _add(log, _marker(1, commits=False), _records(5), _records(6), batch_bytes(1))
        await archive(log, root, 10, segment_batches=10, row_group_batches=10)
        await _add(log, _marker(2, commits=False), _marker(3, commits=True), _records(7), _marker(6, commits=True))
        assert int(await store.command("HGET", log.keys.producers, "offset")) == 6
    await typed("create", file, *at(settings))
    await typed("restore", file, *at(settings, OTHER))

    async with broker(settings, archive_path=str(root), key_prefix=OTHER) as logs:
        log = logs.partition(TOPIC, 0)
        found = await read(log, 0, committed=True)
        assert (await log.end_offset()).last_stable_offset == 14
        assert [one.base_offset for one in batches_of(found)] == list(range(10))
        assert sorted(found.aborted) == [(1, 1), (2, 2), (4, 4), (5, 7)]
        await _add(log, transactional(batch_bytes(1, 9, 0, 0)), _marker(9, commits=False), batch_bytes(1))
        later = await read(log, 14, committed=True)
        assert (9, 14) in later.aborted
        assert (await log.refresh()).transactions.aborted_between(14, 15)[-1] == (9, 14)


async def test_transactions_of_a_log_trimmed_above_its_snapshot_are_read_again(store: Store, client: Any) -> None:
    keys = LogKeys.of("tidegate", "default", "orders", 0, TOPIC.topic_hex)
    await given_log(store)
    await store.command("XADD", keys.log, "5-1", "w", "other:1", "b", _records(1))
    await store.command("HSET", keys.producers, "offset", 4)
    transactions = LogTransactions(client, keys)

    assert not transactions.read_up_to(6)
    await store.command("HSET", keys.producers, "offset", 5)
    transactions = LogTransactions(client, keys)
    assert transactions.read_up_to(6)
    assert transactions.aborted_at(6, 6) == "1:5:6:6"
    assert transactions.aborted_at(6, 5) == ""
