"""The scripts of groups as functions of a library: they do what the scripts do, which take over where they cannot."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.scripts.test_classic_together import count_scripts
from tests.support.groups import World
from tests.support.includes import replace_include
from tests.unit.server.fakes import until
from tidegate.groups.classic import LEAVE_GROUP
from tidegate.groups.expiry import EXPIRE_GROUP, group_script_args, group_script_keys
from tidegate.groups.waiting import JOIN_GROUP, SYNC_GROUP
from tidegate.settings import Settings
from tidegate.store import scripts
from tidegate.store.link import Arg, Link
from tidegate.store.node import Node
from tidegate.store.scripts import FUNCTIONS, library, registered
from tidegate.store.store import Store

SCRIPTS = (JOIN_GROUP, SYNC_GROUP, LEAVE_GROUP, EXPIRE_GROUP)


async def libraries(node: Node) -> set[bytes]:
    """The names of the libraries of a server."""
    found = await node.control.call("FUNCTION", "LIST", "LIBRARYNAME", "tidegate_*")
    return {dict(one)[b"library_name"] for one in found}


def recorded_commands(world: World, monkeypatch: pytest.MonkeyPatch) -> list[list[Arg]]:
    """What brokers send to the server from now on: scripts, and steps of the clock."""
    commands: list[list[Arg]] = []
    for store in (world.clock._store, *(broker.store for broker in world.brokers)):
        link = store.metadata_node.control

        def send(args: Any, on_reply: Any, timeout_ms: int | None = None, sent: Any = link.send) -> None:
            if args[0] in ("EVALSHA", "FCALL", "SET"):
                commands.append(list(args))
            sent(args, on_reply, timeout_ms)

        monkeypatch.setattr(link, "send", send)
    return commands


async def replayed(
    store: Store, commands: Sequence[list[Arg]], as_functions: bool
) -> tuple[list[Any], dict[bytes, Any]]:
    """The replies to commands on the empty server, and what its keys contain then."""
    names = {text: script for script in SCRIPTS for text in (script.sha, script.function)}
    call = store.metadata_node.control.call
    await call("FLUSHALL")
    replies = []
    for command in commands:
        if (script := names.get(str(command[1]))) is not None:
            command = [*(("FCALL", script.function) if as_functions else ("EVALSHA", script.sha)), *command[2:]]
        replies.append(await call(*command))
    stored = {}
    for key in await call("KEYS", "*"):
        if await call("TYPE", key) == b"stream":  # its ids are the server's time
            stored[key] = [fields for _, fields in await call("XRANGE", key, "-", "+")]
        else:
            stored[key] = await call("DUMP", key)
    return replies, stored


@pytest.mark.one_server
async def test_functions_reply_and_store_as_scripts_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = recorded_commands(world, monkeypatch)
    await world.clock.set()
    a, b, c, static = await world.stable_of(*map(world.peer, "abc"), world.peer("static", instance_id="i"))
    await a.leave()
    for peer in (b, c, static):
        await peer.start_join()
    await world.advance(25_000)  # of those that joined again nobody syncs: the sync barrier, and sessions, are overdue
    await world.peer("d").start_join()
    await world.advance(25_000)

    monkeypatch.undo()
    sent = {str(command[1]) for command in commands}
    assert {script.function for script in SCRIPTS} <= sent
    assert len(commands) > 40
    by_scripts = await replayed(world.store, commands, as_functions=False)
    by_functions = await replayed(world.store, commands, as_functions=True)

    assert by_functions == by_scripts
    assert not any(isinstance(reply, Exception) for reply in by_functions[0])
    assert world.keys.group.encode() in by_functions[1]


async def test_library_is_loaded_on_every_node(store: Store) -> None:
    assert store.loaded_scripts.are_functions
    for node in store.nodes:
        assert library().name.encode() in await libraries(node)


async def test_call_of_a_removed_function_runs_the_script_and_loads_the_library(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    [a] = await world.stable("a")
    a.broker = world.brokers[0]
    node = a.broker.store.node(world.keys.group)
    await node.control.call("FUNCTION", "FLUSH", "SYNC")
    ran = count_scripts(world, monkeypatch) if len(world.store.nodes) == 1 else []

    await a.join()

    await until(lambda: node.has_functions)
    assert library().name.encode() in await libraries(node)
    await a.join()
    if ran:
        assert ran == [JOIN_GROUP.function, JOIN_GROUP.sha, JOIN_GROUP.function]


async def test_scripts_run_where_functions_are_refused(settings: Settings, store: Store) -> None:
    node = store.metadata_node
    await node.control.call("ACL", "SETUSER", "no-functions", "on", ">pass", "~*", "&*", "+@all", "-function", "-fcall")
    url = re.sub("//([^@/]*@)?", "//no-functions:pass@", settings.redis_url, count=1)
    refused = Store(settings.model_copy(update={"redis_url": url}))
    await refused.start()
    try:
        await until(lambda: bool(refused.loaded_scripts._refusals))
        assert not refused.loaded_scripts.are_functions
        assert "NOPERM" in next(iter(refused.loaded_scripts._refusals.values()))
        keys = refused.group_keys("default", "orders")
        args = group_script_args(refused, keys, "1")
        assert await refused.run(EXPIRE_GROUP, group_script_keys(keys), *args) == [-1]

        for each in refused.nodes:  # the right was taken away after the library was loaded
            each.has_functions = True
        assert await refused.run(EXPIRE_GROUP, group_script_keys(keys), *args) == [-1]
        assert not refused.node(keys.group).has_functions
    finally:
        await refused.close()
        await node.control.call("ACL", "DELUSER", "no-functions")


async def test_libraries_of_other_versions_are_removed(store: Store) -> None:
    other = library().source.replace(library().name.removeprefix("tidegate_").encode(), b"0" * 12)
    foreign = b'#!lua name=theirs\nredis.register_function("theirs", function() return 1 end)'
    for node in store.nodes:
        await node.control.call("FUNCTION", "LOAD", "REPLACE", other)
        await node.control.call("FUNCTION", "LOAD", "REPLACE", foreign)

    await store.loaded_scripts.remove_old_libraries()

    for node in store.nodes:
        assert await libraries(node) == {library().name.encode()}
        assert await node.control.call("FCALL", "theirs", 0) == 1
        await node.control.call("FUNCTION", "DELETE", "theirs")


@pytest.mark.one_server
async def test_two_versions_have_a_library_each(settings: Settings, store: Store) -> None:
    before = library()
    replace_include("lib/json", scripts.read("lib/json") + "-- of the next version\n")
    next_version = Store(settings)
    try:
        await next_version.start()
        await until(lambda: next_version.loaded_scripts.are_functions)
        assert library().name != before.name
        assert {before.name.encode(), library().name.encode()} <= await libraries(store.metadata_node)
    finally:
        replace_include("lib/json", None)
        await next_version.close()


@pytest.mark.one_server
async def test_errors_of_a_function_are_no_reason_to_run_the_script(store: Store) -> None:
    keys = store.group_keys("default", "orders")
    await store.command("SET", keys.group, "no hash")
    sent: list[Any] = []
    link = store.metadata_node.control
    send = link.send
    link.send = lambda args, *rest: (sent.append(args[0]), send(args, *rest))[1]  # type: ignore[method-assign]

    reply: Any = None

    def replied(answer: Any) -> None:
        nonlocal reply
        reply = answer

    store.send_script(EXPIRE_GROUP, group_script_keys(keys), group_script_args(store, keys, "1"), replied)
    await until(lambda: reply is not None)

    assert "WRONGTYPE" in str(reply)
    assert sent.count("FCALL") == 1 and "EVALSHA" not in sent
    assert store.loaded_scripts.are_functions


def test_library_has_the_flags_of_its_scripts() -> None:
    source = library().source.decode()

    for script in registered():
        if script.name in FUNCTIONS:
            flags = script.source.decode().splitlines()[0].partition("flags=")[2]
            registration = rf'function_name = "{script.function}", flags = {{ "{flags}" }}'
            assert re.search(registration, source), script.name
    assert "@include" not in source


def recorded_script_commands(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Arg, ...]]:
    """The subcommands of SCRIPT, with the first argument, that a store sends on its control lane from now on."""
    sent: list[tuple[Arg, ...]] = []
    send = Link.send

    def record(link: Link, args: Any, on_reply: Any, timeout_ms: int | None = None) -> None:
        if args[0] == "SCRIPT" and link in (node.control for node in store.nodes):
            sent.append(tuple(args[1:3]))
        send(link, args, on_reply, timeout_ms)

    monkeypatch.setattr(Link, "send", record)
    return sent


@pytest.mark.one_server
async def test_load_sends_only_scripts_that_the_server_has_not(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = recorded_script_commands(store, monkeypatch)
    node = store.metadata_node
    await node.control.call("SCRIPT", "FLUSH", "SYNC")
    sent.clear()
    store.loaded_scripts.load(node)
    await until(lambda: len(sent) == 1 + len(registered()))
    await node.control.call("PING")
    assert [command for command, _ in sent] == ["EXISTS"] + ["LOAD"] * len(registered())

    sent.clear()
    store.loaded_scripts.load(node)
    await node.control.call("PING")
    assert [command for command, _ in sent] == ["EXISTS"]


@pytest.mark.one_server
async def test_scripts_called_at_a_connect_run_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    send = Link.send

    def record(link: Link, args: Any, on_reply: Any, timeout_ms: int | None = None) -> None:
        if args[0] == "EVALSHA" and link is node.control:
            calls.append(args[1])
        send(link, args, on_reply, timeout_ms)

    node, keys = store.metadata_node, store.group_keys("default", "orders")
    await node.control.call("SCRIPT", "FLUSH", "SYNC")
    monkeypatch.setattr(Link, "send", record)
    store.loaded_scripts.load(node)
    args = group_script_args(store, keys, "1")
    first = store.run(EXPIRE_GROUP, group_script_keys(keys), *args)
    second = store.run(EXPIRE_GROUP, group_script_keys(keys), *args)

    assert await asyncio.gather(first, second) == [[-1], [-1]]
    assert calls == [EXPIRE_GROUP.sha] * 2  # none was refused and repeated
    assert not node.unknown_scripts


@pytest.mark.one_server
async def test_load_sends_every_script_where_exists_is_refused(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = store.metadata_node
    await node.control.call("ACL", "SETUSER", "older", "on", ">pass", "~*", "&*", "+@all", "-script", "+script|load")
    url = re.sub("//([^@/]*@)?", "//older:pass@", settings.redis_url, count=1)
    older = Store(settings.model_copy(update={"redis_url": url}))
    sent = recorded_script_commands(older, monkeypatch)
    await older.start()
    try:
        await until(lambda: len(sent) == 1 + len(registered()))
        assert sent[1:] == [("LOAD", script.source) for script in registered()]
    finally:
        await older.close()
        await node.control.call("ACL", "DELUSER", "older")
