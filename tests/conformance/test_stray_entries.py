"""One XADD by hand: what clients and operators see of it on real brokers, and the repair that ends it."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from typer.testing import CliRunner, Result

from bench.cluster import Cluster
from tests.support.scraping import Scrape
from tidegate.cli.failures import BAD_NEWS, DONE, FAILED
from tidegate.command_line import command_line

_DEADLINE_S: Final = 60.0
_RECORDS: Final = 5
_METRIC: Final = ("tidegate_logs_with_stray_entry", ())


async def typed(*words: str, code: int | None = DONE) -> Result:
    done = await asyncio.to_thread(CliRunner().invoke, command_line, list(words))
    assert code is None or done.exit_code == code, (done.output, done.exception)
    return done


async def _findings(cluster: Cluster, *words: str) -> list[Any]:
    report = json.loads((await typed(*words, "-o", "json", code=None)).stdout)
    return [one for one in report["findings"] if one["kind"] == "log-stray-entry"]


async def _stopped_partitions(cluster: Cluster) -> float:
    scrapes = [
        await asyncio.to_thread(Scrape.from_url, f"http://127.0.0.1:{one.admin_port}/metrics")
        for one in cluster.brokers
    ]
    return sum(scrape.samples[_METRIC] for scrape in scrapes)


@pytest.mark.parametrize("removed", [False, True], ids=["stands", "removed"])
async def test_stray_entry_is_named_refused_and_repaired(cluster: Cluster, removed: bool) -> None:
    name = f"stray-{uuid.uuid4().hex[:8]}"
    redis, bootstrap = ("--redis-url", cluster.redis_url), ("--bootstrap", cluster.bootstrap)
    await typed("topic", "create", name, "-p", "2", *bootstrap)
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(_RECORDS):
            await producer.send_and_wait(name, b"%d" % number, partition=0)
    (key,) = [
        row["key"] for row in json.loads((await typed("redis", "keys", *redis, f"*{name}:0*:log", "-o", "json")).stdout)
    ]
    added = (await typed("redis", "--redis-url", cluster.redis_url, "XADD", key, "*", "key", "a")).output.strip('"\n')
    if removed:
        await typed("redis", "--redis-url", cluster.redis_url, "XDEL", key, added)

    # clients: refused at once, what stood there is read
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, request_timeout_ms=5_000) as producer:
        with pytest.raises(KafkaError):
            await asyncio.wait_for(producer.send_and_wait(name, b"no", partition=0), _DEADLINE_S)
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        await asyncio.wait_for(producer.send_and_wait(name, b"yes", partition=1), _DEADLINE_S)
    place = TopicPartition(name, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=f"{name}-readers", enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        async with asyncio.timeout(_DEADLINE_S):
            values = [(await consumer.getone()).value for _ in range(_RECORDS)]
            assert await consumer.end_offsets([place]) == {place: _RECORDS}
            await consumer.commit({place: 2})
    finally:
        await consumer.stop()
    assert values == [b"%d" % number for number in range(_RECORDS)]

    # operators: named everywhere
    for words in (("redis", "check", *redis), ("doctor", *bootstrap, *redis)):
        (finding,) = [one for one in await _findings(cluster, *words) if name in one["where"]]
        assert added in finding["sentence"]
        assert f"tidegate topic repair {name} 0" in finding["advice"]
    described = json.loads((await typed("topic", "describe", name, *bootstrap, "-o", "json")).stdout)["partitions"]
    assert [one["error"] for one in described] == [None if removed else "KAFKA_STORAGE_ERROR", None]
    assert [one["end"] for one in described] == [_RECORDS, 1]
    async with asyncio.timeout(_DEADLINE_S):
        while await _stopped_partitions(cluster) < 1:
            await asyncio.sleep(0.1)
    lag = await typed("group", "lag", f"{name}-readers", *bootstrap, "-o", "json", code=None)
    assert [row["lag"] for row in json.loads(lag.stdout)] == [_RECORDS - 2]

    # repair
    listed = json.loads((await typed("topic", "repair", name, "--dry-run", *redis, "-o", "json")).stdout)
    assert [(row["partition"], row["entry"], row["stops_appends"]) for row in listed] == [(0, added, True)]
    assert "no partition 7" in (await typed("topic", "repair", name, "7", *redis, code=FAILED)).output
    assert "nothing to repair" in (await typed("topic", "repair", name, "1", *redis)).output
    assert "these entries are left out" in (await typed("topic", "repair", name, *redis, code=BAD_NEWS)).output
    done = await typed("topic", "repair", name, "0", "--yes", *redis)
    assert f"ends at {_RECORDS}, {0 if removed else 1} entries left out" in done.output

    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        stored = await asyncio.wait_for(producer.send_and_wait(name, b"again", partition=0), _DEADLINE_S)
    assert stored.offset == _RECORDS
    assert not [one for one in await _findings(cluster, "redis", "check", *redis) if name in one["where"]]
    after = json.loads((await typed("topic", "describe", name, *bootstrap, "-o", "json")).stdout)["partitions"]
    assert [(one["end"], one["error"]) for one in after] == [(_RECORDS + 1, None), (1, None)]


@pytest.mark.one_server
async def test_redis_acl_reader_reads_and_cannot_write(cluster: Cluster) -> None:
    redis = ("--redis-url", cluster.redis_url)
    reported = json.loads((await typed("redis", "acl", *redis, "-o", "json")).stdout)["reader"]
    lines = (await typed("redis", "acl", *redis)).output.splitlines()
    assert [line.split(" on ")[0] for line in lines] == ["ACL SETUSER tidegate", "ACL SETUSER tidegate-reader"]
    assert lines[1] == reported["line"]
    await typed("redis", *redis, "ACL", "SETUSER", "looker", "on", ">secret", *reported["rules"])
    own = ("--redis-url", cluster.redis_url.replace("redis://", "redis://looker:secret@"))

    info = "tidegate:{cluster}:info"
    assert (await typed("redis", *own, "HGET", info, "layout")).output == '"1"\n'
    await typed("redis", "keys", *own, info)
    await typed("redis", "memory", *own)
    assert not await _findings(cluster, "redis", "check", *own)
    for words in (("HSET", info, "a", "b"), ("XADD", info, "*", "a", "b"), ("DEL", info), ("EVAL", "return 1", "0"),
                  ("PUBLISH", "tidegate:x", "a"), ("FLUSHALL",)):  # fmt: skip
        assert "NOPERM" in (await typed("redis", *own, *words, code=BAD_NEWS)).output
    written = f"return redis.call('HSET', '{info}', 'a', 'b')"
    await typed("redis", *own, "EVAL_RO", written, "1", info, code=BAD_NEWS)
