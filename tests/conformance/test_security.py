"""Real clients against brokers with SASL and access control: who gets in, and what each may do."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiokafka
import jwt
import kafka
import pytest
import redis
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkedCluster
from tests.kit.wire import decode_response, encode_request, request_type
from tidegate.cli.client import access
from tidegate.cli.main import command_line
from tidegate.security import acls
from tidegate.share import Sasl, ShareConsumer, ShareError

PASSWORDS = {
    "admin": "admin-s3cret",
    "alice": "alice-s3cret",
    "bob": "bob-s3cret",
    "carol": "carol-s3cret",
    "olga": "olga-s3cret",
}
ORGS = {"bob": "acme"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAIT_S = 30
_ALLOW = AclPermissionType.ALLOW

pytestmark = pytest.mark.one_server


class Secured:
    """Two brokers whose clients authenticate, with the users of PASSWORDS and access control."""

    def __init__(self, cluster: Cluster, key: rsa.RSAPrivateKey) -> None:
        self.cluster = cluster
        self.address = cluster.bootstrap
        self._key = key
        self._admins: dict[str, AdminClient] = {}

    def command(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """Run `tidegate WORDS` against the cluster's Redis."""
        done = CliRunner().invoke(command_line, [*words, "--redis-url", self.cluster.redis_url], input=stdin)
        assert done.exit_code == code, done.output
        return done.stdout

    def token(self, name: str, **claims: Any) -> str:
        """A token of the issuer that the brokers trust."""
        payload = {"sub": name, "exp": time.time() + 300} | claims
        return jwt.encode(payload, self._key, algorithm="RS256", headers={"kid": "k"})

    def options(self, name: str, mechanism: str = "SCRAM-SHA-512", password: str | None = None) -> dict[str, Any]:
        """Options of librdkafka."""
        options: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "socket.timeout.ms": 10_000,
        }
        if mechanism == "OAUTHBEARER":
            return options | {"oauth_cb": lambda _: (self.token(name), time.time() + 300)}
        return options | {"sasl.username": name, "sasl.password": password or PASSWORDS[name]}

    def admin(self, name: str = "admin") -> AdminClient:
        """librdkafka's admin client of a user, one for all tests: it must outlive its futures."""
        if name not in self._admins:
            self._admins[name] = AdminClient(self.options(name))
        return self._admins[name]

    def allow(self, name: str, operation: str, resource: str, *, prefixed: bool = False, org: str = "default") -> None:
        """Add a rule to what `tidegate acl add` changes, and have every broker apply it."""
        self.add_rule(name, operation, resource, prefixed=prefixed, org=org)
        for broker in self.cluster.brokers:
            apply_rules(broker.port)

    def add_rule(
        self, name: str, operation: str, resource: str, *, prefixed: bool = False, org: str = "default"
    ) -> None:
        """Add a rule, of which brokers are notified: they apply it soon, not at once."""
        kind, _, resource_name = resource.partition(":")
        rule = acls.AclBinding(
            acls.ResourceType[kind.upper()],
            resource_name or acls.CLUSTER_NAME,
            acls.PatternType.PREFIXED if prefixed else acls.PatternType.LITERAL,
            f"User:{name}",
            "*",
            acls.Operation[operation],
            acls.Permission.ALLOW,
        )
        with redis.Redis.from_url(self.cluster.redis_url) as client:
            access.change_rules(client, "tidegate", org, [rule], [])


def apply_rules(port: int) -> None:
    """A broker reads the rules before it describes them."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
        ask(sock, request_type(17, 1)(mechanism="PLAIN"))
        ask(sock, request_type(36, 2)(auth_bytes=f"\0admin\0{PASSWORDS['admin']}".encode()))
        every = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
                 "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}  # fmt: skip
        ask(sock, request_type(29, 3)(**every))


def ask(sock: socket.socket, request: Any) -> None:
    """Send a request that must succeed."""
    sock.sendall(encode_request(request, 1))
    with sock.makefile("rb") as answers:
        frame = answers.read(int.from_bytes(answers.read(4)))
    _, answer = decode_response(int(type(request).__api_key__), int(type(request).__version__), frame)
    assert answer.error_code is ErrorCode.none, answer


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The brokers, with users made by `tidegate user`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys = tmp_path_factory.mktemp("issuer") / "keys.json"
    keys.write_text(json.dumps({"keys": [RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "k"}]}))
    settings = {
        "TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:SASL_PLAINTEXT",
        "TIDEGATE_SASL_ENABLED_MECHANISMS": ",".join((*MECHANISMS, "OAUTHBEARER")),
        "TIDEGATE_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL": keys.as_uri(),
        "TIDEGATE_SASL_OAUTHBEARER_ORG_CLAIM_NAME": "",
        "TIDEGATE_ACL_ENABLED": "true",
        "TIDEGATE_SUPER_USERS": "User:admin",
        "TIDEGATE_AUDIT_STREAM_BYTES": str(16 << 20),
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100",
    }
    with ForkedCluster(brokers=2, settings=settings) as cluster:
        found = Secured(cluster, key)
        for name, password in PASSWORDS.items():
            org = ("--org", ORGS[name]) if name in ORGS else ()
            found.command("user", "create", name, *org, "--password-file", "-", "--yes", stdin=password + "\n")
        yield found


def result(futures: dict[Any, Any]) -> None:
    """Wait for the admin call of one thing."""
    [future] = futures.values()
    future.result(WAIT_S)


def made_topic(secured: Secured, prefix: str = "orders") -> str:
    """A new topic of organisation default, made by a super user."""
    name = f"{prefix}-{uuid4().hex[:8]}"
    result(secured.admin().create_topics([NewTopic(name, 2, 1)]))
    return name


def code_of(call: Callable[[], Any]) -> int:
    """The error code that a call of librdkafka raises, 0 if none."""
    try:
        call()
    except KafkaException as error:
        code: int = error.args[0].code()
        return code
    return 0


def produced(producer: Producer, topic: str, partition: int = -1) -> int:
    """The error code of one record's delivery."""
    codes: list[int] = []
    try:
        producer.produce(
            topic, b"value", partition=partition,
            on_delivery=lambda error, _: codes.append(error.code() if error else 0),
        )  # fmt: skip
    except KafkaException as error:  # it remembers what it may not do
        return int(error.args[0].code())
    producer.flush(WAIT_S)
    return codes[0]


def consumed(options: dict[str, Any], group: str, topic: str) -> tuple[bytes | None, int]:
    """The first record, or the first error's code."""
    consumer = Consumer({**options, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                error = message.error()
                return (None, error.code()) if error else (message.value(), 0)
        raise AssertionError("neither a record nor an error")
    finally:
        consumer.close()


# -- authentication


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_librdkafka_authenticates(secured: Secured, mechanism: str) -> None:
    topic = made_topic(secured)
    secured.allow("alice", "DESCRIBE", f"topic:{topic}")
    client = AdminClient(secured.options("alice", mechanism))
    client.poll(0.1)

    assert topic in client.list_topics(timeout=WAIT_S).topics


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """aiokafka's source of tokens."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
async def test_aiokafka_produces_and_consumes(secured: Secured, mechanism: str) -> None:
    topic, group = made_topic(secured), f"group-{uuid4().hex[:8]}"
    for operation in ("READ", "WRITE"):
        secured.allow("alice", operation, f"topic:{topic}")
    secured.allow("alice", "READ", f"group:{group}")
    options: dict[str, Any] = {
        "bootstrap_servers": secured.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Tokens(secured.token("alice"))
    else:
        options |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORDS["alice"]}
    async with aiokafka.AIOKafkaProducer(**options, enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, b"value")
    consumer = aiokafka.AIOKafkaConsumer(topic, **options, group_id=group, auto_offset_reset="earliest")
    async with consumer:
        assert (await consumer.getone()).value == b"value"
        await consumer.commit()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_authenticates(secured: Secured, mechanism: str) -> None:
    topic = made_topic(secured)
    secured.allow("alice", "WRITE", f"topic:{topic}")
    producer = kafka.KafkaProducer(
        bootstrap_servers=secured.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORDS["alice"],
    )
    try:
        assert producer.send(topic, b"value").get(WAIT_S).offset >= 0
    finally:
        producer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "alice-s3cret")])
def test_wrong_credentials_are_refused_as_such(secured: Secured, mechanism: str, name: str, password: str) -> None:
    errors: list[KafkaError] = []
    client = AdminClient({**secured.options(name, mechanism, password), "error_cb": errors.append})

    with pytest.raises(KafkaException):
        client.list_topics(timeout=1.5)
    deadline = time.monotonic() + WAIT_S
    while KafkaError._AUTHENTICATION not in {error.code() for error in errors} and time.monotonic() < deadline:
        client.poll(0.2)
    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}


def test_client_without_sasl_gets_nothing(secured: Secured) -> None:
    client = AdminClient({"bootstrap.servers": secured.address})

    with pytest.raises(KafkaException):
        client.list_topics(timeout=1.5)


def test_passwords_and_tokens_are_in_no_log_and_no_key(secured: Secured) -> None:
    store = redis.Redis.from_url(secured.cluster.redis_url)
    held = b"".join(store.dump(key) or b"" for key in store.scan_iter("*"))
    logged = "".join(broker.log_path.read_text() for broker in secured.cluster.brokers)
    for password in (*PASSWORDS.values(), "alice-s3cret"):
        assert password.encode() not in held
        assert password not in logged
    assert "eyJ" not in logged


def test_users_by_the_admin_client(secured: Secured) -> None:
    """KIP-554: a super user creates a user, who can log in; then deletes it."""
    admin, name = secured.admin(), f"user-{uuid4().hex[:8]}"
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    result(admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, info, b"pass-word")]))

    described = admin.describe_user_scram_credentials([name])[name].result(WAIT_S)
    assert [one.iterations for one in described.scram_credential_infos] == [8192]
    AdminClient(secured.options(name, "SCRAM-SHA-256", "pass-word")).list_topics(timeout=WAIT_S)
    change = [UserScramCredentialUpsertion(name, info, b"another")]
    assert code_of(lambda: result(secured.admin("alice").alter_user_scram_credentials(change))) == 31


def test_administrator_cannot_become_a_super_user(secured: Secured) -> None:
    """ALTER of the cluster is the right to change users; not the super user's password, nor users of another org."""
    for name, org, forbidden in (("deputy", "default", "admin"), ("deputy-2", "acme", "alice")):
        words = ("user", "create", name, "--org", org, "--password-file", "-", "--yes")
        secured.command(*words, stdin="deputy-s3cret\n")
        secured.allow(name, "ALTER", "cluster", org=org)
        admin = AdminClient(secured.options(name, password="deputy-s3cret"))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        own, taken = (
            [UserScramCredentialUpsertion(user, info, b"taken-s3cret")] for user in (f"{name}-helper", forbidden)
        )

        result(admin.alter_user_scram_credentials(own))
        with pytest.raises(KafkaException) as refused:
            result(admin.alter_user_scram_credentials(taken))
        assert refused.value.args[0].code() == 31
    AdminClient(secured.options("admin")).list_topics(timeout=WAIT_S)


# -- the share consumer of `tidegate.share`


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
async def test_share_consumer_authenticates(secured: Secured, mechanism: Any) -> None:
    topic, group = made_topic(secured), f"share-{uuid4().hex[:8]}"
    for operation in ("READ", "WRITE"):
        secured.allow("alice", operation, f"topic:{topic}")
    secured.allow("alice", "READ", f"group:{group}")
    sasl = Sasl(mechanism, "alice", PASSWORDS["alice"], lambda: secured.token("alice"))
    producer = Producer(secured.options("alice"))
    async with ShareConsumer(secured.address, group=group, topics=[topic], sasl=sasl) as consumer:
        async with asyncio.timeout(WAIT_S):
            while not consumer.assignment:
                await consumer.poll(0.2)
            records = await consumer.poll(0.5)  # the group's start is the end of the log now
            assert await asyncio.to_thread(produced, producer, topic) == 0
            while not records:
                records = await consumer.poll(0.5)
        assert records[0].value == b"value"


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
async def test_share_consumer_with_wrong_credentials_is_refused(secured: Secured, mechanism: Any) -> None:
    sasl = Sasl(mechanism, "alice", "wrong", lambda: secured.token("alice", exp=time.time() - 600))
    with pytest.raises(ShareError) as refused:
        async with ShareConsumer(secured.address, group="g", topics=["t"], sasl=sasl):
            pass
    assert refused.value.code is ErrorCode.sasl_authentication_failed
    assert "wrong" not in repr(sasl)


# -- access


def test_produce_and_consume_need_rights(secured: Secured) -> None:
    mine, other = made_topic(secured), made_topic(secured, "secret")
    group = f"group-{uuid4().hex[:8]}"
    options = secured.options("alice")
    secured.allow("alice", "WRITE", "topic:orders-", prefixed=True)
    secured.allow("alice", "READ", f"topic:{mine}")
    producer = Producer(options)

    assert produced(producer, mine) == 0
    assert produced(producer, other) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(options, group, mine) == (None, KafkaError.GROUP_AUTHORIZATION_FAILED)
    secured.allow("alice", "READ", f"group:{group}")
    assert consumed(options, group, mine) == (b"value", 0)
    assert consumed(options, group, other) == (None, KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_one_request_is_answered_in_part(secured: Secured) -> None:
    """What is allowed of a request works, what is not has its own error: offsets of two topics in one request."""
    mine, other = made_topic(secured), made_topic(secured, "secret")
    secured.allow("carol", "READ", f"topic:{mine}")
    secured.allow("carol", "READ", "group:carols")
    consumer = Consumer({**secured.options("carol"), "group.id": "carols"})
    wanted = [TopicPartition(mine, 0, 3), TopicPartition(other, 0, 4), TopicPartition(mine, 1, 5)]
    try:
        with pytest.raises(KafkaException):
            consumer.commit(offsets=wanted, asynchronous=False)
        read = consumer.committed([TopicPartition(mine, 0), TopicPartition(other, 0)], timeout=WAIT_S)
    finally:
        consumer.close()

    assert {one.topic: one.error.code() if one.error else one.offset for one in read} == {
        mine: 3,
        other: KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }


def test_lists_show_what_may_be_described(secured: Secured) -> None:
    mine, other = made_topic(secured), made_topic(secured, "secret")
    name, own_group, other_group = "carol", f"own-{uuid4().hex[:8]}", f"hidden-{uuid4().hex[:8]}"
    secured.allow(name, "DESCRIBE", f"topic:{mine}")
    secured.allow(name, "DESCRIBE", f"group:{own_group}")
    for group in (own_group, other_group):
        consumer = Consumer({**secured.options("admin"), "group.id": group})
        consumer.commit(offsets=[TopicPartition(mine, 0, 0)], asynchronous=False)
        consumer.close()
    listed = secured.admin(name).list_topics(timeout=WAIT_S).topics
    groups = {one.group_id for one in secured.admin(name).list_consumer_groups().result(WAIT_S).valid}

    assert mine in listed
    assert other not in listed
    assert own_group in groups
    assert other_group not in groups


def test_rights_follow_rules_at_once_on_every_broker(secured: Secured) -> None:
    topic = made_topic(secured)
    producer = Producer({**secured.options("carol"), "enable.idempotence": False})

    def codes() -> set[int]:
        """Of both partitions, each at its leader."""
        return {produced(producer, topic, partition) for partition in range(2)}

    secured.add_rule("carol", "WRITE", f"topic:{topic}")
    deadline = time.monotonic() + WAIT_S
    while (found := codes()) != {0} and time.monotonic() < deadline:
        time.sleep(0.1)  # brokers are notified of rules
    assert found == {0}

    result(
        secured.admin().create_acls(
            [
                AclBinding(
                    ResourceType.TOPIC,
                    topic,
                    ResourcePatternType.LITERAL,
                    "User:carol",
                    "*",
                    AclOperation.WRITE,
                    AclPermissionType.DENY,
                )
            ]
        )
    )
    deadline = time.monotonic() + WAIT_S
    while (found := codes()) != {KafkaError.TOPIC_AUTHORIZATION_FAILED} and time.monotonic() < deadline:
        pass
    assert found == {KafkaError.TOPIC_AUTHORIZATION_FAILED}


def test_administration_needs_rights(secured: Secured) -> None:
    topic, admin = made_topic(secured), secured.admin("carol")
    rule = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:carol", "*", AclOperation.ALL, _ALLOW
    )
    refused = {
        "create": lambda: result(admin.create_topics([NewTopic(f"new-{topic}", 1, 1)])),
        "delete": lambda: result(admin.delete_topics([topic])),
        "grow": lambda: result(admin.create_partitions([NewPartitions(topic, 5)])),
        "configs": lambda: result(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])),
        "acls": lambda: result(admin.create_acls([rule])),
        "groups": lambda: result(admin.delete_consumer_groups(["somebodys"])),
    }

    assert {name: code_of(call) for name, call in refused.items()} == {
        "create": 29, "delete": 29, "grow": 29, "configs": 29, "acls": 31, "groups": 30,
    }  # fmt: skip
    secured.allow("carol", "CREATE", f"topic:new-{topic}")
    assert [code_of(refused["create"]) for _ in range(2)] == [0, KafkaError.TOPIC_ALREADY_EXISTS]


def test_orgs_are_isolated(secured: Secured) -> None:
    """Bob of acme has every right in his organisation, and uses the names of others without seeing them."""
    topic, group = made_topic(secured), f"group-{uuid4().hex[:8]}"
    for resource in ("topic:*", "group:*", "cluster"):
        secured.allow("bob", "ALL", resource, org="acme")
        secured.allow("olga", "ALL", resource)
    olga, bob = Producer(secured.options("olga")), Producer(secured.options("bob"))
    assert topic not in secured.admin("bob").list_topics(timeout=WAIT_S).topics

    assert produced(olga, topic) == 0
    result(secured.admin("bob").create_topics([NewTopic(topic, 1, 1)]))
    bob.produce(topic, b"bobs")
    bob.flush(WAIT_S)
    assert consumed(secured.options("bob"), group, topic) == (b"bobs", 0)
    assert consumed(secured.options("olga"), group, topic) == (b"value", 0)
    groups = secured.admin("bob").list_consumer_groups().result(WAIT_S).valid
    assert {one.group_id for one in groups} == {group}
    result(secured.admin("bob").delete_topics([topic]))
    assert topic in secured.admin("olga").list_topics(timeout=WAIT_S).topics


# -- limits of an organisation


@pytest.fixture
def umbrella(secured: Secured) -> Iterator[Callable[..., dict[str, Any]]]:
    """Options of a new user of organisation umbrella with every right; the limits set for it are removed."""
    words = ("user", "create", "erin", "--org", "umbrella", "--password-file", "-", "--yes")
    secured.command(*words, stdin="erin-s3cret\n")
    for resource in ("topic:*", "group:*", "cluster"):
        secured.allow("erin", "ALL", resource, org="umbrella")
    yield lambda: secured.options("erin", password="erin-s3cret")
    for row in json.loads(secured.command("quota", "list", "--output", "json")):
        if row["entity"] == "org=umbrella":
            secured.command("quota", "remove", row["entity"], row["quota"], "--yes")
    secured.command("user", "delete", "erin", "--yes")


def test_org_cannot_have_more_than_its_limits(secured: Secured, umbrella: Callable[..., dict[str, Any]]) -> None:
    admin, others = AdminClient(umbrella()), f"theirs-{uuid4().hex[:8]}"
    for quota, value in (("topics_max", "2"), ("partitions_max", "4")):
        secured.command("quota", "set", "org=umbrella", quota, value, "--yes")
    result(admin.create_topics([NewTopic("t", 2, 1)]))

    for only in (True, False):
        create, grow = [NewTopic("large", 3, 1)], [NewPartitions("t", 5)]
        for change, wanted in ((admin.create_topics, create), (admin.create_partitions, grow)):
            code = code_of(lambda: result(change(wanted, validate_only=only)))  # noqa: B023
            assert code == ErrorCode.policy_violation.value
    result(admin.create_topics([NewTopic("u", 2, 1)], validate_only=True))
    result(admin.create_topics([NewTopic("u", 2, 1)]))
    result(admin.delete_topics(["u"]))
    result(admin.create_topics([NewTopic("u", 1, 1)]))
    assert code_of(lambda: result(admin.create_topics([NewTopic("v", 1, 1)]))) == ErrorCode.policy_violation.value
    result(secured.admin().create_topics([NewTopic(others, 6, 1)]))

    secured.command("quota", "set", "org=umbrella", "log_bytes_max", "1", "--yes")
    code, ends = 0, time.monotonic() + 60
    while code == 0 and time.monotonic() < ends:
        code = produced(Producer(umbrella() | {"retries": 0}), "t")
    assert code == ErrorCode.kafka_storage_error.value
    assert produced(Producer(secured.options("admin")), others) == 0
    secured.command("quota", "remove", "org=umbrella", "log_bytes_max", "--yes")
    assert produced(Producer(umbrella()), "t") == 0  # retried until the next measurement


def test_org_connections_are_limited_over_all_brokers(
    secured: Secured, umbrella: Callable[..., dict[str, Any]]
) -> None:
    first = AdminClient(umbrella())
    assert len(first.list_topics(timeout=WAIT_S).brokers) == 2
    secured.command("quota", "set", "org=umbrella", "connections_max", "1", "--yes")
    refused, ends = False, time.monotonic() + 60
    while not refused and time.monotonic() < ends:
        refused = code_of(lambda: AdminClient(umbrella()).list_topics(timeout=3)) != 0

    assert refused
    assert AdminClient(secured.options("bob")).list_topics(timeout=WAIT_S).brokers
    secured.command("quota", "set", "org=umbrella", "connections_max", "50", "--yes")
    assert AdminClient(umbrella()).list_topics(timeout=WAIT_S).brokers


def test_acl_command_explains(secured: Secured, tmp_path: Path) -> None:
    secured.allow("dave", "READ", "topic:dave-", prefixed=True)
    secured.command("acl", "add", "User:dave", "ALL", "topic:dave-secret", "--deny", "--yes")

    shown = secured.command("acl", "explain", "User:dave", "DESCRIBE", "topic:dave-1")
    assert shown.startswith("allowed: ALLOW READ to User:dave")
    assert secured.command("acl", "explain", "User:dave", "READ", "topic:dave-secret", code=1).startswith(
        "denied: DENY"
    )
    secured.command("acl", "remove", "User:dave", "ALL", "topic:dave-secret", "--deny", "--yes")
    assert "dave-secret" not in secured.command("acl", "list")


def audited(secured: Secured, *, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first event of the audit that is wanted; they are written every 200 ms."""
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        events = json.loads(secured.command("audit", "-n", "10000", "--output", "json"))
        for event in events:
            if wanted(event):
                return event
        time.sleep(0.1)
    raise AssertionError("no such event in the audit")


def test_audit_has_changes_and_denials(secured: Secured) -> None:
    """Authentications, changes and denials of real clients, and no password in any of them."""
    topic = made_topic(secured, "audited")
    wrong = Producer(secured.options("alice", password="wrong-s3cret"))
    wrong.poll(2)
    with pytest.raises(KafkaException):
        result(secured.admin("carol").delete_topics([topic]))
    mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("dave", mechanism, password=b"dave-s3cret")
    result(secured.admin().alter_user_scram_credentials([change]))

    refused = audited(
        secured, wanted=lambda one: one.get("auth_protocol") == "SCRAM-SHA-512" and one["status"] == "Failure"
    )
    assert refused["class_uid"] == 3002 and refused["src_endpoint"]["ip"] == "127.0.0.1"
    created = audited(
        secured, wanted=lambda one: one.get("resources") == [{"type": "topic", "name": topic}]
        and one["api"]["operation"] == "create_topics",
    )  # fmt: skip
    assert (created["status"], created["actor"]["user"]["name"]) == ("Success", "User:admin")
    denied = audited(
        secured, wanted=lambda one: one["class_uid"] == 6003 and one["actor"]["user"]["name"] == "User:carol"
        and one["api"]["operation"] == "delete_topics",
    )  # fmt: skip
    assert (denied["status"], denied["status_detail"]) == ("Failure", "TOPIC_AUTHORIZATION_FAILED")
    account = audited(secured, wanted=lambda one: one["class_uid"] == 3001 and one["user"]["name"] == "User:dave")
    assert (account["activity_name"], account["actor"]["user"]["name"]) == ("Password Change", "User:admin")
    assert "s3cret" not in secured.command("audit", "-n", "10000", "--output", "json")
    assert "TOPIC_AUTHORIZATION_FAILED" in secured.command("audit", "--failed", "--user", "User:carol")
