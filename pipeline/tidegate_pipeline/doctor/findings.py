"""Findings from the observations of the driver and the executors. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SKEW_MS_MAX: Final = 1_000
_OPTIONAL: Final = frozenset({"numba", "deltalake", "pyiceberg", "fastavro"})


class CheckStatus(enum.StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `advice` if it is not OK."""

    severity: CheckStatus
    what: str
    reported: str
    advice: str = ""


def compared(driver: Mapping[str, Any], executors: Sequence[Mapping[str, Any]], expected: int) -> Iterator[Check]:
    """Versions and rights of the executors beside the driver's. `expected`: how many executors there are."""
    if len(executors) < expected:
        yield Check(CheckStatus.WARNING, "executors", f"{len(executors)} of {expected} were reached", "run it again")
    else:
        yield Check(CheckStatus.OK, "executors", f"{len(executors)}: {', '.join(sorted(_hosts(executors)))}")
    yield _same("Python", driver["python"], [one["python"] for one in executors], minor_only=True)
    able = [one for one in executors if "tidegate" in one]
    for one in executors:
        if one not in able:
            text = f"cannot be imported on {one['host']}: {one['errors']['import']}"
            advice = "install the wheel there, in the image or a packed environment; --py-files is not enough"
            yield Check(CheckStatus.ERROR, "tidegate", text, advice)
    if able:
        yield _same("tidegate", driver["tidegate"], [one["tidegate"] for one in able])
    yield _packages(driver["packages"], [one["packages"] for one in able])
    for what in dict.fromkeys(name for one in [driver, *able] for name in one["errors"]):
        for where, text in _reported(driver, able, what):
            yield Check(CheckStatus.ERROR, what, f"{where}: {text}", _ADVICE.get(what, ""))
    yield from _clocks(driver, able)


_ADVICE: Final = {
    "redis": "executors connect to Redis themselves: its address and password must be good where they run",
    "archive": "a folder or bucket that the driver, every executor and every broker can write or read",
    "checkpoint": "a folder or bucket that the driver and every executor can write",
}


def _hosts(executors: Sequence[Mapping[str, Any]]) -> set[str]:
    return {one["host"] for one in executors}


def _reported(
    driver: Mapping[str, Any], executors: Sequence[Mapping[str, Any]], what: str
) -> Iterator[tuple[str, str]]:
    if what in driver["errors"]:
        yield "driver", driver["errors"][what]
    for text in dict.fromkeys(one["errors"][what] for one in executors if what in one["errors"]):
        hosts = _hosts([one for one in executors if one["errors"].get(what) == text])
        yield f"executors on {', '.join(sorted(hosts))}", text


def _same(what: str, driver: str, executors: Sequence[str], *, minor_only: bool = False) -> Check:
    def compared(version: str) -> str:
        return ".".join(version.split(".")[:2]) if minor_only else version

    others = sorted({version for version in executors if compared(version) != compared(driver)})
    if not others:
        return Check(CheckStatus.OK, what, driver)
    return Check(CheckStatus.ERROR, what, f"{driver} on the driver, {', '.join(others)} on executors", "use one image")


def _packages(driver: Mapping[str, str], executors: Sequence[Mapping[str, str]]) -> Check:
    differing = []
    for package in sorted({name for found in (driver, *executors) for name in found}):
        found = {here.get(package, "missing") for here in (driver, *executors)}
        if len(found) > 1:
            differing.append(f"{package} {' and '.join(sorted(found))}")
    if differing:
        hard = [reported for reported in differing if reported.split()[0] not in _OPTIONAL]
        return Check(
            CheckStatus.ERROR if hard else CheckStatus.WARNING, "packages", "; ".join(differing), "use one image"
        )
    reported = ", ".join(f"{name} {version}" for name, version in driver.items())
    return Check(CheckStatus.OK, "packages", reported)


def _clocks(driver: Mapping[str, Any], executors: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    skews = [one["clock_skew_ms"] for one in (driver, *executors) if "clock_skew_ms" in one]
    if not skews:
        return
    worst = max(skews, key=abs)
    reported = f"at most {abs(worst)} ms from Redis's"
    if abs(worst) > SKEW_MS_MAX:
        yield Check(CheckStatus.WARNING, "clocks", reported, "lag in time compares clocks: run NTP on every machine")
    else:
        yield Check(CheckStatus.OK, "clocks", reported)


def of_redis(facts: Mapping[str, str], url: str) -> Iterator[Check]:
    """From INFO: eviction and persistence."""
    name = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get("valkey_version") or facts.get("redis_version", "?")
    yield Check(CheckStatus.OK, "redis", f"{name} {version} at {url}")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield Check(
            CheckStatus.ERROR, "eviction", f"maxmemory-policy is {policy}: records will be lost", "set noeviction"
        )
    if int(facts.get("maxmemory", 0)) == 0:
        yield Check(CheckStatus.WARNING, "memory", "maxmemory is 0: the machine's end is the server's", "set maxmemory")
    if facts.get("aof_enabled") != "1":
        reported = (
            "appendonly is off: a restart loses all writes after the last snapshot; queries then find lower offsets"
        )
        yield Check(CheckStatus.WARNING, "persistence", reported, "set appendonly yes")
