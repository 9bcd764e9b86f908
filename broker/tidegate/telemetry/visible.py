"""Escapes client-supplied text for display: no cursor movement, no forged lines."""

from __future__ import annotations

import re
from typing import Final

CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters (C0, DEL, C1), line separators and bidirectional overrides."""


def visible(text: str) -> str:
    """The text with each control character as its Python escape, such as a newline as backslash and n."""
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
