"""What the chart renders starts, serves a client in each address mode, answers its probes, and ends in its grace."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from bench.cluster import free_port
from tests.chart.pods import REPOSITORY, Pod, Secrets, can_unshare, run_job
from tests.chart.rendering import CHART, Document, environment, only, render
from tests.support.balancer import balancer
from tests.support.certificates import Authority
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.redis_access import connect

QUICK = "drain.noticeSeconds=2,drain.timeoutSeconds=10"


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    """A server without anything of a test before."""
    with connect(valkey.url) as client:
        client.flushall()
    return valkey.url


def started(
    stack: ExitStack, names: Sequence[str], directory: Path, *options: str, secrets: Secrets | None = None
) -> list[Pod]:
    """Pods of one release, ready, each at an address of its own."""
    documents = render(QUICK, *options)
    addresses = [f"127.0.0.{20 + number}" for number in range(len(names))]
    pods = [
        stack.enter_context(Pod(documents, name, address, directory, secrets))
        for name, address in zip(names, addresses, strict=True)
    ]
    for pod in pods:
        pod.wait_ready()
    return pods


def ports() -> str:
    """Ports that are free, for `--set`."""
    return f"listeners.internal.port={free_port()},admin.port={free_port()}"


def through_the_service(pods: Sequence[Pod], listener: str = "internal") -> str:
    """Where clients connect first: any of the pods."""
    return ",".join(f"{pod.address}:{pod.ports[listener]}" for pod in pods)


def reported(client: Any) -> set[tuple[str, int]]:
    """The brokers that a client knows."""
    return {(one.host, one.port) for one in client.cluster.brokers()}


async def there_and_back(bootstrap: str, pods: Sequence[Pod], **options: Any) -> set[tuple[str, int]]:
    """Records through brokers to a member of a group, while the first of the pods is stopped as a kubelet does it.

    The addresses that the client got before.
    """
    wanted = {f"record {number}".encode() for number in range(40)}
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, **options) as producer,
        AIOKafkaConsumer(
            "orders", bootstrap_servers=bootstrap, group_id="shop", auto_offset_reset="earliest", **options
        ) as consumer,
    ):
        for value in sorted(wanted)[:20]:
            await producer.send_and_wait("orders", value)
        observed = reported(producer.client)
        stopping = asyncio.create_task(asyncio.to_thread(pods[0].terminate))
        for value in sorted(wanted)[20:]:
            await producer.send_and_wait("orders", value)
            await asyncio.sleep(0.1)
        read: set[bytes] = set()
        async with asyncio.timeout(60):
            while read < wanted:
                read.add((await consumer.getone()).value)
        assert read == wanted
        assert await stopping == 0, pods[0].log
        await consumer.commit()  # its coordinator is found again: aiokafka does not end without one
    return observed


async def test_direct_by_addresses(redis_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pods = started(stack, ["test-a", "test-b", "test-c"], tmp_path, f"redis.url={redis_url}", ports())
        assert {pod.probe("liveness") for pod in pods} == {200}

        observed = await there_and_back(through_the_service(pods), pods)

        assert observed == {(pod.address, pod.ports["internal"]) for pod in pods}
        assert pods[0].probe("readiness") == 0
        assert "unknown_setting" not in pods[0].log
        assert pods[0].log.index("asked_to_drain") < pods[0].log.index("asked_to_stop"), "preStop came first"
        assert [pod.terminate() for pod in pods[1:]] == [0, 0]


def names_of_pods(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> list[str]:
    """What a cluster's DNS says of a StatefulSet: names that resolve from here on."""
    found = {
        f"{name}.test-tidegate-headless.streams.svc": f"127.0.0.{20 + number}" for number, name in enumerate(names)
    }
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: resolve(found.get(host, host), *rest, **more)
    )
    return list(found)


async def test_direct_by_names_with_tls_and_a_login(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["test-tidegate-0", "test-tidegate-1"]
    found = names_of_pods(monkeypatch, names)
    authority = Authority(tmp_path)
    certificate = authority.issue(
        "kafka", "*.test-tidegate-headless.streams.svc", "127.0.0.20", "127.0.0.21"
    ).read_text()
    user, password = "tidegate", "p@ss/word"
    with connect(redis_url) as client:
        client.execute_command("ACL", "SETUSER", user, "on", f">{password}", "~*", "&*", "+@all")
    options = [
        f"redis.hosts={{{redis_url.removeprefix('redis://').removesuffix('/0')}}}", f"redis.user={user}",
        "redis.passwordSecret.name=login", "workload=StatefulSet", "replicaCount=2", ports(),
        "listeners.internal.protocol=SSL", "tls.existingSecret=ours",
    ]  # fmt: skip
    secrets = {
        "login": {"password": quote(password, safe="")},
        "ours": {"tls.crt": certificate, "tls.key": certificate, "ca.crt": authority.file.read_text()},
    }
    with ExitStack() as stack:
        pods = started(stack, names, tmp_path, *options, secrets=secrets)

        security = {"security_protocol": "SSL", "ssl_context": authority.client()}
        observed = await there_and_back(through_the_service(pods), pods, **security)

        assert observed == {(name, pods[0].ports["internal"]) for name in found}
        with connect(redis_url) as client:
            assert {one["user"] for one in client.client_list()} == {user, "default"}


async def test_users_of_the_secret_log_in_over_tls(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["test-tidegate-0", "test-tidegate-1"]
    found = names_of_pods(monkeypatch, names)
    authority = Authority(tmp_path)
    certificate = authority.issue("kafka", "*.test-tidegate-headless.streams.svc", "127.0.0.20", "127.0.0.21")
    old, new = {"admin": "pass w/ord=1", "alice": "$(alice)"}, {"admin": "pass w/ord=2", "alice": "$(alice)"}
    secrets = {
        "kafka-tls": {"tls.crt": certificate.read_text(), "tls.key": certificate.read_text()},
        "kafka-users": old,
    }
    options = [str(CHART / "ci" / "sasl.yaml"), f"redis.url={redis_url}", "replicaCount=2", ports()]

    def login(user: str, password: str) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL", "ssl_context": authority.client(), "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": user, "sasl_plain_password": password,
        }  # fmt: skip

    async def refused(bootstrap: str, user: str, password: str) -> bool:
        """Whether the login is; another failure is raised."""
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **login(user, password))
        try:
            await producer.start()
        except KafkaConnectionError:  # of the last of the bootstrap addresses; the brokers' logs have the reason
            return True
        finally:
            await producer.stop()
        return False

    with ExitStack() as stack:
        pods = started(stack, names, tmp_path, *options, secrets=secrets)
        bootstrap = through_the_service(pods)
        assert await refused(bootstrap, "admin", old["admin"]), "no user exists before the Job has run"
        made = run_job(pods[0].documents, "test-tidegate-users", tmp_path / "install", secrets)
        assert made.returncode == 0, made.stdout + made.stderr

        assert await refused(bootstrap, "admin", old["alice"])
        assert await refused(bootstrap, "nobody", old["alice"])
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, **login("alice", old["alice"])) as producer:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("orders", b"no rule allows it")

        again = {**secrets, "kafka-users": new}
        changed = run_job(pods[0].documents, "test-tidegate-users", tmp_path / "upgrade", again)
        assert changed.returncode == 0, changed.stdout + changed.stderr
        assert await refused(bootstrap, "admin", old["admin"])
        observed = await there_and_back(bootstrap, pods, **login("admin", new["admin"]))

        assert observed == {(name, pods[0].ports["internal"]) for name in found}
        with connect(redis_url) as client:
            stored = client.hgetall("tidegate:{cluster}:users")
            assert {name: json.loads(record)["org"] for name, record in stored.items()} == {
                b"admin": "acme", b"alice": "acme",
            }  # fmt: skip
            assert client.hkeys("tidegate:{cluster}:topics") == [b"acme/orders"]
        written = "".join([made.stdout, made.stderr, changed.stdout, changed.stderr, *(pod.log for pod in pods)])
        assert "authentication_failed" in written
        assert [
            one for one in {*old.values(), *new.values()} if one in written or one.encode() in b"".join(stored.values())
        ] == []


async def test_single(redis_url: str, tmp_path: Path) -> None:
    balanced, listener = free_port(), free_port()
    options = [
        f"redis.url={redis_url}", ports(), f"listeners.balanced.port={listener},listeners.balanced.mode=single",
        f"listeners.balanced.protocol=PLAINTEXT,single.host=127.0.0.1,single.port={balanced}",
        "single.service.type=LoadBalancer", "secretsAsFiles=true",
    ]  # fmt: skip
    with ExitStack() as stack:
        pods = started(stack, ["test-a", "test-b"], tmp_path, *options)
        assert "TIDEGATE_REDIS_URL" not in pods[0].environment() and "unknown_setting" not in pods[0].log
        async with balancing(balanced, pods, "balanced"):
            observed = await there_and_back(f"127.0.0.1:{balanced}", pods)

        assert observed == {("127.0.0.1", balanced)}


async def test_external(redis_url: str, tmp_path: Path) -> None:
    if not can_unshare():
        pytest.skip("external mode looks at the hostname, and this user may not have another one (unshare --uts)")
    options = [
        f"redis.url={redis_url}", ports(), "replicaCount=3",
        f"listeners.outside.port={free_port()},listeners.outside.mode=external,listeners.outside.protocol=PLAINTEXT",
        "external.hostTemplate=127.0.0.2{ordinal}",
    ]  # fmt: skip
    with ExitStack() as stack:
        pods = started(stack, [f"test-tidegate-{ordinal}" for ordinal in range(3)], tmp_path, *options)

        observed = await there_and_back(through_the_service(pods, "outside"), pods)

        assert observed == {(f"127.0.0.2{ordinal}", pods[0].ports["outside"]) for ordinal in range(3)}


def test_helm_test_passes(redis_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        (pod,) = started(stack, ["test-a"], tmp_path, f"redis.url={redis_url}", ports())
        tester = container_of(pod.documents, "Pod")
        arguments = [word.replace("test-tidegate-bootstrap.streams.svc", pod.address) for word in tester["args"]]

        done = subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
        )

    assert done.returncode == 0, done.stderr
    assert "the same 16 bytes" in done.stdout


@pytest.mark.parametrize(("policy", "status"), [("noeviction", 0), ("allkeys-lru", 1)])
def test_upgrade_is_refused_where_brokers_would_not_start(policy: str, status: int, tmp_path: Path) -> None:
    server = ValkeyServer(["--maxmemory-policy", policy])
    try:
        checker = container_of(render(f"redis.url={server.url}"), "Job")
        command = [word.replace("tidegate ", f"{sys.executable} -m tidegate ") for word in checker["command"]]
        variables = {"TIDEGATE_REDIS_URL": server.url}
        assert set(environment(checker)) == {*variables, "TIDEGATE_LOG_FORMAT", "TIDEGATE_LOG_LEVEL"}

        done = subprocess.run(
            command, cwd=REPOSITORY, env=os.environ | variables, capture_output=True, text=True, timeout=60
        )
    finally:
        server.stop()

    assert done.returncode == status, done.stdout + done.stderr
    assert policy in done.stdout


def container_of(documents: Sequence[Document], kind: str) -> Document:
    """The container of the one Job or Pod of a release."""
    spec = only(documents, kind)["spec"]
    (container,) = spec.get("template", {"spec": spec})["spec"]["containers"]
    return container


def balancing(port: int, pods: Sequence[Pod], listener: str) -> AbstractAsyncContextManager[int]:
    """What a Service's load balancer does: each connection to the next pod that is ready."""
    connections = itertools.count()

    async def next_pod() -> tuple[str, int]:
        ready = [pod for pod in pods if await asyncio.to_thread(pod.probe, "readiness") == 200]
        pod = ready[next(connections) % len(ready)]
        return pod.address, pod.ports[listener]

    return balancer(next_pod, port=port)
