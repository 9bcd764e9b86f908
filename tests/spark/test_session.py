"""The session that everything else runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_pipeline.session import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_runs_arrow_python(spark: SparkSession) -> None:
    assert spark.range(10).mapInArrow(lambda batches: batches, "id long").count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_session_may_be_asked_for_twice(spark: SparkSession) -> None:
    assert register(register(spark)) is spark
