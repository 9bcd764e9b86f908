"""`make screenshots`: the console as docs/ shows it, from three brokers with real consumers and a rebalance on.

Real clients produce and consume; in one group a fourth consumer joins while another member, alive no more, holds the
barrier open.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import Consumer
from PIL import Image
from playwright.async_api import Page, async_playwright

from bench.cluster import CONNECTIONS_STAY, Cluster
from bench.stuck import Stage
from tests.browser.conftest import NAMES, PASSWORD, SETTINGS

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "img"
BYTES_MAX: Final = 200_000
HEIGHT_MAX: Final = 1_750
WATCHED_S: Final = 75
"""So long the cluster works before it is looked at: the chart of lag is to have a line."""
TOPICS: Final = {"orders": 6, "payments": 4, "clicks": 3}
GROUPS: Final = {
    "billing": ("orders", 3, 0.0),
    "fraud-check": ("payments", 2, 0.0),
    "search-indexer": ("orders", 2, 0.004),
    "clickstream-archive": ("clicks", 1, 0.03),
}
"""Group -> its topic, its consumers, how long one takes for a record."""

PAGES: Final = {
    "overview": "/console/",
    "barrier": "/console/group?group=payments-settlement",
    "group": "/console/group?group=risk-model",
    "reset": "/console/reset?group=backfill&to=shift&value-shift=-250",
    "topics": "/console/topics",
    "topic": "/console/topic?topic=orders",
    "brokers": "/console/brokers",
    "redis": "/console/redis",
    "producers": "/console/producers",
    "audit": "/console/audit",
}


async def produce(bootstrap: str) -> None:
    """Some 150 records a second, without end."""
    chance = random.Random(7)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=20) as producer:
        while True:
            topic = chance.choice(("orders", "orders", "payments", "clicks", "clicks"))
            await producer.send(topic, b"x" * chance.randrange(80, 400), partition=chance.randrange(TOPICS[topic]))
            await asyncio.sleep(0.006)


async def consume(bootstrap: str, group_id: str, name: str, topic: str, takes_s: float) -> None:
    """One real consumer, without end."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group_id, client_id=name, auto_offset_reset="earliest",
        heartbeat_interval_ms=500, auto_commit_interval_ms=1_000, max_poll_records=50,
        partition_assignment_strategy=(RangePartitionAssignor,),
    )  # fmt: skip
    await consumer.start()
    try:
        while True:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                await asyncio.sleep(takes_s * len(records))
    finally:
        with contextlib.suppress(TimeoutError):  # a parked join would hold it up until the barrier ends
            async with asyncio.timeout(2):
                await consumer.stop()


def poll(consumer: Consumer, stop: threading.Event) -> None:
    """A consumer of librdkafka, which names its software, until it is stopped."""
    while not stop.is_set():
        consumer.poll(0.2)
    consumer.close()


async def consume_by_librdkafka(bootstrap: str, group_id: str, name: str, topic: str) -> None:
    """One real consumer of another library, without end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1_000,
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe([topic])
    stop = threading.Event()
    try:
        await asyncio.to_thread(poll, consumer, stop)
    finally:
        stop.set()


async def rebalance_with_a_hanging_member(stage: Stage) -> None:
    """Three members share payments-settlement; one hangs, and a fourth one joins."""
    traits = {"topics": ("payments",), "partitions": 4, "session_timeout_ms": 120_000}
    hangs = await stage.member("payments-settlement", "settlement-3", **traits)
    stage.play(*(worker(stage, name) for name in ("settlement-1", "settlement-2")))
    await hangs.round()
    following = asyncio.ensure_future(hangs.follow())
    await asyncio.sleep(WATCHED_S * 0.6)
    following.cancel()
    stage.play(worker(stage, "settlement-4"))


async def worker(stage: Stage, name: str) -> None:
    """A real member of payments-settlement."""
    await consume(stage.cluster.bootstrap, "payments-settlement", name, "payments", 0.0)


@asynccontextmanager
async def at_work() -> AsyncIterator[Stage]:
    """The cluster, after a while."""
    with Cluster(brokers=3, settings=SETTINGS, constants=CONNECTIONS_STAY) as cluster:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()])
        await admin.close()
        stage, running = Stage(cluster), [asyncio.ensure_future(produce(cluster.bootstrap))]
        try:
            for group_id, (topic, count, takes_s) in GROUPS.items():
                for number in range(1, count + 1):
                    name = f"{group_id}-{number}"
                    running.append(asyncio.ensure_future(consume(cluster.bootstrap, group_id, name, topic, takes_s)))
            for name in ("risk-model-1", "risk-model-2"):
                other = consume_by_librdkafka(cluster.bootstrap, "risk-model", name, "orders")
                running.append(asyncio.ensure_future(other))
            running.append(asyncio.ensure_future(rebalance_with_a_hanging_member(stage)))
            backfill = asyncio.ensure_future(consume(cluster.bootstrap, "backfill", "backfill-1", "orders", 0.0))
            await asyncio.sleep(WATCHED_S / 3)
            backfill.cancel()
            await asyncio.gather(backfill, return_exceptions=True)
            await asyncio.sleep(WATCHED_S * 2 / 3)
            yield stage
        finally:
            for task in [*running, *stage.tasks]:
                task.cancel()
            await asyncio.gather(*running, *stage.tasks, return_exceptions=True)
            for member in stage.members:
                member.close()


async def operate(page: Page, base: str) -> None:
    """Log in; move offsets, and move them back."""
    await page.goto(f"{base}/console/login")
    await page.get_by_label("Password or token").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await page.goto(f"{base}/console/reset?group=backfill&to=earliest")
    await page.get_by_label("Type the group's name").fill("backfill")
    await page.get_by_role("button", name="Move 6 offsets").click()
    await page.get_by_role("link", name="Undo…").click()
    await page.get_by_role("button", name="Put them back").click()
    await page.get_by_role("heading", name="Offsets are back").wait_for()


async def shoot(page: Page, name: str) -> None:
    """Save what is there as a small PNG."""
    await page.wait_for_timeout(1_500)
    height = min(await page.evaluate("document.documentElement.scrollHeight"), HEIGHT_MAX)
    await page.set_viewport_size({"width": 1280, "height": height})
    await page.wait_for_timeout(400)
    snapshot = Image.open(io.BytesIO(await page.screenshot()))
    path = IMAGES / f"console-{name}.png"
    snapshot.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < BYTES_MAX, path
    await page.set_viewport_size({"width": 1280, "height": 900})


async def main() -> None:
    """All pages in light, one in dark, one as a phone has it."""
    found = next(filter(None, map(shutil.which, NAMES)))
    async with at_work() as stage, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="Europe/Berlin")
        page = await context.new_page()
        await operate(page, stage.admin)
        for name, path in PAGES.items():
            await page.goto(stage.admin + path)
            await shoot(page, name)
        await page.emulate_media(color_scheme="dark")
        await page.goto(stage.admin + PAGES["barrier"])
        await shoot(page, "dark")
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
