"""Members that consume, transform and produce in transactions, each a process of a client library.

A program takes BOOTSTRAP SOURCE SINK GROUP TRANSACTIONAL_ID SEED ABORTED BATCH. It doubles the numbers of SOURCE into
the same partition of SINK and commits the offsets with them, in transactions of about BATCH records, and aborts the
share ABORTED of them on purpose. After an error it begins again with new clients. It ends with its input.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from bench.clients import Command, go_program, java_program, node_program, python_program

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
    """Members that run until the end of the block; what they print is in files of `logs`."""
    command = client.prepare()
    with _opened(logs, len(seeds)) as outputs:
        running = [
            subprocess.Popen(
                [*command, bootstrap, source, sink, group, f"chain-{number}", str(seed), "0.2", "100"],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
            )
            for number, (seed, output) in enumerate(zip(seeds, outputs, strict=True))
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


@contextmanager
def _opened(logs: Path, count: int) -> Iterator[list[IO[bytes]]]:
    files = [(logs / f"member-{number}.log").open("wb") for number in range(count)]
    try:
        yield files
    finally:
        for file in files:
            file.close()
