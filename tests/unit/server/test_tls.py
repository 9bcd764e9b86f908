"""TLS ports: they serve, they say what a failed client has to do, and they never wait for one that says nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.fetch.v12.request import FetchRequest
from structlog.testing import capture_logs

from tests.kit.wire import RawClient, encode_request
from tests.support.certificates import Authority
from tests.support.samples import sample
from tests.unit.server.fakes import Handlers, closed, on_both_loops, until
from tidegate.apis.call import BrokerContext
from tidegate.process import bind
from tidegate.quotas.org_limits import OrgLimits
from tidegate.security.identity import CertificateIdentities
from tidegate.server import limits, tls_port
from tidegate.server.certificates import Certificates
from tidegate.server.listener import Server
from tidegate.settings import Settings
from tidegate.startup import CannotStart

VERSIONS: Any = ApiVersionsRequest(client_software_name="t", client_software_version="1")
FETCHES: Any = sample(FetchRequest)
MIB = 1 << 20


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs the broker's certificate."""
    return Authority(tmp_path)


@asynccontextmanager
async def serving(
    authority: Authority, handlers: Handlers | None = None, audit: Any = None, security: Any = None, **settings: Any
) -> AsyncIterator[tuple[Server, Certificates]]:
    """A server whose port 0 speaks TLS and whose port 1 does not."""
    handlers = handlers or Handlers()
    given = Settings(ssl_certificate_file=str(authority.issue("broker", "127.0.0.1")), **settings)
    server = Server(cast(BrokerContext, SimpleNamespace(security=security, audit=audit)), handlers.table(), given)
    certificates = Certificates(given)
    server.open_tls(bind("127.0.0.1", 0, "TIDEGATE_LISTENERS"), "SSL", certificates)
    await server.open("127.0.0.1", 0)
    try:
        yield server, certificates
    finally:
        await server.close()


async def client_of(server: Server, context: ssl.SSLContext | None, port: int = 0) -> RawClient:
    streams = await asyncio.open_connection("127.0.0.1", server.ports[port], ssl=context)
    return RawClient(*streams, None)


def reported(lines: Any, event: str) -> Any:
    """The one line of an event."""
    [line] = [line for line in lines if line["event"] == event]
    return line


@on_both_loops
async def test_requests_and_large_answers_over_tls(authority: Authority) -> None:
    handlers = Handlers()
    handlers.fetch_bytes = 4 * MIB
    async with serving(authority, handlers) as (server, _), await client_of(server, authority.client()) as client:
        assert (await client.ask(VERSIONS)).error_code.value == 0
        sent = [client.send(FETCHES) for _ in range(3)]
        for correlation_id in sent:
            got, answer = await client.receive()
            assert got == correlation_id
            assert len(answer.responses[0].partitions[0].records) == 4 * MIB
        [connection] = server.connections
        assert connection.client.listener == "SSL" and connection.client.host == "127.0.0.1"


def send_and_close(server: Server, context: ssl.SSLContext, *messages: bytes) -> None:
    """Send the messages and the end of the TLS connection in one segment."""
    with socket.create_connection(("127.0.0.1", server.ports[0])) as raw:
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(received, to_send, server_hostname="127.0.0.1")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(to_send.read())
                received.write(raw.recv(1 << 16))
        raw.sendall(to_send.read())
        for message in messages:
            tls.write(message)
        with suppress(ssl.SSLWantReadError):
            tls.unwrap()
        raw.sendall(to_send.read())
        while raw.recv(1 << 16):
            pass


@on_both_loops
async def test_requests_before_the_end_are_executed_though_reads_wait_for_callbacks(authority: Authority) -> None:
    handlers, context = Handlers(), authority.client()
    async with serving(authority, handlers) as (server, _):
        async with await client_of(server, context) as client:
            await client.ask(VERSIONS)
        server.tick.reads_left, server.tick._ending = -1, True  # as in the middle of thousands of reads
        await asyncio.to_thread(
            send_and_close, server, context, *[encode_request(VERSIONS, number) for number in (1, 2, 3)]
        )
        await until(lambda: not server.connections)
    assert handlers.started == ["api_versions"] * 4


@on_both_loops
async def test_drain_ends_connections_over_tls(authority: Authority) -> None:
    async with serving(authority) as (server, _), await client_of(server, authority.client()) as client:
        await client.ask(VERSIONS)
        await server.drain(1_000)
        assert await closed(client) == b"" and not server.connections


@on_both_loops
async def test_plaintext_on_a_tls_port_ends_at_once_and_is_logged_once(authority: Authority) -> None:
    with capture_logs() as lines:
        async with serving(authority) as (server, _):
            for _ in range(5):
                client = await client_of(server, None)
                client.send(VERSIONS)
                assert await client.reader.read() == b""  # an end, not a reset
                await client.close()
    line = reported(lines, "plaintext_on_tls_listener")
    assert (line["listener"], line["host"], line["log_level"]) == ("SSL", "127.0.0.1", "warning")
    assert "security.protocol=SSL" in line["do"]


@on_both_loops
async def test_tls_on_a_plaintext_port_ends_at_once_and_is_logged_once(authority: Authority) -> None:
    with capture_logs() as lines:
        async with serving(authority) as (server, _):
            for _ in range(5):
                with pytest.raises((ssl.SSLError, ConnectionError)) as failed:
                    await client_of(server, authority.client(), port=1)
                assert not isinstance(failed.value, ConnectionResetError) or "reset" not in str(failed.value).lower()
    line = reported(lines, "tls_on_plaintext_listener")
    assert line["listener"] == "PLAINTEXT" and "security.protocol=PLAINTEXT" in line["do"]


@on_both_loops
async def test_client_that_does_not_trust_us_is_logged(authority: Authority, tmp_path: Path) -> None:
    """It may say so, as OpenSSL does, or just hang up, as asyncio does."""
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").client()

    def blocking(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            stranger.wrap_socket(sock, server_hostname="127.0.0.1")

    for reports_it in (True, False):
        with capture_logs() as lines:
            async with serving(authority) as (server, _):
                with pytest.raises(ssl.SSLCertVerificationError):
                    await (asyncio.to_thread(blocking, server.ports[0]) if reports_it else client_of(server, stranger))
                await until(lambda: any(line["event"] == "tls_handshake_failed" for line in lines))
        line = reported(lines, "tls_handshake_failed")
        assert ("UNKNOWN_CA" in line["reason"]) == reports_it
        assert "give the client its CA" in line["do"]


@on_both_loops
async def test_client_without_a_certificate_is_refused_where_one_is_required(authority: Authority) -> None:
    own = authority.issue("app")
    with capture_logs() as lines:
        async with serving(authority, ssl_client_ca_file=str(authority.file)) as (server, _):
            async with await client_of(server, authority.client(own)) as client:
                assert (await client.ask(VERSIONS)).error_code.value == 0
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                async with await client_of(server, authority.client()) as nobody:
                    await nobody.ask(VERSIONS)
            await until(lambda: any(line["event"] == "tls_handshake_failed" for line in lines))
    assert reported(lines, "tls_handshake_failed")["do"] == "the client needs a certificate of ssl_client_ca_file"


@on_both_loops
async def test_refused_certificates_are_in_the_audit(authority: Authority) -> None:
    expired = authority.issue("app", not_after=datetime.now(UTC) - timedelta(days=1))
    noted: list[dict[str, Any]] = []
    trail = SimpleNamespace(note_repeatable=lambda key, event: noted.append(event()))
    async with serving(authority, audit=trail, ssl_client_ca_file=str(authority.file)) as (server, _):
        for shown in (expired, None):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                async with await client_of(server, authority.client(shown)) as client:
                    await client.ask(VERSIONS)
        await until(lambda: len(noted) == 2)

    assert [event["status_detail"] for event in noted] == ["certificate has expired", "no certificate"]
    assert {event["class_uid"] for event in noted} == {3002}


@on_both_loops
async def test_certificate_names_user_and_org(authority: Authority) -> None:
    noted: list[dict[str, Any]] = []
    trail = SimpleNamespace(note=noted.append, note_repeatable=lambda key, event: noted.append(event()))
    rules = {"principal_rules": "RULE:^CN=([a-z]+)-.*$/$1/", "org_rules": "RULE:^CN=[a-z]+-([^,]+),.*$/$1/L"}
    security = SimpleNamespace(certificates=CertificateIdentities(**rules))
    files = {"ssl_client_ca_file": str(authority.file)}
    async with serving(authority, audit=trail, security=security, **files) as (server, _):
        for name in ("app-ACME", "app-no_org", "8"):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                async with await client_of(server, authority.client(authority.issue(name))) as client:
                    await client.ask(VERSIONS)
        await until(lambda: len(noted) == 3)

    users = [
        (event["user"]["name"].partition(",")[0], event["user"]["org"]["name"], event["status"]) for event in noted
    ]
    assert users == [
        ("User:app", "acme", "Success"),
        ("CN=app-no_org", "default", "Failure"),
        ("CN=8", "default", "Failure"),
    ]


@on_both_loops
async def test_certificate_org_above_its_connections_is_refused(authority: Authority) -> None:
    """The organisation of the certificate counts, not that of clients without one."""
    security = SimpleNamespace(certificates=CertificateIdentities("DEFAULT", "RULE:^CN=[a-z]+-([^,]+),.*$/$1/L"))
    files = {"ssl_client_ca_file": str(authority.file), "ssl_client_auth": "requested"}
    asked: list[str] = []

    def admits(org: str) -> bool:
        asked.append(org)
        return asked.count(org) <= 1

    async with serving(authority, security=security, **files) as (server, _):
        server._limits_connections, server._org_limits = True, cast(OrgLimits, SimpleNamespace(admits=admits))
        certificate = authority.client(authority.issue("app-ACME"))
        async with await client_of(server, certificate) as first:
            await first.ask(VERSIONS)
            async with await client_of(server, certificate) as second:
                assert await closed(second) == b""
            async with await client_of(server, authority.client()) as anonymous:
                await anonymous.ask(VERSIONS)
            await first.ask(VERSIONS)
    assert asked == ["acme", "acme", "default"]


@on_both_loops
async def test_certificate_may_be_only_requested(authority: Authority) -> None:
    asked = {"ssl_client_ca_file": str(authority.file), "ssl_client_auth": "requested"}
    async with serving(authority, **asked) as (server, _), await client_of(server, authority.client()) as client:
        assert (await client.ask(VERSIONS)).error_code.value == 0


@on_both_loops
async def test_silent_client_is_aborted_and_delays_no_other(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three handshakes, those of the first two have little time."""
    timeouts_s = iter((0.3, 0.3, limits.FRAME_TIMEOUT_S))
    of_handshake = property(lambda _: next(timeouts_s))
    monkeypatch.setattr(tls_port, "limits", type("Limits", (), {"FRAME_TIMEOUT_S": of_handshake})())
    async with (
        serving(authority) as (server, _),
        await client_of(server, None) as silent,
        await client_of(server, None) as half,
    ):
        half.writer.write(b"\x16\x03\x01")
        async with await client_of(server, authority.client()) as client:
            assert (await client.ask(VERSIONS)).error_code.value == 0
        assert await closed(silent) == await closed(half) == b""


@on_both_loops
async def test_client_that_connects_and_closes_is_not_logged(authority: Authority) -> None:
    """Load balancers look like that every few seconds."""
    with capture_logs() as lines:
        async with serving(authority) as (server, _):
            await (await client_of(server, None)).close()
            async with await client_of(server, authority.client()) as client:
                await client.ask(VERSIONS)
    assert {line["event"] for line in lines} == {"listening"}


@on_both_loops
async def test_closing_does_not_wait_for_handshakes(authority: Authority) -> None:
    async with (
        serving(authority) as (server, _),
        await client_of(server, None) as silent,
        await client_of(server, None) as half,
    ):
        half.writer.write(b"\x16\x03\x01")
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            await server.drain(100)
        assert not server.listening
        assert await closed(silent) == await closed(half) == b""


@on_both_loops
async def test_handshakes_count_as_connections(authority: Authority) -> None:
    async with (
        serving(authority, connections_max=2) as (server, _),
        await client_of(server, None),
        await client_of(server, None),
    ):
        await asyncio.sleep(0.05)
        async with await client_of(server, None) as refused:
            assert await closed(refused) == b""


@on_both_loops
async def test_renewed_certificate_is_used_without_a_restart(authority: Authority) -> None:
    def serial(client: RawClient) -> object:
        return client.writer.get_extra_info("peercert")["serialNumber"]

    async with serving(authority) as (server, certificates), await client_of(server, authority.client()) as before:
        renewed = authority.issue("broker", "127.0.0.1")
        certificates.reload()
        async with await client_of(server, authority.client()) as after:
            assert serial(before) != serial(after)
            assert (await before.ask(VERSIONS)).error_code.value == 0
        with capture_logs() as lines:
            renewed.write_text("half written")
            certificates.reload()
            certificates.reload()
        assert str(renewed) in reported(lines, "certificate_not_loaded")["reason"]
        async with await client_of(server, authority.client()) as still:
            assert serial(still) == serial(after)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificate_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "c.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CannotStart) as refusal:
        Certificates(Settings(ssl_certificate_file=str(file)))
    assert f"TIDEGATE_SSL_CERTIFICATE_FILE={file}" in str(refusal.value) and "\n" not in str(refusal.value)
