"""A standalone Spark cluster on loopback, from the pip package; and a Python that has our wheel, not our sources."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from pyspark.find_spark_home import _find_spark_home

from tests.support.valkey import free_port
from tidegate_pipeline.java import find_java

REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = 120


def python_of_the_wheel(folder: Path) -> Path:
    """A new virtual environment with both wheels of this tree; everything else is seen from the present one."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    for distribution in (REPOSITORY, REPOSITORY / "pipeline"):
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder / "wheels", distribution], check=True)
    python = python_without_us(folder / "with")
    wheels = sorted((folder / "wheels").glob("*.whl"))
    subprocess.run([*pip, "--python", python, "install", "-q", "--no-deps", *wheels], check=True)
    return python


def python_without_us(folder: Path) -> Path:
    """A new virtual environment that sees the packages of the present one, but not its editable install."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    return folder / "bin" / "python"


class SparkCluster:
    """A master and workers of one core each, every one a process group of its own."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._names = folder, [f"worker-{number}" for number in range(workers)]
        self._port, self._web_port = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{self._port}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SparkCluster:
        web = ["--webui-port", str(self._web_port)]
        try:
            self._start("master", "master.Master", "--port", str(self._port), *web)
            self._await_workers(0)
            for name in self._names:
                work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name)]
                self._start(name, "worker.Worker", "--webui-port", "0", *work, self.url)
            self._await_workers(len(self._names))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all of it."""
        for name in list(self._running):
            self.kill(name)

    def kill(self, name: str) -> None:
        """A worker with its executors, or the `master`; with SIGKILL."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self, name: str, role: str, *arguments: str) -> None:
        environment = {
            **{variable: value for variable, value in os.environ.items() if variable != "PYTHONPATH"},
            "JAVA_HOME": str(find_java()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        command = [f"{_find_spark_home()}/bin/spark-class", f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1"]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*command, *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def _await_workers(self, count: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline:
            try:
                with opener.open(f"http://127.0.0.1:{self._web_port}/json/", timeout=5) as page:
                    if json.load(page)["aliveworkers"] >= count:
                        return
            except (OSError, ValueError):
                pass  # not there yet, or not all of its pages
            time.sleep(0.2)
        log = (self._folder / "master.log").read_text()
        raise TimeoutError(f"{count} workers did not come in {START_TIMEOUT_S} s: {log[-2000:]}")
