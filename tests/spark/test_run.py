"""`tidegate pipeline run` as a process: two jobs, a signal, a restart, a failure with its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.redis_access import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILE = """
[archive]
path = "{folder}/archive"
[checkpoint]
path = "{folder}/checkpoints"
[log]
path = "{folder}/spark.log"
[spark]
master = "local[2]"
driver.memory = "1g"
ui.enabled = false
[jobs.orders]
verb = "decode"
topic = "orders"
{every}
[jobs.timeline]
{every}
"""


def begun(folder: Path, url: str, *, every: str = "") -> subprocess.Popen[str]:
    """The process, its settings in a file."""
    (folder / "pipeline.toml").write_text(FILE.format(folder=folder, every=every))
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate", "pipeline", "run", "--config", str(folder / "pipeline.toml"), "--json"],
        env={**os.environ, "TIDEGATE_REDIS_URL": url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """Its status, the summaries by job, what it said."""
    reported, reported_text = process.communicate(timeout=400)
    return process.returncode, {one["job"]: one for one in json.loads(reported or "[]")}, reported_text


def committed(folder: Path, topic_job: str, batch: int) -> bool:
    """Whether a micro-batch of a job is in its commit log."""
    return (folder / "checkpoints" / topic_job / "commits" / str(batch)).exists()


def records(folder: Path) -> int:
    """Rows of the decoded table, of the files that its log names."""
    logs = (folder / "archive" / "table" / "orders" / "_spark_metadata").glob("[0-9]*")
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
    return sum(pq.read_metadata(json.loads(line)["path"].removeprefix("file://")).num_rows for line in lines)


@pytest.mark.usefixtures("java")
def test_jobs_of_a_file_stop_resume_and_fail(valkey: ValkeyServer, tmp_path: Path) -> None:
    client = connect(valkey.url)
    client.flushall()
    client.hset("tidegate:{cluster}:info", "coordinator_shards", 1)
    topic = WrittenTopic(client, "orders", 1)
    topic.fill([10] * 10)

    process = begun(tmp_path, valkey.url, every='every = "1s"')
    while not (committed(tmp_path, "decode-orders-parquet", 0) and committed(tmp_path, "timeline", 0)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    status, summaries, reported_text = ended(process)
    assert (status, {one["status"] for one in summaries.values()}) == (0, {"stopped"}), reported_text
    assert summaries["decode-orders-parquet"]["ranges"] == {"orders-0": [0, 100]}
    assert "stopping after the running micro-batch" in reported_text
    assert (records(tmp_path), "WARN" in reported_text) == (100, False)

    topic.fill([10])
    status, summaries, reported_text = ended(begun(tmp_path, valkey.url))
    assert (status, {one["status"] for one in summaries.values()}) == (0, {"done"}), reported_text
    assert summaries["decode-orders-parquet"]["ranges"] == {"orders-0": [100, 110]}
    assert records(tmp_path) == 110

    topic.fill([10] * 3)
    topic.raise_log_start(130)
    process = begun(tmp_path, valkey.url, every='every = "1s"')
    status, summaries, reported_text = ended(process)
    client.close()
    assert status == 3, reported_text
    assert (summaries["decode-orders-parquet"]["status"], summaries["timeline"]["status"]) == ("failed", "stopped")
    assert "decode-orders-parquet failed, stopping timeline" in reported_text
    assert reported_text.splitlines()[-1].startswith(
        "tidegate: topic orders partition 0: offset 110 is wanted and is gone"
    )
    assert records(tmp_path) == 110
