"""Which cluster a command goes to: the one that is named, and a running `tidegate dev` only where none is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tidegate.cli import options
from tidegate.cli.dev import running
from tidegate.cli.dev.children import BrokerChild
from tidegate.cli.named_cluster import _OF_SETTINGS
from tidegate.cli.places import AdminHttp, Brokers, RedisServer, brokers_of_environment, to_places
from tidegate.renamed_settings import RENAMED
from tidegate.settings import SECRETS_DIR

DEV = running.DevCluster(
    os.getpid(), "127.0.0.1:9192,127.0.0.1:9193", "redis://127.0.0.1:6400/0", ("http://127.0.0.1:8180",)
)
DEFAULT_PORTS = running.DevCluster(
    os.getppid(), "127.0.0.1:9092", "redis://127.0.0.1:6379/0", ("http://127.0.0.1:8080",)
)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A `tidegate dev` runs, and nothing is exported."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in list(os.environ):
        if name.startswith(("TIDEGATE_CLI_", "TIDEGATE_REDIS_", "TIDEGATE_SECRETS")):
            monkeypatch.delenv(name)
    running.note(DEV)
    yield
    running.forget(os.getpid())


def places(*words: str) -> dict[str, Any]:
    """What a command of all three places is given."""
    found: dict[str, Any] = {}

    @to_places
    def command(brokers: Brokers, admin: AdminHttp, redis: RedisServer) -> None:
        found.update(brokers=brokers, admin=admin, redis=redis)

    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (done.output, done.exception)
    return found


def test_places_nothing_named_are_those_of_the_running_dev() -> None:
    found = places()

    assert found["brokers"].bootstrap == DEV.bootstrap
    assert found["admin"].addresses == DEV.admin[0]
    assert found["redis"].url == DEV.redis_url and found["redis"].given
    assert not any(one.missing for one in found.values())


def exported(monkeypatch: pytest.MonkeyPatch, folder: Path, way: str, url: str) -> None:
    """Export Redis's address in one of the ways in which a broker takes it."""
    folder.mkdir()
    (folder / "TIDEGATE_REDIS_URL").write_text(f"{url}\n")
    match way:
        case "file":
            monkeypatch.setenv("TIDEGATE_REDIS_URL_FILE", str(folder / "TIDEGATE_REDIS_URL"))
        case "directory":
            monkeypatch.setenv("TIDEGATE_SECRETS_DIR", str(folder))
        case _:
            monkeypatch.setenv(way, url)


@pytest.mark.parametrize("way", ["TIDEGATE_REDIS_URL", "tidegate_redis_url", "file", "directory"])
def test_places_exported_redis_url_overrides_the_running_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    exported(monkeypatch, tmp_path / "secrets", way, "redis://10.0.0.1:6379/0")

    found = places()

    assert found["redis"].url == "redis://10.0.0.1:6379/0" and found["redis"].given
    assert found["brokers"].bootstrap == brokers_of_environment().bootstrap == "127.0.0.1:9092"
    assert found["admin"].addresses == "http://127.0.0.1:8080"


@pytest.mark.parametrize("way", ["TIDEGATE_REDIS_URL", "file", "directory"])
def test_places_exported_redis_url_of_the_running_dev_takes_the_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    exported(monkeypatch, tmp_path / "secrets", way, DEV.redis_url)

    found = places()

    assert (found["brokers"].bootstrap, found["admin"].addresses) == (DEV.bootstrap, DEV.admin[0])


def test_places_count_every_name_of_the_redis_url() -> None:
    former = {f"TIDEGATE_{name}".upper() for name, new in RENAMED.items() if new == "redis_url"}

    assert {"TIDEGATE_REDIS_URL", "TIDEGATE_REDIS_URL_FILE", SECRETS_DIR} | former == set(_OF_SETTINGS)


def test_dev_brokers_take_the_redis_url_of_the_dev(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    exported(monkeypatch, tmp_path / "secrets", "file", "redis://10.0.0.1:6379/0")
    started: list[dict[str, str]] = []
    starter = SimpleNamespace(start_broker=lambda name, env, log: started.append(env))
    BrokerChild(9092, 8080, tmp_path / "log").start(starter, DEV.redis_url)  # type: ignore[arg-type]
    monkeypatch.delenv("TIDEGATE_REDIS_URL_FILE")
    for name, value in started[0].items():
        monkeypatch.setenv(name, value)

    assert options.load().redis_url == DEV.redis_url


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("--bootstrap", "10.0.0.1:9092"), None),
        (("--admin", "10.0.0.1:8080"), None),
        (("--redis-url", "redis://10.0.0.1:6379"), None),
        ((), ("TIDEGATE_CLI_BOOTSTRAP", "10.0.0.1:9092")),
        ((), ("TIDEGATE_CLI_ADMIN", "10.0.0.1:8080")),
    ],
)
def test_places_one_named_takes_no_other_from_the_running_dev(
    words: tuple[str, ...], variable: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(*variable)

    found = places(*words)

    of_dev = {DEV.bootstrap, DEV.admin[0], DEV.redis_url}
    assert of_dev.isdisjoint({found["brokers"].bootstrap, found["admin"].addresses, found["redis"].url})


@pytest.mark.parametrize(
    "words",
    [
        ("--bootstrap", "localhost:9193"),
        ("--admin", "127.0.0.1:8180/"),
        ("--redis-url", "redis://localhost:6400"),
    ],
)
def test_places_named_address_of_the_running_dev_takes_the_others_from_it(words: tuple[str, ...]) -> None:
    found = places(*words)

    option = words[0]
    assert option == "--bootstrap" or found["brokers"].bootstrap == DEV.bootstrap
    assert option == "--admin" or found["admin"].addresses == DEV.admin[0]
    assert option == "--redis-url" or found["redis"].url == DEV.redis_url


def test_places_named_address_of_the_older_dev_takes_the_others_from_that() -> None:
    running.note(DEFAULT_PORTS)
    os.utime(running.directory() / f"dev-{os.getppid()}.json", ns=(0, 0))

    found = places("--bootstrap", "127.0.0.1:9092")

    assert found["admin"].addresses == DEFAULT_PORTS.admin[0]
    assert found["redis"].url == DEFAULT_PORTS.redis_url
    assert places()["admin"].addresses == DEV.admin[0]


def test_places_default_address_of_a_dev_that_is_not_the_named_cluster_is_missing() -> None:
    running.note(DEFAULT_PORTS)

    found = places("--bootstrap", "10.0.0.1:9092")

    assert "--admin" in found["admin"].missing
    assert "--redis-url" in found["redis"].missing and not found["redis"].given
    assert not found["brokers"].missing


def test_completion_uses_the_exported_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert brokers_of_environment().bootstrap == DEV.bootstrap

    monkeypatch.setenv("TIDEGATE_REDIS_URL", "redis://10.0.0.1:6379/0")
    assert brokers_of_environment().bootstrap == "127.0.0.1:9092"
