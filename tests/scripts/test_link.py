"""The link by itself: deadlines, refusals, error replies, limits."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable

import hiredis
import pytest
import structlog

from tests.support.valkey import ValkeyServer
from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.store.addresses import Address
from tidegate.store.link import Link


def at(address: Address) -> Callable[[], Awaitable[Address]]:
    """Where a link is to connect to, each time."""

    async def find() -> Address:
        return address

    return find


def make_link(valkey: ValkeyServer, **options: int) -> Link:
    return Link("test", at(Address("127.0.0.1", valkey.port)), **options)


async def test_link_fault_of_the_resolver_closes_no_link(valkey: ValkeyServer) -> None:
    places: list[Address | Exception] = [KeyError("config-epoch"), Address("127.0.0.1", valkey.port)]
    places.insert(1, Address("no..host", valkey.port))  # a UnicodeError

    async def find() -> Address:
        place = places.pop(0)
        if isinstance(place, Exception):
            raise place
        return place

    link = Link("test", find)
    link.start()
    await link.wait_up(30)
    assert not places
    await link.close()


async def test_link_dropped_delivers_nothing_afterwards() -> None:
    """A network that recovers would bring Redis commands whose outcome was unknown, behind newer ones of others."""
    received = b""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        link = Link("test", at(Address("127.0.0.1", listening.getsockname()[1])), command_timeout_ms=200)
        link.start()
        accepted, _ = await loop.sock_accept(listening)
        with accepted:
            while b"PING" not in received:
                received += await loop.sock_recv(accepted, 4096)
            await loop.sock_sendall(accepted, b"%0\r\n+PONG\r\n")  # to HELLO and PING
            await link.wait_up(30)
            outcome: asyncio.Future[object] = loop.create_future()
            link.send(["SET", "k", bytes(8 << 20)], outcome.set_result)
            assert isinstance(await outcome, StoreUnavailable)
            with pytest.raises(ConnectionResetError):
                while await loop.sock_recv(accepted, 1 << 20):
                    """What has arrived before."""
        await link.close()


async def test_link_up_in_the_loop_iteration_of_its_timeout(valkey: ValkeyServer) -> None:
    link, loop = make_link(valkey), asyncio.get_running_loop()
    link.start()
    await link.wait_up(30)
    link._up.clear()
    loop.call_later(0.04, link._up.set)
    loop.call_later(0.01, time.sleep, 0.1)  # a starved process: both timers are overdue

    await link.wait_up(0.05)
    await link.close()


async def test_error_reply_harms_no_other_command(valkey: ValkeyServer) -> None:
    link = make_link(valkey)
    link.start()
    await link.wait_up(30)

    good, bad, after = await asyncio.gather(
        link.call("PING"), link.call("NOSUCHCOMMAND"), link.call("PING"), return_exceptions=True
    )

    assert (good, after) == (b"PONG", b"PONG")
    assert isinstance(bad, hiredis.ReplyError)
    await link.close()


async def test_command_past_its_deadline_fails_with_all_behind_it_and_the_link_returns(valkey: ValkeyServer) -> None:
    link = make_link(valkey, command_timeout_ms=2_000)
    link.start()
    await link.wait_up(30)
    stuck = link.call("BLPOP", "nothing", 60)
    behind = link.call("PING")

    for future in (stuck, behind):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(future, 30)

    await link.wait_up(30)
    assert await link.call("PING") == b"PONG"
    assert link.failover_epoch == 2
    await link.close()


async def test_link_reply_above_the_depth_limit_is_refused_at_once(valkey: ValkeyServer) -> None:
    link = make_link(valkey, in_flight_max=10)
    link.start()
    await link.wait_up(30)

    replies = await asyncio.gather(*(link.call("PING") for _ in range(15)), return_exceptions=True)

    assert replies[:10] == [b"PONG"] * 10
    assert all(isinstance(reply, StoreUnavailable) for reply in replies[10:])
    await link.close()


async def test_nothing_is_sent_before_the_connection_is_up(settings: Settings) -> None:
    link = Link("test", at(Address("127.0.0.1", 1)))

    with pytest.raises(StoreUnavailable):
        await link.call("PING")


async def test_commands_of_a_caller_that_runs_while_connecting_are_refused_not_lost(valkey: ValkeyServer) -> None:
    link = make_link(valkey)
    link.start()

    with pytest.raises(StoreUnavailable):
        await link.call("PING")

    await link.wait_up(30)
    assert await link.call("PING") == b"PONG"
    await link.close()


async def test_database_that_is_not_there_is_no_connection(valkey: ValkeyServer) -> None:
    link = Link("test", at(Address("127.0.0.1", valkey.port, database=9_999)))
    link.start()

    with pytest.raises(StoreUnavailable, match="DB index is out of range"):
        await link.wait_up(0.5)

    await link.close()


async def test_server_that_still_loads_its_data_is_no_connection() -> None:
    server = ValkeyServer()
    link = make_link(server)
    replies: list[object] = []
    was_loading = False
    try:
        link.start()
        await link.wait_up(30)
        await asyncio.gather(*(link.call("SET", f"key-{number}", "x" * 100) for number in range(1_000)))
        await link.call("SAVE")
        link.on_up.append(lambda up: up.send(["GET", "key-999"], replies.append))
        server.kill()
        server.extra += ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"]
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        async with asyncio.timeout(40):
            while not replies:
                await asyncio.sleep(0.02)
                if not link.connected and "LOADING" in link.last_error:
                    was_loading = True
        await starting
        assert was_loading
        assert replies == [b"x" * 100]
    finally:
        await link.close()
        server.stop()


async def test_link_stalled_server_is_reached_once_it_resumes() -> None:
    server = ValkeyServer()
    link = make_link(server, connect_timeout_ms=1_000, command_timeout_ms=2_000)
    assert server.process is not None
    try:
        link.start()
        await link.wait_up(30)
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreUnavailable):
            await link.call("PING")
        await asyncio.sleep(4)  # several greetings that nobody answers
        assert not link.connected
        server.process.send_signal(signal.SIGCONT)

        await link.wait_up(30)
        assert await link.call("ECHO", "here") == b"here"
        async with asyncio.timeout(40):  # no connection is left open
            while len((await link.call("CLIENT", "LIST")).splitlines()) > 1:
                await asyncio.sleep(0.05)
    finally:
        server.process.send_signal(signal.SIGCONT)
        await link.close()
        server.stop()


async def test_link_user_without_rights_to_other_keys_is_connected(valkey: ValkeyServer) -> None:
    admin = make_link(valkey)
    admin.start()
    await admin.wait_up(30)
    await admin.call("ACL", "SETUSER", "tide", "reset", "on", ">pw", "~tidegate:*", "+@read", "+@connection")
    link = Link("test", at(Address("127.0.0.1", valkey.port, "tide", "pw")))
    try:
        link.start()
        await link.wait_up(30)
        assert await link.call("GET", "tidegate:x") is None
    finally:
        await link.close()
        await admin.call("ACL", "DELUSER", "tide")
        await admin.close()


async def test_link_callback_fails_on_a_reply_gets_a_failure_and_is_logged_once(valkey: ValkeyServer) -> None:
    link = make_link(valkey)
    link.start()
    await link.wait_up(30)
    failures: list[object] = []
    ended = asyncio.Event()

    def on_reply(reply: object) -> None:
        if not isinstance(reply, Exception):
            raise IndexError("list index out of range")
        failures.append(reply)
        ended.set()

    with structlog.testing.capture_logs() as events:
        for _ in range(3):
            ended.clear()
            link.send(["PING"], on_reply)
            await asyncio.wait_for(ended.wait(), 40)
    assert await link.call("PING") is not None
    await link.close()

    assert [type(failure) for failure in failures] == [StoreUnavailable] * 3
    assert [event["event"] for event in events].count("reply_callback_failed") == 1
