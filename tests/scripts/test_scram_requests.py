"""AlterUserScramCredentials: users of many and of long names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.asking import ask
from tests.support.built import build_broker
from tidegate.apis import registry, slices
from tidegate.apis.call import BrokerContext
from tidegate.protocol.api_keys import ApiKey
from tidegate.security.identity import NAME_LENGTH_MAX
from tidegate.security.security import Security
from tidegate.security.users import ITERATIONS_MIN, SALT_BYTES_MAX, Change, Credential, User, Users
from tidegate.store.store import Store

USERS = 1_200
NONE, UNACCEPTABLE = ErrorCode.none, ErrorCode.unacceptable_credential


@pytest.fixture
async def context(store: Store) -> AsyncIterator[BrokerContext]:
    security = Security(store, store.settings)
    await security.start()
    yield build_broker(store, security=security).context
    await security.close()


def users_of(context: BrokerContext) -> Users:
    assert context.security is not None
    return context.security.users


async def alter(context: BrokerContext, *names: str, deletes: bool = False, salt: bytes = b"salt") -> list[ErrorCode]:
    """Set or delete a credential of each user; the codes in order."""
    set_to: dict[str, Any] = {"iterations": ITERATIONS_MIN, "salt": salt, "salted_password": b"salted"}
    upsertions = [{"name": one, "mechanism": 1, **set_to} for one in names]
    deletions = [{"name": one, "mechanism": 1} for one in names]
    asked = request(51, 0, deletions=deletions if deletes else [], upsertions=[] if deletes else upsertions)
    answer = await ask(context, asked)
    assert [one.user for one in answer.results] == list(names)
    return [one.error_code for one in answer.results]


async def test_alter_refuses_long_names_and_deletes_them(context: BrokerContext) -> None:
    """Nobody can log in with a longer name; those of earlier versions can be deleted."""
    longest, longer = "a" * NAME_LENGTH_MAX, "a" * (NAME_LENGTH_MAX + 1)

    assert await alter(context, longest, longer) == [NONE, UNACCEPTABLE]

    stored = User(longer, credentials={"SCRAM-SHA-256": Credential(b"salt", bytes(32), bytes(32), ITERATIONS_MIN)})
    await users_of(context).change(longer, lambda _: stored)
    assert await alter(context, longer, deletes=True) == [NONE]
    assert [user.name for user in await users_of(context).all()] == [longest]


@pytest.mark.parametrize(("excess", "code"), [(0, NONE), (1, UNACCEPTABLE)])
async def test_alter_refuses_long_salts(context: BrokerContext, excess: int, code: ErrorCode) -> None:
    """Each login reads and sends them."""
    assert await alter(context, "alice", salt=bytes(SALT_BYTES_MAX + excess)) == [code]


async def test_describe_describes_users_in_slices(context: BrokerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 users took 0.8 s of the event loop."""
    text = User("", credentials={"SCRAM-SHA-256": Credential(b"salt", bytes(32), bytes(32), ITERATIONS_MIN)}).text()
    stored = [one for n in range(USERS) for one in (f"user-{n}", text)]
    await context.store.command("HSET", context.store.cluster_keys.users, *stored)
    pause, pauses = slices.pause, []

    async def counted() -> None:
        pauses.append(1)
        await pause()

    monkeypatch.setattr(slices, "pause", counted)
    answer = await ask(context, request(50, 0, users=None))

    assert len(answer.results) == USERS
    assert len(pauses) == USERS // slices.SLICE
    assert registry.load_all()[ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS].answers_large


async def test_alter_has_tasks_for_some_users_at_once(context: BrokerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait without a task."""
    change, before, tasks = Users.change, len(asyncio.all_tasks()), []

    async def counted(users: Users, name: str, plan: Change) -> User | None:
        tasks.append(len(asyncio.all_tasks()) - before)
        return await change(users, name, plan)

    monkeypatch.setattr(Users, "change", counted)
    names = [f"user-{n}" for n in range(200)]

    assert await alter(context, *names) == [NONE] * 200
    assert max(tasks) < 20
    assert len(await users_of(context).all()) == 200
