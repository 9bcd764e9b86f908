"""Shell completion of topic and group names, fetched from the brokers that the environment names.

Errors are ignored: an error message would garble the line being edited, and so would names with control characters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidegate.telemetry.visible import CONTROLS

_PATIENCE_S: Final = 1.5

Named = Callable[[Any], Coroutine[Any, Any, list[str]]]


def complete_topics(incomplete: str) -> list[str]:
    """Topics with this prefix."""

    async def names(kafka: Any) -> list[str]:
        return sorted(await kafka.topics())

    return _complete(incomplete, names)


def complete_groups(incomplete: str) -> list[str]:
    """Groups with this prefix."""

    async def names(kafka: Any) -> list[str]:
        from tidegate.cli.client import group_operations

        return [one.listed.group_id for one in await group_operations.all_groups(kafka)]

    return _complete(incomplete, names)


def _complete(incomplete: str, names: Named) -> list[str]:
    from tidegate.cli import places
    from tidegate.cli.client.kafka_client import KafkaClient

    async def ask() -> list[str]:
        async with asyncio.timeout(_PATIENCE_S), KafkaClient(places.brokers_of_environment()) as kafka:
            return await names(kafka)

    try:
        return [name for name in asyncio.run(ask()) if name.startswith(incomplete) and not CONTROLS.search(name)]
    except Exception:  # noqa: BLE001 - see above
        return []
