"""Listeners out of settings: Kafka's syntax, and the errors of who gets it wrong."""

from __future__ import annotations

import pytest

from tidegate.cluster.listeners import listeners_of, single_listeners
from tidegate.settings import Settings
from tidegate.startup import CannotStart

TLS = {"ssl_certificate_file": "c.pem"}


def of(**values: str) -> list[tuple[str, str, int, bool]]:
    return [(one.name, one.host, one.port, one.tls) for one in listeners_of(Settings.model_validate(values))]


def test_host_and_port_are_one_plaintext_listener() -> None:
    assert of(host="10.0.0.5", port="9099") == [("PLAINTEXT", "10.0.0.5", 9099, False)]


def test_listener_name_implies_the_protocol_unless_it_is_mapped() -> None:
    assert of(listeners="PLAINTEXT://a:1, ssl://[::1]:2", **TLS) == [
        ("PLAINTEXT", "a", 1, False),
        ("SSL", "::1", 2, True),
    ]
    assert of(listeners="IN://a:0,OUT://:0", listener_security_protocol_map="in:PLAINTEXT,OUT:ssl", **TLS) == [
        ("IN", "a", 0, False),
        ("OUT", "", 0, True),
    ]
    assert of(listener_security_protocol_map="PLAINTEXT:SSL", **TLS) == [("PLAINTEXT", "127.0.0.1", 9092, True)]


def test_one_load_balanced_listener_among_others() -> None:
    values = {"listeners": "PLAINTEXT://a:1,SSL://a:2", "address_mode": "SSL:single", **TLS}
    assert single_listeners(Settings.model_validate(values)) == {"SSL"}
    values["address_mode"] = "single"
    assert single_listeners(Settings.model_validate(values)) == {"PLAINTEXT", "SSL"}
    values["address_mode"] = "single, ssl:direct"
    assert single_listeners(Settings.model_validate(values)) == {"PLAINTEXT"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"listeners": "9092"}, "'9092' is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:{port}"}, "is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:70000"}, "port 70000 of PLAINTEXT"),
        ({"listeners": "PLAINTEXT://a:1{ordinal}"}, "port 1{ordinal} of PLAINTEXT"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"}, "the name or the address of another listener"),
        ({"listeners": "PLAINTEXT://a:1,SSL://a:1"}, "the name or the address of another listener"),
        ({"listeners": "INTERNAL://a:1"}, "LISTENER_SECURITY_PROTOCOL_MAP=INTERNAL:PLAINTEXT"),
        ({"listeners": "GSSAPI://a:1"}, "speaks PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not GSSAPI"),
        ({"listeners": "SSL://a:1"}, "set TIDEGATE_SSL_CERTIFICATE_FILE"),
        (TLS, "TIDEGATE_LISTENERS=SSL://127.0.0.1:9092"),
        ({"listeners": "PLAINTEXT://a:1", "advertised_listeners": "PLAINTEXT://b:1,SSL://b:2"}, "SSL is advertised"),
        ({"advertised_listeners": "INTERNAL://b:1"}, "INTERNAL is advertised or has an address mode, and is none of P"),
        ({"address_mode": "PLAINTEXT:both"}, "PLAINTEXT:both is not direct, single or external"),
        ({"address_mode": "both"}, "PLAINTEXT:both is not direct, single or external"),
        ({"address_mode": ""}, "PLAINTEXT: is not direct, single or external"),
        ({"address_mode": "single,direct"}, "single, direct are several modes"),
        ({"listener_security_protocol_map": "PLAINTEXT"}, "'PLAINTEXT' is not NAME:value"),
    ],
)
def test_contradictory_listeners_are_refused_in_one_line(values: dict[str, str], named: str) -> None:
    with pytest.raises(CannotStart) as refusal:
        of(**values)
    assert "\n" not in str(refusal.value)
    assert named in str(refusal.value)
