"""Members of a group by aiokafka: `aiokafka_member.py BOOTSTRAP TOPIC GROUP SESSION_MS`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError
from lines import commands, report, report_records


class Member(ConsumerRebalanceListener):
    """One consumer in a task of its own."""

    def __init__(self, number: int, mode: str, instance: str) -> None:
        self.number, self.mode, self.instance = number, mode, instance
        self.leaving = asyncio.Event()

    async def run(self) -> None:
        bootstrap, topic, group, session_ms = sys.argv[1:5]
        config: dict[str, Any] = {}
        if int(session_ms):
            config["session_timeout_ms"] = int(session_ms)
        if self.instance:
            config["group_instance_id"] = self.instance
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=self.mode == "auto",
            **config,
        )
        report("joining", self.number)
        self.consumer.subscribe([topic], listener=self)
        await self.consumer.start()
        while not self.leaving.is_set():
            polled = await self.consumer.getmany(timeout_ms=100)
            report_records(self.number, {at.partition: [record.offset for record in got] for at, got in polled.items()})
            if polled and self.mode == "sync":
                await self.commit()
            elif polled and self.mode == "async":
                self.committing = asyncio.ensure_future(self.commit())
        began = time.monotonic()
        if self.mode != "auto":
            await self.commit()
        await self.consumer.stop()
        report("closed", self.number, ms=round((time.monotonic() - began) * 1000))

    async def commit(self) -> None:
        try:
            await self.consumer.commit()
        except KafkaError as error:
            report("commit_failed", self.number, error=type(error).__name__)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        report("assigned", self.number, p=sorted(one.partition for one in assigned))

    async def on_partitions_revoked(self, revoked: Any) -> None:
        report("revoked", self.number)
        if self.mode != "auto" and revoked:
            await self.commit()


async def main() -> None:
    loop, reported = asyncio.get_running_loop(), asyncio.Queue[list[str] | None]()

    def listen() -> None:
        for command in commands():
            loop.call_soon_threadsafe(reported.put_nowait, command)
        loop.call_soon_threadsafe(reported.put_nowait, None)

    threading.Thread(target=listen, daemon=True).start()
    members: dict[int, Member] = {}
    tasks = set()
    while (command := await reported.get()) is not None:
        number = int(command[1])
        if command[0] == "join":
            members[number] = Member(number, command[2], command[3] if len(command) > 3 else "")
            tasks.add(asyncio.create_task(members[number].run()))
        else:
            members.pop(number).leaving.set()


asyncio.run(main())
