"""A store that records a span per script under the request that runs it; scripts of untraced requests have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.trace import SpanKind, StatusCode, Tracer, get_current_span

from tidegate.settings import Settings
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.store import OnScript, Store


class TracedStore(Store):
    """A `Store`. A script that serves many requests of a tick is a child span of the first."""

    def __init__(self, settings: Settings, tracer: Tracer) -> None:
        super().__init__(settings)
        self._tracer = tracer

    def send_script(self, script: Script, keys: Sequence[str], args: Sequence[Arg], on_reply: OnScript) -> None:
        """As `Store.send_script`, with a span until the reply."""
        if not get_current_span().is_recording():
            super().send_script(script, keys, args, on_reply)
            return
        attributes = {"db.system.name": "redis", "db.stored_procedure.name": script.name}
        span = self._tracer.start_span(f"script {script.name}", kind=SpanKind.CLIENT, attributes=attributes)

        def answered(reply: Any) -> None:
            if isinstance(reply, Failure):
                span.set_status(StatusCode.ERROR, reply.text)
            span.end()
            on_reply(reply)

        super().send_script(script, keys, args, answered)
