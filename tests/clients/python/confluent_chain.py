"""Consume, transform, produce in transactions by librdkafka; see `tests/support/chains.py` for the arguments."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

BOOTSTRAP, SOURCE, SINK, GROUP, TRANSACTIONAL_ID, SEED, ABORTED, BATCH = sys.argv[1:]
WAIT_S = 60.0
numbers = itertools.count()
stop = threading.Event()


def note(what: str, transaction: str, *words: str) -> None:
    print(what, transaction, time.time_ns(), *words, flush=True)


def member(draw: random.Random) -> None:
    consumer = Consumer({
        "bootstrap.servers": BOOTSTRAP, "group.id": GROUP, "isolation.level": "read_committed",
        "enable.auto.commit": False, "auto.offset.reset": "earliest",
    })  # fmt: skip
    try:
        chain(consumer, draw)
    except KafkaException as error:
        print(f"begins again: {error.args[0]}", flush=True)
    finally:
        consumer.close()


def chain(consumer: Consumer, draw: random.Random) -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": TRANSACTIONAL_ID, "linger.ms": 5})
    producer.init_transactions(WAIT_S)
    consumer.subscribe([SOURCE])
    while not stop.is_set():
        messages = [one for one in consumer.consume(int(BATCH), timeout=1) if one.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        name = f"{TRANSACTIONAL_ID}-{next(numbers)}"
        made = [(one.partition(), str(2 * int(one.value()))) for one in messages]
        note("begin", name, *(f"{partition}:{value}" for partition, value in made))
        for partition, value in made:
            producer.produce(SINK, value, key=name, partition=partition)
        try:
            read = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
            producer.send_offsets_to_transaction(read, consumer.consumer_group_metadata(), WAIT_S)
            if draw.random() >= float(ABORTED):
                note("end", name, "commit")
                producer.commit_transaction(WAIT_S)
                note("ended", name, "commit")
                continue
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        note("end", name, "abort")
        producer.abort_transaction(WAIT_S)
        note("ended", name, "abort")
        for one in consumer.committed(consumer.assignment(), timeout=WAIT_S):
            consumer.seek(TopicPartition(SOURCE, one.partition, max(one.offset, 0)))


def work() -> None:
    draw = random.Random(int(SEED))
    while not stop.is_set():
        member(draw)


working = threading.Thread(target=work)
working.start()
sys.stdin.read()
stop.set()
working.join()
