"""Authorisation of every admin HTTP route: GET needs the viewer role, every other method the operator role.

A new route is therefore protected by default. Reads are open until a viewer token is set; changes need an operator
secret, without which nobody may change anything. /health is always open, because probes send no token.
"""

from __future__ import annotations

import base64
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from tidegate.cluster.audit import Actor
from tidegate.http.forms import FORM, READS, form_of, has_form
from tidegate.http.oidc import OpenIdLogin
from tidegate.http.people import OF_ORG, PERSON, People, Person, is_bound, is_for_admins
from tidegate.http.problems import Problem
from tidegate.http.secrets import TO_SET, Role, Secrets
from tidegate.http.sessions import COOKIE, CSRF_FIELD, CSRF_HEADER, Session, Sessions
from tidegate.security.identity import DEFAULT_ORG

logger = structlog.get_logger()

LOGIN_PATH: Final = "/console/login"
_OPEN: Final = ("/health/",)
_OPEN_TO_LOG_IN: Final = (LOGIN_PATH, "/console/static/")
LOGOUT_PATH: Final = "/console/logout"
OWN_DRAIN_PATH: Final = "/drain"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CHALLENGE: Final = 'Basic realm="tidegate", charset="UTF-8"'
_FAILURES_MAX: Final = 10
_FAILURES_RESET_S: Final = 6.0
_REMOTES_MAX: Final = 1_000

ACTOR: Final = web.RequestKey("actor", Actor)
ROLE: Final = web.RequestKey("role", Role)


class FailedLogins:
    """Limits wrong secrets per address: a burst of ten, then one per six seconds. Addresses are kept in an LRU."""

    def __init__(self) -> None:
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, remote: str, now_s: float) -> float:
        """Seconds until an address may try again; 0 when it may try now."""
        used = self._of(remote, now_s)
        return max(0.0, (used - _FAILURES_MAX + 1) * _FAILURES_RESET_S)

    def failed(self, remote: str, now_s: float) -> None:
        """Count one wrong secret."""
        self._used[remote] = self._of(remote, now_s) + 1, now_s
        self._used.move_to_end(remote)
        while len(self._used) > _REMOTES_MAX:
            self._used.popitem(last=False)

    def _of(self, remote: str, now_s: float) -> float:
        used, at_s = self._used.get(remote, (0.0, now_s))
        return max(0.0, used - (now_s - at_s) / _FAILURES_RESET_S)


class Access:
    """The access rules of one admin HTTP server; `bound_to` is its listening address."""

    def __init__(
        self, secrets: Secrets, cluster_id: str, bound_to: str, allowed_hosts: str = "", people: People | None = None
    ) -> None:
        self.secrets = secrets
        self.people = people
        self.on_refused: Callable[[web.Request, str, str], None] = lambda request, mechanism, reason: None
        """Called with each wrong secret: how it was sent, and why it is refused."""
        self.on_login: Callable[[web.Request, str, Person | str], None] = lambda request, mechanism, who: None
        """Called with each log-in of the console."""
        self.issuer: OpenIdLogin | None = None
        self.sessions = Sessions(secrets, cluster_id)
        self.failures = FailedLogins()
        self._hosts = frozenset(name.strip().lower() for name in allowed_hosts.split(",") if name.strip())
        self._checks_host = secrets.viewer_token is None and (is_loopback(bound_to) or bool(self._hosts))

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate and authorise the request. Raises Problem."""
        if not request.path.startswith(_OPEN):
            self._check_host(request)
            session = await self._identify(request)
            try:
                await self._authorise(request, session)
                await _check_scope(request)
            except Problem as problem:
                if problem.status == 401 and is_page(request):
                    raise web.HTTPSeeOther(f"{LOGIN_PATH}?next={quote(request.path_qs, safe='')}") from None
                raise
        return await handler(request)

    # -- authentication

    async def _identify(self, request: web.Request) -> Session | None:
        """Set the request's actor and role; returns its cookie's session or None. Raises Problem for a wrong secret."""
        header = request.headers.get("Authorization")
        if header is not None:
            name, role, person = await self._by_header(request, header)
            self._note(request, name, role, person)
            return None
        session = self.sessions.read(request.cookies.get(COOKIE, ""))
        if session is not None and session.person is not None:
            current = self.people is not None and await self.people.is_current(session.person)
            session = session if current else None
        if session is not None:
            self._note(request, session.name, session.role, session.person)
        else:
            self._note(request, "anonymous", self.secrets.anonymous)
        return session

    async def _by_header(self, request: web.Request, header: str) -> tuple[str, Role, Person | None]:
        scheme, _, given = header.partition(" ")
        self.check_pace(request)
        role, name, person = Role.NOBODY, "", None
        if scheme.lower() == "bearer":
            role = self.secrets.role_of_token(given.strip())
            name = role.name.lower()
            if role is Role.NOBODY and self.people is not None:
                person = await self.people.by_token(given.strip())
        elif scheme.lower() == "basic":
            name, password = _basic(given)
            role, person = await self.identify(name, password)
        if person is not None:
            return person.principal, person.role, person
        if role is Role.NOBODY:
            self.failed(request, scheme)
            raise Problem(401, "That token or password is not known here.", headers={"WWW-Authenticate": _CHALLENGE})
        return name, role, None

    async def identify(self, name: str, password: str) -> tuple[Role, Person | None]:
        """The role of a name and password, and the person unless it is a shared secret of the settings."""
        role = self.secrets.role_of_user(name, password)
        if role is not Role.NOBODY or self.people is None:
            return role, None
        person = await self.people.by_password(name, password)
        return (Role.NOBODY, None) if person is None else (person.role, person)

    @staticmethod
    def _note(request: web.Request, name: str, role: Role, person: Person | None = None) -> None:
        request[ACTOR] = Actor(name, role.name.lower(), request.remote or "")
        request[ROLE] = role
        if person is not None:
            request[PERSON] = person

    def check_pace(self, request: web.Request) -> None:
        """Raises Problem (429) when the address has sent too many wrong secrets."""
        wait_s = self.failures.wait_s(request.remote or "", time.monotonic())
        if wait_s > 0:
            headers = {"Retry-After": str(int(wait_s) + 1)}
            raise Problem(429, "Too many wrong secrets came from this address; try again later.", headers=headers)

    def failed(self, request: web.Request, mechanism: str = "form") -> None:
        """Log, audit and count a wrong secret."""
        self.on_refused(request, mechanism, "wrong name, password or token")
        logger.warning("secret_refused", remote=request.remote, path=request.path)
        self.failures.failed(request.remote or "", time.monotonic())

    # -- authorisation

    async def _authorise(self, request: web.Request, session: Session | None) -> None:
        if request.method in READS:
            if request[ROLE] < Role.VIEWER and not request.path.startswith(_OPEN_TO_LOG_IN):
                headers = {"WWW-Authenticate": _CHALLENGE}
                raise Problem(401, "A viewer's or an operator's token is needed.", headers=headers)
            return
        self._check_origin(request)
        if request.path == LOGIN_PATH:
            return
        if session is not None:
            await self._check_csrf(request, session)
        if request.path == LOGOUT_PATH or (request.path == OWN_DRAIN_PATH and _from_this_machine(request)):
            return
        if not self.secrets.operators and not (self.people is not None and self.people.may_change):
            raise Problem(403, f"Nothing can be changed over this admin HTTP: set {TO_SET} on the brokers.")
        if request[ROLE] < Role.OPERATOR:
            if request[ACTOR].name == "anonymous":
                headers = {"WWW-Authenticate": _CHALLENGE}
                raise Problem(401, "An operator's token or password is needed.", headers=headers)
            raise Problem(403, "Viewers change nothing: an operator's token or password is needed.")

    async def _check_csrf(self, request: web.Request, session: Session) -> None:
        given = request.headers.get(CSRF_HEADER)
        if given is None and request.content_type == FORM:
            field = (await form_of(request)).get(CSRF_FIELD)
            given = field if isinstance(field, str) else None
        if given is None or not self.sessions.csrf_fits(session, given):
            raise Problem(403, f"A form of the console carries {CSRF_FIELD}, other requests {CSRF_HEADER}.")

    def _check_origin(self, request: web.Request) -> None:
        """Compare the Origin of a browser's request; other clients send none. Raises Problem."""
        site = request.headers.get("Sec-Fetch-Site")
        origin = request.headers.get("Origin")
        if site is not None and site not in ("same-origin", "none"):
            raise Problem(403, "A page of another site may not ask for this.")
        if origin is not None:
            own = origin.lower().partition("://")[2] == request.host.lower()
            if not own and _host_name(origin.partition("://")[2]) not in self._hosts:
                raise Problem(403, "A page of another origin may not ask for this.")

    def _check_host(self, request: web.Request) -> None:
        """Reject unknown Host names: DNS rebinding would let a web page read an open API. Raises Problem."""
        if self._checks_host:
            host = _host_name(request.host)
            if host not in _LOOPBACK_NAMES | self._hosts and not _is_address(host):
                detail = f"This admin HTTP is not called {host}: set TIDEGATE_ADMIN_ALLOWED_HOSTS if it is."
                raise Problem(421, detail)


async def _check_scope(request: web.Request) -> None:
    """Operators leave some changes to admins; a person of an organisation stays in it. Raises Problem."""
    person = request.get(PERSON)
    if person is None:
        return
    if person.role < Role.ADMIN and is_for_admins(request.method, request.path):
        raise Problem(403, "This needs the role admin: it is about more than groups and offsets.")
    if not is_bound(person):
        return
    if not OF_ORG.fullmatch(request.path):
        raise Problem(403, f"{person.principal} is of organisation {person.org}; this is about the whole cluster.")
    named = request.query.getall("org", [])
    if request.method in READS and not named and is_page(request):
        raise web.HTTPSeeOther(str(request.rel_url.update_query(org=person.org)))
    if has_form(request) and request.path not in (LOGIN_PATH, LOGOUT_PATH):
        named += (await form_of(request)).getall("org", [])
    static = request.path.startswith(_OPEN_TO_LOG_IN) or request.path in (LOGOUT_PATH, "/", "/api/v1/openapi.json")
    if not static and {one or DEFAULT_ORG for one in named or [""]} != {person.org}:
        raise Problem(403, f"{person.principal} is of organisation {person.org}: add org={person.org}.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_secure(request: web.Request) -> bool:
    """Whether the browser uses TLS, to this server or to a proxy in front of it."""
    return request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"


def _from_this_machine(request: web.Request) -> bool:
    """Whether a local program sent the request (such as Kubernetes' preStop), not a browser page or a proxy."""
    others = ("Sec-Fetch-Site", "Origin", "Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")
    direct = is_loopback(request.remote or "") and not any(name in request.headers for name in others)
    return direct and _host_name(request.host) in _LOOPBACK_NAMES


def _host_name(host_and_port: str) -> str:
    """The host name in lower case, without the port; "" when the header is malformed."""
    try:
        return urlsplit(f"//{host_and_port}").hostname or ""
    except ValueError:
        return ""


def is_page(request: web.Request) -> bool:
    """Whether a browser requests a console page."""
    return request.path.startswith("/console") and "text/html" in request.headers.get("Accept", "")


def _basic(given: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except ValueError:  # neither base64 nor UTF-8
        return "", ""
    return name, password
