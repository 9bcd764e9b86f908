"""Between brokers and Redis: every command is delivered by the test, or held, cut off, answered late, or lost."""

from __future__ import annotations

import enum
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from tests.model.loop import VirtualLoop
from tests.support import clock as stepped
from tidegate.settings import Settings
from tidegate.store.link import Arg, Link, OnReply
from tidegate.store.node import Find
from tidegate.store.scripts import library, registered
from tidegate.store.store import Store

LANES: Final = ("control", "data-in")
"""The links that carry what groups need; pub/sub comes by `push`."""


class Hold(enum.Enum):
    """What a link keeps back for now."""

    NOTHING = "nothing"
    COMMANDS = "commands"
    REPLIES = "replies"


@dataclass(frozen=True, slots=True)
class Executed:
    """One script as Redis ran it, whoever gets its reply."""

    broker: str
    script: str
    args: list[str]
    reply: list[Any]
    state: str
    """The group's state and generation just before."""
    generation: int
    now_ms: int


class Server:
    """A connection on which each command is answered before the next is sent."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        self.pushes: list[list[Any]] = []
        self.loaded: set[bytes] = set()
        self.ask(["HELLO", 3])

    def ask(self, *commands: Sequence[Arg]) -> list[Any]:
        """Replies of some commands; what they published is in `pushes` by then."""
        return self._ask(commands, len(commands))

    def subscribe(self, channel: Arg) -> None:
        """Subscribe to a channel; Redis confirms it by a push."""
        self._ask([("SUBSCRIBE", channel)], 0)
        self.pushes.clear()

    def _ask(self, commands: Sequence[Sequence[Arg]], reply_count: int) -> list[Any]:
        packed = [hiredis.pack_command(tuple(command)) for command in (*commands, ("PING",))]  # type: ignore[arg-type]
        self._socket.sendall(b"".join(packed))
        replies: list[Any] = []
        while len(replies) <= reply_count:
            reply = self._reader.gets()
            if reply is Ellipsis:
                self._reader.feed(self._socket.recv(1 << 16))
            elif isinstance(reply, hiredis.PushNotification):
                self.pushes.append(reply)
            else:
                replies.append(reply)
        return replies[:-1]

    def load(self, source: bytes) -> None:
        """Have a script known, once."""
        if source not in self.loaded:
            self.ask(["SCRIPT", "LOAD", source])
            self.loaded.add(source)

    def load_library(self, source: bytes) -> Any:
        """Have a library of functions known; its name."""
        return self.ask(["FUNCTION", "LOAD", "REPLACE", source])[0]

    def close(self) -> None:
        self._socket.close()


class FaultyLink(Link):
    """A broker's link whose commands and replies the network delivers."""

    def __init__(self, name: str, broker: str, network: Network, settings: Settings) -> None:
        super().__init__(name, lambda: None, command_timeout_ms=settings.redis_command_timeout_ms)  # type: ignore[arg-type, return-value]
        self.broker, self.network = broker, network
        self.hold = Hold.NOTHING
        self.allowance: int | None = None
        """Commands that still get through before all are held; None: all do."""
        self.queue: deque[tuple[int, Sequence[Arg]]] = deque()
        self.late_messages: deque[list[Any]] = deque()
        """Messages that this link holds back."""
        self.messages_under_way = 0
        """Published, and neither arrived nor lost."""
        self.unheard: deque[tuple[int, Any]] = deque()

    def start(self) -> None:
        if not self._closing:
            self.failover_epoch += 1
            self.connected = True
            self._up.set()
            for listener in list(self.on_up):
                listener(self)

    def send(self, args: Sequence[Arg], on_reply: OnReply, timeout_ms: int | None = None) -> None:
        if not self.connected:
            self._refuse(on_reply)
        elif args[:2] == ["SCRIPT", "EXISTS"]:
            on_reply(self.network.server.ask(args)[0])
        elif args[0] == "SCRIPT":
            self.network.server.load(args[2])  # type: ignore[arg-type]
        elif args[0] == "FUNCTION":
            self._loop.call_soon(on_reply, self.network.server.load_library(args[2]))  # type: ignore[arg-type]
        else:
            at = self.network.number()
            self.queue.append((at, args))
            self._waiting.append((on_reply, 0.0, 0))
            if not self.undisturbed:
                self._loop.call_later(self.timeout_s, self._overdue, at)

    def send_unanswered(self, args: Sequence[Arg]) -> None:
        if args[0] == "SUBSCRIBE":
            for channel in args[1:]:
                self.network.subscribe(channel)
                self._loop.call_soon(self.push, [b"subscribe", channel, 1])

    def push(self, message: list[Any]) -> None:
        if self.hold is Hold.REPLIES:
            self.late_messages.append(message)
            return
        self.messages_under_way -= message[0] == b"message"
        if self.connected and self.on_push is not None:
            self.on_push(message)

    def _overdue(self, at: int) -> None:
        """A command without an answer ends the connection."""
        oldest = self.unheard or self.queue
        if oldest and oldest[0][0] <= at:
            self.cut(executed=0)

    # -- what the network does

    @property
    def ready(self) -> bool:
        return bool(self.queue) and self.hold is not Hold.COMMANDS and self.allowance != 0

    @property
    def undisturbed(self) -> bool:
        return self.hold is Hold.NOTHING and self.allowance is None

    def deliver(self) -> None:
        """Redis runs the first command; its reply is on the way."""
        at, args = self.queue[0]
        self.unheard.append((at, self._execute()))
        if self.allowance and args[0] != "PUBLISH":  # those are of no request
            self.allowance -= 1
        if self.hold is not Hold.REPLIES:
            self.on_request()

    def on_request(self) -> None:
        """All replies so far arrive."""
        while self.unheard:
            on_reply, _, _ = self._waiting.popleft()
            self._loop.call_soon(on_reply, self.unheard.popleft()[1])

    def release(self) -> None:
        """Nothing is held any more."""
        self.hold, self.allowance = Hold.NOTHING, None
        self.on_request()
        messages, self.late_messages = self.late_messages, deque()
        for message in messages:
            self.push(message)

    def cut(self, executed: int, down_ms: int = 50) -> None:
        """The connection ends: of what is under way the first `executed` commands are still run, unheard."""
        for _ in range(min(executed, len(self.queue))):
            self._execute()
        self._forget()
        self._drop("cut")
        self._loop.call_later(down_ms / 1000, self.start)

    def die(self, executed: int, late: bool) -> None:
        """The broker is gone; what it sent may have arrived, arrive later, or never."""
        self.connected, self._closing = False, True
        self.network.links.remove(self)
        for _ in range(min(executed, len(self.queue))):
            self._execute()
        if late:
            self.network.ghosts.extend((self.broker, args) for _, args in self.queue)
        self._forget()

    def _execute(self) -> Any:
        _, args = self.queue.popleft()
        return self.network.execute(self.broker, args)

    def _forget(self) -> None:
        self.queue.clear()
        self.unheard.clear()
        self.messages_under_way -= sum(message[0] == b"message" for message in self.late_messages)
        self.late_messages.clear()
        self.hold, self.allowance = Hold.NOTHING, None


class LinkedStore(Store):
    """A broker's store on links of the network."""

    def __init__(self, settings: Settings, network: Network, broker: str) -> None:
        self._network, self._broker = network, broker
        super().__init__(settings)

    def _link(self, name: str, find: Find) -> Link:
        link = FaultyLink(name, self._broker, self._network, self.settings)
        self._network.links.append(link)
        return link

    def all_links(self) -> list[FaultyLink]:
        """Every lane, also those that groups do not use."""
        return [link for link in self.links if isinstance(link, FaultyLink)]

    def lanes(self, name: str = "") -> list[FaultyLink]:
        """One lane, or both that carry commands."""
        return [link for link in self.all_links() if link.name in ((name,) if name else LANES)]


class Network:
    """Delivers the oldest command that is not held, one at a time; calls `observe` for every script that ran."""

    def __init__(self, server: Server, observe: Callable[[Executed], None]) -> None:
        self.server = server
        self.loop = VirtualLoop(self._work)
        self.links: list[FaultyLink] = []
        self.ghosts: deque[tuple[str, Sequence[Arg]]] = deque()
        """Commands of dead brokers that have not arrived yet."""
        self.muted: set[str] = set()
        """Brokers that miss every wake-up, though their connection is proven."""
        self.missed_s: dict[str, float] = {}
        """Broker -> when it last missed one, on the loop's clock."""
        self.changed_s = -1.0
        """When a script last published a change."""
        self.counted = 0
        self.group = ""
        self.observe = observe
        self._channels: set[Arg] = set()
        self._clock_ms = -1
        server.ask(["FLUSHALL"])

    @property
    def now_ms(self) -> int:
        """Redis's clock."""
        return stepped.START_MS + self.loop.now_ms

    def number(self) -> int:
        self.counted += 1
        return self.counted

    def subscribe(self, channel: Arg) -> None:
        if channel not in self._channels:
            self._channels.add(channel)
            self.server.subscribe(channel)

    def _work(self) -> bool:
        ready = [link for link in self.links if link.ready]
        if not ready:
            return False
        min(ready, key=lambda link: link.queue[0][0]).deliver()
        return True

    def haunt(self) -> None:
        """The oldest command of a dead broker arrives after all."""
        if self.ghosts:
            self.execute(*self.ghosts.popleft())

    def execute(self, broker: str, args: Sequence[Arg]) -> Any:
        """Run one command on the server now."""
        commands: list[Sequence[Arg]] = [args]
        if self._clock_ms != self.now_ms:
            self._clock_ms = self.now_ms
            self.server.ask(["SET", stepped.KEY, self._clock_ms])
        if args[0] in ("EVALSHA", "FCALL"):
            commands.insert(0, ["HMGET", self.group, "state", "generation"])
        *before, reply = self.server.ask(*commands)
        self._wake()
        if before:
            self._report(broker, args, reply, *before[0])
        return reply

    def _report(
        self, broker: str, args: Sequence[Arg], reply: Any, state: bytes | None, generation: bytes | None
    ) -> None:
        name = scripts_by_sha()[str(args[1])]
        assert not isinstance(reply, Exception), f"{name}: {reply}"
        texts = [arg.decode("latin-1") if isinstance(arg, bytes) else str(arg) for arg in args[3 + int(args[2]) :]]
        self.observe(Executed(broker, name, texts, reply, (state or b"").decode(), int(generation or 0), self.now_ms))

    def _wake(self) -> None:
        pushes, self.server.pushes = self.server.pushes, []
        for message in pushes:
            if message[1].endswith(b":wake"):
                self.changed_s = self.loop.time()
            for link in self.links:
                if link.name == "push":
                    self._deliver_message(link, message)

    def _deliver_message(self, link: FaultyLink, message: list[Any]) -> None:
        if link.broker in self.muted and message[1].endswith(b":wake"):
            self.missed_s[link.broker] = self.loop.time()
        else:
            link.messages_under_way += 1
            self.loop.call_soon(link.push, message)


_by_sha: dict[str, str] = {}


def scripts_by_sha() -> dict[str, str]:
    """Names of the scripts as they are rendered now, by SHA and by function."""
    if not _by_sha:
        _by_sha.update((script.sha, script.name) for script in registered())
        _by_sha.update((function, name) for name, function in library().functions.items())
    return _by_sha


def forget_scripts() -> None:
    """The scripts have changed."""
    _by_sha.clear()
