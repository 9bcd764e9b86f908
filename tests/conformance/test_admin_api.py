"""/api/v1 of live brokers against its own OpenAPI document; changes, their audit, and undo."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from yarl import URL

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkedCluster
from tidegate.http.secrets import Secrets
from tidegate.http.sessions import COOKIE, CSRF_HEADER, Sessions

TOKEN = "an operator's token"
SETTINGS = {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100", "TIDEGATE_ADMIN_OPERATOR_TOKEN": TOKEN}
RECORDS = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers with an operator."""
    with ForkedCluster(brokers=2, settings=SETTINGS) as running:
        yield running


class Api:
    """An operator with a REST client that holds every answer to the document."""

    def __init__(self, cluster: Cluster, http: aiohttp.ClientSession, document: Any, topic: str, group: str) -> None:
        self.cluster, self.http, self.document, self.topic, self.group = cluster, http, document, topic, group
        self.reported: set[tuple[str, str]] = set()

    async def ask(self, method: str, path: str, status: int = 200, json: Any = None, **names: str) -> Any:
        """`path` as the document has it, with `names` in it, and the query behind `?`."""
        template, _, query = path.partition("?")
        filled = template.format(
            **{name: URL.build(path=value).raw_path.replace("/", "%2F") for name, value in names.items()}
        )
        url = URL(f"/api/v1{filled}?{query}", encoded=True)
        async with self.http.request(method, url, json=json) as answer:
            assert answer.status == status, await answer.text()
            reported = self.document["paths"][f"/api/v1{template}"][method.lower()]["responses"][str(status)]
            self.reported.add((method, template))
            if status == 204:
                return None
            [(content_type, content)] = reported["content"].items()
            assert answer.content_type == content_type
            body = await answer.json(content_type=content_type)
            self.check(body, content["schema"])
            return body

    def check(self, value: Any, schema: Any) -> None:
        """Hold a value to a schema of the document."""
        components = {"components": self.document["components"]}
        OAS31Validator({**components, **schema}).validate(value)

    @asynccontextmanager
    async def consuming(self, **traits: Any) -> AsyncIterator[AIOKafkaConsumer]:
        """A member that has read and committed everything."""
        values = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 200}
        consumer = AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.cluster.bootstrap, group_id=self.group, **(values | traits)
        )
        async with consumer:
            async with asyncio.timeout(30):
                for _ in range(RECORDS):
                    await consumer.getone()
            await consumer.commit()
            yield consumer

    async def committed(self) -> int | None:
        """Of the first partition."""
        group = await self.ask("GET", "/groups/{group}", group=self.group)
        return {one["partition"]: one["committed"] for one in group["partitions"]}[0]  # type: ignore[no-any-return]


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    topic, group = f"orders-{uuid.uuid4().hex[:8]}", f"group {uuid.uuid4().hex[:8]}/%{{}}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    base = f"http://127.0.0.1:{cluster.brokers[1].admin_port}"
    async with aiohttp.ClientSession(base, headers=headers) as http:
        async with http.get("/api/v1/openapi.json") as answer:
            document = await answer.json()
        opened = Api(cluster, http, document, topic, group)
        body = {"topic": topic, "partition_count": 2, "configs": {"retention.ms": "86400000"}}
        await opened.ask("POST", "/topics", json=body)
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True) as producer:
            for number in range(RECORDS):
                await producer.send_and_wait(topic, b"x", partition=number % 2)
        yield opened


async def test_document_is_openapi(api: Api) -> None:
    OpenAPIV31SpecValidator(api.document).validate()

    operations = [one for path in api.document["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations) >= 20
    assert all(one["summary"].endswith(".") for one in operations)


async def test_reads_match_the_document(api: Api) -> None:
    async with api.consuming(client_id="billing"):
        names = {"group": api.group, "topic": api.topic}
        reads = [path for path, of in api.document["paths"].items() if "get" in of]
        answers = {path: await api.ask("GET", path.removeprefix("/api/v1"), **names) for path in reads}
    by = {path.removeprefix("/api/v1"): answer for path, answer in answers.items()}

    assert by["/groups/{group}"]["members"][0]["client_id"] == "billing"
    assert [one["high_watermark"] for one in by["/topics/{topic}"]["partitions"]] == [20, 20]
    assert [one["group"] for one in by["/topics/{topic}"]["groups"]] == [api.group]
    assert [one["producer_count"] for one in by["/topics/{topic}/producers"]["partitions"]] == [1, 1]
    async with asyncio.timeout(30):  # on a busy machine a broker is suspect now and then
        while {one["state"] for one in (await api.ask("GET", "/brokers"))["brokers"]} != {"serving"}:
            await asyncio.sleep(0.2)
    assert sum(one["connections"] for one in by["/brokers"]["brokers"]) >= 0
    assert by["/redis"]["flavour"] == "valkey" and by["/redis"]["latency"]
    assert by["/overview"]["totals"]["topics"] >= 1
    assert by["/audit"]["actions"][0]["action"] == "topic.create"
    with pytest.raises(Exception, match="Additional properties"):
        api.check(by["/redis"] | {"more": 1}, {"$ref": "#/components/schemas/Redis"})


async def test_lists_are_paged(api: Api) -> None:
    other = f"{api.topic}-b"
    await api.ask("POST", "/topics", json={"topic": other})
    found, after = [], ""
    while after is not None:
        page = await api.ask("GET", f"/topics?limit=1&after={after}")
        found += [one["topic"] for one in page["topics"]]
        after = page["next"]

    assert {api.topic, other} <= set(found)
    assert found == sorted(set(found))
    await api.ask("GET", "/groups?limit=0", 400)
    await api.ask("GET", "/groups?sort=lag", 400)


async def test_offsets_are_planned_moved_and_put_back(api: Api) -> None:
    async with api.consuming():
        way = {"to_earliest": True, "all_topics": True}
        plan = await api.ask("POST", "/groups/{group}/offsets/plan", json=way, group=api.group)
        assert not plan["allowed"] and len(plan["members"]) == 1
        refused = await api.ask("POST", "/groups/{group}/offsets/reset", 409, json=way, group=api.group)
        assert refused["kafka_error"] == "NON_EMPTY_GROUP"
    consumer = AIOKafkaConsumer(bootstrap_servers=api.cluster.bootstrap, group_id=api.group, enable_auto_commit=False)
    async with consumer:
        consumer.assign([TopicPartition(api.topic, 1)])
        await consumer.commit({TopicPartition(api.topic, 1): OffsetAndMetadata(20, "by hand")})
    shown = await api.ask("POST", "/groups/{group}/offsets/plan", json=way, group=api.group)
    assert [(one["before"], one["after"]) for one in shown["moves"]] == [(20, 0), (20, 0)]
    offsets = [{"topic": one["topic"], "partition": one["partition"], "offset": one["after"]} for one in shown["moves"]]

    done = await api.ask("POST", "/groups/{group}/offsets/reset", json={"offsets": offsets}, group=api.group)

    assert done["complete"] and await api.committed() == 0
    first = (await api.ask("GET", "/audit"))["actions"][0]
    assert (first["action_id"], first["action"], first["outcome"]) == (done["action_id"], "group.reset", "done")
    assert (first["who"], first["role"], first["undoable"]) == ("operator", "operator", True)
    events = (await api.ask("GET", "/groups/{group}/history", group=api.group))["events"]
    assert events[0]["kind"] == "offsets_reset" and events[0]["client_id"] == "tidegate-group@operator"
    back = await api.ask("POST", "/audit/{action_id}/undo", action_id=done["action_id"])
    assert back["complete"] and await api.committed() == 20
    partitions = (await api.ask("GET", "/groups/{group}", group=api.group))["partitions"]
    assert [one["metadata"] for one in partitions] == ["", "by hand"]
    again = await api.ask("POST", "/audit/{action_id}/undo", 409, action_id=done["action_id"])
    assert "where they were" in again["detail"]
    assert (await api.ask("GET", "/audit"))["actions"][0]["action"] == "group.reset.undo"


async def test_undo_preserves_later_commits_of_the_group(api: Api) -> None:
    async with api.consuming():
        pass
    way = {"to_offset": 5, "topics": [f"{api.topic}:0"]}
    done = await api.ask("POST", "/groups/{group}/offsets/reset", json=way, group=api.group)
    consumer = AIOKafkaConsumer(bootstrap_servers=api.cluster.bootstrap, group_id=api.group, enable_auto_commit=False)
    async with consumer:
        consumer.assign([TopicPartition(api.topic, 0)])
        await consumer.commit({TopicPartition(api.topic, 0): 7})

    refused = await api.ask("POST", "/audit/{action_id}/undo", 409, action_id=done["action_id"])

    assert refused["partitions"] == [f"{api.topic} 0"]
    assert await api.committed() == 7
    assert "there is no topic" in (
        await api.ask(
            "POST", "/groups/{group}/offsets/plan", 400, json=way | {"topics": ["no-such"]}, group=api.group
        )
    )["detail"]  # fmt: skip
    await api.ask("POST", "/audit/{action_id}/undo", 404, action_id="none")


async def test_reset_fences_members_that_continue_from_the_new_offsets(api: Api) -> None:
    async with api.consuming() as consumer:
        way = {"to_offset": 15, "all_topics": True, "fence": True}
        done = await api.ask("POST", "/groups/{group}/offsets/reset", json=way, group=api.group)
        async with asyncio.timeout(30):
            read = [await consumer.getone() for _ in range(10)]

    assert done["complete"] and done["removed"] == 1
    assert {record.offset for record in read} == set(range(15, 20))


async def test_member_is_removed_and_a_group_deleted(api: Api) -> None:
    async with api.consuming(client_id="bad", group_instance_id="bad-1"):
        refused = await api.ask("DELETE", "/groups/{group}", 409, group=api.group)
        assert refused["kafka_error"] == "NON_EMPTY_GROUP"
        path = "/groups/{group}/members/{member}"
        gone = await api.ask("DELETE", f"{path}?reason=bad%20host", group=api.group, member="bad-1")
        assert gone["client_id"] == "bad"
        await api.ask("DELETE", path, 404, group=api.group, member="nobody")
        events = (await api.ask("GET", "/groups/{group}/history", group=api.group))["events"]
        assert "member_removed" in [one["kind"] for one in events if one["reason"] == "bad host"]
    async with asyncio.timeout(30):
        while (await api.ask("GET", "/groups/{group}", group=api.group))["members"]:
            await asyncio.sleep(0.2)
    await api.ask("DELETE", "/groups/{group}", 204, group=api.group)
    await api.ask("GET", "/groups/{group}", 404, group=api.group)
    await api.ask("DELETE", "/groups/{group}", 404, group=api.group)
    actions = [(one["action"], one["outcome"]) for one in (await api.ask("GET", "/audit?count=5"))["actions"]]
    assert actions == [
        ("group.delete", "refused"),
        ("group.delete", "done"),
        ("group.remove_member", "refused"),
        ("group.remove_member", "done"),
        ("group.delete", "refused"),
    ]


async def test_undo_deleted_group_restores_its_offsets_unless_the_group_exists(api: Api) -> None:
    async with api.consuming():
        pass
    await api.ask("DELETE", "/groups/{group}", 204, group=api.group)
    deleted = (await api.ask("GET", "/audit"))["actions"][0]

    back = await api.ask("POST", "/audit/{action_id}/undo", action_id=deleted["action_id"])

    assert [(one["before"], one["after"]) for one in back["moves"]] == [(None, 20), (None, 20)]
    assert await api.committed() == 20
    again = await api.ask("POST", "/audit/{action_id}/undo", 409, action_id=deleted["action_id"])
    assert "created again" in again["detail"]


async def test_topics_are_changed_grown_and_deleted(api: Api) -> None:
    topic = {"topic": api.topic}
    altered = await api.ask(
        "PATCH",
        "/topics/{topic}/configs",
        json={"set": {"retention.bytes": "1000"}, "defaults": ["retention.ms"]},
        **topic,
    )
    sources = {one["name"]: (one["value"], one["source"]) for one in altered["configs"]}
    assert sources["retention.bytes"] == ("1000", "topic") and sources["retention.ms"][1] == "default"
    arguments = (await api.ask("GET", "/audit"))["actions"][0]["arguments"]
    assert arguments["before"] == {"retention.bytes": None, "retention.ms": "86400000"}
    wrong = await api.ask("PATCH", "/topics/{topic}/configs", 400, json={"set": {"retention.ms": "long"}}, **topic)
    assert wrong["kafka_error"] == "INVALID_CONFIG"
    assert (await api.ask("POST", "/topics/{topic}/partitions", json={"count": 3}, **topic))["partition_count"] == 3
    await api.ask("POST", "/topics/{topic}/partitions", 400, json={"count": 3}, **topic)
    last = (await api.ask("GET", "/topics/{topic}?first=1&limit=1", **topic))["partitions"]
    assert [one["partition"] for one in last] == [1]
    assert (await api.ask("GET", "/topics/{topic}?first=9", **topic))["partitions"] == []
    await api.ask("POST", "/topics", 409, json=topic)
    await api.ask("POST", "/topics", 400, json={"topic": "a b"})
    await api.ask("DELETE", "/topics/{topic}", 204, **topic)
    await api.ask("DELETE", "/topics/{topic}", 404, **topic)
    await api.ask("POST", "/topics/{topic}/partitions", 404, json={"count": 3}, **topic)


async def test_old_records_are_trimmed(api: Api) -> None:
    topic = {"topic": api.topic}
    body: Any = {"partitions": [{"partition": 0, "before": 5}, {"partition": 1, "before": None}]}

    trimmed = await api.ask("POST", "/topics/{topic}/trim", json=body, **topic)

    assert trimmed["partitions"] == [{"partition": 0, "log_start": 5}, {"partition": 1, "log_start": 20}]
    reported = (await api.ask("GET", "/topics/{topic}", **topic))["partitions"]
    assert [one["log_start"] for one in reported] == [5, 20]
    too_far = {"partitions": [{"partition": 0, "before": 21}]}
    refused = await api.ask("POST", "/topics/{topic}/trim", 400, json=too_far, **topic)
    assert refused["kafka_error"] == "OFFSET_OUT_OF_RANGE"
    await api.ask("POST", "/topics/{topic}/trim", 404, json={"partitions": [{"partition": 2, "before": 1}]}, **topic)
    await api.ask("PATCH", "/topics/{topic}/configs", json={"set": {"cleanup.policy": "compact"}}, **topic)
    kept = await api.ask("POST", "/topics/{topic}/trim", 403, json=body, **topic)
    assert kept["kafka_error"] == "POLICY_VIOLATION"


async def test_quotas_are_set_listed_and_removed(api: Api) -> None:
    change: Any = {"entity": "user=alice&client-id", "quota": "producer_byte_rate", "value": 1e6}
    assert change in (await api.ask("PATCH", "/quotas", json={"changes": [change]}))["quotas"]
    assert change in (await api.ask("GET", "/quotas"))["quotas"]
    assert (await api.ask("GET", "/quotas?org=acme"))["quotas"] == []
    action = (await api.ask("GET", "/audit"))["actions"][0]
    assert (action["action"], action["outcome"]) == ("quota.change", "done")
    assert action["arguments"]["quotas"] == {"user=alice&client-id producer_byte_rate": 1e6}
    for wrong in ({"value": -1.0}, {"entity": "group=g"}, {"quota": "connection_creation_rate"}):
        refused = await api.ask("PATCH", "/quotas", 400, json={"changes": [change | wrong]})
        assert refused["kafka_error"] == "INVALID_REQUEST"
    await api.ask("PATCH", "/quotas", json={"changes": [change | {"value": None}]})
    assert change not in (await api.ask("GET", "/quotas"))["quotas"]


async def test_bodies_that_cannot_be(api: Api) -> None:
    path, names = "/groups/{group}/offsets/plan", {"group": api.group}
    for body in ({}, {"to_earliest": True}, {"to_earliest": True, "to_offset": 1, "all_topics": True}, [], {"x": 1}):
        assert (await api.ask("POST", path, 400, json=body, **names))["errors"]
    async with api.http.post("/api/v1/topics", data=b"{") as answer:
        assert answer.status == 415
    async with api.http.post("/api/v1/topics", data=b"{", headers={"Content-Type": "application/json"}) as answer:
        assert answer.status == 400
    async with api.http.get("/api/v1/nothing") as answer:
        assert (answer.status, answer.content_type) == (404, "application/problem+json")
    async with api.http.put("/api/v1/topics") as answer:
        assert (answer.status, "GET" in answer.headers["Allow"]) == (405, True)


async def test_session_of_one_broker_is_one_of_all(api: Api) -> None:
    first, second = (f"http://127.0.0.1:{broker.admin_port}" for broker in api.cluster.brokers)
    form = {"name": "operator", "password": TOKEN, "next": "/console/brokers"}
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        async with http.post(f"{first}/console/login", data=form, allow_redirects=False) as answer:
            assert answer.headers["Location"] == "/console/brokers"
            cookie = {COOKIE: answer.cookies[COOKIE].value}
        sessions = Sessions(Secrets(operator_token=TOKEN), (await api.ask("GET", "/overview"))["cluster_id"])
        session = sessions.read(cookie[COOKIE])
        assert session is not None
        token = sessions.csrf_token(session)
        topic = f"{second}/api/v1/topics/{api.topic}"
        async with http.delete(topic, cookies=cookie) as answer:
            assert answer.status == 403
        async with http.delete(topic, cookies=cookie, headers={CSRF_HEADER: token}) as answer:
            assert answer.status == 204


async def test_broker_is_drained_through_another_and_the_other_by_itself_without_redis() -> None:
    with ForkedCluster(brokers=2, settings=SETTINGS) as running:
        first, second = running.brokers
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{second.admin_port}", headers=headers) as http:
            node_id = await _node_id(http, first.port)
            async with http.post("/api/v1/brokers/99/drain") as answer:
                assert (answer.status, (await answer.json())["kafka_error"]) == (404, "BROKER_ID_NOT_REGISTERED")
            async with http.post(f"/api/v1/brokers/{node_id}/drain") as answer:
                assert answer.status == 204
            assert first.process is not None
            assert await asyncio.to_thread(first.process.wait, 60) == 0
            running.kill_server()
            async with asyncio.timeout(30):
                while await _status(http, "GET", "/health/ready") == 200:
                    await asyncio.sleep(0.1)
            way = {"to_earliest": True, "all_topics": True}
            for path in ("groups", "groups/a", "topics", "topics/a", "brokers", "redis", "overview", "audit"):
                assert await _status(http, "GET", f"/api/v1/{path}") == 503, path
            assert await _status(http, "DELETE", "/api/v1/groups/a") == 503
            assert await _status(http, "POST", "/api/v1/groups/a/offsets/plan", json=way) == 503
            assert await _status(http, "GET", "/health/live") == 200
            assert await _status(http, "POST", "/drain", headers={"Authorization": ""}) == 401
        async with aiohttp.ClientSession() as program:
            assert await _status(program, "POST", f"http://127.0.0.1:{second.admin_port}/drain") == 202
        assert second.process is not None
        assert await asyncio.to_thread(second.process.wait, 60) == 0


async def _node_id(http: aiohttp.ClientSession, port: int) -> int:
    """Of the broker at a port, as soon as the one that is asked knows of it: both start at once."""
    async with asyncio.timeout(30):
        while True:
            async with http.get("/api/v1/brokers") as answer:
                for one in (await answer.json())["brokers"]:
                    if one["listeners"][0]["port"] == port:
                        return int(one["node_id"])
            await asyncio.sleep(0.05)


async def _status(http: aiohttp.ClientSession, method: str, path: str, **values: Any) -> int:
    async with http.request(method, path, **values) as answer:
        return answer.status
