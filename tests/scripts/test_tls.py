"""TLS to Redis, with a real server: who is trusted, who has to show a certificate, and which failures are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tls import Authority, TlsServer, tls_server_binary
from tests.support.valkey import ValkeyServer
from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.primary import find_primary
from tidegate.store.store import Store

pytestmark = pytest.mark.skipif(
    tls_server_binary() is None,
    reason="no server with TLS: neither the tests' own was built with it, nor is redis-server or valkey-server there",
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[TlsServer]:
    started = TlsServer(authority)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[TlsServer]:
    """Clients have to show a certificate of the authority."""
    started = TlsServer(authority, clients_show_certificates=True)
    yield started
    started.stop()


async def answers(**settings: object) -> bool:
    """Whether every lane of a store works, also for what does not fit into one TLS record."""
    store = Store(Settings(**settings))  # type: ignore[arg-type]
    await store.start()
    try:
        large = "x" * 300_000
        await store.command("SET", "tidegate:{cluster}:probe", large)
        return all([await link.call("PING") == b"PONG" for link in store.links[:-1]]) and (
            await store.read("GET", "tidegate:{cluster}:probe") == large.encode()
        )
    finally:
        await store.close()


async def refusal(**settings: object) -> str:
    """Why a store cannot start."""
    store = Store(Settings(redis_command_timeout_ms=7_500, **settings))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable) as refused:
        await store.start()
    return str(refused.value)


async def test_authority_of_ones_own_is_trusted(server: TlsServer, authority: Authority) -> None:
    assert await answers(redis_url=server.tls_url, redis_ca_file=authority.ca_file)


async def test_address_may_name_the_files_as_it_does_for_the_pipeline(server: TlsServer, authority: Authority) -> None:
    assert await answers(redis_url=f"{server.tls_url}?ssl_ca_certs={authority.ca_file}")


async def test_client_certificate_is_shown_where_redis_asks_for_one(strict: TlsServer, authority: Authority) -> None:
    certificate, key = authority.issue("broker")

    assert await answers(
        redis_url=strict.tls_url,
        redis_ca_file=authority.ca_file,
        redis_client_cert_file=certificate,
        redis_client_key_file=key,
    )


async def test_missing_client_certificate_is_named_to_the_broker(strict: TlsServer, authority: Authority) -> None:
    for _ in range(20):
        reported = await refusal(redis_url=strict.tls_url, redis_ca_file=authority.ca_file)
        if reported != "Connection reset by peer":  # the server's reset may overtake its alert, which says why
            break

    assert reported == "it asks for a client certificate (TIDEGATE_REDIS_CLIENT_CERT_FILE)"


async def test_certificate_of_an_unknown_authority_is_refused(server: TlsServer) -> None:
    reported = await refusal(redis_url=server.tls_url)

    assert reported.startswith("its certificate is not trusted: ")
    assert reported.endswith("(TIDEGATE_REDIS_CA_FILE)")


async def test_certificate_must_name_the_host_unless_disabled(authority: Authority) -> None:
    elsewhere = TlsServer(authority, "redis.example.net")
    try:
        reported = await refusal(redis_url=elsewhere.tls_url, redis_ca_file=authority.ca_file)
        assert "IP address mismatch" in reported

        lenient = f"{elsewhere.tls_url}?ssl_check_hostname=false"
        assert await answers(redis_url=lenient, redis_ca_file=authority.ca_file)
    finally:
        elsewhere.stop()


async def test_plain_address_of_a_tls_port_is_reported(server: TlsServer) -> None:
    reported = await refusal(redis_url=f"redis://127.0.0.1:{server.tls_port}/0")

    assert "rediss://" in reported


async def test_tls_address_of_a_plain_port_is_reported(valkey: ValkeyServer, authority: Authority) -> None:
    reported = await refusal(redis_url=f"rediss://127.0.0.1:{valkey.port}/0", redis_ca_file=authority.ca_file)

    assert "redis:// instead of rediss://" in reported


@pytest.mark.parametrize("setting", ["redis_ca_file", "redis_client_cert_file"])
async def test_file_that_is_not_there_is_named(setting: str) -> None:
    with pytest.raises(CannotStart, match=f"TIDEGATE_{setting.upper()} .*/nowhere.pem.* No such file"):
        await find_primary(Settings(redis_url="rediss://localhost", **{setting: "/nowhere.pem"}))  # type: ignore[arg-type]


async def test_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(CannotStart, match=r"TIDEGATE_REDIS_CA_FILE .*not a PEM file"):
        await find_primary(Settings(redis_url="rediss://localhost", redis_ca_file=str(empty)))


async def test_key_alone_is_a_mistake() -> None:
    with pytest.raises(CannotStart, match="CLIENT_CERT_FILE is not"):
        await find_primary(Settings(redis_url="rediss://localhost", redis_client_key_file="/some.key"))
