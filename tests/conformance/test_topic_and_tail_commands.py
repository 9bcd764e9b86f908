"""`tidegate topic`, `tail` and `broker`, as they are typed, on real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner, Result

from bench.cluster import BrokerProcess, Cluster, free_port
from tidegate.cli.failures import BAD_NEWS, DONE, FAILED
from tidegate.command_line import command_line

COLOURLESS = {**os.environ, "NO_COLOR": "1"}


async def typed(cluster: Cluster, *words: str, code: int = DONE) -> Result:
    """Run a command that takes --bootstrap; its result."""
    line = [*words, "--bootstrap", cluster.bootstrap]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, line)
    assert done.exit_code == code, (done.output, done.exception)
    return done


async def typed_alone(*words: str, code: int = DONE) -> str:
    """The same, of one that takes other addresses; what it prints."""
    done = await asyncio.to_thread(CliRunner().invoke, command_line, list(words))
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


async def reported(cluster: Cluster, *words: str) -> Any:
    return json.loads((await typed(cluster, *words, "-o", "json")).stdout)


@pytest.fixture
async def topic(cluster: Cluster) -> str:
    """Two partitions of 20 records each: JSON in the first, bytes that are no text in the second."""
    name = f"tail-{uuid.uuid4().hex[:8]}"
    await typed(cluster, "topic", "create", name, "--partitions", "2")
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type="gzip") as producer:
        for number in range(20):
            value = json.dumps({"n": number}).encode()
            await producer.send(name, value, key=b"even" if number % 2 == 0 else b"odd", partition=0)
            await producer.send(name, b"\xff\x00" + bytes([number]), partition=1, headers=[("trace", b"abc")])
    return name


async def tailed(cluster: Cluster, topic: str, *words: str) -> list[dict[str, Any]]:
    lines = (await typed(cluster, "tail", topic, *words, "-o", "json")).stdout.splitlines()
    return [json.loads(line) for line in lines]


async def test_life_of_a_topic(cluster: Cluster) -> None:
    name = f"life-{uuid.uuid4().hex[:8]}"
    assert (await typed(cluster, "topic", "create", name, "--dry-run")).output == f"{name} can be created\n"
    assert "there is no topic" in (await typed(cluster, "topic", "describe", name, code=FAILED)).output

    await typed(cluster, "topic", "create", name, "-p", "2", "-c", "retention.ms=3600000")
    assert "exists already" in (await typed(cluster, "topic", "create", name, code=FAILED)).output
    await typed(cluster, "topic", "create", name, "--if-not-exists")
    await typed(cluster, "topic", "alter", name, "--unset", "retention.ms", "-c", "max.message.bytes=2000")
    await typed(cluster, "topic", "partitions", name, "5")
    found = await reported(cluster, "topic", "describe", name)
    listed = {row["topic"]: row for row in await reported(cluster, "topic", "list")}

    assert [one["partition"] for one in found["partitions"]] == [0, 1, 2, 3, 4]
    assert found["configs"] == [{"name": "max.message.bytes", "value": "2000", "source": "topic"}]
    assert listed[name] == {"topic": name, "partitions": 5, "records": 0, "unknown": 0}
    assert "PARTITION  LEADER" in (await typed(cluster, "topic", "describe", name)).output

    assert "has 5 partitions already" in (await typed(cluster, "topic", "partitions", name, "2", code=FAILED)).output
    assert (
        "max.message.bytes"
        in (await typed(cluster, "topic", "alter", name, "-c", "max.message.bytes=x", code=FAILED)).output
    )
    gone = await typed(cluster, "topic", "delete", name, "no-such", "--yes", code=BAD_NEWS)
    assert f"deleted {name}" in gone.output
    assert "no-such" in gone.output


async def test_tail_from_every_place(cluster: Cluster, topic: str) -> None:
    last = await tailed(cluster, topic)
    every = await tailed(cluster, topic, "--from", "earliest")
    of_one = await tailed(cluster, topic, "--from", "17", "--partition", "0")
    recent = await tailed(cluster, topic, "--from", "PT10M")
    later = await tailed(cluster, topic, "--from", "2100-01-01T00:00:00")

    assert {(one["partition"], one["offset"]) for one in last} == {(p, o) for p in (0, 1) for o in range(10, 20)}
    assert len(every) == len(recent) == 40
    assert [one["value"] for one in of_one] == [{"n": 17}, {"n": 18}, {"n": 19}]
    assert (await tailed(cluster, topic, "--from", "latest"), later) == ([], [])
    assert len(await tailed(cluster, topic, "--from", "earliest", "--count", "7")) == 7
    assert "not earliest, latest" in (await typed(cluster, "tail", topic, "--from", "then", code=FAILED)).output
    assert "has no partition 9" in (await typed(cluster, "tail", topic, "-p", "9", code=FAILED)).output


async def test_tail_decodes_and_chooses(cluster: Cluster, topic: str) -> None:
    (found,) = await tailed(cluster, topic, "--from", "3", "-p", "1", "-n", "1")
    odd = await tailed(cluster, topic, "--from", "earliest", "--key", "odd")
    fives = await tailed(cluster, topic, "--from", "earliest", "--grep", r'"n": \d?5')
    as_text = await tailed(cluster, topic, "--from", "3", "-p", "0", "-n", "1", "--decode", "text")
    line = (await typed(cluster, "tail", topic, "--from", "3", "-p", "1", "-n", "1")).stdout

    assert (found["value"], found["value_form"], found["key"]) == ("ff0003", "hex", None)
    assert found["headers"] == [{"name": "trace", "value": "abc"}]
    assert [one["value"]["n"] for one in odd] == list(range(1, 20, 2))
    assert [one["value"]["n"] for one in fives] == [5, 15]
    assert as_text[0]["value"] == '{"n": 3}'
    assert line.split()[2:] == ["1@3", "null", "ff0003", "trace=abc"]


@contextmanager
def following(cluster: Cluster, topic: str) -> Iterator[subprocess.Popen[str]]:
    """A `tidegate tail --follow` of its own."""
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "tail",
        topic,
        "-f",
        "--from",
        "latest",
        "--bootstrap",
        cluster.bootstrap,
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what a shell runs in the background ignores it
    with subprocess.Popen(command, env=COLOURLESS, text=True, preexec_fn=heed, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


async def produce(cluster: Cluster, topic: str, value: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, value.encode(), partition=0)


async def first_line(cluster: Cluster, topic: str, process: subprocess.Popen[str]) -> str:
    """What it prints first; it starts at the end, so something is written until it prints."""
    assert process.stdout is not None
    reading = asyncio.create_task(asyncio.to_thread(process.stdout.readline))
    async with asyncio.timeout(60):
        while not reading.done():
            await produce(cluster, topic, "news")
            await asyncio.sleep(0.3)
    return reading.result()


async def test_tail_follows_until_ctrl_c(cluster: Cluster, topic: str) -> None:
    with following(cluster, topic) as process:
        line = await first_line(cluster, topic, process)
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.to_thread(process.communicate, timeout=60)

    assert line.endswith("news\n")
    assert (process.returncode, errors) == (DONE, "")


async def test_tail_ends_where_its_reader_does(cluster: Cluster, topic: str) -> None:
    with following(cluster, topic) as process:
        await first_line(cluster, topic, process)
        assert process.stdout is not None
        process.stdout.close()
        async with asyncio.timeout(60):
            while process.poll() is None:
                await produce(cluster, topic, "more")
                await asyncio.sleep(0.1)
        assert process.stderr is not None
        errors = process.stderr.read()

    assert (process.returncode, errors) == (DONE, "")


async def test_broker_is_listed_and_drained(cluster: Cluster, tmp_path: Path) -> None:
    prefix = "drained:here"  # not below that of the cluster, whose keys other tests count
    settings = {"TIDEGATE_KEY_PREFIX": prefix, "TIDEGATE_ADMIN_OPERATOR_TOKEN": "let me in please"}
    extra, other = (BrokerProcess(cluster.redis_url, tmp_path, name, settings) for name in ("extra", "other"))
    try:
        for one in (extra, other):
            one.start()
        for one in (extra, other):
            one.wait_ready()
        admin = ["--admin", f"127.0.0.1:{other.admin_port}"]
        asked = ("broker", "list", "--bootstrap", other.address, *admin, "-o", "json")
        async with asyncio.timeout(60):
            while len(listed := json.loads(await typed_alone(*asked))) < 2:
                await asyncio.sleep(0.1)  # a broker learns of another with its next renewal
        (node,) = [one["node_id"] for one in listed if one["address"] == extra.address]
        mixed = await typed_alone("broker", "list", "--bootstrap", cluster.bootstrap, *admin, code=FAILED)
        redis = ["--redis-url", cluster.redis_url, "--key-prefix", prefix]
        unknown = await typed_alone("broker", "drain", "77", *redis, code=FAILED)
        unasked = await typed_alone("broker", "drain", str(node), *admin, "--token", "guessed", code=FAILED)
        drained = await typed_alone("broker", "drain", str(node), *admin, "--token", "let me in please")
        (last,) = [one["node_id"] for one in listed if one["node_id"] != node]
        done = await typed_alone("broker", "drain", str(last), *redis)
        entries = await typed_alone("redis", "run", *redis, "XRANGE", f"{prefix}:{{cluster}}:audit", "-", "+")
        codes = [await asyncio.to_thread(one.process.wait, 60) for one in (extra, other) if one.process is not None]
    finally:
        extra.kill()
        other.kill()

    assert re.fullmatch(r"tidegate: \S+ is of cluster \S+, and the admin HTTP at \S+ of cluster \S+\n", mixed), mixed
    named = rf"tidegate: cluster \S+ at \S+, about to change: broker {node} drains and ends\nnode {node} has left\n"
    assert re.fullmatch(named, drained), drained
    assert unknown.splitlines()[-1].startswith("tidegate: node 77: ")
    assert unasked.splitlines()[-1].startswith("tidegate: ")
    assert done.endswith(f"node {last} has left\n")
    assert codes == [0, 0]
    assert entries.count('"broker.drain"') == 3 and entries.count('"redis"') == 2, "those through Redis too"
    assert entries.count('"done"') == 2 and entries.count('"refused"') == 1
    assert {one["state"] for one in listed} <= {"serving", "suspect"}  # a loaded machine renews leases late


async def completed(cluster: Cluster, *words: str) -> list[str]:
    """What the shell is given for the last word."""
    asked = {
        "_TIDEGATE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "TIDEGATE_CLI_BOOTSTRAP": cluster.bootstrap,
    }
    program = "from tidegate.cli.commands import completion; completion._PATIENCE_S = 60.0\n"  # of a loaded machine
    run = [sys.executable, "-c", f"{program}from tidegate.__main__ import main; main()"]
    done = await asyncio.to_thread(
        subprocess.run, run, env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


async def test_shell_completes_names(cluster: Cluster, topic: str) -> None:
    assert await completed(cluster, "tidegate", "topic", "describe", topic[:9]) == [topic]


async def test_unreachable_cluster_is_one_line() -> None:
    line = ["topic", "list", "--bootstrap", f"127.0.0.1:{free_port()}"]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, line)

    assert done.exit_code == FAILED
    assert done.stderr.startswith("tidegate: no broker answers at")
    assert len(done.stderr.splitlines()) == 1
