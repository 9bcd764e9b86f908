"""Addresses of Redis as text; nothing here connects, so what only checks options starts without Redis' client."""

from __future__ import annotations

import re
from typing import Final

from tidegate.telemetry.visible import visible
from tidegate_pipeline.errors import UsageError

_LOGIN: Final = re.compile(r"(?<=://)\S+(?=@)")


def shown(url: str) -> str:
    """The address without its password."""
    credentials, at, rest = url.rpartition("@")
    if not at:
        return url
    scheme, separator, login = credentials.partition("://")
    return f"{scheme}{separator}{login.partition(':')[0]}:***@{rest}"


def printable(text: str) -> str:
    """A text to print: control characters are escaped, logins in addresses masked (an archive's may be its keys)."""
    return _LOGIN.sub("***", visible(text))


def has_password(url: str) -> bool:
    """Whether an address holds one: options are shown, and pickled into tasks."""
    return ":" in url.rpartition("@")[0].partition("://")[2]


def check_option(url: str) -> str:
    """An address that may be an option. Raises UsageError for one with a password."""
    if has_password(url):
        raise UsageError(
            "redis.url: no password in an option, because Spark shows options; redis.passwordVariable names where it is"
        )
    return url
