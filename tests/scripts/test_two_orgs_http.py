"""The admin HTTP and a hostile person of one organisation: nothing of another is read, changed or misreported.

Every route of REST and console is asked with every method, with `org` in the query, the form and the JSON in any
spelling, and with names of the victim's topics, groups, members and transactional ids. Each request is asked a second
time with names that nobody has: the status must be the same, otherwise it would show what exists.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

import pytest
from aiohttp import encode_basic_auth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from tests.kit.wire import request
from tests.scripts.test_admin_people import PASSWORD, Admin, opened
from tidegate.cluster import audit
from tidegate.groups.reset_plan import Choice
from tidegate.http import login
from tidegate.http.access import FailedLogins
from tidegate.http.actions import delete_group
from tidegate.http.api import endpoints
from tidegate.http.api.endpoint import PREFIX
from tidegate.http.console import pages
from tidegate.http.forms import READS
from tidegate.http.login import ACCESS
from tidegate.http.offset_actions import Reset, reset
from tidegate.http.sessions import COOKIE
from tidegate.settings import Settings
from tidegate.store.store import Store

HOSTILE, VICTIMS = "acme", ("default", "umbrella")
GIVEN, DECOY = "zebra", "okapi"
"""In the victims' names that the hostile person knows; and in their place, in names that nobody has."""
SECRET, SECRET_DECOY = "quagga", "bonobo"
"""In what the hostile person does not know: records, metadata, client ids, further topics and groups."""
TOPIC, GROUP, IDLE_GROUP, SHARE_GROUP, TRANSACTIONAL_ID = (
    f"{GIVEN}-{kind}" for kind in ("orders", "billing", "idle", "jobs", "transfers")
)
OWN_TOPIC, OWN_GROUP = "own-orders", "own-billing"
_MARKED = re.compile(rf"(?:{GIVEN}|{SECRET})[\w-]*")
_NAMED = re.compile(r"{(\w+)(?::[^}]*)?}")
MEMBERS = [f"{SECRET}-member-{index}" for index in range(4)]
ACTIONS = [f"{SECRET}-action-{index}" for index in range(2)]
"""Stand for ids that the broker makes."""
ORGS = (
    st.just(HOSTILE)
    | st.sampled_from(VICTIMS)
    | st.sampled_from(["", "ACME", "Default", "acme ", "acme\0", "acme,default", "acme/default"])
)


@dataclass(frozen=True)
class Call:
    """One request; names are as the hostile person writes them."""

    person: str
    by_session: bool
    method: str
    route: str
    names: Mapping[str, str]
    query: tuple[tuple[str, str], ...]
    encodes: bool
    json: Any = None
    form: tuple[tuple[str, str], ...] | None = None

    @property
    def orgs(self) -> list[str]:
        """Those that the broker reads: REST has no forms."""
        form = (self.form or ()) if self.route.startswith("/console") else ()
        return [value for name, value in (*self.query, *form) if name == "org"]

    def mentions(self, word: str) -> bool:
        return word in repr((self.names, self.query, self.json, self.form))

    def with_ids(self, ids: Mapping[str, str]) -> Call:
        """The same with the ids that the broker made."""
        return self._replaced(ids)

    def with_decoys(self) -> Call:
        """The same with names that nobody has."""
        return self._replaced({GIVEN: DECOY, SECRET: SECRET_DECOY})

    def _replaced(self, texts: Mapping[str, str]) -> Call:
        def swap(value: Any) -> Any:
            if isinstance(value, str):
                for old, new in texts.items():
                    value = value.replace(old, new)
                return value
            if isinstance(value, dict):
                return {name: swap(one) for name, one in value.items()}
            return type(value)(map(swap, value)) if isinstance(value, list | tuple) else value

        changed = {name: swap(getattr(self, name)) for name in ("names", "query", "json", "form")}
        return replace(self, **changed)


class Stage:
    """A broker with three organisations, and the people of one. No dataclass: hypothesis would show all of it."""

    def __init__(self, admin: Admin, cookies: Mapping[str, tuple[str, str]]) -> None:
        self.admin = admin
        self.cookies = cookies
        """Person -> cookie and CSRF token."""
        self.ids: dict[str, str] = {}
        """Of the victims' members and actions."""
        self.sent = ""
        """All that was sent so far: the hostile organisation may have things of these names by now."""
        self.before: Mapping[tuple[bytes, bytes], bytes] = {}
        """What the victims have in Redis."""
        self._read_to = b"0"
        self._known_actions: set[str] = set()

    async def events(self) -> list[dict[str, Any]]:
        """The events of the security audit since the last call."""
        await self.admin.trail.flush()
        store = self.admin.store
        entries = await store.read("XRANGE", store.cluster_keys.audit_events, b"(" + self._read_to, "+")
        self._read_to = entries[-1][0] if entries else self._read_to
        return [json.loads(fields[fields.index(b"event") + 1]) for _, fields in entries]

    async def actions(self) -> list[dict[str, Any]]:
        """The actions of the hostile people since the last call."""
        found = [one for one in await audit.entries(self.admin.store, 5) if one["action_id"] not in self._known_actions]
        self._known_actions |= {one["action_id"] for one in found}
        return found

    async def of_victims(self) -> dict[tuple[bytes, bytes], bytes]:
        """Every key, field and entry of the victims with its content, but for the audit."""
        command, names = self.admin.store.command, [org.encode() for org in VICTIMS]
        found: dict[tuple[bytes, bytes], bytes] = {}

        def theirs(*texts: bytes) -> bool:
            return any(name in text for name in names for text in texts)

        async def read(key: bytes) -> None:
            kind = await command("TYPE", key)
            if theirs(key):
                found[key, b""] = await command("DUMP", key)
            elif kind == b"hash":
                flat = await command("HGETALL", key)
                pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
                found.update({(key, name): value for name, value in pairs if theirs(name, value)})
            elif kind in (b"zset", b"set"):
                listed = await command(*(("ZRANGE", key, 0, -1) if kind == b"zset" else ("SMEMBERS", key)))
                found.update({(key, member): b"" for member in listed if theirs(member)})
            elif kind == b"stream":
                entries = await command("XRANGE", key, "-", "+")
                found.update({(key, one): b"\0".join(values) for one, values in entries if theirs(*values)})

        await asyncio.gather(*(read(key) for key in await command("KEYS", "*") if b":audit" not in key))
        return found

    async def ask(self, call: Call) -> tuple[int, str]:
        """The status, and all of the answer as text."""
        http = self.admin.http
        assert http.app is not None
        http.app[ACCESS].failures = FailedLogins()
        cookie, csrf = self.cookies[call.person]
        if call.by_session:
            headers = {"Cookie": f"{COOKIE}={cookie}", "X-CSRF-Token": csrf}
        else:
            headers = {"Authorization": encode_basic_auth(call.person, PASSWORD)}
        path = _NAMED.sub(lambda found: quote(call.names[found[1]], safe=""), call.route)
        body: dict[str, Any] = {"json": call.json} if call.json is not None else {}
        if call.form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = {"data": encoded(call.form, call.encodes)}
        url = URL(f"{path}?{encoded(call.query, call.encodes)}", encoded=True)
        http.session.cookie_jar.clear()
        async with http.request(call.method, url, headers=headers, allow_redirects=False, **body) as answer:
            shown = [await answer.text(), *(f"{name}: {value}" for name, value in answer.headers.items())]
            return answer.status, html.unescape(unquote("\n".join(shown)))


def encoded(pairs: tuple[tuple[str, str], ...], every_sign: bool) -> str:
    def text(value: str) -> str:
        return "".join(f"%{one:02x}" for one in value.encode()) if every_sign else quote(value, safe="")

    return "&".join(f"{text(name)}={text(value)}" for name, value in pairs)


async def _furnish(admin: Admin, org: str, stage: Stage) -> None:
    """A victim's topics with records, groups of both kinds with members, commits, a transactional id, an action."""
    whole = admin.whole
    for topic in (TOPIC, f"{SECRET}-orders"):
        await whole.create(topic, 2, org=org)
    for group, topic in ((GROUP, TOPIC), (f"{SECRET}-billing", f"{SECRET}-orders")):
        client = whole.client(f"{SECRET}-app", "10.9.9.9", org=org)
        client.group_id = group
        await client.produce(topic, 3)
        await client.own(topic, 0)
        partition = {
            "partition_index": 0, "committed_offset": 1,
            "committed_leader_epoch": -1, "committed_metadata": f"{SECRET}-metadata",
        }  # fmt: skip
        topics = [{"name": topic, "partitions": [partition]}]
        await client.ask(request(
            8, 8, group_id=group, generation_id_or_member_epoch=client.generation, member_id=client.member_id,
            group_instance_id=None, topics=topics,
        ))  # fmt: skip
        stage.ids[f"{SECRET}-member-{len(stage.ids) - VICTIMS.index(org)}"] = client.member_id
    sharer = whole.client(f"{SECRET}-sharer", "10.9.9.9", org=org)
    await sharer.ask(request(
        76, 1, group_id=SHARE_GROUP, member_id=f"{SECRET}-m", member_epoch=0, subscribed_topic_names=[TOPIC]
    ))  # fmt: skip
    for name in (TRANSACTIONAL_ID, f"{SECRET}-transfers"):
        await sharer.ask(request(22, 4, transactional_id=name, transaction_timeout=timedelta(seconds=60)))
    actor = audit.Actor(f"{SECRET}-operator", "operator", "10.9.9.9")
    idle = whole.client(f"{SECRET}-idle", "10.9.9.9", org=org)
    idle.group_id = IDLE_GROUP
    await idle.commit(TOPIC, 1)
    gone = whole.client(f"{SECRET}-gone", "10.9.9.9", org=org)
    gone.group_id = f"{SECRET}-gone"
    await gone.commit(TOPIC, 1)
    moved = await reset(whole.context, actor, org, Reset(gone.group_id, Choice(to_latest=True), (TOPIC,)))
    await delete_group(whole.context, actor, org, gone.group_id)
    stage.ids[f"{SECRET}-action-{VICTIMS.index(org)}"] = moved["action_id"]


@pytest.fixture
async def stage(store: Store, settings: Settings) -> AsyncIterator[Stage]:
    settings = settings.model_copy(update={"group_initial_rebalance_delay_ms": 0})
    async with opened(settings, store) as admin:
        cookies = {}
        for person in ("anna", "alma"):
            form = {"name": person, "password": PASSWORD, "next": "/console/"}
            async with admin.http.post("/console/login", data=form, allow_redirects=False) as answer:
                cookie = answer.cookies[COOKIE].value
            async with admin.http.get("/console/", params={"org": HOSTILE}) as answer:
                [csrf, *_] = re.findall(r'name="csrf" value="(\w+)"', await answer.text())
            cookies[person] = cookie, csrf
        found = Stage(admin, cookies)
        for org in VICTIMS:
            await _furnish(admin, org, found)
        await admin.whole.create(OWN_TOPIC, 2, org=HOSTILE)
        own = admin.whole.client("own-app", org=HOSTILE)
        own.group_id = OWN_GROUP
        await own.produce(OWN_TOPIC, 3)
        await own.commit(OWN_TOPIC, 1)
        await admin.whole.noted()
        await found.events()
        await found.actions()
        found.before = await found.of_victims()
        assert len(found.before) > 30
        yield found


ROUTES = sorted(
    [(one.method, PREFIX + one.path) for one in endpoints]
    + [
        (one.method, f"/console{one.resource.canonical}")
        for one in pages.application().router.routes()
        if one.resource and one.method != "HEAD"
    ]
    + [(route.method, route.path) for route in login.routes()]
    + [("GET", "/"), ("GET", "/metrics"), ("GET", f"{PREFIX}/openapi.json"), ("POST", "/drain")]
)
"""Method and path of every route."""


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any request that the hostile person may think of, most of them well-formed."""
    changes = [one for one in ROUTES if one[0] not in READS]
    forms = [one for one in changes if one[1].startswith("/console")]
    method, route = draw(st.sampled_from(ROUTES) | st.sampled_from(changes) | st.sampled_from(forms))
    if draw(st.integers(0, 9)) == 0:
        method = draw(st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]))
    own = draw(st.booleans())
    topic = OWN_TOPIC if own else TOPIC
    group = OWN_GROUP if own else draw(st.sampled_from([GROUP, IDLE_GROUP, SHARE_GROUP]))
    known = {
        "topic": topic, "group": group, "member": draw(st.sampled_from(MEMBERS)), "node_id": "1",
        "action_id": draw(st.sampled_from(ACTIONS)), "action": draw(st.sampled_from(ACTIONS)),
        "version": "1", "name": "console.css",
    }  # fmt: skip
    queries = {
        "q": "a", "only": "trouble", "sort": "group", "to": "earliest", "fence": "true", "failed": "true",
        "who": "User:otto", "count": "5", "limit": "5", "first": "0", "after": TRANSACTIONAL_ID, "done": "deleted",
        "what": group, "next": "/console/topics", "reason": "why", "typed": group,
        "moves": json.dumps([[topic, 0, draw(st.integers(0, 3))]]),
    } | known  # fmt: skip
    declared = next(
        (one for one in endpoints if PREFIX + one.path == _NAMED.sub(r"{\1}", route) and one.method == method), None
    )
    is_rest = not route.startswith("/console")
    useful = sorted(declared.query.model_fields) if declared is not None else [] if is_rest else sorted(queries)
    names = draw(st.lists(st.sampled_from(useful), max_size=3)) if useful else []
    if not is_rest and method == "GET":
        names += [one for one in ("topic", "group") if draw(st.booleans())]
    if draw(st.integers(0, 9)) == 0:
        names.append(draw(st.sampled_from(sorted(queries))))
    query = [(name, queries[name]) for name in names if name in queries]
    orgs = st.just([HOSTILE]) | st.lists(ORGS, max_size=2)
    query += [("org", org) for org in draw(orgs)]
    if draw(st.integers(0, 9)) == 0:
        query.append((draw(st.sampled_from(["ORG", "org[]", " org", "organisation"])), "default"))
    body = form = None
    if method not in READS:
        kind = draw(st.sampled_from(["json"] * 4 + ["form", "none"] if is_rest else ["form"] * 5 + ["json"]))
        if kind == "json":
            body = draw(st.sampled_from(_bodies(route, topic, draw(st.integers(1, 3)))))
            if draw(st.integers(0, 9)) == 0:
                body = body | {"org": draw(ORGS)}
        elif kind == "form":
            fields = [(name, queries[name]) for name in ("group", "typed", "member", "moves", "action", "node_id")]
            left_out = draw(st.none() | st.sampled_from(fields))
            fields = [one for one in fields if one != left_out]
            fields += [("org", org) for org in draw(orgs)]
            more = draw(st.just([]) | st.lists(st.sampled_from(sorted(known)), max_size=1))
            fields += [(name, f"other-{name}") for name in more]
            form = tuple(reversed(fields) if draw(st.booleans()) else fields)
    return Call(
        draw(st.sampled_from(["anna", "alma"])), draw(st.booleans()), method, route,
        {name: known.get(name, "x") for name in _NAMED.findall(route)}, tuple(query), draw(st.booleans()), body, form,
    )  # fmt: skip


def _bodies(route: str, topic: str, number: int) -> list[dict[str, Any]]:
    """What its route reads."""
    end = route.rpartition("/")[2]
    return {
        "topics": [{"topic": topic, "partition_count": number, "configs": {}}],
        "partitions": [{"count": number}],
        "trim": [{"partitions": [{"partition": 0, "before": number}]}],
        "configs": [{"set": {"retention.ms": "60000"}, "defaults": []}],
        "quotas": [
            {"changes": [{"entity": entity, "quota": "producer_byte_rate", "value": 1e6}]}
            for entity in ("user=otto", "user", "org=default", "ip=10.9.9.9")
        ],
        "plan": [{"to_earliest": True, "all_topics": True}, {"to_latest": True, "topics": [topic]}],
        "reset": [
            {"to_latest": True, "topics": [topic]},
            {"offsets": [{"topic": topic, "partition": 0, "offset": number}], "fence": True},
        ],
    }.get(end, [{}])


def check_answer(stage: Stage, call: Call, status: int, shown: str) -> None:
    """Nothing of the victims', except what this request names itself."""
    asked = repr(call)
    for found in _MARKED.findall(shown):
        known = asked if SECRET in found else stage.sent
        assert found in known, (found, call, status)


async def check_audit(stage: Stage, call: Call, status: int) -> None:
    """One event of each change and refusal, of who asked, with the names that were asked for."""
    new = [event for event in await stage.events() if event["class_uid"] == 6003]
    for_session = call.route in ("/console/login", "/console/logout")
    if not ((call.method not in READS and not for_session) or status in (401, 403, 429)):
        assert not new, call
        return
    [event] = new
    assert event["actor"]["user"]["name"] == f"User:{call.person}", call
    assert (event["status"] == "Success") is (status < 400), (call, event)
    operation, _, path = event["api"]["operation"].partition(" ")
    assert operation == call.method and path in (call.route, "an unknown path"), (call, event)
    named = {(one["type"], one["name"]) for one in event["resources"]}
    for name in {"group", "topic", "member"} & set(call.names):
        assert path == "an unknown path" or (name, call.names[name]) in named, (call, event)
    if status == 403 and set(call.orgs) - {"default"}:
        assert {("org", org) for org in call.orgs} <= named, (call, event)
    for action in await stage.actions():
        arguments = action["arguments"]
        changed = {(name, arguments[name]) for name in ("org", "group", "topic", "member") if name in arguments}
        assert ("org", HOSTILE) in changed and action["who"] == f"User:{call.person}", (call, action)
        assert changed == named, (call, action, event)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(drawn=calls())
async def test_hostile_person_reads_and_changes_nothing_of_another_org(stage: Stage, drawn: Call) -> None:
    statuses = []
    asked = [drawn.with_ids(stage.ids)]
    if drawn.mentions(GIVEN) or drawn.mentions(SECRET):
        asked.append(drawn.with_decoys())
    for call in asked:
        stage.sent += repr(call)
        status, shown = await stage.ask(call)
        check_answer(stage, call, status, shown)
        assert status < 500, (call, shown)
        await check_audit(stage, call, status)
        statuses.append(status)
    assert await stage.of_victims() == stage.before, asked
    assert len(set(statuses)) == 1 or drawn.mentions("own-"), (asked, statuses)


async def test_routes_are_those_of_the_application(stage: Stage) -> None:
    app = stage.admin.http.app
    assert app is not None
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    assert {one for one in found if one[0] != "HEAD" and not one[1].startswith("/health")} ^ set(ROUTES) == set()
