"""Through Spark Connect: the same smoke test, from a client that has no JVM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer, free_port
from tidegate_pipeline.redis_access import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("connect_driver.py")


@pytest.fixture
def server(java: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a Connect server on loopback, with Spark of two cores."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [f"{_find_spark_home()}/bin/spark-submit", "--master", "local[2]"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {"JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_topic_is_read_through_connect(server: str, valkey: ValkeyServer, tmp_path: Path) -> None:
    client = connect(valkey.url)
    client.flushall()
    client.hset("tidegate:{cluster}:info", "coordinator_shards", 1)
    topic = WrittenTopic(client, "orders", 2)
    for partition in range(2):
        topic.fill([50] * 10, partition)
    client.close()

    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_REMOTE")}
    ran = subprocess.run(
        [sys.executable, str(DRIVER), server, valkey.url, str(tmp_path)],
        env={**environment, "PATH": "/nowhere"}, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[:6000]
    reported = json.loads(ran.stdout)

    assert reported["client"] == "pyspark.sql.connect.session.SparkSession"
    assert (reported["records"], reported["values"], reported["ended"]) == (500, ["v", "v"], True)
    assert reported["table"] == 1_000
    assert reported["micro_batches"] > 2
    assert reported["events"] == 0
