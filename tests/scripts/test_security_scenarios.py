"""SASL, users and access rules over a socket, by the numbers of the specification of logs (section H)."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from scramp import ScramClient

from tests.kit.wire import RawClient, request
from tests.support.log_broker import fetch_request, produce_request
from tests.support.transactions import transactional
from tests.support.valkey import ValkeyServer, free_port
from tidegate.app import App
from tidegate.records.build import NewRecord, build_batch
from tidegate.security.users import SCRAM_MECHANISMS
from tidegate.server.sasl_connection import UNAUTHENTICATED_BYTES_MAX
from tidegate.settings import Settings

E = ErrorCode
NONE = E.none
WAIT_S = 20.0
WAIT = timedelta(seconds=WAIT_S)
PASSWORDS = {"admin": "admin-secret", "u": "u-secret", "a,b=c": "comma"}
VERSIONS = request(18, 3, client_software_name="t", client_software_version="1")
NO_TOPICS = request(
    3, 12, topics=[], allow_auto_topic_creation=False, include_topic_authorized_operations=False,
)  # fmt: skip
BATCH = build_batch([NewRecord(b"v", b"k", 1_700_000_000_000)])


class Listener:
    """A broker with a SASL listener, and ways to reach it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._clients: list[RawClient] = []

    async def connect(self) -> RawClient:
        """A connection that has sent nothing."""
        client = await RawClient.connect(f"127.0.0.1:{self.app.broker.settings.port}")
        self._clients.append(client)
        return client

    async def login(self, name: str) -> RawClient:
        """A connection of a user."""
        client = await self.connect()
        answer = await plain(client, name)
        assert answer.error_code is NONE, answer
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


async def handshake(client: RawClient, mechanism: str = "PLAIN") -> Any:
    return await client.ask(request(17, 1, mechanism=mechanism))


async def authenticate(client: RawClient, token: bytes) -> Any:
    return await client.ask(request(36, 1, auth_bytes=token))


async def plain(client: RawClient, name: str, password: str | None = None, authzid: str = "") -> Any:
    """An exchange of PLAIN."""
    assert (await handshake(client)).error_code is NONE
    return await authenticate(client, f"{authzid}\0{name}\0{password or PASSWORDS[name]}".encode())


async def scram(
    client: RawClient, name: str, password: str, mechanism: str = "SCRAM-SHA-256",
    first: Callable[[str], str] = str, final: Callable[[str], str] = str,
) -> Any:  # fmt: skip
    """An exchange of SCRAM with changed messages; the last answer."""
    one = ScramClient([mechanism], name, password)
    assert (await handshake(client, mechanism)).error_code is NONE
    answer = await authenticate(client, first(one.get_client_first()).encode())
    if answer.error_code is not NONE:
        return answer
    one.set_server_first(answer.auth_bytes.decode())
    answer = await authenticate(client, final(one.get_client_final()).encode())
    if answer.error_code is NONE:
        one.set_server_final(answer.auth_bytes.decode())  # verifies the server's signature
    return answer


async def is_closed(client: RawClient) -> bool:
    """Wait until the broker closes; fails when it answers instead."""
    return await asyncio.wait_for(client.reader.read(), WAIT_S) == b""


@asynccontextmanager
async def listening(valkey: ValkeyServer, **settings: Any) -> AsyncIterator[Listener]:
    port = free_port()
    values: dict[str, Any] = {
        "redis_url": valkey.url, "key_prefix": f"tidegate:security-{port}", "port": port, "admin_port": free_port(),
        "listener_security_protocol_map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", "acl_enabled": True,
        "super_users": "User:admin", **settings,
    }  # fmt: skip
    app = App(Settings(**values))
    await app.start()
    listener = Listener(app)
    try:
        security = app.broker.context.security
        assert security is not None
        for name, password in PASSWORDS.items():
            await security.users.set_password(name, password)
        yield listener
    finally:
        await listener.close()
        await app.close()


@pytest.fixture
async def listener(valkey: ValkeyServer) -> AsyncIterator[Listener]:
    async with listening(valkey) as opened:
        yield opened


# -- SASL


async def test_log_111_sasl_order(listener: Listener) -> None:
    client = await listener.connect()
    client.send(NO_TOPICS)
    assert await is_closed(client)

    client = await listener.connect()
    answer = await handshake(client, "FOO")
    assert answer.error_code is E.unsupported_sasl_mechanism
    assert answer.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert await is_closed(client)

    client = await listener.connect()
    client.send(request(36, 1, auth_bytes=b"\0admin\0admin-secret"))
    assert await is_closed(client)

    client = await listener.connect()
    bad_name = request(18, 3, client_software_name="bad name!", client_software_version="1")
    assert (await client.ask(bad_name)).error_code is E.invalid_request
    assert (await client.ask(VERSIONS)).error_code is NONE
    client.send(VERSIONS)
    assert await is_closed(client)

    client = await listener.connect()
    await handshake(client)
    assert (await client.ask(VERSIONS)).error_code is E.illegal_sasl_state
    assert await is_closed(client)

    client = await listener.connect()
    await handshake(client)
    assert (await handshake(client)).error_code is E.illegal_sasl_state
    assert await is_closed(client)

    client = await listener.login("u")
    assert [(await client.ask(VERSIONS)).error_code for _ in range(2)] == [NONE, NONE]


async def test_requests_before_authentication_are_small(listener: Listener) -> None:
    client = await listener.connect()
    client.writer.write(struct.pack(">i", UNAUTHENTICATED_BYTES_MAX + 1))
    assert await is_closed(client)

    client = await listener.login("u")
    large = build_batch([NewRecord(bytes(UNAUTHENTICATED_BYTES_MAX), b"k", 1_700_000_000_000)])
    answer = await client.ask(produce_request([("p", [(0, large)])]))
    assert answer.responses[0].partition_responses[0].error_code is E.topic_authorization_failed


async def test_large_frame_before_authentication_is_released(listener: Listener) -> None:
    """Else some frames of nobody take the memory for the requests of all others, until the broker restarts."""
    client = await listener.connect()
    size = UNAUTHENTICATED_BYTES_MAX - 10
    client.writer.write(struct.pack(">ihhih", size + 10, 9, 1, 1, -1) + bytes(size))
    assert await is_closed(client)
    server = listener.app.broker.server
    assert server is not None
    assert server.request_bytes.held == 0


@pytest.mark.parametrize("sent", [b"", struct.pack(">ih", 100, 17)], ids=["nothing", "half a request"])
async def test_client_that_does_not_authenticate_is_disconnected(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    authenticated = await listener.login("u")
    monkeypatch.setattr("tidegate.server.sasl_connection.AUTHENTICATION_TIMEOUT_S", 0.2)
    client = await listener.connect()
    client.writer.write(sent)
    assert await is_closed(client)
    assert (await authenticated.ask(NO_TOPICS)).brokers


async def test_log_112_plain_and_scram_failures(listener: Listener) -> None:
    texts = []
    for name, password, authzid in (("u", "wrong", ""), ("nobody", "x", ""), ("u", "u-secret", "x")):
        client = await listener.connect()
        answer = await plain(client, name, password, authzid)
        assert answer.error_code is E.sasl_authentication_failed
        assert await is_closed(client)
        texts.append(answer.error_message)
    assert texts[0] == texts[1]

    def other_nonce(message: str) -> str:
        return message.replace(",r=", ",r=x", 1)

    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("nobody", "x", {}),
        ("u", "wrong", {}),
        ("u", "u-secret", {"final": other_nonce}),
        ("u", "u-secret", {"first": lambda message: "y" + message[1:]}),
        ("u", "u-secret", {"first": lambda message: "p=tls-unique" + message[1:]}),
    ]
    messages = []
    for name, password, changes in cases:
        client = await listener.connect()
        answer = await scram(client, name, password, **changes)
        assert answer.error_code is E.sasl_authentication_failed, changes
        assert await is_closed(client)
        messages.append(answer.error_message)
    assert messages[0] == messages[1]


@pytest.mark.parametrize("mechanism", list(SCRAM_MECHANISMS))
async def test_log_113_scram_success(listener: Listener, mechanism: str) -> None:
    client = await listener.connect()
    assert (await scram(client, "a,b=c", "comma", mechanism)).error_code is NONE
    assert (await client.ask(NO_TOPICS)).brokers


async def test_log_114_reauthentication(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    begun_s, passed_s = time.monotonic(), 0.0
    monkeypatch.setattr("tidegate.security.session.monotonic", lambda: begun_s + passed_s)
    async with listening(valkey, connections_max_reauth_ms=3_000) as listener:
        client, other, late = [await listener.connect() for _ in range(3)]
        for one in (client, other, late):
            assert (await plain(one, "u")).session_lifetime.total_seconds() == 3
        assert (await handshake(client)).error_code is E.illegal_sasl_state
        passed_s = 2.0
        assert (await plain(client, "u")).error_code is NONE
        assert (await client.ask(NO_TOPICS)).brokers
        assert (await plain(other, "admin")).error_code is E.sasl_authentication_failed
        assert await is_closed(other)
        passed_s = 4.0
        assert (await client.ask(NO_TOPICS)).brokers
        late.send(NO_TOPICS)
        assert await is_closed(late)
        passed_s = 6.0
        assert (await plain(client, "u")).error_code is NONE


async def test_log_114_reauthentication_is_off(listener: Listener) -> None:
    client = await listener.login("u")
    assert (await handshake(client)).error_code is E.illegal_sasl_state
    assert (await client.ask(NO_TOPICS)).brokers


async def test_log_115_scram_admin(listener: Listener) -> None:
    admin = await listener.login("admin")

    def upsert(name: str, iterations: int = 4096, mechanism: int = 1, salt: bytes = b"my-salt") -> dict[str, Any]:
        salted = b"s" * 32
        return {
            "name": name, "mechanism": mechanism, "iterations": iterations,
            "salt": salt, "salted_password": salted,
        }  # fmt: skip

    answer = await admin.ask(
        request(
            51, 0, deletions=[{"name": "w", "mechanism": 1}],
            upsertions=[upsert("new"), upsert("v", 100), upsert("y", salt=b""), upsert("x"), upsert("x", mechanism=2)],
        )
    )  # fmt: skip
    assert {one.user: one.error_code for one in answer.results} == {
        "new": NONE, "v": E.unacceptable_credential, "y": E.unacceptable_credential, "w": E.resource_not_found,
        "x": E.duplicate_resource,
    }  # fmt: skip
    names = [{"name": name} for name in ("new", "new", "zz", "u")]
    answer = await admin.ask(request(50, 0, users=names))
    found = {one.user: (one.error_code, len(one.credential_infos)) for one in answer.results}
    assert found == {"new": (E.duplicate_resource, 0), "zz": (E.resource_not_found, 0), "u": (NONE, 2)}
    for users in (None, []):
        answer = await admin.ask(request(50, 0, users=users))
        found = {one.user: (one.error_code, len(one.credential_infos)) for one in answer.results}
        assert (found["u"], found["new"]) == ((NONE, 2), (NONE, 1))


# -- access rules


def _rule(
    kind: int, name: str, operation: int, principal: str = "User:u", *, prefixed: bool = False, deny: bool = False
) -> Any:
    return {
        "resource_type": kind, "resource_name": name,
        "resource_pattern_type": 4 if prefixed else 3, "principal": principal, "host": "*", "operation": operation,
        "permission_type": 2 if deny else 3,
    }  # fmt: skip


async def _create_rules(client: RawClient, *rules: Any) -> list[ErrorCode]:
    answer = await client.ask(request(30, 2, creations=list(rules)))
    return [one.error_code for one in answer.results]


async def _create_topics(client: RawClient, *names: str) -> list[ErrorCode]:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [],
         "configs": []}
        for name in names
    ]  # fmt: skip
    answer = await client.ask(request(19, 5, topics=topics, validate_only=False, timeout=WAIT))
    return [one.error_code for one in answer.topics]


TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
READ, WRITE = 3, 4


async def test_log_116_access_matrix(listener: Listener) -> None:
    admin = await listener.login("admin")
    assert set(await _create_topics(admin, "p-a", "p-x", "q")) == {NONE}
    rules = [_rule(TOPIC, "p-", READ, prefixed=True), _rule(TOPIC, "p-x", READ, deny=True)]
    assert await _create_rules(admin, *rules) == [NONE, NONE]
    user = await listener.login("u")
    everything = request(
        3, 12, topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    assert [one.name for one in (await user.ask(everything)).topics] == ["p-a", "p-x"]
    answer = await user.ask(fetch_request([("p-a", [(0, 0)]), ("p-x", [(0, 0)]), ("q", [(0, 0)])]))
    codes = {one.topic: one.partitions[0].error_code for one in answer.responses}
    assert codes == {"p-a": NONE, "p-x": E.topic_authorization_failed, "q": E.topic_authorization_failed}
    answer = await user.ask(produce_request([("p-a", [(0, BATCH)])]))
    assert answer.responses[0].partition_responses[0].error_code is E.topic_authorization_failed
    protocols = [{"name": "range", "metadata": b""}]
    join = request(
        11, 5, group_id="g", session_timeout=WAIT, rebalance_timeout=WAIT, member_id="", group_instance_id=None,
        protocol_type="consumer", protocols=protocols,
    )  # fmt: skip
    assert (await user.ask(join)).error_code is E.group_authorization_failed
    assert await _create_topics(user, "p-n") == [E.topic_authorization_failed]


async def test_heartbeat_that_repeats_another_is_judged_after_a_change_of_rules(listener: Listener) -> None:
    """Equal heartbeats are answered without their handler; a rule that denies them ends that."""
    admin = await listener.login("admin")
    assert await _create_rules(admin, _rule(GROUP, "g", READ)) == [NONE]
    user = await listener.login("u")
    joining = {
        "group_id": "g", "session_timeout": WAIT, "rebalance_timeout": WAIT, "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    member_id = (await user.ask(request(11, 5, member_id="", **joining))).member_id
    joined = await user.ask(request(11, 5, member_id=member_id, **joining))
    me = {"group_id": "g", "generation_id": joined.generation_id, "member_id": member_id, "group_instance_id": None}
    assert (await user.ask(request(14, 3, assignments=[], **me))).error_code is NONE
    for _ in range(3):
        assert (await user.ask(request(12, 3, **me))).error_code is NONE

    assert await _create_rules(admin, _rule(GROUP, "g", READ, deny=True)) == [NONE]
    assert (await user.ask(request(12, 3, **me))).error_code is E.group_authorization_failed


@pytest.mark.parametrize("partition_count", [1, 4_000])
async def test_fetches_follow_one_of_an_unknown_topic_id(listener: Listener, partition_count: int) -> None:
    """The first is resolved in the store, or decoded in a thread, before it is answered: the next ones start too."""
    user = await listener.login("u")
    asked = fetch_request([(uuid4(), [(index, 0) for index in range(partition_count)])], version=13)
    for _ in range(3):
        answer = await user.ask(asked)
        assert {one.error_code for one in answer.responses[0].partitions} == {E.unknown_topic_id}


async def test_log_117_transactional_access(listener: Listener) -> None:
    admin = await listener.login("admin")
    assert await _create_topics(admin, "t") == [NONE]
    assert await _create_rules(admin, _rule(TOPIC, "t", WRITE)) == [NONE]
    user = await listener.login("u")

    async def init(transactional_id: str | None) -> ErrorCode:
        answer = await user.ask(
            request(
                22, 4, transactional_id=transactional_id, transaction_timeout=WAIT, producer_id=-1, producer_epoch=-1,
            )
        )  # fmt: skip
        code: ErrorCode = answer.error_code
        return code

    assert await init("T") is E.transactional_id_authorization_failed
    raw = transactional(build_batch([NewRecord(b"v", b"k", 1)], producer_id=5, producer_epoch=0, base_sequence=0))
    answer = await user.ask(produce_request([("t", [(0, raw)])], transactional_id="T"))
    code = answer.responses[0].partition_responses[0].error_code
    assert code is E.transactional_id_authorization_failed
    assert await init(None) is NONE


def _filter(pattern: int = 1) -> Any:
    return request(
        29, 2, resource_type_filter=1, resource_name_filter=None, pattern_type_filter=pattern, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip


async def test_log_118_access_administration(listener: Listener) -> None:
    user, admin = await listener.login("u"), await listener.login("admin")
    assert await _create_rules(user, _rule(TOPIC, "t", READ)) == [E.cluster_authorization_failed]
    assert await _create_rules(admin, _rule(CLUSTER, "x", READ)) == [E.invalid_request]
    assert (await admin.ask(_filter())).error_code is NONE
    assert (await admin.ask(_filter(pattern=0))).error_code is E.invalid_request  # Kafka closes the connection


async def test_log_154_access_rules_that_are_refused(listener: Listener) -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR to ANY, and closes the connection for UNKNOWN."""
    admin = await listener.login("admin")
    any_pattern = {**_rule(TOPIC, "t", READ), "resource_pattern_type": 1}
    any_permission = {**_rule(TOPIC, "t", READ), "permission_type": 1}
    any_or_unknown = (_rule(TOPIC, "t", 1), _rule(TOPIC, "t", 0), any_pattern, any_permission)
    codes = await _create_rules(admin, *any_or_unknown, _rule(TOPIC, "t", READ, principal="u"))
    assert codes == [E.invalid_request] * 5


async def test_log_154_no_access_rules(valkey: ValkeyServer) -> None:
    async with listening(valkey, acl_enabled=False, super_users="") as listener:
        client = await listener.login("u")
        assert (await client.ask(_filter())).error_code is E.security_disabled
        assert await _create_rules(client, _rule(TOPIC, "t", READ)) == [E.security_disabled]
        assert await _create_rules(client) == []


@pytest.mark.parametrize(
    ("api_key", "version", "values"),
    [
        (38, 3, {"owner_principal_type": None, "owner_principal_name": None, "renewers": [], "max_lifetime": WAIT}),
        (39, 2, {"hmac": b"x", "renew_period": WAIT}),
        (40, 2, {"hmac": b"x", "expiry_time_period": WAIT}),
        (41, 3, {"owners": None}),
    ],
)
async def test_delegation_tokens_are_not_enabled(
    listener: Listener, api_key: int, version: int, values: dict[str, Any]
) -> None:
    user = await listener.login("u")
    user.send(request(api_key, version, **values))
    frame = await user.receive_frame()
    code = int.from_bytes(frame[5:7], "big")  # behind correlation id and tags; kio reads no time of -1
    assert code == E.delegation_token_auth_disabled
    assert (await user.ask(NO_TOPICS)).brokers


async def test_rights_beside_the_usual_ones(listener: Listener) -> None:
    """As in Kafka: ALTER of the cluster writes markers, CLUSTER_ACTION reads epochs, ALL of it deletes topics."""
    admin = await listener.login("admin")
    assert set(await _create_topics(admin, "a-1", "a-2")) == {NONE}
    user = await listener.login("u")
    partition = {"partition": 0, "leader_epoch": 0}
    epochs = request(
        23, 4, replica_id=-1, topics=[{"topic": "a-1", "partitions": [partition]}]
    )  # fmt: skip
    topic = {"name": "absent", "partition_indexes": [0]}
    marker = {
        "producer_id": 1, "producer_epoch": 0, "transaction_result": False,
        "coordinator_epoch": 0, "topics": [topic],
    }  # fmt: skip
    markers = request(27, 1, markers=[marker])

    async def written() -> ErrorCode:
        code: ErrorCode = (await user.ask(markers)).markers[0].topics[0].partitions[0].error_code
        return code

    async def epoch() -> ErrorCode:
        code: ErrorCode = (await user.ask(epochs)).topics[0].partitions[0].error_code
        return code

    async def deleted(name: str) -> ErrorCode:
        state = {"name": name, "topic_id": None}
        code: ErrorCode = (await user.ask(request(20, 6, topics=[state], timeout=WAIT))).responses[0].error_code
        return code

    alter, cluster_action, every = 7, 9, 2
    assert await written() is E.cluster_authorization_failed
    assert await epoch() is E.topic_authorization_failed
    assert await deleted("a-1") is E.topic_authorization_failed
    assert await _create_rules(admin, _rule(CLUSTER, "kafka-cluster", alter)) == [NONE]
    assert await written() is E.unknown_topic_or_partition
    assert await _create_rules(admin, _rule(CLUSTER, "kafka-cluster", cluster_action)) == [NONE]
    assert await epoch() is NONE
    assert await _create_rules(admin, _rule(CLUSTER, "kafka-cluster", every)) == [NONE]
    assert await deleted("a-1") is NONE


async def test_created_topic_has_no_configs_without_describe_configs(listener: Listener) -> None:
    admin, user = await listener.login("admin"), await listener.login("u")
    create, describe_configs = 5, 10
    assert await _create_rules(admin, _rule(TOPIC, "c-", create, prefixed=True)) == [NONE]

    async def created(name: str) -> tuple[ErrorCode, ErrorCode, int, bool]:
        topic = {
            "name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [],
            "configs": [],
        }  # fmt: skip
        [one] = (await user.ask(request(19, 7, topics=[topic], timeout=WAIT))).topics
        return one.error_code, one.topic_config_error_code, one.num_partitions, bool(one.configs)

    assert await created("c-1") == (NONE, E.topic_authorization_failed, -1, False)
    old = {"name": "c-0", "num_partitions": 2, "replication_factor": 1, "assignments": [],
           "configs": []}  # fmt: skip
    assert [one.error_code for one in (await user.ask(request(19, 4, topics=[old], timeout=WAIT))).topics] == [NONE]
    assert await _create_rules(admin, _rule(TOPIC, "c-", describe_configs, prefixed=True)) == [NONE]
    assert await created("c-2") == (NONE, NONE, 2, True)
