"""The processes of one host: what each is called and listens on, and who answers for all."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.host import SILENT_S, HostPage, HostProcess, of_process
from tidegate.settings import Settings
from tidegate.startup import CannotStart


def changed(ordinal: int, limit: int | None = None, **settings: Any) -> dict[str, Any]:
    """The settings of a process that differ from the host's."""
    host = Settings(processes=4, **settings)
    own = of_process(host, ordinal, lambda: limit)
    return {name: getattr(own, name) for name in Settings.model_fields if getattr(own, name) != getattr(host, name)}


def test_process_settings_count_ports_and_node_id_up() -> None:
    assert changed(0) == {"processes": 1}
    assert changed(2, node_id=10, advertised_listeners="PLAINTEXT://kafka.example:19092") == {
        "processes": 1,
        "port": 9094,
        "admin_port": 8082,
        "node_id": 12,
        "advertised_listeners": "PLAINTEXT://kafka.example:19094",
    }


def test_process_settings_free_ports_stay_free() -> None:
    assert changed(3, port=0, admin_port=0) == {"processes": 1}


def test_process_settings_count_each_listener() -> None:
    found = changed(
        1,
        admin_port=0,
        port=0,
        listeners="IN://0.0.0.0:9092, OUT://[::1]:19092,FREE://127.0.0.1:0",
        advertised_listeners="IN://broker:9092,OUT://kafka.example:19092",
    )

    assert found == {
        "processes": 1,
        "listeners": "IN://0.0.0.0:9093, OUT://[::1]:19093,FREE://127.0.0.1:0",
        "advertised_listeners": "IN://broker:9093,OUT://kafka.example:19093",
    }


@pytest.mark.parametrize("mode", ["direct", "Direct", "IN:direct,EXT:direct", "single,IN:direct,ext:DIRECT"])
def test_process_settings_count_the_addresses_of_each_broker(mode: str) -> None:
    found = changed(1, address_mode=mode, advertised_listeners="IN://h:9092 , EXT://h:9192 ,")

    assert found["advertised_listeners"] == "IN://h:9093 , EXT://h:9193 ,"


@pytest.mark.parametrize("mode", ["direct,EXT:single", "IN:direct,ext:Single", "EXT:single", "single,IN:direct"])
def test_process_settings_mixed_modes_count_direct_addresses_alone(mode: str) -> None:
    found = changed(1, address_mode=mode, advertised_listeners="IN://h:9092,EXT://h:443")

    assert found["advertised_listeners"] == "IN://h:9093,EXT://h:443"


@pytest.mark.parametrize(("mode", "port"), [("single", "9092"), ("external", "3000{ordinal}")])
def test_process_settings_shared_and_template_addresses_stay(mode: str, port: str) -> None:
    found = changed(1, address_mode=mode, advertised_listeners=f"PLAINTEXT://kafka.example:{port}")

    assert found == {"processes": 1, "port": 9093, "admin_port": 8081}


def test_process_settings_port_above_the_last_is_refused() -> None:
    with pytest.raises(CannotStart, match=r"port 65536 of process 2 is above 65535 \(TIDEGATE_PROCESSES\)"):
        changed(2, port=65_534)


def test_process_settings_divide_the_memory_of_the_cgroup() -> None:
    assert changed(0, limit=4 << 30) == {"processes": 1, "memory_max": 1 << 30}
    assert changed(0, limit=4 << 30, memory_max=2 << 30) == {"processes": 1}


class Host:
    """Two processes and the supervisor's side, at a stepped time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.page = HostPage(2)
        self.drains: list[str] = []
        self.first, self.second = (
            HostProcess(self.page, ordinal, lambda: self.drains.append("host"), lambda: self.now_s)
            for ordinal in range(2)
        )


def test_first_answers_for_all_and_others_for_themselves() -> None:
    host = Host()
    host.first.report(True)

    assert host.first.others_not_ready() == ["process 1 of this host is not ready"]
    assert host.second.others_not_ready() == []

    host.second.report(True)
    assert host.first.others_not_ready() == []
    assert host.first.ready_count() == 2


def test_silent_process_is_not_ready() -> None:
    host = Host()
    host.second.report(True)
    host.now_s += SILENT_S

    assert host.first.others_not_ready() == ["process 1 of this host is not ready"]


def test_process_that_refuses_is_not_ready() -> None:
    host = Host()
    host.second.report(False)

    assert host.first.ready_count() == 0
    assert host.page.reported(1)


def test_ended_process_is_not_ready_and_restarts_are_counted() -> None:
    host = Host()
    host.second.report(True)

    host.page.restarted(1)
    assert (host.page.restarts, host.first.ready_count(), host.page.reported(1)) == (1, 0, False)
    host.second.report(True)
    host.page.ended(1)
    assert (host.page.restarts, host.first.ready_count()) == (1, 0)
