"""Spark on Kubernetes without a cluster: the documented command makes a driver, the entry point starts executors."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.support.kubernetes_api import KubernetesApi, Resource
from tests.support.spark_cluster import REPOSITORY, python_of_the_wheel
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.redis_access import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def image(java: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of the image's environment, over a folder laid out as the Dockerfile does."""
    root = tmp_path_factory.mktemp("image")
    python = python_of_the_wheel(root)
    (root / "spark").mkdir()
    for part in Path(_find_spark_home()).iterdir():
        (root / "spark" / part.name).symlink_to(part)
    (root / "tidegate-command.py").symlink_to(python.with_name("tidegate"))
    path = f"{python.parent}:{java / 'bin'}:{os.environ['PATH']}"
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    return inherited | {
        "PATH": path, "SPARK_HOME": str(root / "spark"), "PYSPARK_PYTHON": str(python), "JAVA_HOME": str(java),
        "TIDEGATE_PIPELINE_LOG_PATH": "-",
    }  # fmt: skip


def submit(image: dict[str, str], arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """spark-submit."""
    return subprocess.run(
        [f"{image['SPARK_HOME']}/bin/spark-submit", *arguments], env=image | environment, cwd="/",
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip


def test_documented_command_makes_a_driver(image: dict[str, str]) -> None:
    page = (REPOSITORY / "docs" / "pipeline.md").read_text()
    (command,) = re.findall(r"^spark-submit \\\n(?:  .*\\\n)+  .*$", page, re.MULTILINE)
    with KubernetesApi() as api:
        words = shlex.split(command.replace("\\\n", " "))[1:]
        words = [f"k8s://{api.url}" if word.startswith("k8s://") else word for word in words]
        ran = submit(image, ["--conf", "spark.kubernetes.submission.waitAppCompletion=false", *words])
    assert ran.returncode == 0, ran.stderr[-3000:]
    (driver,) = api.made["pods"].values()

    (container,) = driver["spec"]["containers"]
    assert container["args"] == [
        "driver", "--properties-file", "/opt/spark/conf/spark.properties",
        "--class", "org.apache.spark.deploy.PythonRunner",
        "local:///opt/tidegate/tidegate-command.py", "pipeline", "archive", "--every", "30s",
    ]  # fmt: skip
    variables = {one["name"]: one for one in container["env"]}
    assert variables["TIDEGATE_REDIS_URL"]["valueFrom"]["secretKeyRef"] == {"name": "tidegate-redis", "key": "url"}
    assert {"SPARK_DRIVER_BIND_ADDRESS", "TIDEGATE_PIPELINE_CHECKPOINT_PATH"} <= set(variables)
    assert {"name": "archive", "mountPath": "/archive"}.items() <= {
        name: value
        for mount in container["volumeMounts"]
        for name, value in mount.items()
        if mount["name"] == "archive"
    }.items()
    assert driver["spec"]["serviceAccountName"] == "tidegate-pipeline"


def test_executors_are_started_by_the_entry_point(image: dict[str, str], valkey: ValkeyServer, tmp_path: Path) -> None:
    client = connect(valkey.url)
    client.flushall()
    client.hset("tidegate:{cluster}:info", "coordinator_shards", 1)
    client.close()
    executors: list[subprocess.Popen[bytes]] = []

    def started(pod: Resource) -> None:
        """What a kubelet does, as far as it matters here."""
        (container,) = pod["spec"]["containers"]
        fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        variables = {
            one["name"]: one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in container["env"]
            if one.get("value") or one.get("valueFrom")
        }
        work = tmp_path / pod["metadata"]["name"]
        work.mkdir()
        with (work / "log").open("wb") as log:
            executors.append(subprocess.Popen(
                [REPOSITORY / "kubernetes" / "entrypoint.sh", *container["args"]], env=image | variables, cwd=work,
                stdout=log, stderr=log, start_new_session=True,
            ))  # fmt: skip

    settings: dict[str, Any] = {
        "spark.kubernetes.container.image": "tidegate-pipeline", "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m",
        "spark.executor.instances": "2", "spark.executor.memory": "512m", "spark.ui.enabled": "false",
    }  # fmt: skip
    try:
        with KubernetesApi(started) as api:
            words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
            program = [str(Path(image["SPARK_HOME"]).with_name("tidegate-command.py")), "pipeline", "doctor", "--json"]
            ran = submit(
                image, ["--master", f"k8s://{api.url}", *words, *program], TIDEGATE_REDIS_URL=valkey.url,
                TIDEGATE_PIPELINE_ARCHIVE_PATH=str(tmp_path / "archive"),
            )  # fmt: skip
    finally:
        for executor in executors:
            os.killpg(executor.pid, signal.SIGKILL)
            executor.wait()
    logs = "\n".join(log.read_text()[-2000:] for log in tmp_path.glob("*/log"))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-3000:]}\n{logs}"
    reported = {one["what"]: one for one in json.loads(ran.stdout)["findings"]}

    assert len(executors) == 2
    assert reported["executors"]["reported"].startswith("2: ")
    assert reported["Spark"]["reported"].endswith(f"master k8s://{api.url}")
    assert {reported[what]["severity"] for what in ("archive", "packages", "sources", "clocks", "tidegate")} == {"ok"}
