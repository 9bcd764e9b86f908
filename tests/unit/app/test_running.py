"""What a running `tidegate dev` writes down is found again, while it runs, by its owner alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.cli.dev import running
from tidegate.cli.dev.running import DevCluster
from tidegate.startup import CannotStart


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def cluster(pid: int) -> DevCluster:
    return DevCluster(pid, "127.0.0.1:9092", "redis://127.0.0.1:6379/0", ("http://127.0.0.1:8080",))


def test_running_cluster_is_found_until_it_is_forgotten() -> None:
    running.note(cluster(os.getpid()))
    assert running.find() == cluster(os.getpid())

    running.forget(os.getpid())
    assert running.find() is None


def test_cluster_of_an_ended_process_is_ignored() -> None:
    running.note(cluster(2**22 - 1))

    assert running.find() is None


def test_another_cluster_is_not_forgotten() -> None:
    running.note(cluster(os.getpid()))

    running.forget(os.getpid() + 1)

    assert running.find() is not None


def test_newest_of_several_is_found_and_where_it_ends_the_one_before() -> None:
    running.note(cluster(os.getppid()))
    running.note(cluster(os.getpid()))
    os.utime(running.directory() / f"dev-{os.getppid()}.json", ns=(0, 0))  # by their times, not in the folder's order
    assert running.find() == cluster(os.getpid())

    running.forget(os.getpid())
    assert running.find() == cluster(os.getppid())


def test_folder_that_others_may_write_is_not_trusted(runtime_dir: Path) -> None:
    running.directory().chmod(0o777)

    with pytest.raises(CannotStart, match="writable by others"):
        running.find()
