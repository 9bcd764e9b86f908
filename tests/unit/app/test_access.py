"""Who may do what over the admin HTTP: every route, with and without a role, from here and from elsewhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import DummyCookieJar, encode_basic_auth, web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from tidegate.cli.options import load, unknown_variables
from tidegate.http import routes
from tidegate.http.access import Access, FailedLogins
from tidegate.http.headers import HEADERS
from tidegate.http.health import Health
from tidegate.http.secrets import Role, Secrets
from tidegate.http.sessions import COOKIE, CSRF_HEADER, SESSION_S, Sessions
from tidegate.settings import SECRETS, Settings
from tidegate.startup import CannotStart

TOKEN, PASSWORD, VIEW = "t" * 16, "correct horse", "v" * 16
ALL = Secrets(TOKEN, PASSWORD, VIEW)
OPERATORS_ONLY = Secrets(TOKEN, PASSWORD)

Http = TestClient[web.Request, web.Application]


@asynccontextmanager
async def admin(secrets: Secrets, bound_to: str = "0.0.0.0", hosts: str = "") -> AsyncIterator[Http]:
    """An admin HTTP of all routes. It has no broker context: a request that is let in fails with 500."""
    lease = SimpleNamespace(valid=True)
    context: Any = SimpleNamespace(asked=[], store=None, audit=None, stalls=None, broker_lease=lease)
    context.ask_to_drain = context.asked.append
    access = Access(secrets, "cluster-1", bound_to, hosts)
    app = routes.application(Health(lambda: True, lambda: True), context, access)
    async with TestClient(TestServer(app), cookie_jar=DummyCookieJar()) as http:
        yield http


def changing(http: Http) -> Iterator[tuple[str, str]]:
    """Method and an address of every route that changes something, but logging in."""
    assert http.app is not None
    for route in http.app.router.routes():
        assert route.resource is not None
        path = re.sub(r"{[^}]*}", "x", route.resource.canonical)
        if route.method not in ("GET", "HEAD") and not path.startswith("/console/log"):
            yield route.method, path


def reading(http: Http) -> Iterator[str]:
    """An address of every route that shows something."""
    assert http.app is not None
    for route in http.app.router.routes():
        assert route.resource is not None
        path = re.sub(r"{[^}]*}", "x", route.resource.canonical)
        if route.method == "GET" and not path.startswith(("/health/", "/console/login", "/console/static/")):
            yield path


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


FROM_ELSEWHERE = {"X-Forwarded-For": "10.0.0.1"}
"""Without it the tests are programs on this machine, which may drain its broker."""


async def test_every_change_without_a_role_is_refused() -> None:
    async with admin(OPERATORS_ONLY) as http:
        routes_tried = list(changing(http))
        statuses = {route: (await http.request(*route, headers=FROM_ELSEWHERE)).status for route in routes_tried}

    assert len(statuses) >= 8
    assert set(statuses.values()) == {401}


async def test_every_change_by_a_viewer_is_refused() -> None:
    async with admin(ALL) as http:
        headers = bearer(VIEW) | FROM_ELSEWHERE
        assert {(await http.request(*route, headers=headers)).status for route in changing(http)} == {403}


async def test_changes_without_an_operator_secret_are_refused_with_the_setting_to_use() -> None:
    async with admin(Secrets()) as http:
        for route in changing(http):
            answer = await http.request(*route, headers=FROM_ELSEWHERE)
            assert answer.status == 403
            assert "TIDEGATE_ADMIN_OPERATOR_TOKEN" in (await answer.json())["detail"]


@pytest.mark.parametrize(
    "foreign",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_every_change_from_another_origin_is_refused_even_to_operators(foreign: dict[str, str]) -> None:
    async with admin(ALL) as http:
        for route in [*changing(http), ("POST", "/console/login"), ("POST", "/console/logout")]:
            assert (await http.request(*route, headers=bearer(TOKEN) | foreign)).status == 403, route


@pytest.mark.parametrize(
    "disguise",
    [
        "/health/..{0}",
        "/health/%2e%2e{0}",
        "/%68ealth/..{0}",
        "/{0}",
        "{0}/",
        "{0}?next=/health/",
        "/console/login/..{0}",
    ],
)
async def test_no_disguise_of_a_path_gets_round_its_role(disguise: str) -> None:
    """404 is as good as 401; 500 would mean that a handler ran."""
    async with admin(OPERATORS_ONLY) as http:
        for method, path in changing(http):
            url = URL(str(http.make_url("")).rstrip("/") + disguise.format(path), encoded=True)
            answer = await http.session.request(method, url, headers=FROM_ELSEWHERE)
            assert answer.status in (401, 403, 404, 405), (url, answer.status)


async def test_operators_are_admitted_to_changes() -> None:
    async with admin(ALL) as http:
        own = {"Origin": str(http.make_url("")).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        for headers in (bearer(TOKEN), bearer(TOKEN) | own):
            for method, path in changing(http):
                status = (await http.request(method, path, headers=headers, json={})).status
                assert status not in (401, 403, 421, 429), path


async def test_reading_is_open_until_there_is_a_viewers_token() -> None:
    async with admin(OPERATORS_ONLY) as http:
        assert 401 not in {(await http.get(path)).status for path in reading(http)}
    async with admin(ALL) as http:
        assert {(await http.get(path)).status for path in reading(http)} == {401}
        assert 401 not in {(await http.get(path, headers=bearer(VIEW))).status for path in reading(http)}


@pytest.mark.parametrize("secrets", [ALL, Secrets()])
async def test_probes_need_no_role_and_no_name(secrets: Secrets) -> None:
    async with admin(secrets, "127.0.0.1") as http:
        for path in ("/health/live", "/health/ready"):
            headers = {"Host": "evil.example", "Authorization": "Bearer wrong"}
            assert (await http.get(path, headers=headers)).status in (200, 503)


@pytest.mark.parametrize(
    ("bound_to", "secrets", "host", "status"),
    [
        ("0.0.0.0", Secrets(), "evil.example", 421),
        ("0.0.0.0", Secrets(), "console.example:8080", 200),
        ("0.0.0.0", Secrets(), "10.1.2.3:8080", 200),
        ("0.0.0.0", Secrets(viewer_token=VIEW), "evil.example", 401),
        ("127.0.0.1", Secrets(), "evil.example", 421),
        ("::1", OPERATORS_ONLY, "evil.example:8080", 421),
        ("127.0.0.1", Secrets(), "localhost:8080", 200),
        ("127.0.0.1", Secrets(), "[::1]:8080", 200),
        ("127.0.0.1", Secrets(), "console.example", 200),
    ],
)
async def test_public_pages_answer_to_known_names_alone(
    bound_to: str, secrets: Secrets, host: str, status: int
) -> None:
    async with admin(secrets, bound_to, "console.example") as http:
        assert (await http.get("/", headers={"Host": host})).status == status


async def test_beyond_loopback_names_are_checked_once_they_are_given() -> None:
    async with admin(Secrets(), "0.0.0.0") as http:
        assert (await http.get("/", headers={"Host": "any.example"})).status == 200


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (encode_basic_auth("operator", PASSWORD), 200),
        (encode_basic_auth("operator", TOKEN), 200),
        (encode_basic_auth("viewer", VIEW), 200),
        (encode_basic_auth("viewer", PASSWORD), 401),
        (encode_basic_auth("operator", VIEW), 401),
        (encode_basic_auth("root", PASSWORD), 401),
        (encode_basic_auth("operator", ""), 401),
    ],
)
async def test_basic_authentication(given: str, status: int) -> None:
    async with admin(ALL) as http:
        answer = await http.get("/", headers={"Authorization": given})

        assert answer.status == status
        assert (status == 401) == ("WWW-Authenticate" in answer.headers)


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic ???", "Digest x", "", "Bearer " + TOKEN + "x"])
async def test_header_that_is_wrong_is_not_taken_for_none(header: str) -> None:
    async with admin(OPERATORS_ONLY) as http:
        assert (await http.get("/", headers={"Authorization": header})).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer \udcff"},
        {"Authorization": "Basic \udcff"},
        {"Cookie": f"{COOKIE}=\udcff.\udcfe"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "http://[", "Host": "localhost"},
        {"Origin": "", "Host": "localhost"},
    ],
)
async def test_headers_that_are_no_text_or_no_address_are_refused(headers: dict[str, str]) -> None:
    async with admin(OPERATORS_ONLY, "127.0.0.1") as http:
        answers = [await raw(http, "GET", "/", headers), await raw(http, "POST", "/api/v1/topics", headers)]

        assert set(answers) <= {200, 400, 401, 403, 421}
        assert answers[1] != 200


async def raw(http: Http, method: str, path: str, headers: dict[str, str]) -> int:
    """The status of a request that no client library would send."""
    reader, writer = await asyncio.open_connection(http.host, http.port)
    lines = {"Host": "localhost"} | headers | {"Content-Length": "0", "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogateescape"))
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status


async def test_wrong_secrets_are_slowed_down_and_then_right_ones_too() -> None:
    async with admin(ALL) as http:
        statuses = [(await http.get("/", headers=bearer("wrong"))).status for _ in range(12)]
        last = await http.get("/", headers=bearer(TOKEN))

    assert statuses == [401] * 10 + [429] * 2
    assert last.status == 429
    assert int(last.headers["Retry-After"]) >= 1


def test_failed_logins_expire_one_by_one_and_are_limited_to_a_thousand_addresses() -> None:
    failures = FailedLogins()
    for _ in range(10):
        failures.failed("a", 0.0)

    assert failures.wait_s("a", 0.0) == pytest.approx(6)
    assert failures.wait_s("a", 6.0) == pytest.approx(0)
    assert failures.wait_s("b", 0.0) == 0
    for number in range(1_000):
        failures.failed(str(number), 0.0)
    assert failures.wait_s("a", 0.0) == 0


# -- the console's session


async def log_in(http: Http, **form: str) -> Any:
    return await http.post("/console/login", data=form, allow_redirects=False)


FIELD = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\noperator\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"name=a", {"Content-Type": "application/x-www-form-urlencoded; charset=none"}, 400),
        (b"name=\xff", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (FIELD, {"Content-Type": "multipart/form-data; boundary=x"}, 415),
        (b"", {"Content-Type": "multipart/form-data"}, 415),
        (b"{}", {"Content-Type": "application/json"}, 415),
    ],
)
async def test_invalid_form_is_a_client_error(
    body: bytes, headers: dict[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with admin(ALL) as http:
        answer = await http.post("/console/login", data=body, headers=headers)

        assert (answer.status, answer.content_type) == (status, "application/problem+json")
    assert not caplog.records, "nobody can fill the log without a login"


async def test_session_changes_things_with_its_csrf_token_alone() -> None:
    async with admin(ALL) as http:
        answer = await log_in(http, name="operator", password=PASSWORD, next="/console/brokers")
        cookie = answer.cookies[COOKIE]
        assert answer.status == 303 and answer.headers["Location"] == "/console/brokers"
        assert cookie["httponly"] and cookie["samesite"] == "Strict" and not cookie["secure"]
        session = Sessions(ALL, "cluster-1").read(cookie.value)  # of another broker with these secrets
        assert session is not None and session.role is Role.OPERATOR
        token = Sessions(ALL, "cluster-1").csrf_token(session)
        headers = {"Cookie": f"{COOKIE}={cookie.value}"}

        for method, path in changing(http):
            assert (await http.request(method, path, headers=headers | FROM_ELSEWHERE)).status == 403, path
            wrong = headers | {CSRF_HEADER: token[:-1] + "x"}
            assert (await http.request(method, path, headers=wrong)).status == 403, path
            fitting = headers | {CSRF_HEADER: token}
            assert (await http.request(method, path, headers=fitting)).status not in (401, 403), path
        form = await http.post("/drain", headers=headers | FROM_ELSEWHERE, data={"csrf": token})
        assert form.status == 202


async def test_viewer_logs_in_and_out_and_changes_nothing() -> None:
    async with admin(ALL) as http:
        cookie = (await log_in(http, name="viewer", password=VIEW)).cookies[COOKIE].value
        headers = {"Cookie": f"{COOKIE}={cookie}"}
        session = Sessions(ALL, "cluster-1").read(cookie)
        assert session is not None
        headers[CSRF_HEADER] = Sessions(ALL, "cluster-1").csrf_token(session)

        assert (await http.get("/", headers=headers)).status == 200
        assert {(await http.request(*route, headers=headers | FROM_ELSEWHERE)).status for route in changing(http)} == {
            403
        }
        assert (await http.post("/console/logout", headers=headers, allow_redirects=False)).status == 303


async def test_failed_login_leads_back_to_the_form_and_is_counted() -> None:
    async with admin(ALL) as http:
        answers = [await log_in(http, name="operator", password="guess", next="/console/x") for _ in range(11)]

    assert URL(answers[0].headers["Location"]).query == {"failed": "1", "next": "/console/x"}
    assert answers[0].headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
    assert COOKIE not in answers[0].cookies
    assert [one.status for one in answers] == [303] * 10 + [429]


@pytest.mark.parametrize(
    "wanted", ["https://evil", "//evil", "/\\evil", "/console//evil", "/console/\\evil", "/\x00", ""]
)
async def test_login_leads_to_no_other_site(wanted: str) -> None:
    async with admin(ALL) as http:
        answer = await log_in(http, name="operator", password=PASSWORD, next=wanted)

        assert answer.headers["Location"] == "/console/"


async def test_behind_tls_the_cookie_is_for_tls_alone() -> None:
    async with admin(ALL) as http:
        answer = await http.post(
            "/console/login",
            data={"name": "operator", "password": PASSWORD},
            headers={"X-Forwarded-Proto": "https"},
            allow_redirects=False,
        )

        assert answer.cookies[COOKIE]["secure"]


async def test_page_without_a_role_leads_to_the_login() -> None:
    async with admin(ALL) as http:
        page = "/console/groups?org=a&state=b"
        answer = await http.get(page, headers={"Accept": "text/html"}, allow_redirects=False)
        target = URL(answer.headers["Location"])

        assert (answer.status, target.path, target.query) == (303, "/console/login", {"next": page})


SESSIONS = Sessions(ALL, "cluster-1")


def test_session_ends_and_is_of_one_cluster_and_one_set_of_secrets() -> None:
    text = SESSIONS.begin("operator", Role.OPERATOR, now_s=1_000).text

    assert SESSIONS.read(text, now_s=1_000 + SESSION_S - 1) is not None
    assert SESSIONS.read(text, now_s=1_000 + SESSION_S) is None
    assert Sessions(ALL, "cluster-2").read(text, now_s=1_000) is None
    assert Sessions(Secrets(TOKEN, "other horse", VIEW), "cluster-1").read(text, now_s=1_000) is None


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200), st.integers(0, 300), st.characters())
def test_no_other_text_is_a_session(text: str, at: int, put: str) -> None:
    real = SESSIONS.begin("operator", Role.OPERATOR).text
    changed = real[: at % len(real)] + put + real[at % len(real) + 1 :]

    assert SESSIONS.read(text) is None
    assert changed == real or SESSIONS.read(changed) is None


# -- the broker's own drain


async def test_program_on_the_brokers_machine_drains_it() -> None:
    for secrets in (Secrets(), ALL):
        async with admin(secrets) as http:
            assert (await http.post("/drain")).status == 202
            assert http.app is not None
            assert len(http.app[routes.CONTEXT].asked) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "headers",
    [
        *(FROM_ELSEWHERE, {"Forwarded": "for=1.2.3.4"}, {"X-Real-IP": "1.2.3.4"}, {"Via": "1.1 proxy"}),
        *({"Host": "evil.example"}, {"Sec-Fetch-Site": "none"}),
    ],
)
async def test_drain_without_a_role_is_refused_to_others(headers: dict[str, str]) -> None:
    async with admin(OPERATORS_ONLY) as http:
        assert (await http.post("/drain", headers=headers)).status == 401


async def test_every_answer_carries_the_headers_that_keep_foreign_pages_out() -> None:
    async with admin(OPERATORS_ONLY) as http:
        for path in ("/", "/nothing", "/health/live", "/api/v1/brokers", "/console/static/x"):
            answer = await http.get(path)
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, path
    assert "unsafe-inline" not in HEADERS["Content-Security-Policy"]


# -- where secrets come from


def test_secrets_are_read_from_settings_or_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    monkeypatch.setenv("TIDEGATE_ADMIN_OPERATOR_TOKEN_FILE", str(file))
    given = Settings(admin_operator_password=PASSWORD)

    assert Secrets.read(given) == Secrets(TOKEN, PASSWORD)
    assert PASSWORD not in repr(given)
    assert unknown_variables() == []


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secret_file_that_cannot_be_read_stops_the_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"TIDEGATE_{name}_FILE".upper()
    monkeypatch.setenv(variable, str(tmp_path / "token"))

    with pytest.raises(CannotStart, match=f"{variable}=.*: No such file"):
        load()


@pytest.mark.parametrize("text", ["short", ""])
def test_secret_in_a_file_too_short_stops_the_start(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    monkeypatch.setenv("TIDEGATE_ADMIN_VIEWER_TOKEN_FILE", str(file))

    with pytest.raises(CannotStart, match=r"^TIDEGATE_ADMIN_VIEWER_TOKEN: value should have at least 16"):
        load()


def test_two_places_for_one_secret_stop_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ADMIN_OPERATOR_TOKEN", TOKEN)
    monkeypatch.setenv("TIDEGATE_ADMIN_OPERATOR_TOKEN_FILE", str(tmp_path))

    with pytest.raises(CannotStart, match="both set"):
        load()
