"""`tidegate redis ...` as it is typed, on the Redis of real brokers."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from typer.testing import CliRunner

from bench.cluster import Cluster
from tidegate.cli.failures import BAD_NEWS, DONE, FAILED
from tidegate.command_line import command_line


async def typed(cluster: Cluster, *words: str, code: int = DONE) -> str:
    """Run `tidegate redis WORDS`; what it prints."""
    line = ["redis", words[0], "--redis-url", cluster.redis_url, *words[1:]]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, line)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


async def reported(cluster: Cluster, *words: str) -> Any:
    return json.loads(await typed(cluster, *words, "-o", "json"))


@pytest.fixture
async def group(cluster: Cluster) -> str:
    """A group that has read and committed a topic of its own name, and is empty."""
    name = f"redis:{uuid.uuid4().hex[:8]}"
    topic = name.replace(":", "-")
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 3, 1, topic_configs={"retention.ms": "-1"})])  # its records are of 2023
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(5):
            await producer.send_and_wait(topic, b"x" * 100, partition=0, timestamp_ms=1_700_000_000_000 + number)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False, client_id="billing-1",
    )  # fmt: skip
    await consumer.start()
    async with asyncio.timeout(30):
        for _ in range(5):
            await consumer.getone()
    await consumer.commit()
    await consumer.stop()
    return name


async def test_keys_are_found_and_decoded(cluster: Cluster, group: str) -> None:
    encoded = group.replace(":", "%3A")
    of_group = {row["kind"]: row["key"] for row in await reported(cluster, "keys", f"*:group:default:{encoded}*")}
    offsets = await reported(cluster, "keys", of_group["offsets"])
    short = await reported(cluster, "keys", of_group["offsets"].removeprefix("tidegate:"))
    (log,) = await reported(cluster, "keys", f"{{default/{group.replace(':', '-')}:0}}:*:log")
    entries = await reported(cluster, "keys", log["key"])
    shown = await typed(cluster, "keys", of_group["group"])

    assert {"group", "offsets"} <= of_group.keys()
    assert offsets["of"]["group"] == group
    assert offsets["elements"][0]["value"]["offset"] == 5
    assert short["key"] == offsets["key"]
    assert (log["topic"], log["partition"]) == (group.replace(":", "-"), "0")
    batches = [batch for entry in entries["elements"] for batch in entry["batches"]]
    assert sum(batch["records"] for batch in batches) == 5
    assert batches[0]["time"] == "2023-11-14 22:13:20 UTC"
    assert f"group     {group}" in shown
    assert "state  Empty" in shown


async def test_memory_by_all_that_it_can_belong_to(cluster: Cluster, group: str) -> None:
    found = await reported(cluster, "memory")
    table = await typed(cluster, "memory", "--by", "kind")

    assert found["not_known"] == {"keys": 0, "bytes": 0}
    assert f"default/{group}" in [row["group"] for row in found["by_group"]]
    assert f"default/{group.replace(':', '-')}" in [row["topic"] for row in found["by_topic"]]
    assert sum(row["bytes"] for row in found["by_kind"]) == found["ours"]["bytes"]
    assert sum(row["keys"] for row in found["by_org"]) == found["ours"]["keys"]
    assert table.splitlines()[2].split() == ["KIND", "KEYS", "MEMORY", "SHARE"]
    assert "--by color: not org" in await typed(cluster, "memory", "--by", "color", code=FAILED)


async def test_check(cluster: Cluster) -> None:
    found = json.loads(await typed(cluster, "check", "-o", "json", code=BAD_NEWS))

    assert "redis-persistence" in [one["kind"] for one in found["findings"]]
    assert found["servers"][0]["role"] == "master"
    assert {one["scripts"] for one in found["servers"]} == {"functions"}
    assert len(found["cluster_id"]) == 22


@pytest.mark.one_server
async def test_least_rights_are_enough_for_the_command_that_asks_for_them(cluster: Cluster) -> None:
    reported_rules = await reported(cluster, "acl", "--user", "cli")
    line = (await typed(cluster, "acl", "--user", "cli")).splitlines(keepends=True)[0]
    await typed(cluster, "run", "ACL", "SETUSER", "cli", "on", ">secret", *reported_rules["rules"])

    own = cluster.redis_url.replace("redis://", "redis://cli:secret@")
    done = await asyncio.to_thread(
        CliRunner().invoke,
        command_line,
        ["redis", "run", "--redis-url", own, "HGET", "tidegate:{cluster}:info", "layout"],
    )
    refused = await asyncio.to_thread(CliRunner().invoke, command_line, ["redis", "--redis-url", own, "FLUSHALL"])

    assert line == f"ACL SETUSER cli on >PASSWORD {' '.join(reported_rules['rules'])}\n"
    assert done.output == '"1"\n'
    assert refused.exit_code == BAD_NEWS
    assert "NOPERM" in refused.output


@pytest.mark.parametrize(
    ("words", "code", "reported_text"),
    [
        (["run", "PING"], DONE, "PONG\n"),
        (["PING"], DONE, "PONG\n"),
        (["--raw", "PING"], DONE, "PONG\n"),
        (["KEYS", "no:such:*"], DONE, "(empty array)\n"),
        (["NOSUCH"], BAD_NEWS, "(error) ERR unknown command"),
    ],
    ids=str,
)
async def test_old_and_new_forms(cluster: Cluster, words: list[str], code: int, reported_text: str) -> None:
    line = ["redis", *words[:1], "--redis-url", cluster.redis_url, *words[1:]]
    if words[0] != "run":
        line = ["redis", "--redis-url", cluster.redis_url, *words]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, line)

    assert (done.exit_code, done.output[: len(reported_text)]) == (code, reported_text)
