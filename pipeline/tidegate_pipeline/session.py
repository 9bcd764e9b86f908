"""The Spark session of the pipeline: Java found, the settings that it needs, Spark's own talk in a file, the sources.

What is set here gives way to `settings`, to spark-submit and to spark-defaults.conf.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

STDERR: Final = Path("-")
"""As a log: what Spark prints stays on stderr."""
STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_SETTINGS: Final = {
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
    "spark.sql.execution.arrow.maxBytesPerBatch": "4194304",  # to Python: 10,000 rows of whole batches are a gigabyte
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default, INT96, loses the zone for others
    "spark.ui.showConsoleProgress": "false",
}
_WORKER_PYTHON: Final = Path(__file__).with_name("worker_python.sh")
_LOG_BYTES_MAX: Final = 16 << 20
_DRIVER_MEMORY_MIB: Final = (1_024, 4_096)


def spark_session(
    app_name: str, settings: Mapping[str, str] | None = None, master: str | None = None, log: Path | None = None
) -> SparkSession:
    """A session with the pipeline's sources: local, on a cluster (`spark://…`), or of a Connect server (`sc://…`).

    What the JVM and its Python workers print goes to the file `log` (default: `log_file()`) if this process starts
    them. Raises UsageError without Java, PipelineError if Spark does not start.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    remote = master if master is not None and master.startswith("sc://") else os.environ.get("SPARK_REMOTE")
    if remote:
        return register(SparkSession.builder.remote(remote).appName(app_name).getOrCreate())
    wanted = {**(settings or {}), **({"spark.master": master} if master else {})}
    if SparkContext._active_spark_context is None:
        _start(app_name, wanted, log or log_file())
    builder = SparkSession.builder
    for name, value in wanted.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def log_file() -> Path:
    """The default file for Spark's own output."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tidegate" / "spark.log"


def _start(app_name: str, wanted: Mapping[str, str], log: Path) -> None:
    from pyspark import SparkConf, SparkContext

    os.environ["JAVA_HOME"] = str(find_java())
    given = {**_given_elsewhere(), **wanted}
    # what runs here has the packages that workers need; the setting alone affects spark-submit only
    os.environ.setdefault("PYSPARK_PYTHON", given.get("spark.pyspark.python") or _worker_python(given))
    conf = SparkConf().setAppName(app_name)
    for name, value in {**_defaults(given), **wanted}.items():
        conf.set(name, value)
    gateway = None if SparkContext._gateway is not None else _gateway(conf, log, local=_is_local(given))
    SparkContext(conf=conf, gateway=gateway)


def _worker_python(given: Mapping[str, str]) -> str:
    """This Python; in a local run of the installed PySpark without Spark's archive of it, see the script."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    installed = Path(pyspark.__file__).parent.resolve() == Path(_find_spark_home()).resolve()
    if not (installed and _is_local(given) and os.access(_WORKER_PYTHON, os.X_OK)):
        return sys.executable
    os.environ["WORKERS_PYTHON"] = sys.executable
    return str(_WORKER_PYTHON)


def _defaults(given: Mapping[str, str]) -> dict[str, str]:
    """What is set unless given."""
    settings = dict(_SETTINGS)
    if _is_local(given):
        settings["spark.sql.shuffle.partitions"] = str(_cores(given.get("spark.master", "local[*]")))
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            settings["spark.driver.memory"] = f"{_driver_memory_mib()}m"
    return {name: value for name, value in settings.items() if name not in given}


def _is_local(given: Mapping[str, str]) -> bool:
    return given.get("spark.master", "local").startswith("local")


def _cores(master: str) -> int:
    reported = master.removeprefix("local").strip("[]").partition(",")[0] or "1"
    return int(reported) if reported.isdecimal() else os.cpu_count() or 1


def _driver_memory_mib() -> int:
    """A quarter of the machine, or of what its container may have: Python workers need the rest."""
    least, most = _DRIVER_MEMORY_MIB
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (reported := limit.read_text().strip()).isdecimal():
        total = min(total, int(reported))
    return max(least, min(most, total // 4 >> 20))


def _given_elsewhere() -> dict[str, str]:
    """What spark-submit, PYSPARK_SUBMIT_ARGS or spark-defaults.conf set."""
    from pyspark import SparkConf, SparkContext
    from pyspark.find_spark_home import _find_spark_home

    if "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None:
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    folder = os.environ.get("SPARK_CONF_DIR") or f"{_find_spark_home()}/conf"
    defaults = Path(folder) / "spark-defaults.conf"
    text = defaults.read_text() if defaults.is_file() else ""
    given = {name: value.strip() for name, value in re.findall(r"^\s*([^#\s=:]+)[\s=:]+(.+)$", text, re.MULTILINE)}
    for option, value in pairwise(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))):
        if option in ("--conf", "--master"):
            name, _, reported = value.partition("=") if option == "--conf" else ("spark.master", "=", value)
            given[name] = reported
    return given


def _gateway(conf: SparkConf, log: Path, *, local: bool) -> Any:
    """The JVM. At a terminal it is in a session of its own, so that Ctrl-C reaches the driver, not the workers."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # its ports and its UI are for this machine
    options: dict[str, object] = {"start_new_session": sys.stdin is not None and sys.stdin.isatty()}
    try:
        if log == STDERR:
            return launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        log.parent.mkdir(parents=True, exist_ok=True)
        size = log.stat().st_size if log.exists() else 0
        with log.open("ab" if size < _LOG_BYTES_MAX else "wb") as output:
            return launch_gateway(conf, {**options, "stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        where = "above" if log == STDERR else f"in {log}"
        raise PipelineError(f"Spark did not start, its error is {where}: {error}") from None


def register(spark: SparkSession) -> SparkSession:
    """Make the formats `tidegate…` known to a session, those of jobs too; `pyspark_tidegate…` are found without it."""
    from pyspark.errors import AnalysisException

    from tidegate_pipeline.archive.sink import ArchiveSink
    from tidegate_pipeline.replay.sink import ReplaySink
    from tidegate_pipeline.sources.events import EventsSource
    from tidegate_pipeline.sources.lag import LagSource
    from tidegate_pipeline.sources.topic_source import TopicSource
    from tidegate_pipeline.sources.usage import UsageSource

    sources = [ArchiveSink, EventsSource, LagSource, ReplaySink, TopicSource, UsageSource]
    if find_spec("deltalake") is not None:  # an extra of its own
        from tidegate_pipeline.tables.delta_sink import DeltaSink

        sources.append(DeltaSink)
    if find_spec("pyiceberg") is not None:
        from tidegate_pipeline.tables.iceberg import IcebergSink

        sources.append(IcebergSink)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # Spark refuses readers that take filters else
    spark.createDataFrame([], "none int")  # it is the active session now: there Spark looks whether a name is taken
    for source in sources:
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    return spark
