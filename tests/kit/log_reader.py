"""Reads whole logs when a run is over: bounds first, then every record between."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.kit.history import LogBounds, Poll, now_ns
from tests.kit.writers import Session

NAME = "log reader"
WITHIN_S = 60.0


def read_logs(session: Session) -> None:
    """Note bounds and records of every partition. Raises TimeoutError where a log cannot be read to its end."""
    consumer = Consumer(
        {"bootstrap.servers": session.bootstrap, "group.id": NAME, "enable.partition.eof": True, "log_level": 0}
    )
    deadline = time.monotonic() + WITHIN_S
    try:
        left = {}
        for index in range(session.partition_count):
            start, end = _bounds(consumer, TopicPartition(session.topic, index), deadline)
            session.history.add(LogBounds(now_ns(), session.partition(index), start, end))
            if start < end:
                left[index] = start, end
        consumer.assign([TopicPartition(session.topic, index, start) for index, (start, _) in left.items()])
        ends = {index: end for index, (_, end) in left.items()}
        while ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"logs cannot be read to their ends: {ends}")
            began, message = now_ns(), consumer.poll(0.5)
            if message is None or (not (is_record := message.error() is None) and not _is_end(message)):
                continue
            index, offset = message.partition(), message.offset()
            if is_record and offset < ends.get(index, 0):
                found = ((offset, message.value().decode()),)
                session.history.add(Poll(NAME, began, now_ns(), session.partition(index), found))
            if offset + is_record >= ends.get(index, 0):
                ends.pop(index, None)
    finally:
        consumer.close()


def _is_end(message: Message) -> bool:
    """Whether it has the end of a log: behind the last record the ends of transactions may be."""
    return bool(message.error().code() == KafkaError._PARTITION_EOF)


def _bounds(consumer: Consumer, tp: TopicPartition, deadline: float) -> tuple[int, int]:
    while True:
        try:
            start, end = consumer.get_watermark_offsets(tp, timeout=20)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            return int(start), int(end)
