"""The wheels of `tidegate` and `tidegate-pipeline`, each installed with its dependencies into an empty environment."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bench.cluster import free_port
from tests.support.valkey import ValkeyServer

REPOSITORY: Final = Path(__file__).resolve().parents[2]
START_S: Final = 60.0
INSTALL_S: Final = 900.0
API_VERSIONS: Final = 18

pytestmark = pytest.mark.timeout(INSTALL_S + 60)


class Environment:
    """A virtual environment of its own, with no path into the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=INSTALL_S)
        self.variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDEGATE_"))
        }

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *what: str) -> None:
        """Install with dependencies, as the constraints pin them."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python"), "install", "-q"]
        constraints = str(REPOSITORY / "constraints.txt")
        subprocess.run([*pip, "--constraint", constraints, *what], check=True, timeout=INSTALL_S)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """One of its commands, outside of the checkout."""
        program = str(self.folder / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=START_S,
        )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Distribution -> its wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*pip, str(REPOSITORY), str(REPOSITORY / "pipeline")], check=True, timeout=INSTALL_S)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def broker_alone(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`tidegate` and what it depends on."""
    environment = Environment(tmp_path_factory.mktemp("broker"))
    environment.install(str(wheels["tidegate"]))
    return environment


@pytest.fixture(scope="module")
def with_pipeline(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Both, and what they depend on."""
    environment = Environment(tmp_path_factory.mktemp("pipeline"))
    environment.install(str(wheels["tidegate"]), str(wheels["tidegate_pipeline"]))
    return environment


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """An empty server."""
    started = ValkeyServer()
    yield started
    started.stop()


def api_versions(port: int) -> int:
    """How many APIs the broker on that port lists (ApiVersions v0). Raises OSError while nobody listens."""
    request = struct.pack(">hhih", API_VERSIONS, 0, 7, -1)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock, sock.makefile("rb") as stream:
        sock.sendall(struct.pack(">i", len(request)) + request)
        _, correlation_id, error_code, count = struct.unpack(">iihi", stream.read(14))
    assert (correlation_id, error_code) == (7, 0)
    return int(count)


def test_wheels_install_one_package_each_and_the_names_that_spark_loads(wheels: dict[str, Path]) -> None:
    sources = {f"pyspark_tidegate{name}" for name in ("", "_events", "_lag", "_usage")}
    expected = {"tidegate": {"tidegate"}, "tidegate_pipeline": {"tidegate_pipeline", *sources}}
    for package, path in wheels.items():
        tops = {name.partition("/")[0] for name in zipfile.ZipFile(path).namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == expected[package]

    scripts = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "redis_scripts").rglob("*.lua")}
    shipped = zipfile.ZipFile(wheels["tidegate"]).namelist()
    assert {name.removeprefix("tidegate/") for name in shipped if name.endswith(".lua")} == scripts
    assert "tidegate/http/console/templates/layout.html" in shipped


def test_wheel_of_the_broker_serves(broker_alone: Environment, server: ValkeyServer) -> None:
    port, log = free_port(), broker_alone.folder / "serve.log"
    command = [str(broker_alone.folder / "bin" / "tidegate"), "serve", "--redis-url", server.url]
    with log.open("wb") as output:
        broker = subprocess.Popen(
            [*command, "--port", str(port), "--admin-port", "0"],
            cwd=broker_alone.folder,
            env=broker_alone.variables,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + START_S
        listed = 0
        while not listed:
            assert broker.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                listed = api_versions(port)
            except OSError:
                time.sleep(0.05)
        assert listed > 20
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(START_S) == 0, log.read_text()
    finally:
        if broker.poll() is None:
            broker.kill()
            broker.wait()


def test_pipeline_command_without_its_distribution_names_it(broker_alone: Environment) -> None:
    done = broker_alone.run("tidegate", "pipeline", "--help")

    assert done.returncode == 2
    assert done.stderr == "tidegate: the pipeline is not installed here: pip install tidegate-pipeline\n"


def test_pipeline_command_with_its_distribution_lists_verbs(with_pipeline: Environment) -> None:
    done = with_pipeline.run("tidegate", "pipeline", "--help")
    settings = with_pipeline.run("tidegate", "pipeline", "settings")

    assert done.returncode == 0, done.stderr
    assert "archive" in done.stdout and "replay" in done.stdout
    assert settings.returncode == 0, settings.stderr


@pytest.mark.parametrize("which", ["broker_alone", "with_pipeline"])
def test_site_packages_have_no_foreign_names(which: str, request: pytest.FixtureRequest) -> None:
    environment: Environment = request.getfixturevalue(which)

    assert {path.name for path in environment.site_packages.iterdir()} & {
        "broker",
        "pipeline",
        "redis_scripts",
    } == set()
    code = "import tidegate.store.scripts as s; print(s.read('lib/errors')[:1] != '', tidegate.__version__)"
    done = environment.run("python", "-c", f"import tidegate; {code}")
    assert done.stdout.startswith("True"), done.stderr


def test_version_is_one(broker_alone: Environment, with_pipeline: Environment) -> None:
    code = "from importlib.metadata import version as v; print(v('tidegate'), v('tidegate-pipeline'))"
    both = with_pipeline.run("python", "-c", code).stdout.split()

    assert len(set(both)) == 1
    assert broker_alone.run("tidegate", "--version").stdout.strip() == both[0]
