"""Asks whether an organisation may have one more group, before a request that may create one is executed."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from tidegate.apis.call import Call
from tidegate.errors import KafkaError
from tidegate.store.keys import GroupKeys

logger = structlog.get_logger()


def has_limit(call: Call) -> bool:
    """Whether the groups of the client's organisation are limited."""
    limits = call.context.group_limits
    return limits is not None and bool(limits.quotas.table.values) and limits.has_limit(call.org)


async def admit(call: Call, keys: GroupKeys) -> None:
    """Reserve a place for the group, which may exist. Raises PolicyViolation, StoreUnavailable."""
    limits = call.context.group_limits
    if limits is not None:
        await limits.admit(keys)


def when_admitted(call: Call, keys: GroupKeys, run: Callable[[], None], refuse: Callable[[KafkaError], None]) -> None:
    """For inline handlers: `run` at once without a limit; else once the group is admitted, before later requests."""
    if not has_limit(call):
        run()
        return

    async def ask() -> None:
        try:
            await admit(call, keys)
            run()
        except KafkaError as error:
            refuse(error)
        except Exception:
            logger.exception("group_not_admitted", group=keys.ref)
            refuse(KafkaError())

    call.run_alone()
    call.context.tasks.start(ask())
