"""Members that consume, transform and produce in transactions, each a process of a client library.

A program takes BOOTSTRAP SOURCE SINK GROUP TRANSACTIONAL_ID SEED ABORTED BATCH. It doubles the numbers of SOURCE into
the same partition of SINK and commits the offsets with them, in transactions of about BATCH records, and aborts the
share ABORTED of them on purpose. After an error it begins again with new clients. It ends with its input.

It prints a line where a transaction begins, before it asks for the end, and when that was confirmed:
`begin NAME NS PARTITION:VALUE ...`, `end NAME NS commit|abort`, `ended NAME NS commit|abort`. The name is the key of
the transaction's records; the times are the wall clock's. `history_of` reads these lines.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from bench.clients import Command, go_program, java_program, node_program, python_program
from tests.kit.history import FOREVER, History, Outcome, Send, TransactionEnd

ENDING_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class ChainClient:
    """One library's program."""

    name: str
    prepare: Callable[[], Command]
    """What starts it. Raises PeerUnavailable."""
    members: int
    """One where the library commits offsets without a generation (KIP-447): nothing would fence an earlier owner."""


CHAIN_CLIENTS: Final = (
    ChainClient("librdkafka", python_program("confluent_chain.py"), 2),
    ChainClient("aiokafka", python_program("aiokafka_chain.py"), 1),
    ChainClient("java", java_program("Chain"), 2),
    ChainClient("franz-go", go_program("franz_chain"), 2),
    ChainClient("sarama", go_program("sarama_chain"), 1),
    ChainClient("kafkajs", node_program("chain.js"), 1),
)


@contextmanager
def chain_members(
    client: ChainClient, bootstrap: str, source: str, sink: str, group: str, seeds: Sequence[int], logs: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Members that run until the end of the block; `logs` gets their stdout in `member-N.log`, and stderr in `.err`."""
    command = client.prepare()
    with _opened(logs, "log", len(seeds)) as outputs, _opened(logs, "err", len(seeds)) as errors:
        running = [
            subprocess.Popen(
                [*command, bootstrap, source, sink, group, f"chain-{number}", str(seed), "0.2", "100"],
                stdin=subprocess.PIPE, stdout=outputs[number], stderr=errors[number],
            )
            for number, seed in enumerate(seeds)
        ]  # fmt: skip
        try:
            yield running
            for one in running:
                assert one.stdin is not None
                one.stdin.close()
            for one in running:
                one.wait(ENDING_S)
        finally:
            for one in running:
                one.kill()
                one.wait()


def history_of(logs: Path, topic: str) -> History:
    """What the members sent, and how they ended each transaction; a value is that of the record and its key."""
    history = History()
    for path in sorted(logs.glob("member-*.log")):
        ends: dict[str, TransactionEnd] = {}
        for line in path.read_text().splitlines():
            match line.split():
                case ["begin", name, began, *records]:
                    for number, (partition, _, value) in enumerate(one.partition(":") for one in records):
                        at = int(began) + number
                        history.add(
                            Send(
                                path.stem,
                                at,
                                at,
                                f"{topic}-{partition}",
                                f"{value}/{name}",
                                Outcome.OK,
                                transaction=name,
                            )
                        )
                case ["end", name, began, how]:
                    ends[name] = TransactionEnd(path.stem, int(began), FOREVER, name, how == "commit", Outcome.UNKNOWN)
                case ["ended", name, ended, how]:
                    is_as_asked = ends[name].committed is (how == "commit")
                    outcome = Outcome.OK if is_as_asked else Outcome.FAILED
                    ends[name] = replace(ends[name], ended=int(ended), outcome=outcome)
        for end in ends.values():
            history.add(end)
    return history


@contextmanager
def _opened(logs: Path, suffix: str, count: int) -> Iterator[list[IO[bytes]]]:
    files = [(logs / f"member-{number}.{suffix}").open("wb") for number in range(count)]
    try:
        yield files
    finally:
        for file in files:
            file.close()
