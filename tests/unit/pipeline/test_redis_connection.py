"""What of the brokers' variables the pipeline's connections to Redis go by."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import connect


def options(url: str) -> dict[str, Any]:
    """What connections to servers are made with."""
    made: dict[str, Any] = connect(url).connection_pool.connection_kwargs
    return made


def sentinels(url: str) -> list[dict[str, Any]]:
    """What connections to sentinels are made with."""
    manager = connect(url).connection_pool.sentinel_manager
    return [one.connection_pool.connection_kwargs for one in manager.sentinels]


def test_tls_follows_the_brokers_variables_and_the_address_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REDIS_CA_FILE", "/brokers.pem")
    monkeypatch.setenv("TIDEGATE_REDIS_CLIENT_CERT_FILE", "/brokers.crt")

    by_variables = options("rediss://h/0")
    by_address = options("rediss://h/0?ssl_ca_certs=/own.pem&ssl_check_hostname=false")

    assert (by_variables["ssl_ca_certs"], by_variables["ssl_certfile"]) == ("/brokers.pem", "/brokers.crt")
    assert by_variables["ssl_check_hostname"] is True
    assert (by_address["ssl_ca_certs"], by_address["ssl_check_hostname"]) == ("/own.pem", False)
    assert "ssl_ca_certs" not in options("redis://h/0")


def test_sentinels_are_asked_as_the_brokers_ask_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REDIS_SENTINEL_PASSWORD", "theirs")
    monkeypatch.setenv("TIDEGATE_REDIS_CA_FILE", "/brokers.pem")
    url = "rediss+sentinel://:own@a:1,b:2/main"

    with_tls = sentinels(url)
    in_clear = sentinels(url.replace("rediss", "redis"))

    assert [(one["host"], one["password"], one["ssl_ca_certs"]) for one in with_tls] == [
        ("a", "theirs", "/brokers.pem"), ("b", "theirs", "/brokers.pem"),
    ]  # fmt: skip
    assert not any("ssl_ca_certs" in one for one in in_clear)
    assert options(url)["password"] == "own"


@pytest.mark.parametrize(
    "url", ["redis://u:hidden@h?db=1", "rediss://u:hidden@h?ssl_cert_reqs=none", "redis://u:hidden@h:0"]
)
def test_connect_refuses_what_brokers_refuse_without_naming_the_password(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        connect(url)

    assert "hidden" not in str(refused.value)
