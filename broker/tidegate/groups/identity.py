"""Who a group is: an entity of its organisation, with an id of its own and a resource locator.

The id `cgp_<ULID>` is minted by the group's first join or simple commit and kept until the group is deleted. The
locator `<org>/consumer-groups/<slug>` has slashes, so it never goes into one segment of a URL's path. Both are
fields of the group's hash. A group belongs to an organisation, not to an environment or a cluster.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache
from typing import Final

from ulid import ULID

from tidegate.store.keys import CACHED_NAME_LENGTH_MAX, GroupKeys

SLUG_LENGTH_MAX: Final = 63
_DIGEST_LENGTH: Final = 8
_OTHER: Final = re.compile(r"[^a-z0-9]+")


def sanitize(text: str) -> str:
    """Free text as words of `[a-z0-9]` joined by single hyphens, at most `SLUG_LENGTH_MAX`; "" if it has none.

    Letters are folded to lower case and lose their accents (NFKD); each run of anything else is one hyphen.
    """
    folded = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(char for char in folded if not unicodedata.combining(char))
    return _OTHER.sub("-", letters).strip("-")[:SLUG_LENGTH_MAX].rstrip("-")


@lru_cache(maxsize=4_096)
def slug(group_id: str) -> str:
    """The group's name in its locator: the group id itself where that is a slug already.

    Where sanitizing changes it, eight hex digits of its SHA-256 follow: "Orders", "orders!" and "orders" are three
    groups and keep three locators, without asking which of them was first. An id of other letters is its digest alone.
    """
    words = sanitize(group_id)
    if words == group_id and words:
        return words
    digest = hashlib.sha256(group_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    words = words[: SLUG_LENGTH_MAX - _DIGEST_LENGTH - 1].rstrip("-")
    return f"{words}-{digest}" if words else digest


def locator(org: str, group_id: str) -> str:
    """The group's resource locator."""
    short = slug(group_id) if len(group_id) <= CACHED_NAME_LENGTH_MAX else slug.__wrapped__(group_id)
    return f"{org}/consumer-groups/{short}"


def candidate(keys: GroupKeys) -> str:
    """What a script that finds no group makes it: `<new id> <locator>`."""
    return f"cgp_{str(ULID()).lower()} {locator(keys.org, keys.group_id)}"
