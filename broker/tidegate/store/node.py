"""One Redis primary, and the lanes to it.

Lanes are separate TCP connections, so that a large read does not delay a heartbeat: `control` carries scripts and small
commands; `data_out` appends; `data_in` reads of the log; `durable` the write and WAIT that prove durability.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Literal

from tidegate.store.addresses import Address
from tidegate.store.link import Link
from tidegate.store.redis_clock import ServerClock, time_ms
from tidegate.store.redis_outage import RedisOutage

Lane = Literal["control", "data_out", "data_in", "durable"]
Find = Callable[[], Awaitable[Address]]
MakeLink = Callable[[str, Find], Link]
"""Makes a link from its name and the function that finds its address."""


class Node:
    """The lanes of one broker to one primary."""

    __slots__ = (
        "clock", "closed", "control", "data_in", "data_out", "durable", "has_functions", "lanes", "outage",
        "unknown_scripts", "used_at",
    )  # fmt: skip

    def __init__(self, link: MakeLink, find: Find) -> None:
        self.control = link("control", find)
        self.data_out = link("data-out", find)
        self.data_in = link("data-in", find)
        self.durable = link("durable", find)
        self.lanes = (self.control, self.data_out, self.data_in, self.durable)
        self.closed = False
        self.has_functions = False
        """Whether the library of scripts is loaded (`store.functions`)."""
        self.unknown_scripts: set[str] = set()
        """SHAs of scripts that the server may not have; each is loaded ahead of its first call."""
        self.clock = ServerClock()
        """Observed in Redis Cluster only: `Store.clock` is the one of a single server."""
        self.outage = RedisOutage()
        self.control.on_down.append(lambda _: self.outage.down())
        self.control.on_up.append(lambda _: self.outage.up())
        self.used_at = float("-inf")
        """Loop time when a node without slots last had slots, or was last named by a redirect."""

    def start(self) -> None:
        """Start connecting every lane."""
        for lane in self.lanes:
            lane.start()

    async def close(self) -> None:
        """Close every lane; commands in flight fail."""
        self.closed = True
        for lane in self.lanes:
            await lane.close()

    def ask_time(self) -> None:
        """Ask the server for its time."""
        asked_s = perf_counter()
        self.outage.asked()

        def answered(reply: Any) -> None:
            self.outage.answered()
            if isinstance(reply, list):
                self.clock.observe(time_ms(reply), perf_counter() - asked_s)

        self.control.send(["TIME"], answered)

    def take_over(self, before: Node) -> None:
        """This node has keys of `before` now."""
        self.outage.inherit(before.outage)
        if self.control.connected:
            self.outage.up()

    def leave(self, reason: str) -> None:
        """Drop every connection and connect again."""
        for lane in self.lanes:
            lane.reconnect(reason)

    def lane(self, name: Lane) -> Link:
        """A lane by its name."""
        found: Link = getattr(self, name)
        return found

    @property
    def up(self) -> bool:
        """Whether every lane is up."""
        return all(lane.connected for lane in self.lanes)

    def __str__(self) -> str:
        address = self.control.address
        return f"{address.host}:{address.port}" if address is not None else "unknown"
