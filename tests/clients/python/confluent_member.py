"""Members of a group by confluent-kafka (librdkafka): `confluent_member.py BOOTSTRAP TOPIC GROUP SESSION_MS`."""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Message
from lines import commands, report, report_records


class Member(threading.Thread):
    """One consumer in a thread of its own."""

    def __init__(self, number: int, mode: str, instance: str) -> None:
        super().__init__(daemon=True)
        self.number, self.mode, self.instance = number, mode, instance
        self.leaving = threading.Event()

    def run(self) -> None:
        bootstrap, topic, group, session_ms = sys.argv[1:5]
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": self.mode == "auto",
        }
        if int(session_ms):
            config["session.timeout.ms"] = int(session_ms)
        if self.instance:
            config["group.instance.id"] = self.instance
        consumer = Consumer(config)
        report("joining", self.number)
        consumer.subscribe([topic], on_assign=self.assigned, on_revoke=self.revoked)
        while not self.leaving.is_set():
            self.take(consumer, consumer.consume(100, 0.1))
        began = time.monotonic()
        if self.mode != "auto":
            self.commit(consumer, asynchronous=False)
        consumer.close()
        report("closed", self.number, ms=round((time.monotonic() - began) * 1000))

    def take(self, consumer: Consumer, messages: list[Message]) -> None:
        offsets: dict[int, list[int]] = {}
        for message in messages:
            if message.error() is None:
                offsets.setdefault(message.partition(), []).append(message.offset())
        report_records(self.number, offsets)
        if offsets and self.mode != "auto":
            self.commit(consumer, asynchronous=self.mode == "async")

    def commit(self, consumer: Consumer, *, asynchronous: bool) -> None:
        try:
            consumer.commit(asynchronous=asynchronous)
        except KafkaException as error:
            report("commit_failed", self.number, error=error.args[0].name())

    def assigned(self, _: Consumer, partitions: list) -> None:
        report("assigned", self.number, p=[one.partition for one in partitions])

    def revoked(self, consumer: Consumer, _: list) -> None:
        report("revoked", self.number)
        if self.mode != "auto":
            self.commit(consumer, asynchronous=False)


def main() -> None:
    members: dict[int, Member] = {}
    for command, number, *more in commands():
        if command == "join":
            members[int(number)] = Member(int(number), more[0], more[1] if len(more) > 1 else "")
            members[int(number)].start()
        else:
            members.pop(int(number)).leaving.set()


main()
