"""The served versions whose messages have classes, by API key."""

from __future__ import annotations

from typing import Final

from tidegate.apis.registry import load_all
from tidegate.protocol.versions import OLD_VERSIONS

VERSIONS: Final = {
    key: (max(api.first, OLD_VERSIONS.get(key, (0, -1))[1] + 1), api.last) for key, api in sorted(load_all().items())
}
"""First and last, both inclusive; the versions below are `OLD_VERSIONS`."""
