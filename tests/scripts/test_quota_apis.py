"""DescribeClientQuotas and AlterClientQuotas, and the topic changes that a quota refuses, asked without sockets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.asking import ask
from tests.support.built import build_broker
from tidegate.apis.call import BrokerContext, Client
from tidegate.quotas import table as table_module
from tidegate.quotas.entities import NAME_LENGTH_MAX, Entity, Quota
from tidegate.store.store import Store
from tidegate.topics.catalog import PARTITIONS_MAX

DESCRIBE, ALTER, CREATE, DELETE, GROW, METADATA = 48, 49, 19, 20, 37, 3
NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
EXCEEDED = ErrorCode.throttling_quota_exceeded
ALICE = {"user": "alice"}
Names = dict[str, str | None]


@pytest.fixture
async def broker(store: Store) -> Any:
    context = build_broker(store).context
    await context.catalog.start()
    yield context
    await context.catalog.close()


def client(name: str = "admin", org: str = "default") -> Client:
    return Client(1, "127.0.0.1", 1, principal=f"User:{name}", org=org)


def entity(names: Names) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]


async def alter(
    broker: BrokerContext, *entries: tuple[Names, dict[str, float | None]], org: str = "default", **options: Any
) -> list[ErrorCode]:
    version = options.pop("version", 1)
    asked = request(
        ALTER, version, validate_only=options.get("validate_only", False),
        entries=[
            {"entity": entity(names), "ops": [
                {"key": key, "value": value or 0.0, "remove": value is None}
                for key, value in quotas.items()
            ]}
            for names, quotas in entries
        ],
    )  # fmt: skip
    answer = await ask(broker, asked, client(org=org))
    assert [{one.entity_type: one.entity_name for one in entry.entity} for entry in answer.entries] == [
        names for names, _ in entries
    ]
    return [entry.error_code for entry in answer.entries]


async def describe(broker: BrokerContext, *components: tuple[str, int, str | None], **options: Any) -> Any:
    asked = request(
        DESCRIBE, options.get("version", 1), strict=options.get("strict", False),
        components=[
            {"entity_type": kind, "match_type": match, "match": name}
            for kind, match, name in components
        ],
    )  # fmt: skip
    answer = await ask(broker, asked, client(org=options.get("org", "default")))
    assert answer.error_code is options.get("error", NONE)
    return [
        ({one.entity_type: one.entity_name for one in entry.entity}, {one.key: one.value for one in entry.values})
        for entry in answer.entries or ()
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_alter_sets_changes_and_removes(broker: BrokerContext, version: int) -> None:
    both: Names = {"user": "alice", "client-id": None}
    assert (
        await alter(broker, (ALICE, {"producer_byte_rate": 1e6}), (both, {"request_percentage": 0.5}), version=version)
        == [NONE] * 2
    )
    assert await alter(broker, (ALICE, {"producer_byte_rate": 2e6, "consumer_byte_rate": 3e6}), version=version) == [
        NONE
    ]

    assert await describe(broker, ("user", 0, "alice"), version=version) == [
        (ALICE, {"producer_byte_rate": 2e6, "consumer_byte_rate": 3e6}),
        (both, {"request_percentage": 0.5}),
    ]
    await alter(broker, (ALICE, {"producer_byte_rate": None, "consumer_byte_rate": None}), version=version)
    assert await describe(broker, version=version) == [(both, {"request_percentage": 0.5})]


async def test_alter_of_one_refused_entity_changes_the_others(broker: BrokerContext) -> None:
    codes = await alter(
        broker,
        (ALICE, {"producer_byte_rate": 1e6}),
        ({"user": "bob"}, {"producer_byte_rate": -1.0}),
        ({"group": "g"}, {"producer_byte_rate": 1.0}),
        (ALICE, {"consumer_byte_rate": 1e6}),
        ({"user": "carol"}, {"no_such_key": 1.0}),
    )

    assert codes == [NONE, INVALID, INVALID, INVALID, INVALID]
    assert await describe(broker) == [(ALICE, {"producer_byte_rate": 1e6})]


@pytest.mark.parametrize("kind", ["user", "client-id", "org"])
async def test_alter_refuses_long_names_and_removes_them(broker: BrokerContext, kind: str) -> None:
    """Those of earlier versions can be removed."""
    longest, longer = ({kind: "n" * count} for count in (NAME_LENGTH_MAX, NAME_LENGTH_MAX + 1))

    codes = await alter(broker, (longest, {"producer_byte_rate": 1.0}), (longer, {"producer_byte_rate": 1.0}))

    assert codes == [NONE, INVALID]
    assert await describe(broker) == [(longest, {"producer_byte_rate": 1.0})]
    assert broker.quotas is not None
    await broker.quotas.quotas.change("default", [(Entity.of(longer), Quota.PRODUCE, 1.0)], "an earlier version")
    assert await alter(broker, (longer, {"producer_byte_rate": None})) == [NONE]
    assert await describe(broker) == [(longest, {"producer_byte_rate": 1.0})]


async def test_alter_at_the_maximum_of_an_org(broker: BrokerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing quotas may be changed and replaced, and other organisations have a maximum of their own."""
    monkeypatch.setattr(table_module, "QUOTAS_MAX", 2)
    bob, carol = {"user": "bob"}, {"user": "carol"}
    rate, none = {"producer_byte_rate": 1.0}, {"producer_byte_rate": None}
    await alter(broker, (ALICE, rate), (bob, rate))

    for org in ("default", "acme"):
        assert await alter(broker, (ALICE, rate), (bob, rate), org=org) == [NONE, NONE]
        assert await alter(broker, (ALICE, {"producer_byte_rate": 2.0}), org=org) == [NONE]
        assert await alter(broker, (carol, rate), org=org) == [ErrorCode.policy_violation]
        assert await alter(broker, (bob, none), (carol, rate), org=org) == [NONE, NONE]
        assert await describe(broker, org=org) == [(ALICE, {"producer_byte_rate": 2.0}), (carol, rate)]


async def test_alter_validate_only_changes_nothing(broker: BrokerContext) -> None:
    entries = ((ALICE, {"producer_byte_rate": 1e6}), ({"user": "bob"}, {"producer_byte_rate": 0.5}))

    assert await alter(broker, *entries, validate_only=True) == [NONE, INVALID]
    assert await describe(broker) == []


async def test_describe_of_an_unknown_type_is_unsupported(broker: BrokerContext) -> None:
    await describe(broker, ("group", 0, "g"), error=ErrorCode.unsupported_version)
    await describe(broker, ("user", 0, None), error=INVALID)


async def test_orgs_do_not_meet(broker: BrokerContext) -> None:
    """The same user in two organisations is two entities; addresses and organisations are limited by the cluster."""
    await alter(broker, (ALICE, {"producer_byte_rate": 1e6}), ({"org": "acme"}, {"producer_byte_rate": 5e6}))

    assert await describe(broker, org="acme") == []
    assert await alter(broker, (ALICE, {"producer_byte_rate": 7.0}), org="acme") == [NONE]
    assert await alter(broker, ({"org": "acme"}, {"producer_byte_rate": None}), org="acme") == [INVALID]
    assert await alter(broker, ({"ip": None}, {"connection_creation_rate": 1.0}), org="acme") == [INVALID]
    assert await describe(broker, org="acme") == [(ALICE, {"producer_byte_rate": 7.0})]
    assert await describe(broker, ("user", 0, "alice")) == [(ALICE, {"producer_byte_rate": 1e6})]


async def create(broker: BrokerContext, version: int, *topics: tuple[str, int]) -> Any:
    asked = request(
        CREATE, version, timeout=timedelta(seconds=5), validate_only=False,
        topics=[
            {"name": name, "num_partitions": count, "replication_factor": 1,
             "assignments": (), "configs": ()}
            for name, count in topics
        ],
    )  # fmt: skip
    return await ask(broker, asked, client("alice"))


async def grow(broker: BrokerContext, name: str, count: int) -> Any:
    asked = request(
        GROW, 3, timeout=timedelta(seconds=5), validate_only=False,
        topics=[{"name": name, "count": count, "assignments": None}],
    )  # fmt: skip
    return await ask(broker, asked, client("alice"))


async def test_create_topics_beyond_the_quota_are_refused(broker: BrokerContext) -> None:
    """Strict versions: what is accepted may overdraw, what follows is refused (KIP-599)."""
    await alter(broker, (ALICE, {"controller_mutation_rate": 0.1}))
    first = await create(broker, 7, ("a", 5))
    second = await create(broker, 7, ("b", 1), ("c", 1))

    assert [one.error_code for one in first.topics] == [NONE]
    assert [one.error_code for one in second.topics] == [EXCEEDED, EXCEEDED]
    assert broker.catalog.get("default", "b") is None


async def test_create_topics_of_old_clients_are_throttled_only(broker: BrokerContext) -> None:
    await alter(broker, (ALICE, {"controller_mutation_rate": 0.1}))
    await create(broker, 5, ("a", 5))
    answer = await create(broker, 5, ("b", 1))

    assert [one.error_code for one in answer.topics] == [NONE]


async def test_metadata_creates_topics_within_the_quota(broker: BrokerContext) -> None:
    """What is refused stays unknown, and nothing is throttled: clients ask again."""
    await alter(broker, (ALICE, {"controller_mutation_rate": 0.1}))
    names = [{"name": f"t{number:02}"} for number in range(40)]
    asker = client("alice")

    answer = await ask(broker, request(METADATA, 4, topics=names, allow_auto_topic_creation=True), asker)

    found = {one.error_code for one in answer.topics}
    assert found == {NONE, ErrorCode.unknown_topic_or_partition}
    assert len(broker.catalog.topics("default")) <= 2
    assert asker.mutation_throttle_s == 0


async def test_metadata_spends_no_quota_for_topics_that_cannot_be_created(broker: BrokerContext) -> None:
    await create(broker, 7, ("a.b.c", 1))
    await alter(broker, (ALICE, {"controller_mutation_rate": 0.1}))
    names = [{"name": name} for name in ("a_b.c", "a.b_c", "a_b_c", "__cluster_metadata", "t")]

    answer = await ask(broker, request(METADATA, 4, topics=names, allow_auto_topic_creation=True), client("alice"))

    invalid, unknown = ErrorCode.invalid_topic_exception, ErrorCode.unknown_topic_or_partition
    assert [one.error_code for one in answer.topics] == [invalid, invalid, invalid, unknown, NONE]


async def test_metadata_spends_no_quota_above_the_limits_of_the_org(broker: BrokerContext) -> None:
    await create(broker, 7, ("t", 1))
    await alter(broker, ({"org": "default"}, {"topics_max": 1}), (ALICE, {"controller_mutation_rate": 0.1}))
    names = [{"name": name} for name in "abc"]

    answer = await ask(broker, request(METADATA, 4, topics=names, allow_auto_topic_creation=True), client("alice"))

    assert [one.error_code for one in answer.topics] == [ErrorCode.policy_violation] * 3
    await alter(broker, ({"org": "default"}, {"topics_max": None}))
    assert [one.error_code for one in (await create(broker, 7, ("d", 1))).topics] == [NONE]


async def test_metadata_spends_no_quota_for_more_partitions_than_a_topic_has(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(broker.settings), "num_partitions", PARTITIONS_MAX + 1)
    await alter(broker, (ALICE, {"controller_mutation_rate": 0.1}))
    asked = request(METADATA, 4, topics=[{"name": "a"}], allow_auto_topic_creation=True)

    answer = await ask(broker, asked, client("alice"))

    assert [one.error_code for one in answer.topics] == [ErrorCode.invalid_partitions]
    assert [one.error_code for one in (await create(broker, 7, ("b", 1))).topics] == [NONE]


async def test_creation_and_growth_above_the_limits_of_the_org_spend_no_quota(broker: BrokerContext) -> None:
    await create(broker, 7, ("a", 2))
    await alter(broker, ({"org": "default"}, {"partitions_max": 4}), (ALICE, {"controller_mutation_rate": 0.1}))

    created = await create(broker, 7, ("b", 3))
    grown = await grow(broker, "a", 5)

    refused = [ErrorCode.policy_violation]
    assert [one.error_code for one in created.topics] == refused
    assert [one.error_code for one in grown.results] == refused
    assert [one.error_code for one in (await grow(broker, "a", 4)).results] == [NONE]


async def test_delete_and_growth_spend_the_same_quota(broker: BrokerContext) -> None:
    await create(broker, 7, ("a", 2))
    await alter(broker, (ALICE, {"controller_mutation_rate": 0.1}))
    grown = await grow(broker, "a", 6)
    delete = request(DELETE, 6, timeout=timedelta(seconds=5), topics=[{"name": "a", "topic_id": None}])
    deleted = await ask(broker, delete, client("alice"))

    assert [one.error_code for one in grown.results] == [NONE]
    assert [one.error_code for one in deleted.responses] == [EXCEEDED]
    assert broker.catalog.get("default", "a") is not None
