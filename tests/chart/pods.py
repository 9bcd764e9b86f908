"""What a kubelet does, as far as it matters here: a rendered container as a process of this machine.

A pod's network is an address of loopback: where the container listens on every address of its pod, it listens on that.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.chart.rendering import Document, broker_pod, only

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_READY_S: Final = 60.0

Secrets = Mapping[str, Mapping[str, str]]
"""Name -> key -> value."""


class Pod:
    """One broker of a rendered release. `address` is the pod's own; its hostname is its name.

    `secrets` are those that the release names and does not make: name -> key -> value.
    """

    def __init__(
        self, documents: Sequence[Document], name: str, address: str, directory: Path, secrets: Secrets | None = None
    ) -> None:
        self.name = name
        self.address = address
        self.spec = broker_pod(documents)
        (self.container,) = self.spec["containers"]
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.documents = documents
        self._directory = directory / name
        self._directory.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._secrets = all_secrets(documents, secrets)
        self._mounted = dict(mounted(self.spec, self.container, self._secrets, self._directory))

    def __enter__(self) -> Pod:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._with_hostname(), sys.executable, "-m", "tidegate", *self.container["args"]],
                cwd=REPOSITORY, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def _with_hostname(self) -> list[str]:
        """A UTS namespace, where this machine lets us have one: a broker in `external` mode looks at its hostname."""
        unshare = shutil.which("unshare")
        return [unshare, "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name] if can_unshare() else []

    def environment(self) -> dict[str, str]:
        """The container's variables, and this process's own that are none of Tidegate's."""
        fields = {"metadata.name": self.name, "metadata.namespace": "streams", "status.podIP": self.address}
        return filled_in(self.container, fields, self._secrets, {**self._mounted, "0.0.0.0": self.address})

    def probe(self, name: str) -> int:
        """The status that a probe of the container is answered with; 0 where nobody answers."""
        get = self.container[f"{name}Probe"]["httpGet"]
        try:
            with urllib.request.urlopen(
                f"http://{self.address}:{self.ports[get['port']]}{get['path']}", timeout=30
            ) as got:
                status: int = got.status
        except urllib.error.HTTPError as refused:
            status = refused.code
        except OSError:
            status = 0
        return status

    def wait_ready(self) -> None:
        """Until its startup probe and then its readiness probe are content."""
        for name in ("startup", "readiness"):
            deadline = time.monotonic() + _READY_S
            while self.probe(name) != 200:
                assert self._process is not None
                assert self._process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)

    def terminate(self) -> int:
        """preStop, SIGTERM; the exit status. Raises TimeoutExpired when a kubelet would kill."""
        ends = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        _, *words = self.container["lifecycle"]["preStop"]["exec"]["command"]
        own = ("'localhost'", f"'{self.address}'"), ("'/drain')", "'/drain', headers={'Host': 'localhost'})")
        for name, here in own:
            words = [word.replace(name, here) for word in words]
        subprocess.run([sys.executable, *words], check=True, timeout=60)
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(ends - time.monotonic())
        finally:
            process.kill()
            process.wait()


def run_job(
    documents: Sequence[Document], name: str, directory: Path, secrets: Secrets
) -> subprocess.CompletedProcess[str]:
    """Run the container of a Job of a rendered release, with the package of this checkout as `tidegate`."""
    spec = only(documents, "Job", name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    directory.mkdir()
    every = all_secrets(documents, secrets)
    replaced = dict(mounted(spec, container, every, directory))
    words = list(container["command"])
    for there, here in replaced.items():
        words = [word.replace(there, here) for word in words]
    program = directory / "tidegate"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidegate "$@"\n')
    program.chmod(0o755)
    variables = filled_in(container, {}, every, replaced)
    return subprocess.run(
        words, cwd=REPOSITORY, env=variables | {"PATH": f"{directory}:{variables['PATH']}"}, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_READY_S,
    )  # fmt: skip


def all_secrets(documents: Sequence[Document], secrets: Secrets | None) -> Secrets:
    """The Secrets that a release makes, and those that it names."""
    made = {one["metadata"]["name"]: one["stringData"] for one in documents if one["kind"] == "Secret"}
    return {**made, **(secrets or {})}


def mounted(spec: Document, container: Document, secrets: Secrets, directory: Path) -> Iterator[tuple[str, str]]:
    """Where the container finds a volume -> where it is here, for volumes from Secrets."""
    volumes = {one["name"]: one for one in spec["volumes"] if {"secret", "projected"} & one.keys()}
    for mount in container["volumeMounts"]:
        if mount["name"] in volumes:
            folder = directory / mount["name"]
            folder.mkdir()
            for name, value in _files(volumes[mount["name"]], secrets):
                (folder / name).write_text(value)
            yield mount["mountPath"], str(folder)


def _files(volume: Document, secrets: Secrets) -> Iterator[tuple[str, str]]:
    """What a volume holds: whole Secrets, or the items that are named."""
    if "secret" in volume:
        yield from secrets[volume["secret"]["secretName"]].items()
        return
    for source in volume["projected"]["sources"]:
        stored = secrets[source["secret"]["name"]]
        yield from ((item["path"], stored[item["key"]]) for item in source["secret"]["items"])


def filled_in(
    container: Document, fields: Mapping[str, str], secrets: Secrets, replaced: Mapping[str, str]
) -> dict[str, str]:
    """A container's variables: fields of the pod, Secrets, $(OTHER) of those before; with what is elsewhere here."""
    found: dict[str, str] = {}
    for one in container["env"]:
        source: Mapping[str, Any] = one.get("valueFrom", {})
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            value = secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        else:
            value = re.sub(r"\$\(([A-Z_]+)\)", lambda name: found.get(name[1], name[0]), one["value"])
        for there, here in replaced.items():
            value = value.replace(there, here)
        found[one["name"]] = value
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")} | found


def can_unshare() -> bool:
    """Whether a process may have a hostname of its own here."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and subprocess.run([unshare, "--uts", "true"], check=False, capture_output=True).returncode == 0
    )
