"""What clients are told in each address mode."""

from __future__ import annotations

import pytest

from broker.cluster.addresses import advertised_endpoints
from broker.errors import CannotStart
from broker.settings import Settings

BOUND = {"PLAINTEXT": ("10.0.0.5", 9092)}


def told(hostname: str = "tidegate-3.pods.svc", bound: dict[str, tuple[str, int]] = BOUND, **values: str) -> object:
    settings = Settings.model_validate(values)
    return advertised_endpoints(settings, bound, hostname)["PLAINTEXT"]


@pytest.mark.parametrize("mode", ["direct", "single"])
def test_the_bound_address_unless_another_is_set(mode: str) -> None:
    assert told(address_mode=mode) == ("10.0.0.5", 9092)
    assert told(address_mode=mode, advertised_host="lb", advertised_port="19092") == ("lb", 19092)


@pytest.mark.parametrize(
    ("port", "expected"), [("30000+{ordinal}", 30003), ("3000{ordinal}", 30003), ("9094", 9094), (None, 9092)]
)
def test_the_ordinal_of_the_pod_in_host_and_port(port: str | None, expected: int) -> None:
    values = {"address_mode": "external", "advertised_host": "k{ordinal}.example.org"}
    if port is not None:
        values["advertised_port"] = port

    assert told(**values) == ("k3.example.org", expected)


@pytest.mark.parametrize(
    ("hostname", "bound", "values"),
    [
        ("laptop", BOUND, {"address_mode": "external"}),
        ("tidegate-3", {"PLAINTEXT": ("0.0.0.0", 9092)}, {}),
        ("tidegate-3", BOUND, {"advertised_host": "k{ordinal}"}),
        ("tidegate-9", BOUND, {"address_mode": "external", "advertised_port": "65530+{ordinal}"}),
        ("tidegate-3", BOUND, {"advertised_port": "0"}),
    ],
)
def test_what_cannot_be_told_is_refused_in_one_line(
    hostname: str, bound: dict[str, tuple[str, int]], values: dict[str, str]
) -> None:
    with pytest.raises(CannotStart) as refusal:
        told(hostname, bound, **values)
    assert "\n" not in str(refusal.value)
