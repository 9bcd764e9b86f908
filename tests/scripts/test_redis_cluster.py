"""Redis Cluster: where commands go, what redirects do to them, nodes that come and go; with real ones."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot as reference_slot

from tests.support.handlers import given_group
from tests.support.logs import FakeTopic, append, append_later, batch, broker, given_log, read_all
from tests.support.redis_cluster import Sharded
from tests.support.tls import Authority, TlsServer, tls_server_binary
from tests.support.valkey import ValkeyServer
from tidegate.cluster.acl import acl_rules
from tidegate.cluster.server_check import check_server
from tidegate.errors import ChangeNotConfirmed, NotEnoughReplicasAfterAppend, StoreUnavailable
from tidegate.groups.commits import Commit, commit_arguments, commit_times_ms
from tidegate.groups.expire_and_retry import group_script_args, group_script_keys
from tidegate.groups.expiry import EXPIRE_GROUP
from tidegate.groups.offsets import COMMIT_OFFSETS, entry_json, offset_field
from tidegate.log.durability import Durability
from tidegate.log.failover_epoch import ASSIGN_FAILOVER_EPOCH
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.keys import ClusterKeys, GroupKeys
from tidegate.store.node import Node
from tidegate.store.outcome import Failure
from tidegate.store.scripts import library, registered
from tidegate.store.slots import key_of, key_slot
from tidegate.store.store import Store

PATIENCE_S, NOT_AVAILABLE = 60.0, 15
SHARDS = [f"tidegate:{{co:{number}}}:groups" for number in range(50)]


@pytest.fixture(scope="module")
def sharded() -> Iterator[Sharded]:
    """Three primaries that tests may move slots between, but do not kill."""
    with Sharded(replicas=0) as servers:
        yield servers


@pytest.fixture
async def store(sharded: Sharded) -> AsyncIterator[Store]:
    """A store on an empty cluster."""
    sharded.flush()
    opened = Store(Settings(redis_url=sharded.url))
    await opened.start()
    yield opened
    await opened.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


def port_of(store: Store, key: str) -> int:
    address = store.node(key).control.address
    return address.port if address is not None else 0


def test_slots_are_those_of_a_client_library() -> None:
    for key in (
        *SHARDS,
        "",
        "a",
        "{}",
        "{}a",
        "a{b",
        "{a}{b}",
        "x{a}y",
        "{{a}}",
        "ä{ö}",
        "tidegate:{default/t:1}:ab:log",
    ):
        assert key_slot(key) == reference_slot(key.encode())


def test_key_of_a_command_is_where_the_server_expects_it(sharded: Sharded) -> None:
    names = [rule[1:] for rule in acl_rules(Settings(redis_url=sharded.url)) if rule.startswith("+")]
    described = sharded.ask(sharded.servers[0], "COMMAND", "INFO", *names)
    first = {name: described[name]["first_key_pos"] for name in names}
    with_key = {name: [*name.upper().split("|"), "a", "b"] for name in names if first[name]}

    assert "xinfo|groups" in with_key
    assert {name: key_of(words) for name, words in with_key.items()} == {
        name: words[first[name]] for name, words in with_key.items()
    }


async def test_each_key_is_at_its_node_by_any_command(sharded: Sharded, store: Store) -> None:
    ports = {server.port for server in sharded.servers}
    assert {port_of(store, key) for key in SHARDS} == ports
    for key in SHARDS:
        await store.command("HSET", key, "field", key)
        assert await store.read("HGET", key, "field") == key.encode()
        assert port_of(store, key) == sharded.owner(key).port
    assert store.metadata_node is store.node("tidegate:{cluster}:info")
    assert store.available


async def test_scripts_are_loaded_on_every_node_before_anything_else(store: Store) -> None:
    shas = [script.sha for script in registered()]
    assert len(store.nodes) == 3
    for node in store.nodes:
        assert await node.control.call("SCRIPT", "EXISTS", *shas) == [1] * len(shas)


# -- functions


def library_count(sharded: Sharded, server: ValkeyServer) -> int:
    return len(sharded.ask(server, "FUNCTION LIST", "LIBRARYNAME", library().name))


def function_calls(sharded: Sharded, server: ValkeyServer) -> int:
    """FCALLs that a server was asked for, failed ones too."""
    with sharded.client(server) as client:
        return int(client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))


def group_at(store: Store, sharded: Sharded, server: ValkeyServer) -> GroupKeys:
    groups = (store.group_keys("default", f"group-{number}") for number in range(1_000))
    return next(keys for keys in groups if sharded.owner(keys.group) is server)


async def expire_nothing(store: Store, keys: GroupKeys) -> None:
    """Run a function: the group does not exist."""
    args = group_script_args(store, keys, "1")
    assert await store.run(EXPIRE_GROUP, group_script_keys(keys), *args) == [-1]


async def test_functions_that_one_node_lost_run_as_scripts_and_are_loaded_again(sharded: Sharded, store: Store) -> None:
    await until(lambda: store.loaded_scripts.are_functions)
    for server in sharded.servers:
        keys, node = group_at(store, sharded, server), store.node(group_at(store, sharded, server).group)
        others = [one for one in store.nodes if one is not node]
        sharded.ask(server, "FUNCTION FLUSH", "SYNC")
        sharded.ask(server, "SCRIPT FLUSH", "SYNC")

        await asyncio.gather(*(expire_nothing(store, keys) for _ in range(20)))

        await until(lambda node=node: node.has_functions)  # type: ignore[misc]
        assert library_count(sharded, server) == 1
        assert all(one.has_functions for one in others)
        called = function_calls(sharded, server)
        await expire_nothing(store, keys)
        assert function_calls(sharded, server) == called + 1


async def test_functions_follow_a_group_to_a_node_that_lacks_them(sharded: Sharded, store: Store, slot: int) -> None:
    await until(lambda: store.loaded_scripts.are_functions)
    keys = next(
        one for one in (store.group_keys("default", f"g-{n}") for n in range(1_000)) if key_slot(one.group) == slot
    )
    target = elsewhere(sharded, slot)
    sharded.ask(target, "FUNCTION FLUSH", "SYNC")
    sharded.ask(target, "SCRIPT FLUSH", "SYNC")
    await asyncio.to_thread(sharded.move, slot, target)

    await expire_nothing(store, keys)  # MOVED, then by EVALSHA
    await until(lambda: port_of(store, keys.group) == target.port)
    await expire_nothing(store, keys)  # the function is not found

    await until(lambda: store.node(keys.group).has_functions and library_count(sharded, target) == 1)


async def test_message_published_at_any_node_is_received(sharded: Sharded, store: Store) -> None:
    reported: list[bytes | None] = []
    await store.pubsub.listen("tidegate:{co:1}:wake", reported.append)
    for server in sharded.servers:
        sharded.ask(server, "PUBLISH", "tidegate:{co:1}:wake", str(server.port))

    await until(lambda: len(reported) == 3)
    assert set(reported) == {str(server.port).encode() for server in sharded.servers}


# -- slots on the move


@pytest.fixture
def slot(sharded: Sharded) -> Iterator[int]:
    """The slot of `MOVING`, put back where it was."""
    found = key_slot(MOVING)
    before = sharded.owner_of(found)
    yield found
    for server in sharded.servers:
        sharded.ask(server, "CLUSTER", "SETSLOT", found, "STABLE")
    if sharded.owner_of(found) is not before:
        sharded.move(found, before)


MOVING = "tidegate:{co:7}:group"
ANOTHER = "tidegate:{co:7}:members"
COUNT_BOTH = b"#!lua\nreturn {redis.call('INCR', KEYS[1]), redis.call('INCR', KEYS[2])}"


def elsewhere(sharded: Sharded, slot: int) -> ValkeyServer:
    return next(server for server in sharded.servers if server is not sharded.owner_of(slot))


async def test_moved_is_followed_and_remembered(sharded: Sharded, store: Store, slot: int) -> None:
    await store.command("SET", MOVING, "kept")
    target, moved = elsewhere(sharded, slot), []
    store.on_moved.append(lambda: moved.append(port_of(store, MOVING)))
    await asyncio.to_thread(sharded.move, slot, target)

    replies = await asyncio.gather(*(store.command("GET", MOVING) for _ in range(20)), store.read("GET", MOVING))

    assert replies == [b"kept"] * 21
    assert port_of(store, MOVING) == target.port
    assert moved[-1] == target.port


async def test_table_is_followed_without_a_command(sharded: Sharded, store: Store, slot: int) -> None:
    target = elsewhere(sharded, slot)
    await asyncio.to_thread(sharded.move, slot, target)

    await until(lambda: port_of(store, MOVING) == target.port)


async def test_ask_is_followed_for_one_command(sharded: Sharded, store: Store, slot: int) -> None:
    await store.command("SET", MOVING, "1")
    target = elsewhere(sharded, slot)
    source = sharded.begin_move(slot, target)
    sharded.move_keys(source, target, [MOVING])

    assert await store.command("INCR", MOVING) == 2
    assert await store.read("GET", MOVING) == b"2"
    assert port_of(store, MOVING) == source.port, "the slot has not moved yet"
    assert await store.command("SET", ANOTHER, "new") == b"OK"  # a new key goes to where the slot will be

    sharded.end_move(slot, source, target)
    assert [await store.command("GET", key) for key in (MOVING, ANOTHER)] == [b"2", b"new"]


async def test_script_waits_until_its_keys_are_together(sharded: Sharded, store: Store, slot: int) -> None:
    for key in (MOVING, ANOTHER):
        await store.command("SET", key, "1")
    target = elsewhere(sharded, slot)
    source = sharded.begin_move(slot, target)
    sharded.move_keys(source, target, [MOVING])  # half moved: TRYAGAIN

    counted = asyncio.create_task(count_both(store))
    await asyncio.sleep(0.3)
    assert not counted.done()
    sharded.move_keys(source, target, [ANOTHER])

    assert await counted == [2, 2]  # at the new node already, which did not know the script
    sharded.end_move(slot, source, target)
    assert await count_both(store) == [3, 3]


async def test_replies_incomplete_at_the_deadline_are_unavailable(
    sharded: Sharded, slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "redis_connect_timeout_ms", 30_000)
    store = Store(Settings(redis_url=sharded.url, redis_command_timeout_ms=3_000))
    await store.start()
    try:
        for key in (MOVING, ANOTHER):
            await store.command("SET", key, "1")
        target = elsewhere(sharded, slot)
        source = sharded.begin_move(slot, target)
        sharded.move_keys(source, target, [MOVING])

        with pytest.raises(StoreUnavailable, match="TRYAGAIN"):
            await count_both(store)
        with pytest.raises(StoreUnavailable, match="ASK"):
            await store.read_at_owner("GET", MOVING)
        sharded.move_keys(source, target, [ANOTHER])
        sharded.end_move(slot, source, target)
        assert [await store.command("GET", key) for key in (MOVING, ANOTHER)] == [b"1", b"1"], "nothing was run"
    finally:
        await store.close()


class Planted:
    """A script of this test alone, so that no node has it: counts at both keys."""

    name = label = "test/count_both"
    is_function = False
    source = COUNT_BOTH
    sha = hashlib.sha1(COUNT_BOTH, usedforsecurity=False).hexdigest()


async def count_both(store: Store) -> list[int]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    store.send_script(Planted(), [MOVING, ANOTHER], [], future.set_result)  # type: ignore[arg-type]
    reply = await future
    if isinstance(reply, Failure):
        raise reply.error
    return list(reply)


# -- nodes


async def test_nodes_are_taken_in_and_left_with_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.store.redis_cluster._REDIRECT_TARGET_S", 0.5)
    slot = key_slot(MOVING)
    with Sharded(primaries=2, replicas=0) as own:
        store = Store(Settings(redis_url=own.url))
        await store.start()
        try:
            added: list[Node] = []
            removed: list[Node] = []
            store.follow_nodes(added.append, removed.append)
            await store.command("SET", MOVING, "1")
            source, server = own.owner_of(slot), await asyncio.to_thread(own.add)
            own.begin_move(slot, server)
            own.move_keys(source, server, [MOVING])

            assert await store.command("INCR", MOVING) == 2  # by ASK, to a node that has no slot yet
            assert str(added[-1]) == f"127.0.0.1:{server.port}"
            own.end_move(slot, source, server)
            assert await store.command("INCR", MOVING) == 3

            await asyncio.to_thread(own.move, slot, source)
            assert await store.command("INCR", MOVING) == 4
            await until(lambda: removed == [added[-1]] and added[-1].closed)
            assert len(store.nodes) == 2
            assert store.available
        finally:
            await store.close()


async def test_replica_that_takes_over_is_found() -> None:
    with Sharded(timeout_ms=4_000) as own:
        store = Store(Settings(redis_url=own.url))
        await store.start()
        try:
            died = own.owner(MOVING)
            others = [key for key in SHARDS if own.owner(key) is not died]
            await store.command("SET", MOVING, "kept")
            with own.client(died) as client:
                client.execute_command("SET", ANOTHER, "replicated behind it")
                assert client.execute_command("WAIT", 1, 30_000) == 1
            died.kill()

            with pytest.raises(StoreUnavailable):
                await store.command("GET", MOVING)
            for key in others:
                assert await store.command("EXISTS", key) == 0, "another node's keys are there all the while"
            await until(lambda: store.node(MOVING).control.connected and port_of(store, MOVING) != died.port)
            assert await store.command("GET", MOVING) == b"kept"
            assert store.node(MOVING).outage.recently_recovered
            await until(lambda: store.loaded_scripts.are_functions)
            await expire_nothing(store, group_at(store, own, own.owner(MOVING)))
            assert library_count(own, own.owner(MOVING)) == 1
        finally:
            await store.close()


# -- the log


def topic(sharded: Sharded, server: ValkeyServer) -> FakeTopic:
    """A topic whose first partition is at a server."""
    topics = (FakeTopic(name=f"orders-{number}", topic_hex=f"{number:032x}") for number in range(1_000))
    return next(one for one in topics if sharded.owner(f"{{default/{one.name}:0}}") is server)


@contextmanager
def on_its_way(sharded: Sharded, slot: int, target: ValkeyServer) -> Iterator[Callable[[], None]]:
    """All keys of a slot are at the target, and the slot is not; what it gives ends that."""
    source = sharded.begin_move(slot, target)
    keys = sharded.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100)
    sharded.move_keys(source, target, keys)
    yield lambda: sharded.end_move(slot, source, target)


async def test_appends_continue_when_their_slot_has_moved(sharded: Sharded, store: Store) -> None:
    first, second, _ = sharded.servers
    moving: Any = topic(sharded, first)
    slot = key_slot(f"{{default/{moving.name}:0}}")
    await given_log(store, moving)
    async with broker(store.settings) as ours, broker(store.settings) as theirs:
        log, other = ours.partition(moving, 0), theirs.partition(moving, 0)
        assert [(await append(one)).base_offset for one in (log, other)] == [0, 1]
        await asyncio.to_thread(sharded.move, slot, second)
        try:
            later = [append_later(one, batch()) for one in (log, other) for _ in range(20)]
            assert sorted([one.base_offset for one in await asyncio.gather(*later)]) == list(range(2, 42))
            assert len(await read_all(log)) == 42
            assert str(log.lanes.node) == f"127.0.0.1:{second.port}"
        finally:
            await asyncio.to_thread(sharded.move, slot, first)
        assert [(await append(one)).leader_epoch for one in (log, other)] == [0, 0], (
            "nothing was lost, and no client gets an error"
        )


async def test_appends_wait_while_their_log_is_on_its_way(sharded: Sharded, store: Store) -> None:
    first, second, _ = sharded.servers
    moving: Any = topic(sharded, first)
    slot = key_slot(f"{{default/{moving.name}:0}}")
    await given_log(store, moving)
    async with broker(store.settings) as logs:
        log = logs.partition(moving, 0)
        await append(log, batch(producer_id=7, epoch=0, sequence=0))
        with on_its_way(sharded, slot, second) as end:
            waiting = append_later(log, batch(producer_id=7, epoch=0, sequence=1))
            observing = asyncio.create_task(log.end_offset())
            await asyncio.sleep(0.4)
            assert not waiting.done() and not observing.done()
            end()
            assert (await waiting).base_offset == 1
            assert (await observing).log_end_offset in (1, 2)
        await asyncio.to_thread(sharded.move, slot, first)


async def test_log_is_proved_by_replicas_of_its_own_node() -> None:
    with Sharded(timeout_ms=5_000) as own:
        settings = Settings(redis_url=own.url, durability="replicated:1", durability_timeout_ms=3_000)
        store = Store(settings)
        await store.start()
        try:
            topics: list[Any] = [topic(own, server) for server in own.servers[:3]]
            for one in topics:
                await given_log(store, one)
            async with broker(settings) as logs:
                for one in topics:
                    assert (await append(logs.partition(one, 0))).base_offset == 0
                alone = own.servers[1]
                replica = next(one for one in own.servers[3:] if own.primary_of(one) is alone)
                replica.kill()

                outcomes = [append_later(logs.partition(one, 0), batch()) for one in topics]
                reported = await asyncio.gather(*outcomes, return_exceptions=True)

                assert [isinstance(one, NotEnoughReplicasAfterAppend) for one in reported] == [False, True, False]
        finally:
            await store.close()


async def test_change_is_confirmed_while_a_node_without_slots_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.store.redis_cluster._REDIRECT_TARGET_S", 2 * PATIENCE_S)
    with Sharded(timeout_ms=15_000) as own:
        store = Store(Settings(redis_url=own.url, durability="replicated:1"))
        await store.start()
        try:
            assert store.cluster is not None
            durability, replaced, nodes = Durability(store, str), own.owner(MOVING), store.nodes
            await asyncio.to_thread(own.hand_over, replaced)
            await asyncio.to_thread(own.in_sync)
            await until(lambda: port_of(store, MOVING) != replaced.port)
            await store.wait_up(MOVING)
            await until(lambda: store.node(MOVING).up)
            assert len(store.nodes) == len(nodes) + 1

            async with durability.confirmed():
                await store.command("SET", MOVING, "1")

            with pytest.raises(ChangeNotConfirmed):
                async with durability.confirmed():  # as if a key of the change was there, by ASK
                    store.cluster.redirect_target(("127.0.0.1", replaced.port))
        finally:
            await store.close()


async def test_fail_over_raises_the_epoch_of_every_log_and_begins_one_in_its_own_only() -> None:
    with Sharded(timeout_ms=4_000) as own:
        store = Store(Settings(redis_url=own.url))
        await store.start()
        try:
            topics: list[Any] = [topic(own, server) for server in own.servers[:3]]
            for one in topics:
                await given_log(store, one)
            async with broker(store.settings) as logs:
                parts = [logs.partition(one, 0) for one in topics]
                assert [(await append(one)).leader_epoch for one in parts] == [0, 0, 0]
                metadata_node = next(one for one in own.servers[:3] if one is own.owner("{cluster}"))
                died = next(at for at in range(3) if own.servers[at] is not metadata_node)
                await asyncio.to_thread(own.in_sync)
                own.servers[died].kill()
                await until(lambda: parts[died].known() is None)

                with pytest.raises(StoreUnavailable):
                    await append(parts[died])
                for at in {0, 1, 2} - {died}:
                    assert parts[at].known() is not None
                    assert (await append(parts[at])).leader_epoch == 0
                await until(lambda: store.node(parts[died].keys.log).control.connected)
                await until(lambda: logs.failover_epochs.number_at(parts[died].lanes.node) not in (None, 1))

                records = [(await append(one)).leader_epoch for one in parts]
                epochs = {(await one.end_offset()).leader_epoch for one in parts}
                assert epochs == {records[died]} and records[died] > 0
                others = [records[at] for at in {0, 1, 2} - {died}]
                assert others == [0, 0], "a server that lost nothing began a leader epoch in its logs"
        finally:
            await store.close()


# -- the failover epoch


@pytest.fixture
def assign(sharded: Sharded) -> Callable[..., int]:
    """Ask for the number of a set of primaries (that of `{cluster}` first) as a broker does.

    Redis's clock stands before 2020, so that the numbers show how they follow from each other.
    """
    sharded.flush()
    keys = ClusterKeys("tidegate")
    with sharded.client(sharded.owner(keys.info)) as client:
        run = client.register_script(ASSIGN_FAILOVER_EPOCH.source.replace(b'redis.call("TIME")', b"{ 0, 0 }"))

    def ask(primaries: str, floor: int = 0) -> int:
        code, number = run([keys.info, keys.replids], [floor, *primaries.split()])
        assert code == 0
        return int(number)

    return ask


def test_known_replication_ids_have_the_same_number(assign: Callable[..., int]) -> None:
    assert [assign("h a b"), assign("h a b"), assign("h b a"), assign("h a"), assign("h")] == [1] * 5


def test_each_new_primary_is_a_number_more_and_the_old_ones_keep_theirs(assign: Callable[..., int]) -> None:
    assert [assign("h a b"), assign("h a2 b"), assign("h a b"), assign("h a2 b"), assign("h b")] == [1, 2, 1, 2, 2]
    assert [assign("h a2 b c"), assign("h a2 b"), assign("h c")] == [3, 3, 3]


@pytest.mark.parametrize("first", ["h a2 b", "h a b2"])
def test_fail_overs_observed_in_another_order(assign: Callable[..., int], first: str) -> None:
    """Whoever has a new primary in its set is given a number above any that its log was fenced with before."""
    before = assign("h a b")
    second = "h a b2" if first == "h a2 b" else "h a2 b"

    earlier, later = assign(first), assign(second)  # neither broker knows of the other's
    both = [assign("h a2 b2"), assign("h a2 b2", floor=later)]

    assert before < earlier < later
    assert both == [later, later]
    assert assign("h a b") == before, "who sees only old primaries has the old number"
    assert assign("h a3 b2") == later + 1


def test_metadata_node_without_its_keys_assigns_above_what_logs_may_know(assign: Callable[..., int]) -> None:
    assert assign("h a b") == 1
    # Minted 2 for a2, and died before its replica had that: h2 knows of 1 only, logs of a2 of 2.
    assert assign("h2 a2 b") == 101
    assert assign("h2 a2 b", floor=500) == 500, "and what a broker has used, or found in a log, is not gone below"
    assert assign("h2 a2 b") == 500


def test_primary_that_was_away_when_another_was_replaced_has_the_number_of_all(assign: Callable[..., int]) -> None:
    assert [assign("h a b"), assign("h a2"), assign("h a2", floor=7)] == [1, 2, 7]
    assert [assign("h a2 b"), assign("h a2 b", floor=8), assign("h a2")] == [7, 8, 8]
    assert assign("h a b") == 1


def test_metadata_node_without_its_keys_back_first_assigns_above_what_logs_may_know(
    assign: Callable[..., int],
) -> None:
    assert [assign("h a b"), assign("h2"), assign("h2 a b2")] == [1, 101, 102]


def test_single_server_continues_from_the_number_stored_before_sets(
    assign: Callable[..., int], sharded: Sharded
) -> None:
    keys = ClusterKeys("tidegate")
    owner = sharded.owner(keys.info)
    sharded.ask(owner, "HSET", keys.info, "incarnation", 7, "master_replid", "a")

    assert [assign("a"), assign("a2"), assign("a")] == [7, 8, 7]
    assert sharded.ask(owner, "HGETALL", keys.info) == {b"incarnation": b"8", b"master_replid": b"a2"}


def test_replication_ids_stored_are_limited(assign: Callable[..., int], sharded: Sharded) -> None:
    for number in range(1_010):
        assign(f"h a{number}")

    owner = sharded.owner("{cluster}")
    assert sharded.ask(owner, "HLEN", ClusterKeys("tidegate").replids) < 1_000
    assert assign("h a1009") == 1_010


# -- TLS and announced names


class TlsSharded(Sharded):
    """The same with TLS ports; nodes announce the name `localhost`, and the certificates have no other."""

    def __init__(self, authority: Authority) -> None:
        announced = ["--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"]
        super().__init__(replicas=0, extra=["--tls-cluster", "yes", *announced])
        self._authority = authority

    def _server(self) -> ValkeyServer:
        server = TlsServer(self._authority, "localhost", extra=self._extra)
        self._closing.callback(server.stop)
        self.servers.append(server)
        return server

    def at(self, port: int) -> ValkeyServer:
        return next(one for one in self.servers if isinstance(one, TlsServer) and port in (one.port, one.tls_port))

    @property
    def url(self) -> str:
        ports = [server.tls_port for server in self.servers if isinstance(server, TlsServer)]
        return f"rediss+cluster://{','.join(f'localhost:{port}' for port in ports)}"


@pytest.mark.skipif(tls_server_binary() is None, reason="no server with TLS here")
async def test_nodes_are_reached_by_announced_names_over_tls(tmp_path: Path) -> None:
    """Addresses would fail the check of the certificates' names."""
    authority = Authority(tmp_path)
    with TlsSharded(authority) as sharded:
        settings = Settings(redis_url=sharded.url, redis_ca_file=authority.ca_file, redis_command_timeout_ms=75_000)
        opened = Store(settings)
        await opened.start()
        try:
            assert len(await check_server(opened, settings)) == 3
            topics = [topic(sharded, server) for server in sharded.servers]
            for one in topics:
                await given_log(opened, one)
            async with broker(settings) as logs:
                for one in topics:
                    assert (await append(logs.partition(one, 0))).base_offset == 0
            known = [node.control.address for node in opened.nodes]
        finally:
            await opened.close()
        assert {address.host for address in known if address is not None} == {"localhost"}
        assert {address.port for address in known if address is not None} == {
            server.tls_port for server in sharded.servers if isinstance(server, TlsServer)
        }


# -- late commits


async def stable_groups(store: Store) -> list[GroupKeys]:
    """A group at each node, of generation 1 with the member m-1."""
    names = (store.group_keys("default", f"orders-{number}") for number in range(500))
    found = list({store.node(keys.group): keys for keys in names}.values())
    assert len(found) == 3
    for keys in found:
        await given_group(store, keys)
    return found


class Commits:
    """Commits of the member m-1 as a broker sends them whose lease ends in `lease_ms`."""

    def __init__(self, store: Store, lease_ms: int = 10_000) -> None:
        self.store, self.lease_ms = store, lease_ms

    def call(self, keys: GroupKeys, offset: int) -> tuple[list[str], list[Any]]:
        """KEYS and ARGV, with the times of now."""
        commit = Commit(1, "m-1", None, [offset_field("t1", 0), entry_json(offset, -1, "0" * 32, "")])
        ends_ms = self.store.clock.now_ms() + self.lease_ms
        times_ms = commit_times_ms(self.store, keys.group, lambda: ends_ms, commit.arrived_s)
        return commit_arguments([(keys, [(commit, print)])], 0, "1", times_ms)

    async def run(self, call: tuple[list[str], list[Any]]) -> int:
        """The code of the one commit."""
        code: int = (await self.store.run(COMMIT_OFFSETS, call[0], *call[1]))[0]
        return code


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000, -3_600_000], ids=["same", "ahead", "behind"])
async def test_commit_is_refused_past_the_end_of_the_lease(store: Store, ahead_ms: int) -> None:
    """The lease is on the clock of the metadata node, which may be ahead of the group's."""
    seconds, _ = await store.command("TIME")
    store.clock.observe(int(seconds) * 1000 + ahead_ms, 0)
    for keys in await stable_groups(store):
        assert await Commits(store).run(Commits(store).call(keys, 1)) == 0
        assert await Commits(store).run(Commits(store, lease_ms=-500).call(keys, 2)) == NOT_AVAILABLE
        assert await Commits(store).run(Commits(store).call(keys, 3)) == 0


async def test_commit_delivered_late_does_not_undo_a_newer_one(store: Store) -> None:
    """The link of a broker lost packets; it gave the commit up, and the client committed through another broker."""
    groups, commits = await stable_groups(store), Commits(store)
    late = [commits.call(keys, 5) for keys in groups]
    await asyncio.sleep(0.6)
    for keys, call in zip(groups, late, strict=True):
        assert await commits.run(commits.call(keys, 9)) == 0
        assert await commits.run(call) == NOT_AVAILABLE
        assert await commits.run(commits.call(keys, 7)) == 0, "who seeks back may commit a lower offset"


async def test_clock_of_every_node_is_known_and_followed(store: Store) -> None:
    for node in store.nodes:
        assert abs(node.clock.now_ms() - store.clock.now_ms()) < 30_000
        node.clock.observe(0, 0)  # as after a step of the server's clock
    await until(lambda: all(abs(node.clock.now_ms() - store.clock.now_ms()) < 30_000 for node in store.nodes))


# -- rights


async def test_least_rights_are_enough(sharded: Sharded, store: Store) -> None:
    """As `tidegate redis acl` prints them for this address; the user is made on each node."""
    url = sharded.url.replace("://", "://broker:secret@")
    settings = Settings(redis_url=url)
    for server in sharded.servers:
        sharded.ask(server, "ACL", "SETUSER", "broker", "on", ">secret", *acl_rules(settings))
    first, second, _ = sharded.servers
    moving: Any = topic(sharded, first)
    slot = key_slot(f"{{default/{moving.name}:0}}")
    await given_log(store, moving)
    own = Store(settings)
    await own.start()
    try:
        assert len(await check_server(own, settings)) == 3
        async with broker(settings) as logs:
            assert (await append(logs.partition(moving, 0))).base_offset == 0
            with on_its_way(sharded, slot, second) as end:
                log = own.log_keys(moving.org, moving.name, 0, moving.topic_hex)
                assert await own.command("HGET", log.meta, "state") == b"ready"  # behind ASKING
                end()
            assert (await append(logs.partition(moving, 0))).base_offset == 1
    finally:
        await own.close()
        await asyncio.to_thread(sharded.move, slot, first)
        for server in sharded.servers:
            sharded.ask(server, "ACL", "DELUSER", "broker")


# -- what is no cluster


async def test_one_server_is_no_cluster(valkey: ValkeyServer) -> None:
    store = Store(Settings(redis_url=f"redis+cluster://127.0.0.1:{valkey.port}"))

    with pytest.raises(CannotStart, match="not a Redis Cluster"):
        await store.start()


async def test_addresses_that_are_silent_are_passed_over(sharded: Sharded) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as another:
        silent = "".join(f"127.0.0.1:{server.getsockname()[1]}," for server in (one, another))
        url = sharded.url.replace("redis+cluster://", f"redis+cluster://{silent}")
        store = Store(Settings(redis_url=url, redis_command_timeout_ms=1_000))
        await store.start()
        assert store.available
        await store.close()


async def test_cluster_without_slots_is_not_usable() -> None:
    with pytest.raises(StoreUnavailable, match="not well"):
        server = ValkeyServer(["--cluster-enabled", "yes"])
        try:
            await Store(Settings(redis_url=f"redis+cluster://127.0.0.1:{server.port}")).start()
        finally:
            server.stop()
