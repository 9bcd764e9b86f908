"""Patterns that clients send, by RE2's rules: they match in linear time, so that none stops the event loop.

Kafka takes RE2's too for topics (KIP-848) and transactional ids (KIP-1152).
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError

LENGTH_MAX: Final = 4_096
_MEMORY_MAX: Final = 1 << 17
"""Of a compiled pattern: what it takes to match a name grows with it. It is enough for any pattern of literal names."""


class InvalidRegularExpression(KafkaError):
    """The pattern is not a regular expression of RE2."""

    code = ErrorCode.invalid_regular_expression


def compile_regex(regex: str) -> Any:
    """Compile a pattern. Raises InvalidRegularExpression."""
    re2 = importlib.import_module("re2")  # a compiled library that most clusters never need
    if len(regex) > LENGTH_MAX:
        raise InvalidRegularExpression(f"the pattern is longer than {LENGTH_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    try:
        return re2.compile(regex, options=options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise InvalidRegularExpression(f"the pattern is not a regular expression of RE2: {reason}") from None
