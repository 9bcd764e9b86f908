"""Members of a group by kafka-python: `kafka_python_member.py BOOTSTRAP TOPIC GROUP SESSION_MS`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import KafkaError
from lines import commands, report, report_records


class Member(threading.Thread, ConsumerRebalanceListener):
    """One consumer in a thread of its own."""

    def __init__(self, number: int, mode: str, instance: str) -> None:
        super().__init__(daemon=True)
        self.number, self.mode, self.instance = number, mode, instance
        self.leaving = threading.Event()

    def run(self) -> None:
        bootstrap, topic, group, session_ms = sys.argv[1:5]
        config: dict[str, Any] = {}
        if int(session_ms):
            config["session_timeout_ms"] = int(session_ms)
        if self.instance:
            config["group_instance_id"] = self.instance
        self.consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=self.mode == "auto",
            **config,
        )
        report("joining", self.number)
        self.consumer.subscribe([topic], listener=self)
        while not self.leaving.is_set():
            polled = self.consumer.poll(timeout_ms=100)
            report_records(self.number, {at.partition: [record.offset for record in got] for at, got in polled.items()})
            if polled and self.mode == "async":
                self.consumer.commit_async()
            elif polled and self.mode == "sync":
                self.commit()
        began = time.monotonic()
        if self.mode != "auto":
            self.commit()
        self.consumer.close()
        report("closed", self.number, ms=round((time.monotonic() - began) * 1000))

    def commit(self) -> None:
        try:
            self.consumer.commit()
        except KafkaError as error:
            report("commit_failed", self.number, error=type(error).__name__)

    def on_partitions_assigned(self, assigned: Any) -> None:
        report("assigned", self.number, p=sorted(one.partition for one in assigned))

    def on_partitions_revoked(self, revoked: Any) -> None:
        report("revoked", self.number)  # a commit that waits would wait for the thread that calls this


def main() -> None:
    members: dict[int, Member] = {}
    for command, number, *more in commands():
        if command == "join":
            members[int(number)] = Member(int(number), more[0], more[1] if len(more) > 1 else "")
            members[int(number)].start()
        else:
            members.pop(int(number)).leaving.set()


main()
