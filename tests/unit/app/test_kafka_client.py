"""Whom the group commands ask, and what they do where one does not answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Answer
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tidegate.cli.client import group_operations, kafka_client
from tidegate.cli.client.kafka_client import LATEST, KafkaClient, TopicLeaders
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import Brokers
from tidegate.protocol.api_keys import ApiKey

TOPICS = {"orders": TopicLeaders("orders", {0: 1, 1: 2, 2: -1})}
WANTED = {("orders", index): LATEST for index in range(3)}

Serve = Callable[[str, int, dict[str, Any]], Any]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[[Serve], KafkaClient]:
    """Brokers 1 and 2 at b1:1 and b2:1; `serve` answers for them, by address."""

    def made(serve: Serve) -> KafkaClient:
        class Connection:
            def __init__(self, address: str, *_: Any) -> None:
                self.address = address

            async def open(self) -> None:
                serve(self.address, ApiKey.API_VERSIONS, {})

            async def close(self) -> None:
                pass

            async def ask(self, api: int, **values: Any) -> Any:
                if api == ApiKey.METADATA:
                    brokers = [Answer(node_id=n, host=f"b{n}", port=1) for n in (1, 2)]
                    return Answer(cluster_id="c", brokers=brokers, topics=[])
                if api == ApiKey.FIND_COORDINATOR:
                    return Answer(error_code=ErrorCode.none, host="b2", port=1)
                return serve(self.address, api, values)

        monkeypatch.setattr(kafka_client, "Connection", Connection)
        monkeypatch.setattr(kafka_client, "_PAUSE_S", 0)
        return KafkaClient(Brokers("b1:1"))

    return made


def _dead(address: str) -> None:
    if address == "b2:1":
        raise CommandFailed("nobody at b2:1")


def _ends(values: dict[str, Any], led: tuple[int, ...]) -> Any:
    return Answer(
        topics=[
            Answer(
                name=topic.name,
                partitions=[
                    Answer(
                        partition_index=one.partition_index,
                        offset=7,
                        error_code=ErrorCode.none if one.partition_index in led else ErrorCode.not_leader_or_follower,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in values["topics"]
        ]
    )


@pytest.mark.parametrize(
    ("led", "known"), [((0, 1, 2), [0, 1, 2]), ((0,), [0])], ids=["any broker knows", "leaders only"]
)
async def test_ends_of_a_dead_leader_and_of_none_are_asked_of_others(
    cluster: Callable[[Serve], KafkaClient], led: tuple[int, ...], known: list[int]
) -> None:
    def serve(address: str, api: int, values: dict[str, Any]) -> Any:
        _dead(address)
        return _ends(values, led) if api == ApiKey.LIST_OFFSETS else None

    async with cluster(serve) as kafka:
        await kafka.topics([])
        found = await kafka.offsets_known(WANTED, TOPICS)
        assert sorted(found) == [("orders", index) for index in known]
        if len(known) < len(WANTED):
            with pytest.raises(CommandFailed, match=r"^no broker returns the offsets of orders 1 and orders 2$"):
                await kafka.offsets_at(WANTED, TOPICS)


async def test_groups_of_a_dead_broker_may_be_missing(cluster: Callable[[Serve], KafkaClient]) -> None:
    def serve(address: str, api: int, values: dict[str, Any]) -> Any:
        _dead(address)
        return Answer(error_code=ErrorCode.none, groups=[])

    async with cluster(serve) as kafka:
        assert await group_operations.all_groups(kafka) == []
        assert kafka.silent == {2: "nobody at b2:1"}


async def test_list_groups_without_any_broker_fails(cluster: Callable[[Serve], KafkaClient]) -> None:
    def serve(address: str, api: int, values: dict[str, Any]) -> Any:
        _dead(address)
        return Answer(error_code=ErrorCode.cluster_authorization_failed)

    async with cluster(serve) as kafka:
        with pytest.raises(
            CommandFailed, match=r"AUTHORIZATION_FAILED; nobody at b2:1|nobody at b2:1; .*AUTHORIZATION"
        ):
            await group_operations.all_groups(kafka)


def _offsets(code: ErrorCode) -> Any:
    topic = Answer(name="orders", partitions=[Answer(partition_index=0, error_code=code, committed_offset=5)])
    return Answer(error_code=code, topics=[topic], members=[], groups=[Answer(error_code=code, topics=[topic])])


@pytest.mark.parametrize(
    "asked",
    [
        lambda kafka: group_operations.committed(kafka, "g"),
        lambda kafka: group_operations.commit(kafka, "g", {("orders", 0): (5, "")}),
        lambda kafka: group_operations.leave(kafka, "g", [("m", None)], "why"),
        lambda kafka: group_operations.delete_offsets(kafka, "g", [("orders", 0)]),
    ],
    ids=["committed", "commit", "leave", "delete_offsets"],
)
async def test_coordinator_that_moves_is_asked_again(
    cluster: Callable[[Serve], KafkaClient], asked: Callable[[KafkaClient], Any]
) -> None:
    codes = [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress, ErrorCode.none]

    def serve(address: str, api: int, values: dict[str, Any]) -> Any:
        return None if api == ApiKey.API_VERSIONS else _offsets(codes.pop(0))

    async with cluster(serve) as kafka:
        assert await asked(kafka) in ({("orders", 0): 5}, {("orders", 0): ErrorCode.none}, [])
    assert codes == []


async def test_coordinator_dead_is_replaced_by_another_broker(cluster: Callable[[Serve], KafkaClient]) -> None:
    def serve(address: str, api: int, values: dict[str, Any]) -> Any:
        _dead(address)
        return _offsets(ErrorCode.none)

    async with cluster(serve) as kafka:
        assert await group_operations.committed(kafka, "g") == {("orders", 0): 5}


async def test_coordinator_that_is_never_found(cluster: Callable[[Serve], KafkaClient]) -> None:
    async with cluster(lambda *_: _offsets(ErrorCode.not_coordinator)) as kafka:
        with pytest.raises(CommandFailed, match=r"^group g: its coordinator is not available$"):
            await group_operations.committed(kafka, "g")
