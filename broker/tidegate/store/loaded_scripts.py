"""Load scripts into the servers, and those of `scripts.FUNCTIONS` as Redis Functions too (Redis 7.0) where they may be.

A node has functions once FUNCTION LOAD succeeded on its present connection. Before that, and for as long as it is
refused, scripts run by EVALSHA, so the library is a cache that may be missing, flushed or removed at any time. Its name
is the hash of its text: brokers of two versions have a library each. Functions are replicated and persisted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
import structlog

from tidegate.store.node import Node
from tidegate.store.scripts import LIBRARY_PREFIX, Script, library, registered

logger = structlog.get_logger()

REMOVE_INTERVAL_MS: Final = 3_600_000
_ALREADY: Final = "already exists"
_MISSING: Final = "Function not found"
_NOT_RUN: Final = (_MISSING, "NOPERM", "unknown command")
"""Refusals of FCALL after which nothing was run, or would be run in the same way again."""


class LoadedScripts:
    """The scripts and the library of one broker on the nodes of `nodes()`."""

    def __init__(self, nodes: Callable[[], list[Node]]) -> None:
        self._nodes = nodes
        self._refusals: dict[str, str] = {}

    @property
    def are_functions(self) -> bool:
        """Whether every node runs the library's functions."""
        return all(node.has_functions for node in self._nodes())

    def load(self, node: Node) -> None:
        """Load the scripts that a node has not, all of them where it does not reveal which, and the library.

        Calls before its answer load their script: one that was refused and repeated would run behind later ones.
        """
        scripts = registered()
        node.unknown_scripts = {script.sha for script in scripts}

        def found(reply: Any) -> None:
            if isinstance(reply, hiredis.ReplyError):
                reply = [0] * len(scripts)
            if isinstance(reply, list):
                unknown, node.unknown_scripts = node.unknown_scripts, set()
                states = zip(scripts, reply, strict=True)
                _load(node, [script for script, is_loaded in states if not is_loaded and script.sha in unknown])

        node.control.send(["SCRIPT", "EXISTS", *(script.sha for script in scripts)], found)
        self._load_library(node)

    def load_first(self, node: Node, script: Script) -> None:
        """Load a script ahead of its first call, on a server that may not have it."""
        if script.sha in node.unknown_scripts:
            node.unknown_scripts.discard(script.sha)
            _load(node, [script])

    def _load_library(self, node: Node) -> None:
        def library_loaded(reply: Any) -> None:
            refused = isinstance(reply, Exception) and _ALREADY not in str(reply)
            if isinstance(reply, hiredis.ReplyError) and refused:
                self._refused(node, str(reply))
            node.has_functions = not refused

        node.has_functions = False
        node.control.send(["FUNCTION", "LOAD", library().source], library_loaded)

    def was_not_run(self, node: Node, refusal: str) -> bool:
        """Whether FCALL was refused as such: the caller runs the script by EVALSHA."""
        if not any(reason in refusal for reason in _NOT_RUN):
            return False
        if _MISSING in refusal:
            if node.has_functions:  # otherwise it is being loaded for an earlier call
                self._load_library(node)
        else:
            self._refused(node, refusal)
        return True

    def _refused(self, node: Node, reason: str) -> None:
        node.has_functions = False
        if self._refusals.get(str(node)) != reason:
            self._refusals[str(node)] = reason
            logger.info("redis_functions_refused", node=str(node), reason=reason)

    async def remove_old_libraries(self) -> None:
        """Remove the libraries of other versions; a broker that still uses one loads it again."""
        for node in self._nodes():
            if node.has_functions:
                await _remove_others(node)


def _load(node: Node, scripts: Sequence[Script]) -> None:
    refused: list[str] = []

    def loaded(reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError) and not refused:  # the others would fail in the same way
            refused.append(str(reply))
            on_script_loaded(reply)

    for script in scripts:
        node.control.send(["SCRIPT", "LOAD", script.source], loaded)


async def _remove_others(node: Node) -> None:
    try:
        found = await node.control.call("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARY_PREFIX}*")
        for one in found:
            name = dict(one)[b"library_name"] if isinstance(one, dict) else one[1]
            if name != library().name.encode():
                await node.control.call("FUNCTION", "DELETE", name)
    except hiredis.ReplyError as error:  # no right, or another broker was faster
        logger.info("redis_functions_not_removed", node=str(node), reason=str(error))


def on_script_loaded(reply: Any) -> None:
    """Log that SCRIPT LOAD was refused."""
    if isinstance(reply, hiredis.ReplyError):
        logger.error("script_refused_by_redis", reason=str(reply))
