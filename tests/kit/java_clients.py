"""Java's clients in a run: one process for all of them (`tests/clients/java/GroupJournal.java`).

It is steered by its stdin, and prints what its members and producers did and were answered, with times of
`CLOCK_MONOTONIC`, which the history of the run takes over.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Sequence
from typing import Any, Final

from tests.kit.clients import HEARTBEAT_MS, SESSION_MS, Reader
from tests.kit.history import Assigned, Commit, CommittedFetch, Operation, Outcome, Poll, Revoked, Send, records_of
from tests.kit.writers import FLUSH_S, Session, Writer

Entry = dict[str, Any]
_STOP_S: Final = 90.0


class JavaClients:
    """The process. `command` starts it, without its arguments."""

    def __init__(self, session: Session, command: Sequence[str]) -> None:
        self._session = session
        self._clients: dict[str, JavaReader | JavaWriter] = {}
        self._process = subprocess.Popen(
            [*command, session.bootstrap, session.topic],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._follow, name="java")
        self._thread.start()

    def add(self, client: JavaReader | JavaWriter, command: str) -> None:
        """Start a client by this command."""
        self._clients[client.name] = client
        self.send(command)

    def send(self, command: str) -> None:
        """One line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    async def end(self) -> None:
        """After its clients have stopped."""
        self._process.kill()
        await asyncio.to_thread(self._thread.join)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                entry = json.loads(line)
                client = self._clients[entry["m"]]
                if entry["kind"] == "died":
                    self._session.fatal.append(f"{client.name}: {entry['error']}")
                if entry["kind"] in ("stopped", "died"):
                    client.stopped.set()
                elif (operation := client.operation(entry)) is not None:
                    self._session.history.add(operation)


async def _stop(clients: JavaClients, client: JavaReader | JavaWriter, within_s: float) -> None:
    clients.send(f"close {client.name}")
    if not await asyncio.to_thread(client.stopped.wait, within_s):
        client.session.fatal.append(f"{client.name}: not at its end {within_s:.0f} s after `close`")


class JavaWriter(Writer):
    """KafkaProducer: idempotent, with five requests in flight, as it is by default."""

    def __init__(self, session: Session, name: str, clients: JavaClients) -> None:
        super().__init__(session, name)
        self._clients = clients
        self.stopped = threading.Event()

    def start(self) -> None:
        self._clients.add(self, f"write {self.name} {self.session.partition_count}")

    async def stop(self) -> None:
        """No more records; returns when all are answered, or given up."""
        await _stop(self._clients, self, FLUSH_S)

    def operation(self, entry: Entry) -> Operation | None:
        """An entry of the journal, as the history has it."""
        if entry["kind"] != "sent":
            return None
        outcome = Outcome.OK if entry["error"] is None else Outcome.UNKNOWN
        partition = self.session.partition(entry["partition"])
        return Send(self.name, entry["began"], entry["at"], partition, entry["value"], outcome, entry["offset"])


class JavaReader(Reader):
    """KafkaConsumer. `kind` is its `group.protocol`: classic, with the eager range assignor, or consumer (KIP-848)."""

    def __init__(self, session: Session, name: str, group: str, clients: JavaClients, kind: str) -> None:
        super().__init__(session, name, group)
        self._clients, self._kind = clients, kind
        self.stopped = threading.Event()

    def start(self) -> None:
        config = {"request.timeout.ms": 10_000, "default.api.timeout.ms": 20_000}
        if self._kind == "classic":  # of the other kind brokers decide
            config |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        pairs = " ".join(f"{name}={value}" for name, value in config.items())
        self._clients.add(self, f"join {self.name} {self._kind} {self.group} {pairs}")

    async def stop(self) -> None:
        """Commits, and leaves the group."""
        await _stop(self._clients, self, _STOP_S)

    def operation(self, entry: Entry) -> Operation | None:
        """An entry of the journal, as the history has it."""
        at, name, group = entry["at"], self.name, self.group
        match entry["kind"]:
            case "read":
                partition = self.session.partition(entry["partition"])
                return Poll(name, entry["began"], at, partition, records_of(entry["records"]), group)
            case "assigned":
                return Assigned(name, at, group, entry["member"], entry["generation"], self._names(entry))
            case "revoked" | "lost":
                return Revoked(name, at, group, self._names(entry))
            case "commit":
                outcome = Outcome.OK if entry["error"] is None else Outcome.UNKNOWN
                return Commit(name, entry["began"], at, group, entry["generation"], self._offsets(entry), outcome)
            case "committed":
                return CommittedFetch(name, entry["began"], at, group, self._offsets(entry))
        return None

    def _names(self, entry: Entry) -> tuple[str, ...]:
        return tuple(map(self.session.partition, entry["partitions"]))

    def _offsets(self, entry: Entry) -> dict[str, int]:
        return {self.session.partition(int(index)): offset for index, offset in entry["offsets"].items()}
