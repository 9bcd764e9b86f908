"""The doctor, on the test's own Spark and server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.valkey import ValkeyServer
from tidegate_pipeline.doctor.examination import all_findings
from tidegate_pipeline.doctor.findings import CheckStatus
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_doctor_checks_everything(spark: SparkSession, valkey: ValkeyServer, tmp_path: Path) -> None:
    client = connect(valkey.url)
    client.flushall()
    client.hset("tidegate:{cluster}:info", "coordinator_shards", 1)
    (tmp_path / "a file").touch()
    settings = PipelineSettings.model_validate(
        {
            "redis": {"url": valkey.url},
            "archive": {"path": str(tmp_path / "archive")},
            "checkpoint": {"path": str(tmp_path / "a file" / "below")},
        }
    )
    found = all_findings(spark, settings)
    reported = {one.what: one for one in found}

    assert {one.what for one in found if one.severity is CheckStatus.ERROR} == {"checkpoint"}
    driver, executors = (one.reported for one in found if one.what == "checkpoint")
    assert "driver: " in driver and "a file/below" in driver
    assert "the file that it left is not here" in executors
    assert reported["archive"].reported == f"{tmp_path / 'archive'} can be written"
    assert list((tmp_path / "archive").iterdir()) == []
    assert reported["executors"].reported.startswith("1: ")
    assert reported["clocks"].severity is CheckStatus.OK
    assert "tidegate-events" in reported["sources"].reported
    assert "persistence" in reported
