"""Every API by users with each single right, and with all rights but one: the answers are those of StandardAuthorizer.

About resources that are there and about absent ones. TIDEGATE_TEST_TABLE_REPORT names a file for all answers as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode
from kio.serial.errors import OutOfBoundValue, SerialError

from bench.cluster import Cluster, free_port
from bench.jars import PeerUnavailable
from bench.kafka_peer import KafkaPeer
from tests.conformance.differential.authorization_calls import CALLS, NOT_CALLED, CallOfApi, Resources
from tests.kit.wire import RawClient, request
from tidegate.protocol.api_keys import ApiKey
from tidegate.security.acls import OPERATIONS_OF, Operation, ResourceType
from tidegate.server.authorization.rules import RULES

PASSWORD: Final = "a-s3cret"
CLOSED: Final = {"(answer)": ["closed"]}
WITHOUT_TIME: Final = {"(answer)": ["a time of -1"]}
_WAIT_S: Final = 60.0
_KINDS: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
_PREFIXES: Final = {ResourceType.TOPIC: "t.", ResourceType.GROUP: "g.", ResourceType.TRANSACTIONAL_ID: "x."}
_NAMES: Final = ("name", "group_id", "transactional_id")

Outcome = dict[str, list[str]]
"""Path of a field in an answer -> its values."""
Table = dict[str, Outcome]
""""User, API, present or absent" -> what was answered."""


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """`right`: the only one that it has, or with `denied` the only one that it has not; None for none, or for all."""

    name: str
    right: tuple[ResourceType, Operation] | None
    denied: bool

    def rules(self) -> Iterator[dict[str, Any]]:
        """Its access rules."""
        if self.denied:
            for kind in _KINDS:
                yield self._rule(kind, Operation.ALL)
        if self.right is not None:
            yield self._rule(*self.right, permission=2 if self.denied else 3)

    def _rule(self, kind: ResourceType, operation: Operation, permission: int = 3) -> dict[str, Any]:
        name, pattern = (_PREFIXES[kind], 4) if kind in _PREFIXES else ("kafka-cluster", 3)
        return {
            "resource_type": int(kind), "resource_name": name, "resource_pattern_type": pattern,
            "principal": f"User:{self.name}", "host": "*", "operation": int(operation), "permission_type": permission,
        }  # fmt: skip

    def resources(self, topic_id: UUID, *, present: bool) -> Resources:
        """Those of its own."""
        own = self.name if present else f"{self.name}.absent"
        return Resources(f"t.{own}", f"g.{own}", f"x.{own}", topic_id if present else uuid4())


def users() -> list[User]:
    """One for each right, one without it, one with none and one with all."""
    rights = [(kind, operation) for kind in _KINDS for operation in OPERATIONS_OF[kind]]
    rights = [right for right in rights if right[1] is not Operation.TWO_PHASE_COMMIT]  # not in every Kafka 4
    found = [User("without", None, denied=False), User("with-all", None, denied=True)]
    for kind, operation in rights:
        words = f"{kind.name}-{operation.name}".lower().replace("_", "-")
        found += [
            User(f"only-{words}", (kind, operation), denied=False),
            User(f"no-{words}", (kind, operation), denied=True),
        ]
    return found


async def _login(address: str, name: str) -> RawClient:
    client = await RawClient.connect(address)
    await client.ask(request(17, 1, mechanism="PLAIN"))
    answer = await client.ask(request(36, 1, auth_bytes=f"\0{name}\0{PASSWORD}".encode()))
    assert answer.error_code is ErrorCode.none, answer
    return client


@asynccontextmanager
async def _client(address: str, name: str) -> AsyncIterator[RawClient]:
    client = await _login(address, name)
    try:
        yield client
    finally:
        await client.close()


def _values(answer: Any, names: str | None, path: str = "") -> Iterator[tuple[str, str]]:
    """Error codes, operations, and names that contain `names`."""
    for field in dataclasses.fields(answer):
        value, own = getattr(answer, field.name), f"{path}{field.name}"
        if field.name.endswith("error_code"):
            yield own, ErrorCode(value).name
        elif field.name.endswith("authorized_operations"):
            yield own, str(value)
        elif names is not None and field.name in _NAMES and value is not None and names in value:
            yield own, value
        elif isinstance(value, tuple):
            for one in value:
                if dataclasses.is_dataclass(one):
                    yield from _values(one, names, f"{own}.")


def _outcome(answer: Any, names: str | None) -> Outcome:
    # Of "all topics" and the like only this user's own are compared: codes of others are not its business.
    found: dict[str, set[str]] = {}
    for path, value in _values(answer, names):
        if names is None or path == "error_code" or path.rpartition(".")[2] in _NAMES:
            found.setdefault(path, set()).add(value)
    return {path: sorted(values) for path, values in sorted(found.items())}


async def _created(address: str, all_users: list[User]) -> Mapping[str, UUID]:
    """Topics, groups, transactional ids and access rules of all users; topic ids by user."""
    async with asyncio.timeout(_WAIT_S), _client(address, "admin") as admin:
        topics = [
            {"name": f"t.{user.name}", "num_partitions": 1, "replication_factor": 1,
             "assignments": [], "configs": []}
            for user in all_users
        ]  # fmt: skip
        made = await admin.ask(request(19, 7, topics=topics))
        assert {one.error_code for one in made.topics} == {ErrorCode.none}
        rules = [rule for user in all_users for rule in user.rules()]
        assert {one.error_code for one in (await admin.ask(request(30, 3, creations=rules))).results} == {
            ErrorCode.none
        }
        commit = next(call for call in CALLS if call.name == "OffsetCommit")
        begin = next(call for call in CALLS if call.name == "InitProducerId, transactional")
        for key_type in (0, 1):  # Kafka creates its internal topics at the first question for a coordinator
            await admin.ask(request(10, 4, key_type=key_type, coordinator_keys=["any"]))
        for user in all_users:
            own = user.resources(UUID(int=0), present=True)
            while (await admin.ask(commit.build(own))).topics[0].partitions[0].error_code is not ErrorCode.none:
                await asyncio.sleep(0.1)
            while (await admin.ask(begin.build(own))).error_code is not ErrorCode.none:
                await asyncio.sleep(0.1)
        # A broker of Kafka applies rules in their order: the last user's are there.
        async with _client(address, all_users[-1].name) as last:
            own = all_users[-1].resources(UUID(int=0), present=True)
            describe = next(call for call in CALLS if call.name == "Metadata")
            while (await last.ask(describe.build(own))).topics[0].error_code is not ErrorCode.none:
                await asyncio.sleep(0.1)
        return {topic.name.removeprefix("t."): topic.topic_id for topic in made.topics}


async def _join_members(address: str, own: Resources) -> None:
    """Begin the group with a member that has the topic."""
    epoch = 0
    async with asyncio.timeout(_WAIT_S), _client(address, "admin") as admin:
        while True:
            answer = await admin.ask(request(
                68, 1, group_id=own.group_with_members, member_id="B" * 22, member_epoch=epoch,
                rebalance_timeout=timedelta(seconds=10), subscribed_topic_names=[own.topic], topic_partitions=[],
            ))  # fmt: skip
            assert answer.error_code is ErrorCode.none, answer
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return
            epoch = answer.member_epoch
            await asyncio.sleep(0.1)


async def _ask(
    address: str, client: RawClient, user: User, call: CallOfApi, of: Resources
) -> tuple[RawClient, Outcome]:
    try:
        answer = await client.ask(call.build(of))
    except TimeoutError:
        raise AssertionError(f"{address}: {call.name} of {user.name} for {of.topic} is not answered") from None
    except OutOfBoundValue:  # kio cannot read the start of a transaction that has none
        return client, WITHOUT_TIME
    except SerialError as error:
        raise AssertionError(f"{address}: the answer to {call.name} of {user.name} is not read: {error}") from None
    except asyncio.IncompleteReadError:
        await client.close()
        return await _login(address, user.name), CLOSED
    return client, _outcome(answer, user.name if call.names else None)


async def table_of(address: str) -> Table:
    """Hold every call as every user."""
    all_users = users()
    topic_ids = await _created(address, all_users)
    table: Table = {}
    for user in all_users:
        await _join_members(address, user.resources(UUID(int=0), present=True))
        client = await _login(address, user.name)
        for call in CALLS:
            for present in (True, False):
                of = user.resources(topic_ids[user.name], present=present)
                client, outcome = await _ask(address, client, user, call, of)
                table[f"{user.name}, {call.name}, {'present' if present else 'absent'}"] = outcome
        await client.close()
    return table


def kafka_table() -> Table:
    """Of Apache Kafka with StandardAuthorizer. Raises PeerUnavailable."""
    port = free_port()
    credentials = " ".join(f'user_{name}="{PASSWORD}"' for name in ("admin", *(user.name for user in users())))
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {credentials};"
        ),
        "auto.create.topics.enable": "false",
    }
    with KafkaPeer(properties, "4.4.0", {"SECURE": ("SASL_PLAINTEXT", port)}):
        return asyncio.run(table_of(f"127.0.0.1:{port}"))


def tidegate_table() -> Table:
    """Of a broker."""
    settings = {
        "TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:SASL_PLAINTEXT",
        "TIDEGATE_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-256",
        "TIDEGATE_ACL_ENABLED": "true",
        "TIDEGATE_SUPER_USERS": "User:admin",
        "TIDEGATE_AUTO_CREATE_TOPICS_ENABLE": "false",
    }
    from tests.conformance.test_security import Secured

    with Cluster(brokers=1, settings=settings) as cluster:
        secured = Secured(cluster, None)  # type: ignore[arg-type]
        for name in ("admin", *(user.name for user in users())):
            words = ("user", "create", name, "--password-file", "-", "--yes")
            secured.command(*words, stdin=f"{PASSWORD}\n")
        return asyncio.run(table_of(cluster.bootstrap))


def test_every_rule_is_in_the_table() -> None:
    called = {
        int(call.build(User("u", None, denied=False).resources(uuid4(), present=True)).__api_key__) for call in CALLS
    }
    missing = {ApiKey(key).name for key in RULES if key not in called and key not in NOT_CALLED}
    assert not missing


_HIDDEN_ID: Final = ("topic_authorization_failed", "unknown_topic_id")
DIFFERENT: Final[dict[tuple[str, str], tuple[str, str]]] = {
    # Kafka's code says that there is a topic of that id; `tested.py` has this difference for the page.
    ("Metadata by id, present", "topics.error_code"): _HIDDEN_ID,
    ("DeleteTopics by id, present", "responses.error_code"): _HIDDEN_ID,
}
"""("API, present or absent", field) -> the codes of Kafka and of Tidegate, where they are not to be alike."""


def unlike(kafka: Table, tidegate: Table) -> list[str]:
    """What differs and is not named, and what is named and does not differ any more."""
    found, shown = [], set()
    for cell, expected in kafka.items():
        answered = tidegate[cell]
        for field in sorted({*expected, *answered}):
            codes = expected.get(field, []), answered.get(field, [])
            key = cell.split(", ", 1)[1], field
            if key in DIFFERENT and codes == tuple([code] for code in DIFFERENT[key]):
                shown.add(key)
            elif codes[0] != codes[1]:
                found.append(f"{cell}, {field}: Kafka {codes[0]}, Tidegate {codes[1]}")
    return found + [f"{', '.join(key)}: named as a difference, but alike" for key in sorted(DIFFERENT.keys() - shown)]


def _of(cell: str, field: str, code: str) -> Table:
    return {f"u, {name}": {field: [code if name == cell else "none"]} for name in ("A, present", "A, absent")}


def test_only_what_is_named_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, tidegate = _of("A, present", "error_code", "x"), _of("A, present", "error_code", "y")
    monkeypatch.setitem(globals(), "DIFFERENT", {})
    assert unlike(kafka, kafka) == []
    assert unlike(kafka, tidegate) == ["u, A, present, error_code: Kafka ['x'], Tidegate ['y']"]

    monkeypatch.setitem(globals(), "DIFFERENT", {("A, present", "error_code"): ("x", "y")})
    assert unlike(kafka, tidegate) == []
    assert len(unlike(tidegate, kafka)) == 2
    assert unlike(kafka, kafka) == ["A, present, error_code: named as a difference, but alike"]
    assert len(unlike(_of("A, absent", "error_code", "x"), _of("A, absent", "error_code", "y"))) == 2


@pytest.mark.peer
@pytest.mark.timeout(900)
def test_every_api_with_every_right_is_answered_as_by_standard_authorizer() -> None:
    try:
        kafka = kafka_table()
    except PeerUnavailable as unavailable:
        pytest.skip(str(unavailable))
    tidegate = tidegate_table()
    if report := os.environ.get("TIDEGATE_TEST_TABLE_REPORT"):
        Path(report).write_text(json.dumps({"kafka": kafka, "tidegate": tidegate}, indent=1))
    assert kafka.keys() == tidegate.keys()
    found = unlike(kafka, tidegate)
    print(f"{len(kafka)} cells, {len(found)} unlike")
    assert not found, "\n".join(found[:200])
