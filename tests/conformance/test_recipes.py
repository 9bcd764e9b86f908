"""Every line of docs/redis-layout.md, as it stands there, on the Redis of real brokers."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bench.cluster import REPOSITORY, Cluster

PAGE = REPOSITORY / "docs" / "redis-layout.md"


def recipes() -> Iterator[tuple[str, str]]:
    """Each line that is typed, and what the page shows of its answer."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for typed in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = typed.partition("\n")
            yield line, shown.strip()


def answers(redis_url: str) -> list[str]:
    """What each line answers, all typed into one shell, with redis-cli as it is on a terminal."""
    url = urlsplit(redis_url)
    program = f'redis-cli() {{ command redis-cli -h {url.hostname} -p {url.port} --no-raw "$@"; }}\n'
    program += "".join(f"{line}\necho\necho '-- end'\n" for line, _ in recipes())
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", program],
        env={**os.environ, "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout[-500:]
    return [answer.strip() for answer in done.stdout.split("-- end\n")[:-1]]


def lacking(found: list[str]) -> list[str]:
    """The lines whose answer is not yet as the page shows it."""
    return [
        f"{line}: {answer}"
        for (line, shown), answer in zip(recipes(), found, strict=True)
        if shown and shown != "(empty array)" and (not answer or answer.startswith(("(nil)", "(empty")))
    ]


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed (Debian package redis-tools)")
async def test_recipes_print_the_documented_output(cluster: Cluster) -> None:
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=cluster.bootstrap, group_id="billing", client_id="billing-0",
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer, asyncio.timeout(120):
        await producer.send_and_wait("orders", b"1", partition=0)
        await consumer.start()
        try:
            await consumer.getone()
            await consumer.commit()
            await producer.send_and_wait("orders", b"2", partition=0)
            await consumer.getone()  # delivered, not committed: pending
            deadline = time.monotonic() + 60
            while lacking(found := await asyncio.to_thread(answers, cluster.redis_url)):
                assert time.monotonic() < deadline, lacking(found)
                await asyncio.sleep(0.2)  # the mirror is written behind, the exporter's lease renewed each second
        finally:
            await consumer.stop()

    assert len(found) == len(list(recipes()))
    for (line, shown), answer in zip(recipes(), found, strict=True):
        assert "(error)" not in answer, line
        if shown and shown != "(empty array)":
            assert answer[:1] == shown[:1], f"{line}: {answer}"
