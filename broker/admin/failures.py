"""How a command fails: one line for people, exit code 2."""

from __future__ import annotations

import os


class CommandFailed(Exception):
    """What was asked for cannot be done; the message is one line."""


def in_words(error: OSError) -> str:
    """`Connection refused`: the system's words, where asyncio has put others in their place."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)
