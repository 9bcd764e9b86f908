"""Members of groups by librdkafka that print a journal: `confluent_journal.py BOOTSTRAP TOPIC`.

Commands on stdin: `join NAME KIND GROUP`, with KIND classic, consumer or share, and `close NAME`; the end of stdin
closes all. Times are those of CLOCK_MONOTONIC, in ns.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, KafkaException, ShareConsumer, TopicPartition

COMMIT_EVERY_S = 0.5
METADATA = b"CGMDv2:"
printing = threading.Lock()


class Member(threading.Thread):
    """One member in a thread of its own."""

    def __init__(self, name: str, kind: str, group: str) -> None:
        super().__init__(name=name)
        self.kind, self.group = kind, group
        self.leaving = threading.Event()

    def note(self, kind: str, **fields: Any) -> None:
        """One line of the journal."""
        with printing:
            print(json.dumps({"at": time.monotonic_ns(), "m": self.name, "kind": kind, **fields}), flush=True)

    def config(self) -> dict[str, Any]:
        """What both kinds of consumers have."""
        bootstrap = sys.argv[1]
        return {"bootstrap.servers": bootstrap, "group.id": self.group, "client.id": self.name, "log_level": 0}

    def run(self) -> None:
        """Live until `close`; what ends it otherwise is in the journal."""
        try:
            self.live()
            self.note("stopped")
        except Exception as error:  # noqa: BLE001 - the journal is how it is reported
            self.note("died", error=repr(error))

    def live(self) -> None:
        """Read until `leaving`, then close."""
        raise NotImplementedError


class ConsumerMember(Member):
    """Reads, and commits what it has read."""

    def live(self) -> None:
        """Read until `leaving`, then close."""
        self.positions: dict[int, int] = {}
        config = self.config() | {
            "group.protocol": self.kind,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        if self.kind == "classic":
            config["partition.assignment.strategy"] = "range"
        self.consumer = Consumer(config)
        self.consumer.subscribe([sys.argv[2]], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost)
        due_s = time.monotonic()
        while not self.leaving.is_set():
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                partition, offset = message.partition(), message.offset()
                self.positions[partition] = offset + 1
                self.note("read", partition=partition, records=[[offset, message.value().decode()]])
            if time.monotonic() > due_s:
                self.commit(self.positions)
                due_s = time.monotonic() + COMMIT_EVERY_S
        owned = sorted(one.partition for one in self.consumer.assignment())
        self.commit(owned)
        self.note("revoked", partitions=owned)
        self.consumer.close()

    def commit(self, partitions: Iterable[int]) -> None:
        offsets = {index: self.positions[index] for index in partitions if index in self.positions}
        if not offsets:
            return
        wanted = [TopicPartition(sys.argv[2], index, offset) for index, offset in offsets.items()]
        began, generation = time.monotonic_ns(), -1
        try:
            answered = self.consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            self.note("commit", began=began, offsets=offsets, generation=generation, error=error.args[0].name())
            return
        for one in answered:
            error = None if one.error is None else one.error.name()
            self.note("commit", began=began, offsets={one.partition: one.offset}, generation=generation, error=error)

    def assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        metadata = bytes(self.consumer.consumer_group_metadata() or b"")  # after its name, an int32
        known = metadata.startswith(METADATA)
        generation = struct.unpack_from("<i", metadata, len(METADATA))[0] if known else -1
        member = self.consumer.memberid() or ""
        self.note(
            "assigned", partitions=sorted(one.partition for one in partitions), generation=generation, member=member
        )

    def revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if not self.leaving.is_set():
            gone = sorted(one.partition for one in partitions)
            self.commit(gone)
            self.drop("revoked", gone)

    def lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.drop("lost", sorted(one.partition for one in partitions))

    def drop(self, kind: str, gone: list[int]) -> None:
        for index in gone:
            self.positions.pop(index, None)
        self.note(kind, partitions=gone)


class ShareMember(Member):
    """Accepts records, and releases a few at their first deliveries."""

    def live(self) -> None:
        """Work until `leaving`, then close."""
        consumer = ShareConsumer(self.config() | {"share.acknowledgement.mode": "explicit", "max.poll.records": 50})
        consumer.subscribe([sys.argv[2]])
        while not self.leaving.is_set():
            self.take(consumer)
        self.note("closing")
        consumer.close()

    def take(self, consumer: ShareConsumer) -> None:
        """One poll, acknowledged as a whole."""
        delivered = defaultdict(list)
        for message in consumer.poll(0.1) or ():
            if message.error() is None:
                delivered[message.partition()].append(message)
        if not delivered:
            return
        decided: dict[int, dict[str, list[int]]] = {}
        for index, messages in delivered.items():
            records = [[one.offset(), one.value().decode(), one.delivery_count()] for one in messages]
            self.note("delivered", partition=index, records=records)
            mine: dict[str, list[int]] = {"accepted": [], "released": []}
            decided[index] = mine
            for one in messages:
                again = one.delivery_count() < 3 and random.random() < 0.05
                consumer.acknowledge(one, AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT)
                mine["released" if again else "accepted"].append(one.offset())
        began, results, failure = time.monotonic_ns(), {}, "no answer"
        try:
            answered = consumer.commit_sync(60)
            results = {
                one.partition: None if error is None else error.args[0].name() for one, error in answered.items()
            }
        except KafkaException as error:
            failure = error.args[0].name()
        for index, mine in decided.items():
            self.note("acknowledged", began=began, partition=index, **mine, error=results.get(index, failure))


def main() -> None:
    """Follow the commands."""
    members: dict[str, Member] = {}
    for line in sys.stdin:
        command, name, *more = line.split()
        if command == "join":
            members[name] = (ShareMember if more[0] == "share" else ConsumerMember)(name, *more)
            members[name].start()
        else:
            members.pop(name).leaving.set()
    for member in members.values():
        member.leaving.set()
    for member in members.values():
        member.join()


main()
