"""A master and two workers, the wheel alone: a topic is read on both, also when one is killed amid its task."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark_cluster import SparkCluster, python_of_the_wheel, python_without_us
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.redis_access import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECORDS = 20_000
DRIVER = Path(__file__).with_name("cluster_driver.py")


@pytest.fixture(scope="module")
def python(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What runs driver and executors."""
    return python_of_the_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def topic(valkey: ValkeyServer) -> Iterator[str]:
    """The address of a server with a topic of two partitions."""
    client = connect(valkey.url)
    client.flushall()
    client.hset("tidegate:{cluster}:info", "coordinator_shards", 1)
    written = WrittenTopic(client, "orders", 2)
    for partition in range(2):
        written.fill([100] * (RECORDS // 200), partition)
    yield valkey.url
    client.close()


def started(python: Path, folder: Path, arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    """A process of the wheel's Python, outside of the tree."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [python, *arguments], cwd=folder, env={**inherited, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def places(folder: Path) -> dict[str, dict[str, str]]:
    """What the tasks that began have reported: `<partition>-<attempt>` -> where they run."""
    began = {path.name.removeprefix("began-"): path.read_text() for path in folder.glob("began-*")}
    return {name: json.loads(text) for name, text in began.items() if text}


def test_worker_killed_amid_its_task_costs_no_record(python: Path, topic: str, tmp_path: Path) -> None:
    with SparkCluster(tmp_path, 2) as cluster:
        driver = started(python, tmp_path, [str(DRIVER), cluster.url, topic, str(tmp_path)])
        try:
            while len(places(tmp_path)) < 2:
                assert driver.poll() is None, driver.communicate()
                time.sleep(0.1)
            workers = {task: Path(place["cwd"]).parents[1].name for task, place in places(tmp_path).items()}
            assert sorted(workers.values()) == ["worker-0", "worker-1"], "one task on each"
            cluster.kill("worker-1")
            (tmp_path / "go").touch()
            reported, errors = driver.communicate(timeout=400)
        finally:
            driver.kill()
    assert driver.returncode == 0, f"{errors}\n{(tmp_path / 'driver.log').read_text()[-3000:]}"
    result: dict[str, Any] = json.loads(reported)

    expected = sum(range(RECORDS // 2)) * 2
    assert (result["rows"], result["offsets"]) == (RECORDS, expected)
    assert (result["table"], result["distinct"]) == (RECORDS, RECORDS)
    assert result["micro_batches"] > 2
    cut_off = next(task.split("-")[0] for task, worker in workers.items() if worker == "worker-1")
    again = {task: place for task, place in places(tmp_path).items() if task == f"{cut_off}-1"}
    assert [Path(place["cwd"]).parents[1].name for place in again.values()] == ["worker-0"]
    packages = {result["package"], *(place["package"] for place in places(tmp_path).values())}
    assert {Path(package).parents[4] for package in packages} == {python.parents[1]}, "from the wheel, nowhere else"


def test_doctor_on_a_cluster(python: Path, topic: str, tmp_path: Path) -> None:
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.driver.memory": "512m", "spark.executor.memory": "512m",
    }  # fmt: skip

    def doctor(**more: str) -> tuple[int, dict[str, str]]:
        spark = json.dumps({**settings, **more, "spark.master": cluster.url})
        process = started(
            python, tmp_path, ["-m", "tidegate", "pipeline", "doctor", "--json"], TIDEGATE_REDIS_URL=topic,
            TIDEGATE_PIPELINE_SPARK=spark, TIDEGATE_PIPELINE_ARCHIVE_PATH=str(tmp_path / "archive"),
            TIDEGATE_PIPELINE_LOG_PATH=str(tmp_path / "doctor.log"),
        )  # fmt: skip
        reported, errors = process.communicate(timeout=250)
        assert reported, errors
        findings = json.loads(reported)["findings"]
        return process.returncode, {f"{one['severity']} {one['what']}": one["reported"] for one in findings}

    with SparkCluster(tmp_path, 2) as cluster:
        status, reported = doctor()
        assert status == 0, reported
        assert reported["ok executors"].startswith("2: ")
        assert {"ok archive", "ok clocks", "ok packages", "ok sources"} <= set(reported)

        status, reported = doctor(**{"spark.pyspark.python": str(python_without_us(tmp_path / "without"))})
        assert status == 1
        assert "No module named" in reported["error tidegate"]
        assert "No module named" in reported["error sources"]
