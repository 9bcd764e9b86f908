"""Redis as brokers reach it here: in-memory links to a real server that is driven command by command.

Each write of a link arrives after a latency and is executed at once, as a whole or up to a fault, on one blocking
connection, with the stepped clock of `tests.support.clock` set to virtual time. Messages that scripts publish come
back on that connection and are delivered by the simulator. Greetings, PING, INFO and subscriptions are answered here:
they depend on the real server's start, not on a broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import socket
from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

import hiredis

from tests.simulation.loop import Process, SimLoop
from tests.simulation.network import GRAIN_S
from tests.support import clock
from tests.support.valkey import ValkeyServer

_SOCKET: Final = "socket"
_LISTS: Final = ("--hash-max-listpack-entries", "100000", "--hash-max-listpack-value", "1000000")
SERVER_OPTIONS: Final = (*_LISTS, "--unixsocket", _SOCKET)
"""Hashes stay lists, so that their order is that of insertion and not of the server's random hash seed."""

_LATENCY_S: Final = GRAIN_S
_END: Final = b"$11\r\nend-of-turn\r\n"
_ASK_END: Final = b"*2\r\n$4\r\nECHO\r\n" + _END
_MESSAGE: Final = re.compile(rb">4\r\n\$8\r\npmessage\r\n\$\d+\r\n[^\r]*\r\n\$\d+\r\n([^\r]*)\r\n\$\d+\r\n([^\r]*)\r\n")
_HELLO: Final = b"%2\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$5\r\nproto\r\n:3\r\n"
_EVENT_IDS: Final = re.compile(rb"\$\d+\r\n\(?\d{13}-\d+")
"""Of streams that number themselves, by the server's own clock: no two runs have the same."""
_LOCAL: Final = frozenset({b"HELLO", b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"INFO", b"SCRIPT", b"FUNCTION"})
LOST_SHARE: Final = 0.02
"""Of the messages to brokers, at all times: a message is a hint."""


class ServerConnection:
    """The real server, asked and answered in one step of the simulation."""

    def __init__(self, server: ValkeyServer, prefix: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"{server.directory}/{_SOCKET}")
        self.round_trips = self.commands = 0
        self._now_ms = -1
        self._raw(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n")
        self.call(0, "FLUSHALL")
        self.call(0, "SCRIPT", "FLUSH")
        self.call(0, "FUNCTION", "FLUSH")
        self._raw(hiredis.pack_command(("PSUBSCRIBE", f"{prefix}:*")))
        self.scripts: dict[bytes, bytes] = {}

    def run(self, now_ms: int, batches: list[bytes]) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
        """Run batches of commands at a time; the replies of each as bytes, and the messages that they published."""
        packed = _ASK_END.join(batches)
        if now_ms != self._now_ms:
            self._now_ms = now_ms
            replies = self._raw(hiredis.pack_command(("SET", clock.KEY, now_ms)) + packed, len(batches))[5:]
        else:
            replies = self._raw(packed, len(batches))
        messages = []
        if b"pmessage" in replies:
            messages = _MESSAGE.findall(replies)
            replies = _MESSAGE.sub(b"", replies)
        return replies.split(_END)[:-1], messages

    def call(self, now_ms: int, *args: Any) -> Any:
        """One command of the simulator's own."""
        return self.calls(now_ms, [args])[0]

    def calls(self, now_ms: int, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Several commands of the simulator's own, in one turn."""
        reader = hiredis.Reader(notEnoughData=Ellipsis)
        reader.feed(self.run(now_ms, [b"".join(map(hiredis.pack_command, commands))])[0][0])
        return [reader.gets() for _ in commands]

    def _raw(self, packed: bytes, batches: int = 1) -> bytes:
        self.round_trips += 1
        self._socket.sendall(packed + _ASK_END)
        received = self._socket.recv(1 << 18)
        while received.count(_END) < batches:
            received += self._socket.recv(1 << 18)
        return received

    def close(self) -> None:
        self._socket.close()


class RedisLink(asyncio.Transport):
    """One broker's link: its transport, and its way to the server."""

    def __init__(self, redis: SimRedis, process: Process, protocol: Any) -> None:
        super().__init__()
        self._redis = redis
        self._loop = redis.loop
        self.process = process
        self.protocol = protocol
        self._base_s = _LATENCY_S
        self._out_at = self._back_at = 0.0
        self.broken = False
        self.channels: dict[bytes, None] = {}

    def write(self, data: Any) -> None:
        if not self.broken:
            self._out_at = max(self._loop.now + self._redis.latency(self._base_s), self._out_at)
            self._redis.send(self._out_at, self, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def reply(self, data: bytes) -> None:
        """Bytes from the server to the broker."""
        if not self.broken:
            self._back_at = max(self._loop.now + self._redis.latency(self._base_s), self._back_at)
            self._loop.post(self._back_at, self._deliver, data, process=self.process)

    def _deliver(self, data: bytes) -> None:
        if not self.broken:
            self.protocol.data_received(data)

    def cut(self) -> None:
        """The link breaks: replies under way are lost, and so is what was not executed yet."""
        if not self.broken:
            self.broken = True
            self._redis.links.pop(self, None)
            self._loop.later(GRAIN_S, self.protocol.connection_lost, ConnectionResetError("cut"), process=self.process)

    def abort(self) -> None:
        self.broken = True
        self._redis.links.pop(self, None)

    def close(self) -> None:
        self.abort()

    def is_closing(self) -> bool:
        return self.broken


class SimRedis:
    """The server as the network between it and the brokers makes it look."""

    link_type = RedisLink

    def __init__(self, loop: SimLoop, server: ServerConnection, rng: random.Random) -> None:
        self.loop, self.server, self.rng = loop, server, rng
        self.links: dict[RedisLink, None] = {}
        self.stalled_until = 0.0
        self.away = False
        self.delay_max_s = 0.0
        self.lost_messages_share = LOST_SHARE
        self.messages_lost = 0
        self.on_message_lost: Callable[[bytes, bytes], None] = lambda channel, payload: None
        self.trace = hashlib.blake2b(digest_size=8)
        self.before_script: Callable[[RedisLink, bytes], str | None] = lambda link, name: None
        """A fault waiting for a script's digest or a command: "before" or "after" it, the link is broken there."""
        self._facts = _facts(server)
        self._waiting: list[tuple[RedisLink, bytes]] = []
        self._coming: dict[float, list[tuple[RedisLink, bytes]]] = {}
        loop.connect = self._connect

    # -- links

    async def _connect(self, process: Process, factory: Callable[[], Any]) -> tuple[Any, Any]:
        await asyncio.sleep(self.latency(GRAIN_S))
        if self.away:
            raise ConnectionRefusedError(111, "Connection refused")
        link = self.link_type(self, process, factory())
        self.links[link] = None
        return link, link.protocol

    def latency(self, base_s: float) -> float:
        """How long one way takes now."""
        return base_s + GRAIN_S * int(self.rng.random() * self.delay_max_s / GRAIN_S) if self.delay_max_s else base_s

    def stall(self, seconds: float) -> None:
        """The server does nothing for a while, then everything."""
        self.stalled_until = self.loop.now + seconds
        self.loop.later(seconds, self._catch_up)

    def _catch_up(self) -> None:
        """Execute what has come: all that arrived at one instant, in one turn of the server where nothing is odd."""
        if self.loop.now < self.stalled_until:
            return
        waiting, self._waiting = self._waiting, []
        plain: list[tuple[RedisLink, bytes]] = []
        for link, data in waiting:
            if link.broken:
                continue
            self._note(b"%d " % self.now_ms() + data)
            commands = _parse(data)
            self.server.commands += len(commands)
            struck = self._strike(link, commands)
            if struck is None and not any(command[0] in _LOCAL for command in commands):
                plain.append((link, data))
                continue
            self._run_plain(plain)
            plain = []
            if struck is None:
                link.reply(self._run(link, commands))
            else:
                self._run(link, commands[:struck])
        self._run_plain(plain)

    def _strike(self, link: RedisLink, commands: list[list[bytes]]) -> int | None:
        """How many commands happen before a fault breaks the link; None where it does not."""
        for i, command in enumerate(commands):
            name = command[1] if command[0] in (b"EVALSHA", b"FCALL") else command[0]
            if (when := self.before_script(link, name)) is not None:
                return i + (when == "after")
        return None

    def _run_plain(self, batches: list[tuple[RedisLink, bytes]]) -> None:
        if batches:
            for (link, _), replies in zip(batches, self._forward([data for _, data in batches]), strict=True):
                link.reply(replies)

    def end_process(self, process: Process, commands_lost: bool) -> None:
        """A broker died: what it had sent may still arrive, or some of it."""
        for link in [link for link in self.links if link.process is process]:
            del self.links[link]
            if commands_lost:
                link.broken = True

    def set_away(self, away: bool) -> None:
        """Nobody reaches the server, which continues."""
        self.away = away
        if away:
            for link in list(self.links):
                link.cut()

    # -- commands

    def send(self, at_s: float, link: RedisLink, data: bytes) -> None:
        """Bytes of a link come to the server at an instant, with all else that comes then."""
        coming = self._coming.get(at_s)
        if coming is not None:
            coming.append((link, data))
        else:
            self._coming[at_s] = [(link, data)]
            self.loop.post(at_s, self._arrive, at_s)

    def _arrive(self, at_s: float) -> None:
        self._waiting += self._coming.pop(at_s)
        self._catch_up()

    def now_ms(self) -> int:
        """Virtual time, as the scripts see it."""
        return clock.START_MS + int(self.loop.now * 1000)

    def _run(self, link: RedisLink, commands: list[list[bytes]]) -> bytes:
        """Commands in order, those in a row that are the server's in one turn."""
        replies = b""
        for local, row in groupby(commands, lambda command: command[0] in _LOCAL):
            if local:
                replies += b"".join(self._answer(link, command) for command in row)
            else:
                replies += self._forward([b"".join(hiredis.pack_command(tuple(command)) for command in row)])[0]
        return replies

    def _forward(self, batches: list[bytes]) -> list[bytes]:
        replies, messages = self.server.run(self.now_ms(), batches)
        self._note(b"".join(replies))
        for channel, payload in messages:
            self._publish(channel, payload)
        return replies

    def _note(self, data: bytes) -> None:
        self.trace.update(_EVENT_IDS.sub(b"", data))

    def _publish(self, channel: bytes, payload: bytes) -> None:
        packed = b">3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(channel), channel, len(payload), payload)
        for link in self.links:
            if channel in link.channels:
                if self.lost_messages_share and self.rng.random() < self.lost_messages_share:
                    self.messages_lost += 1
                    self.on_message_lost(channel, payload)
                else:
                    link.reply(packed)

    def _answer(self, link: RedisLink, command: list[bytes]) -> bytes:
        name = command[0]
        if name == b"PING":
            return b"+PONG\r\n"
        if name == b"INFO":
            text = self._facts[command[1].decode()]
            return b"$%d\r\n%b\r\n" % (len(text), text)
        if name in (b"SCRIPT", b"FUNCTION"):
            return self._load(command)
        if name == b"HELLO":
            return _HELLO
        replies = b""
        for channel in command[1:]:
            if name == b"SUBSCRIBE":
                link.channels[channel] = None
            else:
                link.channels.pop(channel, None)
            kind = name.lower()
            replies += b">3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:1\r\n" % (len(kind), kind, len(channel), channel)
        return replies

    def _load(self, command: list[bytes]) -> bytes:
        if command[1] != b"LOAD":
            return self._forward([hiredis.pack_command(tuple(command))])[0]
        source = command[2]
        if source not in self.server.scripts:
            self.server.scripts[source] = self._forward([hiredis.pack_command(tuple(command))])[0]
        return self.server.scripts[source]


def _parse(data: bytes) -> list[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(data)
    commands = []
    while (command := reader.gets()) is not False:
        commands.append(command)
    return commands


def _facts(server: ServerConnection) -> dict[str, bytes]:
    """INFO by section, without what differs from one start of the server to the next."""
    facts = {}
    for section in ("server", "memory", "persistence", "replication", "cluster", "modules", "stats", "clients"):
        text = server.call(0, "INFO", section)
        text = text if isinstance(text, bytes) else str(text).encode()
        facts[section] = re.sub(rb"(master_replid\d?:)[0-9a-f]{40}", rb"\g<1>" + b"a" * 40, text)
    return facts
