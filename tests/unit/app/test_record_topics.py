"""Topics whose offsets do not count their records, as far as the CLI may describe them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from tidegate.cli.client.record_topics import record_count, record_topics

NOW_MS = 1_764_000_000_000


class Kafka:
    """Describes topics by their format; None for one that may not be described."""

    def __init__(self, **formats: str | None) -> None:
        self._formats = formats

    async def ask(self, api: int, resources: Any, **_: Any) -> Any:
        return SimpleNamespace(results=[self._described(one.resource_name) for one in resources])

    def _described(self, name: str) -> Any:
        value = self._formats[name]
        code = ErrorCode.none if value is not None else ErrorCode.topic_authorization_failed
        configs = () if value is None else (SimpleNamespace(name="tidegate.format", value=value),)
        return SimpleNamespace(resource_name=name, error_code=code, configs=configs)


async def found(end: int, **formats: str | None) -> set[str]:
    kafka: Any = Kafka(**formats)
    return await record_topics(kafka, {(name, 0): end for name in formats})


async def test_described_topic_is_of_its_format() -> None:
    assert await found(NOW_MS << 10, r="record", b="batch") == {"r"}
    assert await found(1_000, r="record", b="batch") == {"r"}


async def test_topic_that_may_not_be_described_counts_where_its_offsets_are_no_times() -> None:
    assert await found(5_000_000_000, hidden=None) == set()
    for bits in (8, 10, 12):
        assert await found(NOW_MS << bits, hidden=None) == {"hidden"}


def test_records_between_offsets_of_format_record_are_unknown_unless_there_are_none() -> None:
    assert [record_count(3, 8, is_record) for is_record in (False, True)] == [5, None]
    assert record_count(8, 8, True) == 0
    assert record_count(None, 8, False) is None
