"""The log level of this broker as a broker logger (KIP-412): there is only `root`, and a restart resets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.apis.call import Call
from tidegate.errors import InvalidConfig, InvalidRequest
from tidegate.telemetry import logs
from tidegate.telemetry.logs import LogLevel
from tidegate.topics.config_keys import ConfigType
from tidegate.topics.configs import Change, Described, Operation, Source, Synonym

ROOT: Final = "root"
_LEVELS: Final[dict[str, LogLevel]] = {
    "TRACE": "debug", "DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERROR": "error", "FATAL": "error",
}  # fmt: skip
_NAMES: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
_DOC: Final = "Lowest level of the broker's log lines."


def describe(call: Call, name: str) -> list[Described]:
    """The level of this broker. Raises InvalidRequest for another broker."""
    _check_broker(call, name)
    level = _NAMES[call.context.log_level or call.context.settings.log_level]
    return [Described(ROOT, ConfigType.STRING, level, Source.LOGGER, _DOC, (Synonym(ROOT, level, Source.LOGGER),))]


def alter(call: Call, name: str, changes: Sequence[Change], validate_only: bool) -> None:
    """Change the level of this broker. Raises InvalidRequest, InvalidConfig."""
    _check_broker(call, name)
    levels = [_level_of(change) for change in changes]
    if levels and not validate_only:
        call.context.log_level = levels[-1]
        logs.set_level(levels[-1])


def _level_of(change: Change) -> LogLevel:
    logger, operation, value = change
    if logger != ROOT:
        raise InvalidConfig(f"there is no logger {logger!r}, only {ROOT}")
    if operation != Operation.SET:
        raise InvalidRequest(f"the level of {ROOT} can only be set")
    if value not in _LEVELS:
        raise InvalidConfig(f"{value!r} is none of {', '.join(_LEVELS)}")
    return _LEVELS[value]


def _check_broker(call: Call, name: str) -> None:
    lease = call.context.broker_lease
    own = {str(lease.node_id), str(lease.shown_node_id(call.client.listener))}
    if name not in own:
        raise InvalidRequest(f"this is broker {lease.node_id}, not {name!r}")
