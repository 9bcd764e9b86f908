"""Identity of a group: an entity of its organisation, with an id of its own and a resource locator.

The group's first join or simple commit creates the id `cgp_<ULID>`; it lasts until the group is deleted. The locator
`<org>/consumer-groups/<slug>` contains slashes, so it never fits into one segment of a URL's path. Both are fields of
the group's hash. A group belongs to an organisation, not to an environment or a cluster.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache
from typing import Final

from ulid import ULID

from tidegate.store.keys import GROUP_ID_LENGTH_MAX, GroupKeys

SLUG_LENGTH_MAX: Final = 63
_DIGEST_LENGTH: Final = 8
_OTHER: Final = re.compile(r"[^a-z0-9]+")


def sanitize(text: str) -> str:
    """Reduce text to words of `[a-z0-9]` joined by single hyphens, at most `SLUG_LENGTH_MAX` long; "" if none is left.

    Letters are folded to lower case and lose their accents (NFKD); each run of other characters becomes one hyphen.
    """
    folded = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(char for char in folded if not unicodedata.combining(char))
    return _OTHER.sub("-", letters).strip("-")[:SLUG_LENGTH_MAX].rstrip("-")


@lru_cache(maxsize=4_096)
def slug(group_id: str) -> str:
    """The group's name in its locator: the group id itself if it is a valid slug.

    Otherwise eight hex digits of its SHA-256 follow the sanitized id: "Orders", "orders!" and "orders" are three groups
    with three locators, independent of which was created first. An id without any such letters is its digest alone.
    """
    words = sanitize(group_id)
    if words == group_id and words:
        return words
    digest = hashlib.sha256(group_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    words = words[: SLUG_LENGTH_MAX - _DIGEST_LENGTH - 1].rstrip("-")
    return f"{words}-{digest}" if words else digest


def locator(org: str, group_id: str) -> str:
    short = slug(group_id) if len(group_id) <= GROUP_ID_LENGTH_MAX else slug.__wrapped__(group_id)
    return f"{org}/consumer-groups/{short}"


def candidate(keys: GroupKeys) -> str:
    """The identity `<new id> <locator>` that a script gives to a group that it creates."""
    return f"cgp_{str(ULID()).lower()} {locator(keys.org, keys.group_id)}"
