"""The addresses that clients of each listener get, in each address mode."""

from __future__ import annotations

import pytest

from tidegate.cluster.addresses import advertised_endpoints
from tidegate.cluster.listeners import listeners_of
from tidegate.settings import Settings
from tidegate.startup import CannotStart

ANY = "0.0.0.0"
HERE = {"host": "10.0.0.5"}
BOTH = {
    "listeners": f"INTERNAL://{ANY}:9092,EXTERNAL://{ANY}:19092",
    "listener_security_protocol_map": "INTERNAL:PLAINTEXT,EXTERNAL:SSL",
    "ssl_certificate_file": "c.pem",
}


def reported(hostname: str = "tidegate-3.pods.svc", **values: str) -> dict[str, tuple[str, int]]:
    listeners = listeners_of(Settings.model_validate(values))
    return advertised_endpoints(listeners, [one.port for one in listeners], hostname)


@pytest.mark.parametrize("mode", ["direct", "single"])
def test_bound_address_unless_another_is_set(mode: str) -> None:
    assert reported(**HERE, address_mode=mode) == {"PLAINTEXT": ("10.0.0.5", 9092)}
    assert reported(**HERE, address_mode=mode, advertised_listeners="PLAINTEXT://lb:19092") == {
        "PLAINTEXT": ("lb", 19092)
    }


@pytest.mark.parametrize(("port", "expected"), [("30000+{ordinal}", 30003), ("3000{ordinal}", 30003), ("9094", 9094)])
def test_ordinal_of_the_pod_in_host_and_port(port: str, expected: int) -> None:
    advertised = f"PLAINTEXT://k{{ordinal}}.example.org:{port}"

    assert reported(address_mode="external", advertised_listeners=advertised) == {
        "PLAINTEXT": ("k3.example.org", expected)
    }


def test_each_listener_has_an_address_of_its_own() -> None:
    assert reported(**BOTH, advertised_listeners="INTERNAL://10.0.0.5:9092,EXTERNAL://kafka.example.org:443") == {
        "INTERNAL": ("10.0.0.5", 9092),
        "EXTERNAL": ("kafka.example.org", 443),
    }


def test_each_listener_may_have_an_address_mode_of_its_own() -> None:
    """Inside by the pod's own name, outside by a port of its ordinal; a hostname without one does for the rest."""
    advertised = "INTERNAL://10.0.0.5:9092,EXTERNAL://k.example.org:31000+{ordinal}"
    modes = {"address_mode": "EXTERNAL:external"}
    assert reported(**BOTH, **modes, advertised_listeners=advertised) == {
        "INTERNAL": ("10.0.0.5", 9092),
        "EXTERNAL": ("k.example.org", 31003),
    }

    load_balanced = {"address_mode": "external:single"}
    advertised = "INTERNAL://10.0.0.5:9092,EXTERNAL://lb.example.org:443"
    assert reported("laptop", **BOTH, **load_balanced, advertised_listeners=advertised)["EXTERNAL"] == (
        "lb.example.org",
        443,
    )


@pytest.mark.parametrize(
    ("hostname", "values", "named"),
    [
        ("laptop", {**HERE, "address_mode": "external"}, "laptop"),
        ("tidegate-3", {"host": ANY}, "TIDEGATE_ADVERTISED_LISTENERS=PLAINTEXT://host:9092"),
        ("tidegate-3", {"advertised_listeners": "PLAINTEXT://k{ordinal}:9092"}, "address_mode=external"),
        ("tidegate-9", {"address_mode": "external", "advertised_listeners": "PLAINTEXT://k:65530+{ordinal}"}, "65539"),
        ("tidegate-3", {"advertised_listeners": "PLAINTEXT://k:0"}, "advertised port 0"),
        ("tidegate-3", BOTH, "TIDEGATE_ADVERTISED_LISTENERS=INTERNAL://host:9092"),
        ("x", {**BOTH, "advertised_listeners": "INTERNAL://a:1,EXTERNAL://a:1"}, "name or the address of another"),
        ("x", {**BOTH, "advertised_listeners": "INTERNAL://a:1,EXTERNAL://k{ordinal}:2"}, "address_mode=external"),
        ("x-1", {**BOTH, "advertised_listeners": "INTERNAL://a:2,EXTERNAL://a:1+{ordinal}", "address_mode": "external"},
         "two listeners are advertised at one address"),
    ],
)  # fmt: skip
def test_address_that_cannot_be_advertised_is_refused_in_one_line(
    hostname: str, values: dict[str, str], named: str
) -> None:
    with pytest.raises(CannotStart) as refusal:
        reported(hostname, **values)
    assert "\n" not in str(refusal.value)
    assert named in str(refusal.value)
