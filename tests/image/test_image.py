"""The image is built without cache, started as a cluster would start it, talked to by a Kafka client, and stopped."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.image.engines import REPOSITORY, Engine, EngineMissing, Image, engine, run
from tests.support.compose import services
from tests.support.valkey import ValkeyServer, free_port
from tidegate import __version__

pytestmark = pytest.mark.timeout(3_600)

STARTED_S = 60.0
DRAINED_S = 40.0
ARCHIVED_S = 900.0


@pytest.fixture(scope="module")
def builder() -> Iterator[Engine]:
    """Docker or buildah; skipped where neither works."""
    try:
        found = engine()
    except EngineMissing as reason:
        pytest.skip(str(reason))
    yield found
    found.close()


@pytest.fixture(scope="module")
def image(builder: Engine) -> Image:
    """The broker's image, built from nothing; says how long that took and how large it is."""
    return reported(builder, "broker")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder that any user may write to."""
    tmp_path.chmod(0o777)
    return tmp_path


def reported(builder: Engine, target: str, **arguments: str) -> Image:
    """A built target, its size and time printed."""
    began = time.monotonic()
    made = builder.build(target, **arguments)
    print(f"\n{target} by {builder.name}: {made.size_bytes / 1e6:.0f} MB, {time.monotonic() - began:.0f} s")
    return made


def outcome(image: Image, *command: str, **environment: str) -> tuple[int, str]:
    """Exit status and output of a command in a container of its own."""
    process = image.start(command, environment)
    description, _ = process.communicate(timeout=STARTED_S)
    return process.returncode, description


def on_loopback(redis: ValkeyServer, port: int, admin_port: int) -> dict[str, str]:
    """Settings of a broker that nobody outside this machine reaches."""
    return {
        "TIDEGATE_REDIS_URL": redis.url,
        **{"TIDEGATE_HOST": "127.0.0.1", "TIDEGATE_PORT": str(port)},
        **{"TIDEGATE_ADMIN_HOST": "127.0.0.1", "TIDEGATE_ADMIN_PORT": str(admin_port)},
    }


def normalised(kind: str, name: str) -> str:
    """A package's name as package URLs have it: PyPI's are the same in either case and with any of `-_.`."""
    return re.sub(r"[-_.]+", "-", name).lower() if kind == "pypi" else name


def until_healthy(image: Image, broker: subprocess.Popen[str], **environment: str) -> None:
    """Ask as an engine does, by the image's own HEALTHCHECK, until it says yes."""
    check = image.config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    deadline = time.monotonic() + STARTED_S
    while (last := outcome(image, *check[1:], **environment))[0] != 0:
        assert broker.poll() is None, broker.communicate()[0]
        assert time.monotonic() < deadline, last[1]


def test_image_labels_describe_it(image: Image) -> None:
    labels = image.config["Labels"]

    assert image.config["User"] == "10001:10001"
    assert image.config["Entrypoint"] == ["tidegate"]
    assert image.config["Cmd"] == ["serve"]
    assert set(image.config["ExposedPorts"]) == {"9092/tcp", "8080/tcp"}
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_image_runs_as_an_unprivileged_user_and_writes_nowhere(image: Image) -> None:
    written = "for path in / /opt/tidegate /etc /archive; do touch $path/x 2>/dev/null && echo wrote $path; done"
    status, description = outcome(
        image, "sh", "-c", f"id -u; {written}; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status"
    )

    assert description.split() == ["10001", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"], description
    assert status == 0


def test_image_contains_no_build_tools(image: Image) -> None:
    status, description = outcome(image, "sh", "-c", "command -v pip pip3 gcc cc make git; python -m pip --version")

    assert status != 0
    assert "No module named pip" in description
    assert len(description.splitlines()) == 1, description


def test_image_has_version_and_extras(image: Image) -> None:
    assert outcome(image, "tidegate", "--version") == (0, f"{__version__}\n")
    assert outcome(image, "python", "-c", "import pyarrow")[0] != 0, "the archive's reader is an extra"


def test_bill_of_materials_names_what_the_image_reports(builder: Engine, image: Image, tmp_path: Path) -> None:
    dpkg = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} deb ${Package} ${Version}\n"]
    names = "import importlib.metadata as m; [print('installed pypi', d.name, d.version) for d in m.distributions()]"
    reports = outcome(image, *dpkg)[1] + outcome(image, "python", "-c", names)[1]
    run("make", "-C", str(REPOSITORY), "sbom", f"IMAGE={image.files(tmp_path)}", f"BASE={builder.base}")

    components = json.loads((REPOSITORY / "build/sbom/image.cdx.json").read_text())["components"]

    packages = re.findall(r"^installed (deb|pypi) (\S+) (\S+)$", reports, re.MULTILINE)
    assert {"deb", "pypi"} == {kind for kind, _, _ in packages}
    assert sorted(
        (kind, one["name"], one["version"])
        for one in components
        if (kind := one["purl"].partition("/")[0].removeprefix("pkg:")) != "generic"
    ) == sorted((kind, normalised(kind, name), version) for kind, name, version in packages)


async def test_client_produces_and_consumes_and_sigterm_drains(image: Image) -> None:
    redis, port = ValkeyServer(), free_port()
    environment = on_loopback(redis, port, free_port())
    assert outcome(image, *image.config["Healthcheck"]["Test"][1:], **environment)[0] != 0, "nobody is there yet"
    began = time.monotonic()
    broker = image.start([*image.config["Entrypoint"], *image.config["Cmd"]], environment)
    try:
        until_healthy(image, broker, **environment)
        print(f"\nhealthy after {time.monotonic() - began:.1f} s")
        async with AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", enable_idempotence=True) as producer:
            for number in range(100):
                await producer.send_and_wait("greetings", str(number).encode())
        async with AIOKafkaConsumer(
            "greetings", bootstrap_servers=f"127.0.0.1:{port}", group_id="readers", auto_offset_reset="earliest"
        ) as consumer:
            read = [int((await consumer.getone()).value) for _ in range(100)]
        broker.send_signal(signal.SIGTERM)
        description, _ = broker.communicate(timeout=DRAINED_S)
    finally:
        broker.kill()
        broker.wait()
        redis.stop()

    assert read == list(range(100))
    assert broker.returncode == 0, description
    assert '"event": "drained"' in description
    assert "Traceback" not in description


def test_two_builds_have_the_same_layers(builder: Engine, image: Image) -> None:
    if not builder.reproducible:
        pytest.skip("docker keeps file times unless it exports with rewrite-timestamp=true: docs/deploy-compose.md")

    assert reported(builder, "broker").layers == image.layers


@pytest.mark.slow
async def test_pipeline_archives_and_brokers_read_it_as_compose_starts_them(builder: Engine, archive: Path) -> None:
    pipeline, image = reported(builder, "pipeline"), reported(builder, "broker", EXTRAS="archive")
    assert pipeline.config["User"] == image.config["User"] == "10001:10001"
    volumes = {"/archive": archive, "/compose": REPOSITORY / "compose"}
    redis, port, admin_port = ValkeyServer(), free_port(), free_port()
    environment = {
        **on_loopback(redis, port, admin_port),
        "TIDEGATE_ARCHIVE_PATH": "/archive",
    }
    lake = services()["lake"]
    jobs = {**lake["environment"], "TIDEGATE_REDIS_URL": redis.url, "SPARK_LOCAL_IP": "127.0.0.1"}
    serve = [*image.config["Entrypoint"], *image.config["Cmd"]]
    broker = image.start(serve, environment, volumes)
    job = pipeline.start([*pipeline.config["Entrypoint"], *lake["command"]], jobs, volumes)
    try:
        until_healthy(image, broker, **environment)
        await written(f"127.0.0.1:{port}", "orders", {"remote.storage.enable": "true", "local.retention.ms": "1000"})
        deadline = time.monotonic() + ARCHIVED_S
        while not await read_from_files(f"127.0.0.1:{port}", "orders", admin_port):
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < deadline
            await asyncio.sleep(10)
            broker.send_signal(signal.SIGTERM)  # what it has seen it would not read from a file
            description, _ = broker.communicate(timeout=DRAINED_S)
            assert broker.returncode == 0, description
            broker = image.start(serve, environment, volumes)
            until_healthy(image, broker, **environment)
        job.send_signal(signal.SIGTERM)
        description, _ = job.communicate(timeout=ARCHIVED_S)
    finally:
        for one in (job, broker):
            one.kill()
            one.wait()
        redis.stop()

    assert job.returncode == 0, description


async def written(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    """A topic with these configs and a hundred records."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(100):
            await producer.send_and_wait(topic, str(number).encode())


async def read_from_files(bootstrap: str, topic: str, admin_port: int) -> bool:
    """Read all of a topic, which must be there; whether a broker opened files for that."""
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        read = [int((await consumer.getone()).value) for _ in range(100)]
    assert read == list(range(100))
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{admin_port}/metrics") as response:
        counted = re.search(r"^tidegate_cold_reads_total\S* ([\d.]+)$", await response.text(), re.MULTILINE)
    return counted is not None and float(counted[1]) > 0
