"""With `pipeline.kubernetes` a job's pod makes executors: the rendered job is run before a made-up API server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from tests.chart.pods import REPOSITORY, filled_in
from tests.chart.rendering import only, render
from tests.support.kubernetes_api import KubernetesApi, Resource
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.java import find_java
from tidegate_pipeline.redis_access import connect

CONFIG = "/etc/tidegate/pipeline"


@pytest.mark.timeout(300)
def test_executors_are_as_restricted_as_their_driver(valkey: ValkeyServer, tmp_path: Path) -> None:
    try:
        find_java()
    except UsageError as missing:
        pytest.skip(str(missing))
    with connect(valkey.url) as client:
        client.flushall()
        client.hset("tidegate:{cluster}:info", "coordinator_shards", 1)
    documents = render(
        f"redis.url={valkey.url}",
        f"archive.path={tmp_path}/archive,archive.existingClaim=archive",
        f"pipeline.enabled=true,pipeline.config.checkpoint.path={tmp_path}",
        "pipeline.kubernetes.enabled=true,pipeline.kubernetes.memory=512m",
        "pipeline.jobs.archive.arguments={doctor,--json}",
    )
    pod = only(documents, "Deployment", "test-tidegate-archive")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for name, text in only(documents, "ConfigMap")["data"].items():
        (tmp_path / name).write_text(text)
    secrets = {one["metadata"]["name"]: one["stringData"] for one in documents if one["kind"] == "Secret"}
    fields = {"metadata.name": "driver-1", "metadata.namespace": "default", "status.podIP": "127.0.0.1"}
    executors: list[Resource] = []
    both = threading.Event()

    def made(executor: Resource) -> None:
        executors.append(executor)
        if len(executors) == 2:
            both.set()

    with KubernetesApi(made) as api:
        driver = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver-1", "uid": "1"}}
        api.made["pods"] = {"driver-1": driver}
        here = {CONFIG: str(tmp_path), "https://kubernetes.default.svc": api.url}
        words = [word.replace(CONFIG, str(tmp_path)) for word in container["args"]]
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", *words], cwd=REPOSITORY, env=filled_in(container, fields, secrets, here),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            awaited = both.wait(200)
        finally:
            process.send_signal(signal.SIGKILL)
            reported_text = process.communicate()[0]
    assert awaited, reported_text[-3000:]

    wanted = yaml.safe_load((tmp_path / "executor.yaml").read_text())["spec"]
    for executor in executors:
        spec = executor["spec"]
        (own,) = spec["containers"]
        assert spec["securityContext"].items() >= pod["securityContext"].items()
        assert own["securityContext"] == wanted["containers"][0]["securityContext"]
        assert {one["name"] for one in own["volumeMounts"]} >= {"tmp", "config", "archive"}
        assert own["image"] == container["image"]
        (redis,) = [one for one in own["env"] if one["name"] == "TIDEGATE_REDIS_URL"]
        assert redis["valueFrom"]["secretKeyRef"]["name"] == "test-tidegate-redis"
        assert executor["metadata"]["ownerReferences"][0]["name"] == "driver-1", "they go with their driver"
        assert json.dumps(executor).count(valkey.url) == 0
