"""The configs of brokers for DescribeConfigs, AlterConfigs and IncrementalAlterConfigs (KIP-226)."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.apis.call import Call
from tidegate.cluster.resource_configs import BROKER, Configs, ResourceConfigs
from tidegate.errors import InvalidRequest
from tidegate.topics import configs, dynamic_defaults
from tidegate.topics.configs import Change, Described

_OF_ALL = ""


def describe(call: Call, name: str) -> list[Described]:
    """This broker's configs; without a name what is set for all brokers at run time. Raises InvalidRequest."""
    settings = call.context.settings
    if _stored_name(call, name) == _OF_ALL and not name:
        return dynamic_defaults.describe_of_all(_stored(call).of(BROKER, _OF_ALL))
    found = [*configs.describe_broker(settings), *dynamic_defaults.describe(settings)]
    return sorted(found, key=lambda one: one.name)


async def alter(call: Call, name: str, changes: Sequence[Change], validate_only: bool, replace: bool) -> None:
    """Change configs of this broker, or of all. Raises InvalidRequest, PolicyViolation, StoreUnavailable."""

    def plan(before: Configs) -> tuple[Configs, Sequence[str]]:
        return dynamic_defaults.changes_of(call.context.settings, before, changes, replace=replace)

    await _stored(call).alter(BROKER, _stored_name(call, name), plan, validate_only)


def _stored(call: Call) -> ResourceConfigs:
    if call.context.resource_configs is None:
        raise InvalidRequest("this broker has no configs that change at run time")
    return call.context.resource_configs


def _stored_name(call: Call, name: str) -> str:
    """The name that a broker's configs are stored under. Where clients see one broker only, it stands for all.

    Raises InvalidRequest for another broker: clients send the request to that one.
    """
    lease = call.context.broker_lease
    own, shown = str(lease.node_id), str(lease.shown_node_id(call.client.listener))
    if name not in (_OF_ALL, own, shown):
        raise InvalidRequest(f"this is broker {shown}, not {name!r}")
    return name if name == own else _OF_ALL
