"""The defaults of topic configs that administrators set for brokers at run time (KIP-226)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.errors import InvalidConfig, InvalidRequest
from tidegate.list_configs import appended, check_length, subtracted
from tidegate.settings import Settings
from tidegate.topics.config_keys import CONFIG_KEYS, ConfigKey, ConfigType
from tidegate.topics.configs import Change, Described, Operation, Source, Synonym, broker_synonyms

DYNAMIC: Final = {key.broker_key: key for key in CONFIG_KEYS.values() if key.broker_key}
"""Kafka's name of a broker config that can change -> the topic config whose default it is."""


def changes_of(
    settings: Settings, stored: Mapping[str, str], changes: Iterable[Change], *, replace: bool
) -> tuple[dict[str, str], list[str]]:
    """The configs to set and to delete for changes of what is `stored` for one broker, or for all.

    Raises InvalidRequest for a config that cannot change at run time, an invalid value, or a missing one.
    """
    changed: dict[str, str] = {}
    deleted = list(stored) if replace else []
    for name, operation, value in changes:
        key = DYNAMIC.get(name)
        if key is None:
            raise InvalidRequest(_refusal(name))
        if operation == Operation.DELETE:
            deleted.append(name)
            continue
        if value is None:
            raise InvalidRequest(f"{name} has no value to set")
        try:
            check_length(value)
            changed[name] = key.check(_after(settings, stored, key, operation, value))
        except InvalidConfig as error:
            raise InvalidRequest(f"{name}: {error.message}") from None
    return changed, [name for name in dict.fromkeys(deleted) if name not in changed]


def _refusal(name: str) -> str:
    """Why this config of a broker cannot be changed; Kafka's names of a topic's config and of its default differ."""
    of_topic = CONFIG_KEYS.get(name)
    if of_topic is not None and of_topic.broker_key is not None:
        return f"{name} is a config of topics; the brokers' default of it is {of_topic.broker_key}"
    return f"{name} cannot be changed at run time: a broker reads its settings when it starts"


def _after(settings: Settings, stored: Mapping[str, str], key: ConfigKey, operation: int, value: str) -> str:
    """The value after an operation; list operations apply to the effective value. Raises InvalidConfig."""
    if operation == Operation.SET:
        return value
    if operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise InvalidRequest(f"there is no operation {operation}")
    if key.type is not ConfigType.LIST:
        raise InvalidConfig("no list")
    assert key.broker_key is not None
    change = appended if operation == Operation.APPEND else subtracted
    return change(stored.get(key.broker_key) or broker_synonyms(settings, key)[0].value, value)


def describe(settings: Settings) -> list[Described]:
    """The broker's defaults of topic configs."""
    found = ((name, key, broker_synonyms(settings, key)) for name, key in DYNAMIC.items())
    return [
        Described(name, key.type, synonyms[0].value, synonyms[0].source, key.doc, synonyms)
        for name, key, synonyms in found
    ]


def describe_of_all(stored: Mapping[str, str]) -> list[Described]:
    """What is set for all brokers."""
    return [
        Described(
            name, key.type, stored[name], Source.DYNAMIC_DEFAULT_BROKER, key.doc,
            (Synonym(name, stored[name], Source.DYNAMIC_DEFAULT_BROKER),),
        )
        for name, key in DYNAMIC.items()
        if name in stored
    ]  # fmt: skip


def dynamic_synonyms(own: Mapping[str, str], of_all: Mapping[str, str]) -> dict[str, tuple[Synonym, ...]]:
    """Broker config -> what is set at run time for this broker and for all, the effective one first."""
    found: dict[str, tuple[Synonym, ...]] = {}
    for source, values in ((Source.DYNAMIC_BROKER, own), (Source.DYNAMIC_DEFAULT_BROKER, of_all)):
        for name in values.keys() & DYNAMIC.keys():
            found[name] = (*found.get(name, ()), Synonym(name, values[name], source))
    return found
