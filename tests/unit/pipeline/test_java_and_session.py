"""Which Java is taken, and what a session is given unless somebody gave it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tidegate_pipeline import session
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.java import find_java, java_version


def a_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    program.chmod(0o755)
    return home


def test_fitting_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "java", "21.0.6")))

    assert find_java() == tmp_path / "java"


@pytest.mark.parametrize(("version", "reported"), [("11.0.22", "is 11"), ("1.8.0_402", "is 1"), (None, "is no Java")])
def test_another_java_is_named(
    version: str | None, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path if version is None else a_java(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))

    with pytest.raises(UsageError, match=rf"Java 17 or 21 \({home} {reported}\).*openjdk-17-jre-headless"):
        find_java()
    assert java_version(tmp_path / "nowhere") is None


@pytest.fixture
def no_spark_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine where nobody set anything; spark-defaults.conf would be in the folder."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    return tmp_path


def test_session_options_given_elsewhere_stay(no_spark_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session._given_elsewhere() == {}
    (no_spark_settings / "spark-defaults.conf").write_text(
        "# spark.ui.port 1\nspark.driver.memory   3g\nspark.sql.session.timeZone=Europe/Berlin\n\n"
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://m:7077 --conf spark.scheduler.mode=FIFO pyspark-shell")
    given = session._given_elsewhere()

    assert given == {
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.master": "spark://m:7077",
        "spark.scheduler.mode": "FIFO",
    }
    assert set(session._defaults(given)) == {
        "spark.sql.execution.arrow.maxBytesPerBatch",
        "spark.sql.parquet.outputTimestampType",
        "spark.sql.streaming.stateStore.providerClass",
        "spark.ui.showConsoleProgress",
    }


def test_workers_of_a_local_run_import_the_installed_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(pyspark.__file__).parent
    archives = sorted(map(str, (home / "python" / "lib").glob("*.zip")), reverse=True)
    assert len(archives) == 2, "pyspark.zip, then py4j"
    monkeypatch.setenv("WORKERS_PYTHON", "")
    python = session._worker_python({"spark.master": "local[2]"})
    observe = "import os, sys, pyspark, py4j; print(pyspark.__file__, py4j.__file__, os.getppid())"
    path = os.pathsep.join([*archives, "/jar", "/last"])

    reported = subprocess.run(
        [python, "-c", observe], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )

    assert reported.returncode == 0, reported.stderr
    assert ".zip" not in reported.stdout
    assert reported.stdout.split()[0] == pyspark.__file__
    assert int(reported.stdout.split()[-1]) == os.getpid(), "no shell is left between"
    assert session._worker_python({"spark.master": "spark://m:7077"}) == sys.executable
    monkeypatch.setattr("pyspark.find_spark_home._find_spark_home", lambda: "/")
    assert session._worker_python({"spark.master": "local"}) == sys.executable, "another Spark, perhaps another PySpark"


def test_local_run_fits_the_machine() -> None:
    assert session._defaults({"spark.master": "local[3]"})["spark.sql.shuffle.partitions"] == "3"
    assert session._defaults({"spark.master": "local[2,4]"})["spark.sql.shuffle.partitions"] == "2"
    assert session._defaults({"spark.master": "local"})["spark.sql.shuffle.partitions"] == "1"
    settings = session._defaults({})
    assert int(settings["spark.sql.shuffle.partitions"]) >= 1
    assert 1_024 <= int(settings["spark.driver.memory"].removesuffix("m")) <= 4_096


def test_pyspark_in_an_archive_of_spark_submit_has_workers_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__file__", "/opt/spark/python/lib/pyspark.zip/pyspark/__init__.py")

    assert session._worker_python({"spark.master": "local[2]"}) == sys.executable
