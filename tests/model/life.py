"""One group's life: its brokers and clients, what they may do, and what is checked after each step."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from structlog.testing import capture_logs

from tests.model import stored
from tests.model.answered import AnsweredHeartbeats
from tests.model.audit import Audit
from tests.model.calm import calm_down
from tests.model.network import Executed, Server
from tests.model.reported import ReportedBroker
from tests.model.world import PARTITION_COUNT, Client, Request, World
from tidegate.groups import waiting
from tidegate.groups.model import Leaving
from tidegate.settings import Settings

FORGET_ID = (25, 82)
"""Heartbeat answers after which a client has no member id."""


class Life(RuleBasedStateMachine):
    """What every step of the machine uses. The server is the class's, so that a run has one."""

    server: Server
    steps = 0
    """Taken by all lives of this run."""
    answered_count = 0
    """Heartbeats answered from snapshots in all of them."""

    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        size_max=st.sampled_from([100, 100, 3]),
        lease_ms=st.sampled_from([3_000, 10_000]),
        poll_ms=st.sampled_from([500, 3_000]),
        sweeping=st.booleans(),
    )
    def start(self, delay_ms: int, size_max: int, lease_ms: int, poll_ms: int, sweeping: bool) -> None:
        self.limits = patch.multiple(waiting, PARK_LEASE_MS=lease_ms, POLL_MS=poll_ms)
        self.limits.start()
        self.capturing = capture_logs()
        self.logged = self.capturing.__enter__()
        self.settings = Settings(
            redis_url="redis://127.0.0.1:1/0",
            coordinator_shards=1,
            group_initial_rebalance_delay_ms=delay_ms,
            group_max_size=size_max,
        )
        self.known_replies = ReportedBroker()
        self.audit = Audit(known_replies=self.known_replies.ids)
        self.zombies: list[tuple[str, str | None, int]] = []
        self.observed = 0
        self.answered = self.audit.answered = AnsweredHeartbeats(self.server)
        self.world = self.audit.world = World(
            self.server, self.settings, sweeping, self.observe, self.on_request, self.answered.see
        )
        self.before = stored.read(self.server, self.world.keys, "")

    def observe(self, done: Executed) -> None:
        self.observed += 1
        self.audit.see(done)

    def on_request(self, request: Request) -> None:
        """An answer came; whose member id is refused remembers it as a zombie."""
        before = request.client.member_id
        self.known_replies.on_request(request)
        if before and not request.client.member_id:
            self.zombies.append((before, request.client.instance_id, request.client.generation))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if sys.exc_info()[0] is None:
                calm_down(self)
        finally:
            type(self).answered_count += self.answered.count
            self.world.close()
            self.limits.stop()
            self.capturing.__exit__(None, None, None)

    # -- how it continues

    def client(self, pick: int) -> Client:
        return self.world.clients[pick % len(self.world.clients)]

    def fault_within(self, client: Client, action: str, after: int, ending: str, executed: int) -> None:
        """A client asks; its broker gets so many commands through, and is struck."""
        broker = self.world.brokers[client.broker]
        if client.request is not None or not self.world.is_well(broker):
            return
        for link in broker.store.lanes():
            link.allowance = after
        self.world.disturb(broker)
        self.act(client, action)
        self.go()
        self.strike(client.broker, ending, executed)

    def strike(self, index: int, ending: str, executed: int) -> None:
        """A broker dies, or loses its link, with what is under way."""
        broker = self.world.brokers[index]
        self.world.disturb(broker)
        if ending == "cut":
            for link in broker.store.lanes():
                link.cut(executed)
        else:
            self.world.kill(index, executed, late=ending == "kill late")
            for client in self.world.clients:
                if client.broker == index:
                    client.broker = 1 - index
        self.go()
        self.go(100)

    def act(self, client: Client, action: str) -> None:
        """A client asks for something, if it may."""
        if action == "join" and client.request is None:
            self.world.join(client)
        elif action == "sync" and client.request is None and client.member_id and client.generation >= 0:
            self.world.sync(client, self.plan(client))
        elif action == "heartbeat" and client.member_id and client.request is None:
            self.world.heartbeat(client, lambda code: self.beaten(client, code))
        elif action == "commit":
            self.world.commit(client, self.world.made % PARTITION_COUNT, lambda _: None)
        elif action == "leave" and client.member_id:
            self.world.leave(client.broker, [Leaving(client.member_id, client.instance_id)])
            self.world.heartbeat(replace(client), lambda _: None)  # its heartbeats run beside it
            self.bury(client)

    def beaten(self, client: Client, code: int) -> None:
        if code in FORGET_ID and client.request is None:
            self.bury(client)

    def bury(self, client: Client) -> None:
        """The client forgets its member id; a zombie remembers it."""
        if client.member_id:
            self.zombies.append((client.member_id, client.instance_id, client.generation))
        client.member_id = ""

    def plan(self, client: Client) -> dict[str, bytes]:
        """What a leader hands in: each partition to one member; every plan is another one."""
        joined = client.joined
        if joined is None or joined.generation != client.generation or not joined.members:
            return {}
        number, members = self.world.number(), joined.members
        shares: dict[str, list[int]] = {member.member_id: [] for member in members}
        for partition in range(PARTITION_COUNT):
            shares[members[(partition + number) % len(members)].member_id].append(partition)
        return {
            member.member_id: json.dumps(
                {
                    "plan": number,
                    "generation": client.generation,
                    "owner": member.instance_id or member.member_id,
                    "partitions": shares[member.member_id],
                }
            ).encode()
            for member in members
        }

    def go(self, ms: int = 0) -> None:
        """Everything that can happen by then happens; clients get their answers."""
        self.world.loop.run(ms)
        self.check()

    @invariant()
    def after_each_step(self) -> None:
        if hasattr(self, "world"):
            type(self).steps += 1
            self.check()

    def check(self) -> None:
        """All replies, commands and stored values agree."""
        if not self.observed:
            return
        self.observed = 0
        now = stored.read(self.server, self.world.keys, self.before.last_event)
        stored.check(now, self.before, self.world.now_ms)
        self.audit.compare(now, self.before)
        self.before = now
        faults, self.world.loop.faults = self.world.loop.faults, []
        if faults:
            raise faults[0] if isinstance(faults[0], BaseException) else AssertionError(faults[0])
        errors = [entry for entry in self.logged if entry["log_level"] == "error"]
        assert not errors, f"a broker reports a fault: {errors[0]}"
