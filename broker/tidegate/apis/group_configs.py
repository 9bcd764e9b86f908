"""The configs of groups for DescribeConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.apis.call import Call
from tidegate.errors import InvalidConfig, InvalidRequest
from tidegate.groups import configs
from tidegate.store.keys import GroupKeys
from tidegate.topics.config_keys import ConfigType
from tidegate.topics.configs import Change, Described, Operation, Source, Synonym

GROUP = 32
"""The resource type of groups (`ConfigResource.Type`)."""


def _keys(call: Call, group_id: str) -> GroupKeys:
    if not group_id.strip():
        raise InvalidRequest("the group id is blank")
    return call.store.group_keys(call.org, group_id)


async def describe_group_configs(call: Call, group_id: str) -> list[Described]:
    """Every config of a group id, in order of name. Raises InvalidRequest, StoreUnavailable."""
    stored = await configs.read(call.store, _keys(call, group_id))
    described = []
    for name, config in sorted(configs.CONFIGS.items()):
        default = config.default_value(call.context.settings)
        synonyms: tuple[Synonym, ...] = (Synonym(name, default, Source.DEFAULT),)
        if name in stored:
            synonyms = (Synonym(name, stored[name], Source.GROUP), *synonyms)
        kind = ConfigType.INT if config.is_number else ConfigType.STRING
        described.append(Described(name, kind, synonyms[0].value, synonyms[0].source, config.doc, synonyms))
    return described


async def alter_group_configs(
    call: Call, group_id: str, changes: Sequence[Change], validate_only: bool, *, replace: bool
) -> None:
    """Set and delete configs of a group id, all or none; with `replace`, those not named are deleted.

    Raises InvalidConfig, InvalidRequest, StoreUnavailable.
    """
    keys = _keys(call, group_id)
    for name, operation, _ in changes:
        if operation not in (Operation.SET, Operation.DELETE):
            raise InvalidConfig(f"{name} is not a list")
    planned = [(name, operation == Operation.DELETE, value) for name, operation, value in changes]
    stored, deleted = configs.plan(planned, replace=replace)
    await configs.alter(call.store, keys, stored, deleted, validate_only=validate_only)
