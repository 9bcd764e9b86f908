"""The state machine: clients ask, time passes, faults strike; after each step everything is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.calm import behaving
from tests.model.life import Life
from tests.model.network import Hold
from tests.model.world import Client, Protocols
from tests.support.steps import sweep_expiry
from tidegate.groups.model import Leaving
from tidegate.store.outcome import Failure

CLIENTS_MAX: Final = 5
PROTOCOLS: Final[tuple[Protocols, ...]] = (
    (("range", b"r"), ("coop", b"c")),
    (("coop", b"c"), ("range", b"r")),
    (("range", b"other"),),
    (("range", b"r"), ("sticky", b"s")),
    (("coop", b"c"),),
)

picks = st.integers(0, CLIENTS_MAX - 1)
two = st.integers(0, 1)
few = st.integers(0, 3)
endings = st.sampled_from(["kill", "kill late", "cut"])
actions = st.sampled_from(["join", "sync", "heartbeat", "commit", "leave"])


class Groups(Life):
    """One group over two brokers."""

    # -- what clients do

    @rule(
        static=st.booleans(),
        version=st.sampled_from([3, 5, 9]),
        protocols=st.sampled_from(PROTOCOLS[:2]),
        session_ms=st.sampled_from([6_000, 10_000, 30_000]),
        rebalance_ms=st.sampled_from([5_000, 20_000]),
        broker=two,
        unheard=st.booleans(),
    )
    @precondition(lambda self: len(self.world.clients) < CLIENTS_MAX)
    def newcomer(
        self,
        static: bool,
        version: int,
        protocols: Protocols,
        session_ms: int,
        rebalance_ms: int,
        broker: int,
        unheard: bool,
    ) -> None:
        """Another client joins; `unheard`: the answer is lost, so that the broker runs the script again."""
        name = f"c{len(self.world.clients)}"
        client = Client(name, name if static else None, version, protocols, session_ms, rebalance_ms, broker)
        self.world.clients.append(client)
        if unheard:
            self.fault_within(client, "join", 0, "cut", 1)
        else:
            self.act(client, "join")
            self.go()

    @rule(pick=picks, action=actions)
    @precondition(lambda self: self.world.clients)
    def one_asks(self, pick: int, action: str) -> None:
        self.act(self.client(pick), action)
        self.go()

    @rule(action=st.sampled_from(["join", "sync", "heartbeat", "commit"]))
    @precondition(lambda self: self.world.clients)
    def all_ask(self, action: str) -> None:
        for client in self.world.clients:
            self.act(client, action)
        self.go()

    @rule(ms=st.sampled_from([500, 4_000, 12_000]))
    @precondition(lambda self: self.world.clients)
    def all_behave(self, ms: int) -> None:
        """For a while clients do what they should; most often the group is Stable then."""
        with behaving(self):
            while ms > 0:
                self.go(500)
                ms -= 500

    @rule(pick=picks, protocols=st.sampled_from(PROTOCOLS))
    @precondition(lambda self: self.world.clients)
    def subscribe_otherwise(self, pick: int, protocols: Protocols) -> None:
        client = self.client(pick)
        client.protocols = protocols
        self.act(client, "join")
        self.go()

    @rule(pick=picks, broker=two)
    @precondition(lambda self: self.world.clients)
    def go_to_another_broker(self, pick: int, broker: int) -> None:
        self.client(pick).broker = broker

    @rule(pick=picks, cut=st.booleans(), again=st.booleans(), broker=two)
    @precondition(lambda self: self.world.requests)
    def give_up_waiting(self, pick: int, cut: bool, again: bool, broker: int) -> None:
        """The client's patience ends; its connection is cut, or half open. It may ask elsewhere at once."""
        waiting = [client for client in self.world.clients if client.request]
        if not waiting:
            return
        client = waiting[pick % len(waiting)]
        assert client.request is not None
        if cut:
            self.world.give_up(client.request)
        client.request, client.broker = None, broker
        if again:
            self.act(client, "join")
        self.go()

    @rule(pick=picks)
    @precondition(lambda self: any(client.instance_id for client in self.world.clients))
    def restart_static(self, pick: int) -> None:
        """Another process of the same instance; the old one is still about."""
        static = [client for client in self.world.clients if client.instance_id]
        client = static[pick % len(static)]
        self.bury(client)
        client.request = None
        self.act(client, "join")
        self.go()

    @rule(picked=st.sets(picks, min_size=1), broker=two, by_instance=st.booleans())
    @precondition(lambda self: self.world.clients)
    def remove_several(self, picked: set[int], broker: int, by_instance: bool) -> None:
        """An administrator removes members, in one request."""
        clients = list({id(self.client(pick)): self.client(pick) for pick in sorted(picked)}.values())
        self.world.leave(
            broker,
            [Leaving("" if by_instance and one.instance_id else one.member_id, one.instance_id) for one in clients],
        )
        self.go()

    @rule(pick=picks, partition=few, broker=two, simple=st.booleans())
    @precondition(lambda self: self.zombies)
    def zombie_acts(self, pick: int, partition: int, broker: int, simple: bool) -> None:
        """Who was removed, or left, or was replaced tries everything once more."""
        member_id, instance_id, generation = self.zombies[pick % len(self.zombies)]
        zombie = Client("zombie", instance_id, 9, PROTOCOLS[0], 10_000, 20_000, broker, member_id, generation)
        if simple:
            zombie.member_id, zombie.generation, zombie.instance_id = "", -1, None
        self.world.heartbeat(zombie, lambda _: None)
        self.world.commit(zombie, partition, lambda _: None)
        if not simple:
            self.world.sync(zombie, self.plan(zombie))
            self.world.join(zombie)
        self.go()

    @rule(pick=picks, partition=few, by=st.sampled_from([-1, 1]))
    @precondition(lambda self: self.world.clients)
    def one_errs(self, pick: int, partition: int, by: int) -> None:
        """A member names another generation than its own."""
        client = self.client(pick)
        if client.member_id and client.generation + by >= 0:
            other = replace(client, generation=client.generation + by, request=None)
            self.world.heartbeat(other, lambda _: None)
            self.world.commit(other, partition, lambda _: None)
            self.world.sync(other, {})
            self.go()

    @rule(broker=two)
    def fetch(self, broker: int) -> None:
        fetched: list[Any] = []
        self.world.fetch(broker, fetched.append)
        self.go()
        if self.world.is_well(self.world.brokers[broker]) and fetched and not isinstance(fetched[0], Failure):
            read = {name: str(value.offset) for name, value in fetched[0].items()}
            assert read == self.audit.committed, "I20: a fetch does not see what was committed"

    # -- time

    @rule(ms=st.sampled_from([100, 1_000, 3_000, 6_000, 12_000]), beating=st.booleans())
    def pass_time(self, ms: int, beating: bool) -> None:
        while ms > 0:
            self.go(min(ms, 1_000))
            ms -= 1_000
            if beating:
                for client in self.world.clients:
                    self.act(client, "heartbeat")
                self.go()

    @rule(ms=st.sampled_from([500, 3_000, 11_000]))
    def pause_brokers(self, ms: int) -> None:
        """Redis's clock continues, the brokers do not."""
        for broker in self.world.brokers:
            self.world.disturb(broker)
        self.world.loop.stall(ms)
        self.go()

    @rule(broker=two)
    def sweep(self, broker: int) -> None:
        if self.world.is_well(self.world.brokers[broker]):
            self.world.spawn(sweep_expiry(self.world.brokers[broker].expiry))
            self.go()

    # -- faults

    @rule(pick=picks, action=actions, after=few, ending=endings, executed=two)
    @precondition(lambda self: self.world.clients)
    def fault_within_a_request(self, pick: int, action: str, after: int, ending: str, executed: int) -> None:
        """A request gets so many commands through; then its broker dies, or the link does."""
        self.fault_within(self.client(pick), action, after, ending, executed)

    @rule(index=two, ending=endings, executed=few)
    def broker_fails(self, index: int, ending: str, executed: int) -> None:
        self.strike(index, ending, executed)

    @rule(
        index=two, hold=st.sampled_from([Hold.COMMANDS, Hold.REPLIES]), lane=st.sampled_from(["", "control", "data-in"])
    )
    def hold(self, index: int, hold: Hold, lane: str) -> None:
        broker = self.world.brokers[index]
        self.world.disturb(broker)
        for link in broker.store.lanes(lane):
            link.release()
            link.hold = hold

    @rule(index=two, lost=st.booleans())
    def disturb_messages(self, index: int, lost: bool) -> None:
        """The connection of messages ends, or brings nothing until `release`."""
        for link in self.world.brokers[index].store.lanes("push"):
            if lost:
                link.cut(0)
            else:
                link.hold = Hold.REPLIES
        self.go()

    @rule(pick=picks, ms=st.sampled_from([100, 600, 1_400, 2_500]))
    @precondition(lambda self: self.world.clients)
    def heartbeat_steadily(self, pick: int, ms: int) -> None:
        """One member's heartbeats at rest: most are answered from a snapshot."""
        for _ in range(4):
            self.act(self.client(pick), "heartbeat")
            self.go(ms)

    @rule()
    @precondition(lambda self: self.world.clients)
    def fall_silent_after_answered_heartbeats(self) -> None:
        """Members of a group at rest are answered from snapshots for most of a session, then send nothing: their
        sessions end a whole timeout after the last answer, not after the last script."""
        with behaving(self):
            for _ in range(8):
                self.go(500)
        shortest_s = min(client.session_timeout_ms for client in self.world.clients) // 1_000
        for _ in range(shortest_s - 2):
            for client in self.world.clients:
                self.act(client, "heartbeat")
            self.go(1_000)
        for _ in range(3):
            self.go(1_000)

    @rule(pick=picks, other=picks, action=st.sampled_from(["join", "leave"]))
    @precondition(lambda self: len(self.world.clients) > 1)
    def change_overtakes_a_reply(self, pick: int, other: int, action: str) -> None:
        """A heartbeat's script runs; before its reply, the message of another broker's change arrives."""
        client, changing = self.client(pick), self.client(other)
        broker = self.world.brokers[client.broker]
        if client is changing or not self.world.is_well(broker):
            return
        self.world.disturb(broker)
        (control,) = broker.store.lanes("control")
        broker.heartbeats.snapshots.discard_all()
        control.hold, changing.broker = Hold.REPLIES, 1 - client.broker
        self.act(client, "heartbeat")
        self.go()
        self.act(changing, action)
        self.go()
        control.release()
        self.go()
        self.act(client, "heartbeat")
        self.go()

    @rule(pick=picks, other=picks, ms=st.sampled_from([0, 2_000]), lost=st.booleans())
    @precondition(lambda self: len(self.world.clients) > 1)
    def message_arrives_late(self, pick: int, other: int, ms: int, lost: bool) -> None:
        """A member leaves a group at rest at another broker; the message comes late, or goes with its connection."""
        client, changing = self.client(pick), self.client(other)
        broker = self.world.brokers[client.broker]
        if client is changing or not self.world.is_well(broker):
            return
        with behaving(self):
            for _ in range(8):
                self.go(500)
        if broker is not self.world.brokers[client.broker]:
            return
        (push,) = broker.store.lanes("push")
        self.act(client, "heartbeat")
        self.go(100)  # its renewal would correct the broker
        if lost:
            push.cut(0)
        else:
            push.hold = Hold.REPLIES
        changing.broker = 1 - client.broker
        self.act(changing, "leave")
        self.go(ms)
        self.act(client, "heartbeat")
        self.go()
        push.release()
        self.go()

    @rule(index=two, count=st.integers(1, 3))
    def let_through(self, index: int, count: int) -> None:
        """Some of the commands that are held are run."""
        for link in self.world.brokers[index].store.lanes("control"):
            if link.hold is Hold.COMMANDS:
                link.hold, link.allowance = Hold.NOTHING, count
                self.go()
                link.hold, link.allowance = Hold.COMMANDS, None

    @rule(index=two)
    def release(self, index: int) -> None:
        self.world.disturb(self.world.brokers[index])
        for link in self.world.brokers[index].store.all_links():
            link.release()
        self.go()

    @rule(index=two, lost=st.booleans())
    def lose_wakes(self, index: int, lost: bool) -> None:
        name = self.world.brokers[index].name
        if lost:
            self.world.network.muted.add(name)
        else:
            self.world.network.muted.discard(name)

    @rule()
    @precondition(lambda self: self.world.network.ghosts)
    def late_command_arrives(self) -> None:
        self.world.network.haunt()
        self.go()
