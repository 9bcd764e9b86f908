"""Pages of the console with one broker's services and a real Redis: what they show, and that they accept any name."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from kio.schema.errors import ErrorCode
from yarl import URL

from tests.kit.wire import request
from tests.support.whole_broker import WholeBroker
from tidegate.audit.ocsf import Origin, authentication
from tidegate.audit.trail import AuditTrail
from tidegate.cluster.audit import Actor, Audit
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.diagnosis.group_snapshot import GroupSnapshot
from tidegate.groups.reset_plan import Choice
from tidegate.http import group_views, offset_actions, routes
from tidegate.http.access import Access
from tidegate.http.api import reads
from tidegate.http.console import overview_page
from tidegate.http.health import Health
from tidegate.http.offset_actions import Reset
from tidegate.http.secrets import Secrets
from tidegate.http.single_flight import SingleFlightCache
from tidegate.settings import Settings
from tidegate.store.store import Store

NASTY = "<script>alert(1)</script>/../..%2e?#&\"' \N{SNOWMAN}\N{RIGHT-TO-LEFT OVERRIDE}`" + "x" * 190

PARTS = ["", "/explain", "/history"]
"""Addresses of a group in the REST API."""

Http = TestClient[Any, Any]


@pytest.fixture
async def whole(settings: Settings, store: Store) -> AsyncIterator[WholeBroker]:
    """One broker, as the others know it."""
    opened = WholeBroker(settings.model_copy(update={"group_initial_rebalance_delay_ms": 0}))
    await opened.start()
    broker_lease: Any = opened.context.broker_lease
    broker_lease.live = lambda: [BrokerInfo(1, {"PLAINTEXT": ("a", 9092)}, "r1", "1.0", "serving")]
    broker_lease.preferred = broker_lease.nameable = broker_lease.live
    broker_lease.cluster_id = "c1"
    yield opened
    await opened.close()


@pytest.fixture
async def http(whole: WholeBroker) -> AsyncIterator[Http]:
    """Its admin HTTP."""
    app = routes.application(Health(lambda: True, lambda: True), whole.context)
    async with TestClient(TestServer(app)) as client:
        yield client


async def text_of(http: Http, path: str, status: int = 200, **query: str) -> str:
    """A page, without what templates indent."""
    async with http.get(URL(path).with_query(query)) as answer:
        text = await answer.text()
        assert answer.status == status, text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        return re.sub(r"\s+", " ", text)


async def test_browser_is_led_to_the_console_and_curl_is_not(http: Http) -> None:
    async with http.get("/", headers={"Accept": "text/html"}, allow_redirects=False) as answer:
        assert answer.headers["Location"] == "/console/"
    async with http.get("/", headers={"Accept": "*/*"}) as answer:
        assert "/console/" in await answer.text()


async def test_empty_cluster_page_names_the_first_steps(http: Http) -> None:
    text = await text_of(http, "/console/")

    assert "No group yet." in text and "bootstrap address" in text


async def test_overview_lists_groups_with_problems_first(whole: WholeBroker, http: Http) -> None:
    await whole.create("orders", 2)
    client = whole.client()
    await client.produce("orders", 10)
    calm = whole.client()
    calm.group_id = "a-calm-one"
    await calm.own("orders", 0)
    lost = whole.client()
    lost.group_id = "z-lost"
    await lost.own("nowhere", 0)

    text = await text_of(http, "/console/")

    assert "1 stuck, 0 with trouble, of 2 groups." in text
    assert text.index(">z-lost<") < text.index(">a-calm-one<")
    assert "subscribes to nowhere, which does not exist" in text


async def test_groups_are_found_by_words_and_by_trouble(whole: WholeBroker, http: Http) -> None:
    for name in ("billing", "shipping"):
        client = whole.client()
        client.group_id = name
        await client.own("nowhere", 0)

    found = await text_of(http, "/console/", q="BILL stable")
    nothing = await text_of(http, "/console/", q="bill empty")
    troubled = await text_of(http, "/console/", only="trouble", sort="group")

    assert ">billing<" in found and ">shipping<" not in found and "1 group of 2" in found
    assert "No group fits." in nothing
    assert troubled.index(">billing<") < troubled.index(">shipping<")


async def test_overview_of_too_many_groups_shows_a_notice(
    whole: WholeBroker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_page, "GROUPS_MAX", 2)
    for name in ("billing", "orders", "shipping"):
        client = whole.client()
        client.group_id = name
        await client.own("nowhere", 0)

    text = await text_of(http, "/console/")

    assert "evaluates 2 of 3 groups" in text and "tidegate group list" in text
    assert text.count('<tr id="g-') == 2


@pytest.mark.parametrize(
    ("path", "view"), [("overview", "overview_views.overview"), ("groups", "group_views.view_page")]
)
async def test_concurrent_readers_share_one_computation(
    http: Http, monkeypatch: pytest.MonkeyPatch, path: str, view: str
) -> None:
    module, name = view.split(".")
    real, gate, observations = getattr(getattr(reads, module), name), asyncio.Event(), [0]

    async def slow(*asked: Any) -> Any:
        observations[0] += 1
        await gate.wait()
        return await real(*asked)

    readers, get = [0], SingleFlightCache.get

    async def counted(*asked: Any) -> Any:
        readers[0] += 1
        return await get(*asked)

    monkeypatch.setattr(f"tidegate.http.{view}", slow)
    monkeypatch.setattr(SingleFlightCache, "get", counted)
    asked = [asyncio.ensure_future(http.get(f"/api/v1/{path}")) for _ in range(20)]
    async with asyncio.timeout(30):
        while readers != [20]:
            await asyncio.sleep(0.01)
    gate.set()
    answers = [await one for one in asked]

    assert {answer.status for answer in answers} == {200} and observations == [1]
    assert len({await answer.text() for answer in answers}) == 1


async def test_group_page_shows_members_partitions_and_rebalances(whole: WholeBroker, http: Http) -> None:
    await whole.create("orders", 2)
    client = whole.client("billing-1", "10.1.2.3")
    await client.produce("orders", 10)
    await client.own("orders", 0, 1)
    await client.commit("orders", 4)

    text = await text_of(http, "/console/group", group="orders")

    assert "billing-1" in text and "10.1.2.3" in text
    assert 'orders <span class="nowrap">0-1</span>' in text
    assert '<td class="num" data-label="Committed">4</td>' in text
    assert '<td class="num" data-label="Records behind">6</td>' in text
    assert "billing-1 at 10.1.2.3 joined" in text
    assert 'hx-trigger="every 5s"' in text


async def test_group_pages_opened_together_are_all_answered(whole: WholeBroker, http: Http) -> None:
    await whole.create("orders", 1)
    names = ["billing", "orders", "shipping"]
    for name in names:
        client = whole.client()
        client.group_id = name
        await client.own("orders", 0)

    async with asyncio.timeout(40):
        texts = await asyncio.gather(*(text_of(http, "/console/group", group=name) for name in names))

    assert all(name in text for name, text in zip(names, texts, strict=True))


@pytest.mark.parametrize("path", ["/console/group?group=g", *(f"/api/v1/groups/g{part}" for part in PARTS)])
async def test_groups_are_converted_in_a_thread_without_their_commits(
    whole: WholeBroker, http: Http, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    converted: list[tuple[int, Any]] = []

    def noted(value: Any) -> dict[str, Any]:
        converted.append((threading.get_ident(), value))
        return asdict(value)

    monkeypatch.setattr(group_views, "asdict", noted)
    await whole.create("orders", 1)
    client = whole.client()
    client.group_id = "g"
    await client.own("nowhere", 0)
    await client.commit("orders", 0)

    async with http.get(path) as answer:
        assert answer.status == 200

    assert converted and threading.get_ident() not in {thread for thread, _ in converted}
    assert not any(value.commits for _, value in converted if isinstance(value, GroupSnapshot))


async def test_group_page_shows_share_groups_and_kip_848_groups(whole: WholeBroker, http: Http) -> None:
    await whole.create("orders", 2)
    await whole.store.command(
        "HSET", whole.store.group_keys("default", "jobs").configs, "share.auto.offset.reset", "earliest"
    )
    sharer, consumer = whole.client("worker-1", "10.1.2.3"), whole.client("billing-1", "10.1.2.4")
    await sharer.produce("orders", 10)
    joined = await sharer.ask(
        request(76, 1, group_id="jobs", member_id="m1", member_epoch=0, subscribed_topic_names=["orders"])
    )
    assert joined.error_code is ErrorCode.none
    asked = request(
        68, 1, group_id="readers", member_id="m2", member_epoch=0, subscribed_topic_names=["orders"],
        topic_partitions=(), rebalance_timeout=timedelta(minutes=5),
    )  # fmt: skip
    assert (await consumer.ask(asked)).error_code is ErrorCode.none

    text = await text_of(http, "/console/group", group="jobs")
    assert "worker-1" in text and '<h2 id="in-flight">In flight</h2>' in text and "share" in text
    text = await text_of(http, "/console/group", group="readers")
    assert "billing-1" in text and "epoch 2" in text and "In flight" not in text and "Group epoch" in text


@pytest.mark.parametrize("name", [NASTY, "..", ".", "/", "%2F", "{{7*7}}", "a\nb"])
async def test_any_name_is_shown_and_found_again(whole: WholeBroker, http: Http, name: str) -> None:
    await whole.create("orders", 1)
    client = whole.client(NASTY[:100])
    client.group_id = name
    await client.own("orders", 0)

    overview = await text_of(http, "/console/")
    [address] = re.findall(r'<th scope="row" class="wide"><a href="([^"]+)"', overview)
    async with http.get(URL(address.replace("&amp;", "&"), encoded=True)) as answer:
        page = await answer.text()

    assert answer.status == 200
    for text in (overview, page):
        assert "<script>alert" not in text and "49" not in re.findall(r"<h1>(.*?)</h1>", text)
    assert "1 member" in page or "Members" in page


async def test_group_that_is_not_there_is_a_page_too(http: Http) -> None:
    text = await text_of(http, "/console/group", status=404, group="<b>gone")

    assert "There is no such group" in text and "&lt;b&gt;gone" in text


async def test_invalid_org_is_refused(http: Http) -> None:
    assert "1 to 63 of a-z" in await text_of(http, "/console/", status=400, org="default:x")


async def test_orgs_are_isolated_in_the_console(whole: WholeBroker, http: Http) -> None:
    client = whole.client(org="acme")
    await whole.create("orders", 1, org="acme")
    await client.own("orders", 0)

    theirs, ours = await text_of(http, "/console/", org="acme"), await text_of(http, "/console/")

    assert "group=orders" in theirs and "group=orders" not in ours
    assert "<option selected>acme</option>" in theirs and "<option>acme</option>" in ours


@pytest.mark.parametrize(
    ("page", "body_text"),
    [
        ("topics", "No topic yet."),
        ("brokers", "1 broker, 1 serving"),
        ("redis", "Is the data safe?"),
        ("producers", "No producer has a <code>transactional.id</code>"),
        ("audit", "Nothing was changed yet."),
    ],
)
async def test_pages_of_an_empty_cluster_name_the_first_steps(http: Http, page: str, body_text: str) -> None:
    assert body_text in await text_of(http, f"/console/{page}")


async def test_topics_are_listed_and_shown_in_full(whole: WholeBroker, http: Http) -> None:
    await whole.create("orders", 2, retention_ms="60000")
    await whole.create("payments", 1)
    client = whole.client()
    await client.produce("orders", 10, index=1)
    await client.own("orders", 0, 1)
    await client.commit("orders", 4, index=1)

    listed, found = await text_of(http, "/console/topics"), await text_of(http, "/console/topics", q="pay")
    reported = await text_of(http, "/console/topic", topic="orders")

    assert ">orders</a>" in listed and ">1 min</td>" in listed
    assert ">orders</a>" not in found and "1 topic of 2" in found
    assert '<td class="num" data-label="High watermark">10</td>' in reported
    assert "1 config set on the topic" in reported and "group=orders" in reported
    assert "There is no such topic" in await text_of(http, "/console/topic", status=404, topic="nowhere")


async def test_members_are_shown_with_their_software(whole: WholeBroker, http: Http) -> None:
    await whole.create("orders", 1)
    client = whole.client()
    client.client.note_software("apache-kafka-java", "4.1.0")
    await client.own("orders", 0)

    assert "apache-kafka-java 4.1.0" in await text_of(http, "/console/group", group="orders")


async def test_actions_of_operators_are_shown(whole: WholeBroker, http: Http) -> None:
    anna = Actor("anna", "operator", "10.1.2.3")
    async with Audit(whole.store, 1, anna, "group.delete", {"org": "default", "group": NASTY}):
        pass

    text = await text_of(http, "/console/audit")

    assert "anna" in text and "group.delete" in text and "<script>alert" not in text


async def test_security_audit_is_shown_and_filtered(whole: WholeBroker, http: Http) -> None:
    """Who was denied what, by principal; names are escaped."""
    trail = AuditTrail(
        whole.store, whole.store.settings.model_copy(update={"audit_stream_bytes": 1 << 20}), lambda: "1"
    )
    anna, mallory = (Origin(f"User:{name}", "default", "10.1.2.3", 9, "APP") for name in ("anna", NASTY))
    trail.note(authentication(anna, "PLAIN"))
    trail.note(authentication(mallory, "PLAIN", "wrong password"))
    await trail.flush()

    every = await text_of(http, "/console/audit/events")
    failed = await text_of(http, "/console/audit/events", failed="yes")
    annas = await text_of(http, "/console/audit/events", who="User:anna")
    async with http.get("/api/v1/audit/events", params={"failed": "true"}) as answer:
        [event] = (await answer.json())["events"]

    assert "User:anna" in every and "2 events" in every and "<script>alert" not in every
    assert "User:anna" not in failed and "wrong password" in failed
    assert "1 event<" in annas and "wrong password" not in annas
    assert (event["who"], event["status"], event["detail"]) == (f"User:{NASTY}", "Failure", "wrong password")


# -- what operators change


@pytest.fixture
async def operator(whole: WholeBroker) -> AsyncIterator[Http]:
    """Who has logged in; what it posts carries the session's token."""
    access = Access(Secrets(operator_password="correct horse"), "c1", "127.0.0.1")
    app = routes.application(Health(lambda: True, lambda: True), whole.context, access)
    async with TestClient(TestServer(app)) as client:
        form = {"name": "operator", "password": "correct horse", "next": "/console/"}
        async with client.post("/console/login", data=form) as answer:
            assert answer.status == 200
        yield client


async def post(http: Http, path: str, status: int = 200, **fields: str) -> str:
    """A form of the console, with the token that its page gave."""
    [csrf, *_] = re.findall(r'name="csrf" value="(\w+)"', await text_of(http, "/console/"))
    page = {"Referer": f"{http.make_url('/console/')}"}
    async with http.post(f"/console/{path}", data={"csrf": csrf, "org": "default", **fields}, headers=page) as answer:
        text = await answer.text()
        assert answer.status == status, text
        return re.sub(r"\s+", " ", text)


async def behind(whole: WholeBroker) -> None:
    """The group `orders` has read four records of ten, and left."""
    await whole.create("orders", 1)
    client = whole.client()
    await client.produce("orders", 10)
    await client.own("orders", 0)
    await client.commit("orders", 4)
    await client.leave()


@pytest.mark.parametrize("fields", [{"group": "billing"}, {"group": "orders", "org": "acme"}])
async def test_undo_of_another_groups_action_is_refused(
    whole: WholeBroker, operator: Http, fields: dict[str, str]
) -> None:
    """Otherwise page and audit would name a group that was not changed."""
    await behind(whole)
    moved = await offset_actions.reset(
        whole.context,
        Actor("anna", "operator", "10.1.2.3"),
        "default",
        Reset("orders", Choice(to_latest=True), ("orders",)),
    )

    assert "of another group" in await post(operator, "reset/undo", 400, action=moved["action_id"], **fields)
    assert await whole.client().committed("orders") == 10
    await post(operator, "reset/undo", action=moved["action_id"], group="orders")
    assert await whole.client().committed("orders") == 4


async def test_confirmed_reset_is_the_one_that_was_shown(
    whole: WholeBroker, operator: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    await behind(whole)
    asked: list[Any] = []
    moves = [{"topic": "orders", "partition": 0, "before": 4, "after": 1, "note": ""}]

    async def plan_reset(context: object, actor: Actor, org: str, wanted: Reset) -> dict[str, Any]:
        asked.append(wanted)
        return {"group": "orders", "exists": True, "allowed": True, "moves": moves, "members": []}

    async def reset(context: object, actor: Actor, org: str, wanted: Reset) -> dict[str, Any]:
        asked.append((actor.name, org, wanted))
        return {
            "action_id": "a1", "group": "orders", "complete": True, "undoable": True, "removed": 0, "moves": moves,
        }  # fmt: skip

    monkeypatch.setattr(offset_actions, "plan_reset", plan_reset)
    monkeypatch.setattr(offset_actions, "reset", reset)

    shown = await text_of(operator, "/console/reset", group="orders", to="shift", **{"value-shift": "-3"})
    [carried] = re.findall(r'name="moves" value="([^"]+)"', shown)
    done = await post(operator, "reset/apply", group="orders", typed="orders", moves=html.unescape(carried))

    assert "3 again" in shown and "action=a1" in done and "The offset is where it should be." in done
    assert asked == [
        Reset("orders", Choice(shift_by=-3), all_topics=True),
        ("operator", "default", Reset("orders", Choice(offsets={("orders", 0): 1}))),
    ]


async def test_name_that_is_typed_wrong_changes_nothing(whole: WholeBroker, operator: Http) -> None:
    await behind(whole)

    for form in ("reset/apply", "group/delete"):
        text = await post(operator, form, status=400, group="orders", typed="order", moves='[["orders", 0, 1]]')
        assert "nothing was changed" in text

    assert await whole.client().committed("orders") == 4


@pytest.mark.parametrize("moves", ["", "x", "{}", "[1]", '[["orders", "a", 1]]'])
async def test_form_that_is_not_ours_changes_nothing(whole: WholeBroker, operator: Http, moves: str) -> None:
    await behind(whole)

    await post(operator, "reset/apply", status=400, group="orders", typed="orders", moves=moves)

    assert await whole.client().committed("orders") == 4


async def test_chosen_partitions_alone_are_moved(
    whole: WholeBroker, operator: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    await behind(whole)
    asked: list[Reset] = []

    async def plan_reset(context: object, actor: Actor, org: str, wanted: Reset) -> dict[str, Any]:
        asked.append(wanted)
        return {"group": "orders", "exists": True, "allowed": True, "moves": [], "members": []}

    monkeypatch.setattr(offset_actions, "plan_reset", plan_reset)
    form = {"group": "orders", "to": "earliest", "topic": "orders"}
    for text in ("0", " 0, 2-3,2", ""):
        await text_of(operator, "/console/reset", **form, **{"partitions-orders": text})
    for text in ("x", "3-1", "1-", "-1", "0;1", "9999999"):
        reported = await text_of(operator, "/console/reset", 400, **form, **{"partitions-orders": text})
        assert "names no partitions" in reported and f'value="{text}"' in reported

    assert [one.topics for one in asked] == [("orders:0",), ("orders:0,2,3",), ("orders",)]


async def test_impossible_choice_shows_the_error(whole: WholeBroker, operator: Http) -> None:
    await behind(whole)

    for to, value in (("offset", "x"), ("shift", ""), ("datetime", ""), ("duration", ""), ("moon", "")):
        text = await text_of(operator, "/console/reset", 400, group="orders", to=to, **{f"value-{to}": value})
        assert 'role="alert"' in text


async def test_group_is_deleted_when_it_is_empty_alone(whole: WholeBroker, operator: Http) -> None:
    await behind(whole)
    member = whole.client()
    await member.own("orders", 0)

    refused = await post(operator, "group/delete", status=409, group="orders", typed="orders")
    await member.leave()
    done = await post(operator, "group/delete", group="orders", typed="orders")

    assert "has members" in refused and "Group orders and its offsets are deleted" in done
    assert "No group yet." in done


@pytest.mark.parametrize("referer", ["", "http://elsewhere.example/console/"])
async def test_result_message_of_a_crafted_address_is_not_shown(http: Http, referer: str) -> None:
    crafted = URL("/console/brokers").with_query(done="deleted", what="payments")

    async with http.get(crafted, headers={"Referer": referer} if referer else {}) as answer:
        assert "payments and its offsets" not in await answer.text()


@pytest.mark.parametrize("node_id", ["x", "-1", "9" * 5_000])
async def test_invalid_node_id_drains_no_broker(operator: Http, node_id: str) -> None:
    assert "is not a node id" in await post(operator, "brokers/drain", 400, node_id=node_id)


async def test_member_is_removed(whole: WholeBroker, operator: Http) -> None:
    await whole.create("orders", 1)
    member = whole.client("web-1")
    await member.own("orders", 0)

    done = await post(operator, "group/remove-member", group="orders", member=member.member_id)

    assert "web-1 is removed" in done and "Nobody is in the group." in done


async def test_changes_without_a_login_are_refused(whole: WholeBroker, http: Http, operator: Http) -> None:
    await behind(whole)
    forms = {"group/delete": {}, "reset/apply": {"moves": '[["orders", 0, 1]]'}, "brokers/drain": {"node_id": "1"}}
    for form, more in forms.items():
        fields = {"org": "default", "group": "orders", "typed": "orders", **more}
        async with http.post(f"/console/{form}", data=fields) as answer:
            assert answer.status == 403
        async with operator.post(f"/console/{form}", data=fields) as answer:  # without the session's token
            assert answer.status == 403

        page = {"Accept": "text/html", "Referer": f"{operator.make_url('/console/brokers')}?org=default"}
        async with operator.post(f"/console/{form}", data=fields, headers=page) as answer:
            assert (answer.status, answer.content_type) == (403, "text/html")
            text = await answer.text()
            assert "This was refused" in text and "A form of the console carries csrf" in text
            assert '<a class="button" href="/console/brokers?org=default">Back</a>' in text

    assert await whole.client().committed("orders") == 4
    assert "read-only" in await text_of(http, "/console/brokers")
    assert "Delete…" not in await text_of(http, "/console/group", group="orders")


async def test_scripts_and_styles_are_local_and_cached(http: Http) -> None:
    for name in ("console.js", "console.css", "htmx-4.0.1.min.js", "uplot-1.6.32.min.js", "tide.svg"):
        async with http.get(f"/console/static/1/{name}") as answer:
            assert answer.status == 200 and "immutable" in answer.headers["Cache-Control"]
    async with http.get("/console/static/1/..%2Fsite.py") as answer:
        assert answer.status == 404
    for name in ("x" * 300, "..", "%00"):  # what no file can be called is not there either
        async with http.get(URL(f"/console/static/1/{name}", encoded=True)) as answer:
            assert answer.status == 404, name


async def test_names_are_hidden_without_the_right_to_read(whole: WholeBroker) -> None:
    await whole.create("orders", 1, org="acme")
    access = Access(Secrets(viewer_token="v" * 16), "c1", "0.0.0.0")
    app = routes.application(Health(lambda: True, lambda: True), whole.context, access)
    async with TestClient(TestServer(app)) as client:
        for path, status in (("/console/login", 200), ("/console/static/1/x", 404)):
            assert "acme" not in await text_of(client, path, status)
        client.session.headers["Authorization"] = f"Bearer {'v' * 16}"
        assert "acme" in await text_of(client, "/console/login")


async def test_pages_contain_no_inline_script_or_style(whole: WholeBroker, http: Http) -> None:
    client = whole.client()
    await client.own("orders", 0)

    for text in (await text_of(http, "/console/"), await text_of(http, "/console/group", group="orders")):
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=", text)


async def test_pages_report_that_redis_is_unavailable(whole: WholeBroker, http: Http) -> None:
    await whole.store.close()

    text = await text_of(http, "/console/", status=503)

    assert "Redis does not answer" in text and "Traceback" not in text
