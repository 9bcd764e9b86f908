"""The archive in an object store that speaks S3: written, read cold by a client through brokers, restored."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from pyarrow import fs

from bench.cluster import free_port
from tests.conformance.test_cold_clients import PARTITIONS, SMALL_AND_QUICK, Tiered, given_tiered
from tests.kit.forked_cluster import ForkedCluster
from tests.support.plain_archive import archive_topic
from tidegate_pipeline.archive.segment_writer import Shape
from tidegate_pipeline.jobs.history_job import table_path
from tidegate_pipeline.settings import PipelineSettings

pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[s3]' flask-cors")
pytest.importorskip("flask_cors", reason="flask-cors is not installed: moto's server needs it")

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder of a bucket, as `archive.path` takes it; credentials in the environment."""
    port = free_port()
    with (tmp_path_factory.mktemp("s3") / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        try:
            wait_for(port)
            store = fs.S3FileSystem(
                endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
            )
            store.create_dir("archive")
            yield f"s3://archive/tier?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
        finally:
            server.terminate()
            server.wait(60)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the store does not start"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def tiered(uri: str) -> Iterator[Tiered]:
    with ForkedCluster(brokers=2, settings={"TIDEGATE_ARCHIVE_PATH": uri}, constants=SMALL_AND_QUICK) as cluster:
        yield given_tiered(cluster, uri)


@pytest.mark.timeout(400)
async def test_client_reads_what_only_the_store_has_and_it_is_restored(tiered: Tiered, uri: str) -> None:
    assert all(start > 0 for start in tiered.local_starts)
    tiered.check(await read_all(tiered))

    reported = await asyncio.to_thread(tidegate, tiered, uri, "verify", tiered.topic, "--json")
    assert json.loads(reported)["problems"] == []
    reported = await asyncio.to_thread(
        tidegate, tiered, uri, "restore", "--topic", tiered.topic, "--from", "0", "--anyway", "--json"
    )
    assert [row["from"] for row in json.loads(reported)] == [0] * PARTITIONS
    archive_topic(tiered.cluster.redis_url, tiered.topic, uri, Shape())
    tiered.check(await read_all(tiered))


async def read_all(tiered: Tiered) -> list[tuple[int, int, tuple[object, ...]]]:
    """Every partition from offset 0, as aiokafka has it."""
    consumer = AIOKafkaConsumer(bootstrap_servers=tiered.cluster.bootstrap, enable_auto_commit=False)
    await consumer.start()
    places = [TopicPartition(tiered.topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)
    found: list[tuple[int, int, tuple[object, ...]]] = []
    async with asyncio.timeout(120):
        while len(found) < tiered.count:
            for place, records in (await consumer.getmany(timeout_ms=1_000)).items():
                found += [
                    (place.partition, one.offset, (one.key, one.value, list(one.headers), one.timestamp))
                    for one in records
                ]
    await consumer.stop()
    return found


def tidegate(tiered: Tiered, uri: str, *words: str) -> str:
    """The output of `tidegate pipeline WORDS`."""
    environment = {"TIDEGATE_REDIS_URL": tiered.cluster.redis_url, "TIDEGATE_ARCHIVE_PATH": uri}
    reported = subprocess.run(
        [sys.executable, "-m", "tidegate", "pipeline", *words],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert reported.returncode == 0, reported.stderr
    return reported.stdout


def test_tables_are_below_the_path_not_behind_its_query(uri: str, tmp_path: Path) -> None:
    for path, below in ((uri, uri.replace("/tier?", "/tier/lag?")), (str(tmp_path), f"{tmp_path}/lag")):
        assert table_path(PipelineSettings.model_validate({"archive": {"path": path}}), "lag") == below
