"""Valid combinations of a topic's tiered storage configs (KIP-405, KIP-950; Kafka's LogConfig).

| remote.storage.enable | rule |
|---|---|
| true | the broker has an archive; cleanup.policy is delete; local retention does not exceed retention |
| true, remote.log.copy.disable | local.retention.* equal retention.* |
| true -> false | remote.log.delete.on.disable is true |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.errors import InvalidConfig
from tidegate.list_configs import split_list

SAME_AS_RETENTION: Final = -2
"""The value of local.retention.ms and local.retention.bytes that means "as retention.*"."""
_UNLIMITED: Final = -1


def check_tiers(
    kept: Mapping[str, str], value_of: Callable[[str], str], before: Mapping[str, str], archive: bool
) -> None:
    """Check the configs `kept` that replace `before`; `value_of` returns effective values. Raises InvalidConfig."""
    if kept.get("remote.storage.enable") != "true":
        disabled = before.get("remote.storage.enable") == "true"
        if disabled and kept.get("remote.log.delete.on.disable") != "true":
            raise InvalidConfig(
                "what is only in the archive would be lost: to stop trimming Redis set remote.log.copy.disable=true, "
                "to let it go set remote.log.delete.on.disable=true as well"
            )
        return
    if not archive:
        raise InvalidConfig("remote.storage.enable: there is no tiered storage: the broker has no archive_path")
    if split_list(value_of("cleanup.policy")) != ["delete"]:
        raise InvalidConfig("remote.storage.enable: cleanup.policy must be delete")
    for unit in ("ms", "bytes"):
        _check_retention(unit, int(value_of(f"retention.{unit}")), int(value_of(f"local.retention.{unit}")))
        if kept.get("remote.log.copy.disable") == "true":
            _check_same(unit, int(value_of(f"retention.{unit}")), int(value_of(f"local.retention.{unit}")))


def _check_retention(unit: str, whole: int, local: int) -> None:
    if whole != _UNLIMITED and local != SAME_AS_RETENTION and not 0 <= local <= whole:
        raise InvalidConfig(f"local.retention.{unit}: must not be more than retention.{unit}, {whole}")


def _check_same(unit: str, whole: int, local: int) -> None:
    if local not in (SAME_AS_RETENTION, whole):
        raise InvalidConfig(f"local.retention.{unit}: must be retention.{unit} while remote.log.copy.disable is set")
