"""People at the admin HTTP: users with passwords, bearers of tokens, who logs in at an OpenID issuer; and roles."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestClient, TestServer
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from yarl import URL

from tests.support.whole_broker import WholeBroker
from tidegate.audit.trail import AuditTrail
from tidegate.http import routes
from tidegate.http.access import Access
from tidegate.http.forms import FORM
from tidegate.http.health import Health
from tidegate.http.oidc import OpenIdLogin
from tidegate.http.people import People, roles_of
from tidegate.http.secrets import Role, Secrets
from tidegate.http.sessions import COOKIE
from tidegate.security.users import Credential, Users
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.store import Store

ROLES = "User:vera=viewer;User:otto=operator;User:ada=admin;User:anna=operator;User:alma=admin"
ORGS = {"anna": "acme", "alma": "acme"}
NAMES = ("vera", "otto", "ada", "anna", "alma", "nobody")
PASSWORD = "s3cret-password"
QUERIES = ((), (("org", "default"),), (("org", "acme"),), (("org", "acme"), ("org", "default")))
BODIES: tuple[dict[str, Any], ...] = ({"json": {}}, {"data": {"org": "acme"}}, {"data": {"org": "default"}})
CLIENT_ID, CLIENT_SECRET = "console", "a-client-secret-16"

Http = TestClient[Any, Any]


class Issuer:
    """A stand-in OpenID issuer at which `user` is logged in already."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.user, self.claims = "otto", dict[str, Any]()
        self.url = ""
        self._codes: dict[str, dict[str, str]] = {}

    def application(self) -> web.Application:
        """Discovery, authorisation, token and keys."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/.well-known/openid-configuration", self._discover),
                web.get("/authorize", self._authorize),
                web.post("/token", self._token),
                web.get("/keys", self._keys),
            ]
        )
        return app

    async def _discover(self, _: web.Request) -> web.Response:
        endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return web.json_response({"issuer": self.url, **{key: f"{self.url}/{path}" for key, path in endpoints.items()}})

    async def _authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        assert query["response_type"] == "code" and query["code_challenge_method"] == "S256"
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        raise web.HTTPFound(f"{query['redirect_uri']}?code={code}&state={query['state']}")

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = self._codes.pop(str(form["code"]), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if (
            asked is None
            or challenge.rstrip(b"=").decode() != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
            or request.headers.get("Authorization") != f"Basic {basic}"
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self.token(nonce=asked["nonce"], aud=CLIENT_ID), "access_token": "x"})

    def token(self, **claims: Any) -> str:
        """A signed token of the present user."""
        payload = {"iss": self.url, "sub": self.user, "exp": time.time() + 60} | claims | self.claims
        return jwt.encode(payload, self.key, algorithm="RS256", headers={"kid": "k"})

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True) | {"kid": "k"}]})


class Admin:
    """The admin HTTP of one broker, its users, an issuer and the audit."""

    def __init__(
        self, http: Http, issuer: Issuer, users: Users, trail: AuditTrail, whole: WholeBroker, store: Store,
        people: People,
    ) -> None:  # fmt: skip
        self.http, self.issuer, self.users, self.trail, self.store = http, issuer, users, trail, store
        self.whole, self.people = whole, people

    async def status(self, name: str, method: str, path: str, json: Any = None) -> int:
        """What is answered to a user with its password."""
        headers = {"Authorization": encode_basic_auth(name, PASSWORD)}
        async with self.http.request(method, path, headers=headers, json=json, allow_redirects=False) as answer:
            await answer.read()
            return answer.status

    async def delete_with_form(self, name: str, path: URL, form: dict[str, str]) -> int:
        """What is answered to a DELETE with a body that its endpoint does not read."""
        headers = {"Authorization": encode_basic_auth(name, PASSWORD)}
        async with self.http.delete(path, headers=headers, data=form) as answer:
            await answer.read()
            return answer.status

    async def events(self) -> list[dict[str, Any]]:
        """The audit so far."""
        await self.trail.flush()
        entries = await self.store.read("XRANGE", self.store.cluster_keys.audit_events, "-", "+")
        return [json.loads(fields[fields.index(b"event") + 1]) for _, fields in entries]


@asynccontextmanager
async def opened(settings: Settings, store: Store, **changes: Any) -> AsyncIterator[Admin]:
    issuer = Issuer()
    async with TestServer(issuer.application()) as issuing:
        issuer.url = str(issuing.make_url("")).rstrip("/")
        values = {
            "admin_roles": ROLES, "admin_oidc_issuer_url": issuer.url, "admin_oidc_client_id": CLIENT_ID,
            "sasl_oauthbearer_jwks_endpoint_url": f"{issuer.url}/keys", "audit_stream_bytes": 1 << 20, **changes,
        }  # fmt: skip
        settings = settings.model_copy(update=values)
        whole = await WholeBroker(settings).start()
        lease: Any = whole.context.broker_lease
        lease.live = lease.preferred = lease.nameable = list
        lease.cluster_id = "c1"
        trail = whole.context.audit = AuditTrail(store, settings, lambda: "1")
        users = Users(store, store.cluster_keys)
        for name in NAMES:
            await users.set_password(name, PASSWORD, ORGS.get(name, "default"))
        secrets = Secrets(operator_token="t" * 16, oidc_client_secret=CLIENT_SECRET, roles=ROLES)
        people = People(settings, secrets, users)
        access = Access(secrets, "c1", "127.0.0.1", "", people)
        access.issuer = OpenIdLogin(settings, CLIENT_SECRET, access.sessions)
        app = routes.application(Health(lambda: True, lambda: True), whole.context, access)
        try:
            async with TestClient(TestServer(app)) as http:
                yield Admin(http, issuer, users, trail, whole, store, people)
        finally:
            await people.close()
            await access.issuer.close()
            await whole.close()


@pytest.fixture
async def admin(settings: Settings, store: Store) -> AsyncIterator[Admin]:
    async with opened(settings, store) as running:
        yield running


TOPIC = {"topic": "orders", "partition_count": 1, "configs": {}}


async def test_people_do_what_their_role_allows(admin: Admin) -> None:
    assert await admin.status("vera", "GET", "/api/v1/groups") == 200
    assert await admin.status("nobody", "GET", "/api/v1/groups") == 401
    assert await admin.status("vera", "POST", "/api/v1/topics", TOPIC) == 403
    assert await admin.status("otto", "POST", "/api/v1/topics", TOPIC) == 200
    change = {"changes": [{"entity": "user=x", "quota": "producer_byte_rate", "value": 1e6}]}
    for name, allowed in (("otto", False), ("ada", True)):
        for method, path, body in (("DELETE", "/api/v1/topics/orders", None), ("PATCH", "/api/v1/quotas", change)):
            status = await admin.status(name, method, path, body)
            assert (status != 403) is allowed, (name, method, path)
    async with admin.http.get("/api/v1/groups", allow_redirects=False) as answer:
        assert answer.status == 401, "with people nobody reads without a role"
    async with admin.http.get("/api/v1/groups", headers={"Authorization": f"Bearer {'t' * 16}"}) as answer:
        assert answer.status == 200, "the operators' token remains"


async def test_encoded_signs_in_a_path_do_not_change_the_role_that_it_needs(admin: Admin) -> None:
    for path in ("/api/v1/brokers/1%0A/drain", "/api/v1/brokers/%0A1/drain", "/api/v1/brokers/1%2F2/drain"):
        async with admin.http.post(
            URL(path, encoded=True), headers={"Authorization": encode_basic_auth("otto", PASSWORD)}
        ) as answer:
            assert answer.status == 403, path
    for path in ("/api/v1/topics/orders%0A", "/api/v1/topics/%0Aorders"):
        async with admin.http.delete(
            URL(path, encoded=True), headers={"Authorization": encode_basic_auth("otto", PASSWORD)}
        ) as answer:
            assert answer.status == 403, path


async def test_unknown_name_takes_as_long_as_a_wrong_password(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time would show which users exist."""
    checked: list[str] = []
    accepts = Credential.accepts

    def counting(self: Credential, mechanism: str, password: str) -> bool:
        checked.append(mechanism)
        return accepts(self, mechanism, password)

    monkeypatch.setattr(Credential, "accepts", counting)
    assert await admin.people.by_password("vera", "wrong") is None
    of_wrong_password, checked[:] = list(checked), []
    assert await admin.people.by_password("who", "wrong") is None

    assert checked == of_wrong_password != []


async def test_person_of_an_org_stays_in_it(admin: Admin) -> None:
    """Over every read and change of REST and console: nothing but the person's own organisation."""
    assert await admin.status("anna", "POST", "/api/v1/topics?org=acme", TOPIC) == 200
    assert await admin.status("otto", "POST", "/api/v1/topics", TOPIC | {"topic": "secret-orders"}) == 200
    assert admin.http.app is not None
    answered = []
    for route in admin.http.app.router.routes():
        assert route.resource is not None
        path = re.sub(r"{[^}]*}", "x", route.resource.canonical)
        if path.startswith(("/health", "/console/log", "/console/static")) or path in ("/", "/api/v1/openapi.json"):
            continue
        headers = {"Authorization": encode_basic_auth("alma", PASSWORD)}
        for query, body in itertools.product(QUERIES, BODIES):
            async with admin.http.request(
                route.method, path, params=query, headers=headers, allow_redirects=False, **body
            ) as answer:
                text = await answer.text()
            assert "secret-orders" not in text
            if "default" in dict(query).values() or route.method not in ("GET", "HEAD"):
                changes_own = dict(query).get("org") == "acme" and answer.status != 403
                is_form = path.startswith("/console/") and "data" in body and not query
                refused = answer.status == 403 or changes_own or is_form
                assert refused, (route.method, path, query, body, answer.status)
            if answer.status == 200:
                answered.append(path)
    assert {"/api/v1/topics", "/api/v1/groups", "/console/topics"} <= set(answered)
    assert not {"/metrics", "/api/v1/redis", "/api/v1/audit", "/api/v1/brokers"} & set(answered)


async def test_overview_of_an_org_has_no_brokers_and_no_redis(admin: Admin) -> None:
    tiles = {}
    for name, org in (("anna", "acme"), ("vera", "default")):
        headers = {"Authorization": encode_basic_auth(name, PASSWORD)}
        async with admin.http.get("/console/", params={"org": org}, headers=headers) as answer:
            text = await answer.text()
        tiles[name] = set(re.findall(r"<dt>([\w ]+?)(?: [\d.]+)?</dt>", text)), " connection" in text

    assert tiles["anna"] == ({"Groups", "Members", "Records behind"}, False)
    groups, has_connections = tiles["vera"]
    assert groups > tiles["anna"][0] | {"Brokers"} and has_connections


@pytest.mark.parametrize("body", [{"org": "acme"}, {"org": "acme", "topic": "harmless"}])
async def test_form_names_no_org_and_nothing_else_to_rest(admin: Admin, body: dict[str, str]) -> None:
    assert await admin.status("otto", "POST", "/api/v1/topics", TOPIC) == 200
    of_default = URL("/api/v1/topics/orders?org=default")
    assert await admin.delete_with_form("alma", of_default, body) == 403
    assert await admin.delete_with_form("ada", of_default, body) == 204

    events = [event for event in await admin.events() if event["api"]["operation"].startswith("DELETE")]
    named = [[one["name"] for one in event["resources"]] for event in events]
    assert named == [["orders"], ["orders"]], events


async def _resources_of(admin: Admin, operation: str) -> list[set[tuple[str, str]]]:
    events = [event for event in await admin.events() if event.get("api", {}).get("operation") == operation]
    return [{(one["type"], one["name"]) for one in event["resources"]} for event in events]


async def test_created_topic_is_named_in_the_audit(admin: Admin) -> None:
    assert await admin.status("anna", "POST", "/api/v1/topics?org=acme", TOPIC) == 200

    assert await _resources_of(admin, "POST /api/v1/topics") == [{("org", "acme"), ("topic", "orders")}]


async def test_audit_of_a_form_names_the_fields_that_its_action_read(admin: Admin) -> None:
    """The first of equal fields, and no field of another action."""
    headers = {"Authorization": encode_basic_auth("anna", PASSWORD), "Content-Type": FORM}
    form = "org=acme&group=one&group=two&typed=one&topic=three&node_id=4&action=five"
    async with admin.http.post("/console/group/delete", data=form, headers=headers) as answer:
        assert answer.status == 404

    assert await _resources_of(admin, "POST /console/group/delete") == [{("org", "acme"), ("group", "one")}]


async def test_audit_of_a_refused_request_names_every_org_that_it_asked_for(admin: Admin) -> None:
    assert await admin.status("alma", "DELETE", "/api/v1/topics/orders?org=acme&org=default") == 403

    expected = {("org", "acme"), ("org", "default"), ("topic", "orders")}
    assert await _resources_of(admin, "DELETE /api/v1/topics/{topic}") == [expected]


async def test_form_with_another_org_in_its_body_is_refused(admin: Admin) -> None:
    await _log_in(admin, "anna")
    async with admin.http.get("/console/topics", params={"org": "acme"}) as answer:
        [csrf, *_] = re.findall(r'name="csrf" value="(\w+)"', await answer.text())
    for org, status in (("default", 403), ("acme", 404)):
        form = {"csrf": csrf, "org": org, "group": "g", "typed": "g"}
        async with admin.http.post("/console/group/delete", params={"org": "acme"}, data=form) as answer:
            assert answer.status == status, await answer.text()


async def _log_in(admin: Admin, name: str, password: str = PASSWORD) -> str:
    form = {"name": name, "password": password, "next": "/console/"}
    async with admin.http.post("/console/login", data=form, allow_redirects=False) as answer:
        return answer.headers["Location"]


async def _reads(admin: Admin) -> bool:
    async with admin.http.get("/api/v1/groups") as answer:
        return answer.status == 200


@pytest.mark.parametrize("change", ["deleted", "another password"])
async def test_session_ends_with_its_user(admin: Admin, change: str) -> None:
    assert "failed" not in await _log_in(admin, "otto")
    assert await _reads(admin)
    if change == "deleted":
        await admin.users.delete("otto")
    else:
        await admin.users.set_password("otto", "another-password")
    assert not await _reads(admin)


async def test_bearer_of_an_access_token_has_the_role_of_its_user(admin: Admin) -> None:
    def bearing(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    admin.issuer.user = "vera"
    async with admin.http.get("/api/v1/groups", headers=bearing(admin.issuer.token())) as answer:
        assert answer.status == 200
    async with admin.http.post("/api/v1/topics", headers=bearing(admin.issuer.token()), json=TOPIC) as answer:
        assert answer.status == 403
    for token in (admin.issuer.token(exp=time.time() - 120), "x.y.z", admin.issuer.token(sub="stranger")):
        async with admin.http.get("/api/v1/groups", headers=bearing(token)) as answer:
            assert answer.status == 401


async def _at_issuer(admin: Admin, **query: str) -> tuple[int, str]:
    async with admin.http.get("/console/login/issuer", params=query) as answer:
        return answer.status, f"{answer.url.path_qs} {await answer.text()}"


async def test_log_in_at_the_issuer(admin: Admin) -> None:
    """The code flow as a browser goes it; then the console knows the person, and changes are theirs in the audit."""
    async with admin.http.get("/console/login") as answer:
        assert "/console/login/issuer" in await answer.text()
    status, page = await _at_issuer(admin, next="/console/topics")
    assert status == 200 and "url=/console/topics" in page
    async with admin.http.get("/console/topics") as answer:
        text = await answer.text()
        assert "User:otto" in text
        [csrf, *_] = re.findall(r'name="csrf" value="(\w+)"', text)
    async with admin.http.post("/api/v1/topics", json=TOPIC, headers={"X-CSRF-Token": csrf}) as answer:
        assert answer.status == 200
    events = await admin.events()
    logon = next(event for event in events if event["class_uid"] == 3002)
    assert (logon["auth_protocol"], logon["user"]["name"], logon["status"]) == (
        "OpenID Connect",
        "User:otto",
        "Success",
    )
    created = next(event for event in events if event["class_uid"] == 6003)
    assert created["api"]["operation"] == "POST /api/v1/topics"
    assert created["actor"]["user"]["name"] == "User:otto"


@pytest.mark.parametrize(
    "claims",
    [{"aud": "another-client"}, {"iss": "http://other"}, {"nonce": "of another"}, {"exp": 1}, {"sub": "stranger"}],
    ids=["audience", "issuer", "nonce", "expired", "no role"],
)
async def test_id_token_that_does_not_fit_is_refused(admin: Admin, claims: dict[str, Any]) -> None:
    admin.issuer.claims = claims
    _, page = await _at_issuer(admin)
    assert page.startswith("/console/login?failed=issuer")
    assert COOKIE not in {cookie.key for cookie in admin.http.session.cookie_jar}
    [refused] = [event for event in await admin.events() if event["class_uid"] == 3002]
    assert refused["status"] == "Failure"


async def test_callback_of_another_browser_is_refused(admin: Admin) -> None:
    """Login CSRF: the code and state of somebody else's log-in."""
    async with admin.http.get("/console/login/issuer", allow_redirects=False) as answer:
        query = parse_qs(urlsplit(answer.headers["Location"]).query)
        cookie = answer.cookies["tidegate_login"].value
    state = query["state"][0]
    for sent, given in ((cookie[:-1] + ("0" if cookie[-1] != "0" else "1"), state), ("", state), (cookie, "other")):
        admin.http.session.cookie_jar.clear()
        url, params = "/console/login/callback", {"code": "code-0", "state": given}
        async with admin.http.get(
            url, params=params, cookies={"tidegate_login": sent}, allow_redirects=False
        ) as answer:
            assert answer.headers["Location"] == "/console/login?failed=issuer"


async def test_refusals_and_changes_are_in_the_audit_without_secrets(admin: Admin) -> None:
    assert await admin.status("vera", "POST", "/api/v1/topics", TOPIC) == 403
    assert "failed" in await _log_in(admin, "otto", "wr0ng-password")
    async with admin.http.get("/api/v1/groups", headers={"Authorization": "Bearer wr0ng-token"}) as answer:
        assert answer.status == 401
    events = await admin.events()
    denied = next(event for event in events if event["class_uid"] == 6003 and event["status"] == "Failure")
    assert (denied["actor"]["user"]["name"], denied["api"]["service"]["name"]) == ("User:vera", "admin")
    assert {event["auth_protocol"] for event in events if event["class_uid"] == 3002} == {"form", "Bearer"}
    for secret in (PASSWORD, "wr0ng-password", "wr0ng-token", CLIENT_SECRET):
        assert secret not in json.dumps(events)


@pytest.mark.parametrize("text", ["User:a", "User:a=boss", "a=viewer", "User:=viewer", "Group:a=viewer"])
def test_roles_that_cannot_be_read_stop_the_start(text: str) -> None:
    with pytest.raises(CannotStart, match="TIDEGATE_ADMIN_ROLES"):
        roles_of(text)


def test_roles_may_name_a_certificates_subject_and_everybody() -> None:
    assert roles_of("User:CN=a,O=b=admin; User:*=viewer;") == {"User:CN=a,O=b": Role.ADMIN, "User:*": Role.VIEWER}


def test_people_need_a_secret_to_sign_sessions_with(settings: Settings) -> None:
    with pytest.raises(CannotStart, match="sign sessions"):
        People(settings.model_copy(update={"admin_roles": ROLES}), Secrets(roles=ROLES), None)
