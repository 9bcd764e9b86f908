"""One Spark for all tests of the folder; `spark` is a session of its own in it. Skipped where Java is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.jars import PeerUnavailable, connector_jars
from tests.support.iceberg import catalog_environment
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.java import find_java
from tidegate_pipeline.session import register, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def java() -> Path:
    """Where Java is; what needs it is skipped where it is missing."""
    try:
        return find_java()
    except UsageError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark_process(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The JVM and its first session: local[2], loopback, no UI; its workers know the Iceberg catalog `lake`."""
    os.environ.update(catalog_environment(tmp_path_factory.mktemp("iceberg")))
    session = spark_session(
        "tests",
        {
            "spark.driver.memory": "1g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
        master="local[2]",
        log=tmp_path_factory.mktemp("spark") / "spark.log",
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def spark(spark_process: SparkSession) -> SparkSession:
    """Own temporary views and settings, the shared JVM."""
    return register(spark_process.newSession())


@pytest.fixture(scope="session")
def jars() -> list[str]:
    """The connector's jars."""
    try:
        return connector_jars().split(",")
    except PeerUnavailable as unavailable:
        pytest.skip(str(unavailable))


@pytest.fixture
def both(spark: SparkSession, jars: list[str]) -> SparkSession:
    """A session that knows both formats."""
    for jar in jars:
        spark.sql(f"ADD JAR {jar}")
    return spark
