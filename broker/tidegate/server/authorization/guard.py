"""Checks the rights of every request before its handler runs (KIP-11; each API as KafkaApis.scala does).

A request that may use only a part of what it names is split: the handler answers the allowed part, the denied part is
answered with Kafka's error, and both answers are joined. Without access control lists handlers run as they are.
`rules` holds the rule of each API; an API without one is refused to all but super users.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from tidegate.apis.call import Allowed, Body, BrokerContext, Call
from tidegate.apis.metadata import Question
from tidegate.apis.registry import Api, error_response
from tidegate.apis.slices import SLICE
from tidegate.errors import ClusterAuthorizationFailed, KafkaError, from_code
from tidegate.log.offload import ENCODED
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_responses import fetch_refusal, offset_delete_refusal, offset_fetch_refusal
from tidegate.protocol.primitives import DecodeError
from tidegate.protocol.produce_request import read_produce
from tidegate.protocol.versions import Fields, is_old
from tidegate.security.authorizer import Authorizer, Requester
from tidegate.server.authorization.access import Access, Verdict
from tidegate.server.authorization.filters import FILTERS, Filter
from tidegate.server.authorization.rules import RULES, free
from tidegate.server.authorization.scopes import NAMES_MAX, SCOPES
from tidegate.server.pending_request import ENCODED_INLINE_BYTES_MAX, PendingRequest

OnDenied = Callable[[Call, Iterable[ErrorCode]], object]
"""Called from any thread with each request that is denied, in whole or in part."""
_LISTS: Final = frozenset(
    {"coordinators", "groups", "resources", "responses", "results", "topics", "transaction_states"}
)
"""Fields of responses that hold one answer for each thing that the request names."""
_REFUSALS: Final[dict[int, Callable[[Any, ErrorCode], Any]]] = {
    ApiKey.FETCH: fetch_refusal,
    ApiKey.OFFSET_DELETE: offset_delete_refusal,
    ApiKey.OFFSET_FETCH: offset_fetch_refusal,
}
"""API key -> the answer to a denied part, where it is not that of a whole request."""


class Authorization:
    """Wraps the handlers of served APIs."""

    def __init__(self, context: BrokerContext, authorizer: Authorizer, on_denied: OnDenied) -> None:
        self._context = context
        self._authorizer = authorizer
        self._on_denied = on_denied

    def guarded(self, apis: Mapping[int, Api]) -> dict[int, Api]:
        """The same APIs; each request is checked before its handler runs."""
        return {key: self._guard(api) for key, api in apis.items()}

    def _guard(self, api: Api) -> Api:
        if RULES.get(api.key) is free and api.key not in FILTERS:
            return api
        if not api.inline:
            return dataclasses.replace(api, handler=self._task(api))
        large = api.large and self._inline(api, api.large)
        return dataclasses.replace(api, handler=self._inline(api, api.handler), large=large)

    def _access(self, call: Call) -> Access:
        client = call.client
        requester = Requester(client.principal, client.host, call.org)
        return Access(self._authorizer, requester, self._context.catalog, call)

    def _task(self, api: Api) -> Callable[..., Any]:
        key, scope_of, handler = api.key, SCOPES.get(api.key), api.handler
        rules, catalog = self._authorizer.rules, self._context.catalog

        async def check(call: Any, request: Any, allowed: Allowed | None = None) -> Any:
            if self._authorizer.is_super_user(call.client.principal):
                return await handler(call, request)
            access = self._access(call)
            verdict = await self._verdict(access, request)
            answer = None
            if verdict is None:
                _remember(access, request, allowed)
                answer = await handler(call, request)
            elif verdict.allowed is not None:
                answer = await handler(call, verdict.allowed)
            denied = [] if verdict is None else verdict.denied
            hide = _needed_filter(access, key, request)
            if not denied and hide is None:
                return answer
            return await ENCODED.run(_answer, access, key, request, answer, denied, hide)

        if scope_of is None:
            return check
        scope = scope_of

        def handle(call: Any, request: Any) -> Any:
            if call.client.allowed.get(key) == (scope(request), rules.version, catalog.version):
                return handler(call, request)
            return check(call, request, (scope(request), rules.version, catalog.version))

        return handle

    def _inline(self, api: Api, handler: Callable[..., None]) -> Callable[..., Any]:
        key, scope_of = api.key, SCOPES.get(api.key, _no_scope)
        rules, catalog = self._authorizer.rules, self._context.catalog

        def handle(call: Any, request: Any) -> None:
            if call.client.allowed.get(key) == (scope_of(request), rules.version, catalog.version):
                return handler(call, request)
            return self._check(
                api, handler, call, request, request, (scope_of(request), rules.version, catalog.version)
            )

        def handle_metadata(call: Any, request: Any) -> None:
            question = Question.of(call, request)
            if call.client.allowed.get(key) == (question, rules.version, catalog.version):
                return handler(call, request, question)
            scope = None if any(question.operations) else question  # operations depend on the rules
            return self._check(api, handler, call, request, request, (scope, rules.version, catalog.version))

        def handle_raw(call: Any, request: Any) -> None:
            try:
                parsed = read_produce(call.version, request)
            except DecodeError:
                handler(call, request)  # it closes the connection
                return
            allowed = scope_of(parsed), rules.version, catalog.version
            if call.client.allowed.get(key) == allowed:
                handler(call, parsed)
            else:
                self._check(api, handler, call, request, parsed, allowed)

        if key == ApiKey.METADATA:
            return handle_metadata
        return handle_raw if api.raw else handle

    def _check(
        self, api: Api, handler: Callable[..., Any], call: Any, request: Any, parsed: Any, allowed: Allowed
    ) -> None:
        """Judge a request for an inline handler; `parsed` is the request as rules read it."""
        if call.client.principal in self._authorizer.super_users:
            handler(call, request)
            return
        access = self._access(call)
        if access.unresolved(parsed) or access.judged_count(parsed) > SLICE:
            call.run_alone()
            call.answer_later(self._check_later(api, handler, access, call, request, parsed), request)
            return
        verdict = self._judged(access, parsed)
        if verdict is None:
            _remember(access, parsed, allowed)
        self._run_inline(api, handler, access, call, request, verdict)

    async def _check_later(
        self, api: Api, handler: Callable[..., Any], access: Access, call: Any, request: Any, parsed: Any
    ) -> None:
        verdict = await self._verdict(access, parsed)
        self._run_inline(api, handler, access, call, request, verdict)

    async def _verdict(self, access: Access, request: Any) -> Verdict | None:
        """None: all is allowed. Raises KafkaError for a request that is denied as a whole, StoreUnavailable."""
        for wanted in access.unresolved(request):
            await access.resolve(wanted)
        if access.judged_count(request) > SLICE:
            return await asyncio.to_thread(self._judged, access, request)
        return self._judged(access, request)

    def _judged(self, access: Access, request: Any) -> Verdict | None:
        try:
            verdict = _judged(access, request)
        except KafkaError as error:
            self._on_denied(access.call, [error.code])
            raise
        if verdict is not None:
            self._on_denied(access.call, [code for _, code in verdict.denied])
        return verdict

    def _run_inline(
        self,
        api: Api,
        handler: Callable[..., Any],
        access: Access,
        call: PendingRequest,
        request: Any,
        verdict: Verdict | None,
    ) -> None:
        key, received = api.key, request
        hide = _needed_filter(access, key, request)
        if verdict is None and hide is None:
            handler(call, request)
            return
        if key == ApiKey.PRODUCE and verdict is not None:
            request = codec.decode(key, call.version, request)
            if request.acks == 0:
                call.close("a topic of a Produce request with acks=0 is not authorised")
                return
            verdict = verdict.of_decoded(request)
        denied = [] if verdict is None else verdict.denied

        def reply(body: Body | Sequence[Body] | None) -> None:
            parts = None if body is None else [body] if isinstance(body, Body) else list(body)
            size = call.end - call.start + sum(map(len, parts or ()))
            if size <= ENCODED_INLINE_BYTES_MAX:  # of both: they are read and written
                call.reply(_answer(access, key, request, parts, denied, hide))
            else:
                call.answer_later(reply_later(parts), received)

        async def reply_later(parts: list[Body] | None) -> None:
            call.reply(await ENCODED.run(_answer, access, key, request, parts, denied, hide))

        if verdict is not None and verdict.allowed is None:
            reply(None)
            return
        allowed = request if verdict is None else verdict.allowed
        if api.raw:
            allowed = memoryview(_encoded_request(key, call.version, allowed))
        handler(_part_of(call, reply), allowed)


def _no_scope(request: Any) -> None:
    """Judge each request."""


def _remember(access: Access, request: Any, allowed: Allowed | None) -> None:
    """Do not judge requests of this scope again until rules or topics change."""
    if allowed is not None and allowed[0] is not None and access.size(request) <= NAMES_MAX:
        client = access.call.client
        client.allowed = {**client.allowed, access.call.api_key: allowed}


def _judged(access: Access, request: Any) -> Verdict | None:
    """The verdict of the API's rule. Raises KafkaError for a request that is denied as a whole."""
    api_key, version = access.call.api_key, access.call.version
    rule = RULES.get(api_key)
    if rule is None:
        raise ClusterAuthorizationFailed
    verdict = rule(access, request)
    if verdict is not None and is_old(api_key, version):
        raise from_code(verdict.denied[0][1].value)  # answers of these versions are not joined
    return verdict


def _part_of(call: PendingRequest, reply: Callable[[Body | Sequence[Body]], None]) -> Call:
    """The call of a request's allowed part: `reply` joins its answer with that of the denied part."""
    return Call(
        call.context, call.client, call.api_key, call.version, call.correlation_id, call.client_id,
        call.arrived_s, reply, call.drop, call.close, call.run_alone, call.draining, call.mute, call.answer_later,
    )  # fmt: skip


def _encoded_request(api_key: int, version: int, request: Any) -> bytes:
    """A request of one version as its bytes."""
    entity = codec.request_class(api_key, version)
    names = [field.name for field in dataclasses.fields(entity)]
    return codec.written(entity, entity(**{name: getattr(request, name) for name in names}))


def _needed_filter(access: Access, api_key: int, request: Any) -> Filter | None:
    """The filter of the API's answers, if that of this request may have something to hide."""
    hide = FILTERS.get(api_key)
    return hide if hide is not None and hide.needed(access, request) else None


def _answer(
    access: Access,
    api_key: int,
    request: Any,
    answer: Any,
    denied: Sequence[tuple[Any, ErrorCode]],
    hide: Filter | None,
) -> bytes:
    """Join the handler's answer (None: it did not run) with the errors of what is denied, and hide what is filtered.

    For any thread.
    """
    version = access.call.version
    entity = codec.response_class(api_key, version)
    read = entity_reader(entity)
    bodies = [] if answer is None else [_bytes(api_key, version, answer)]
    for refused, code in denied:
        bodies.append(codec.encode(api_key, version, _refusal(api_key, refused, code)))
    if answer is None and len(bodies) == 1:
        return bodies[0]
    whole, *others = [read(body, 0)[0] for body in bodies]
    if getattr(whole, "error_code", ErrorCode.none) is ErrorCode.none:
        for other in others:
            whole = _joined(whole, other)
    if hide is not None and answer is not None:
        whole = hide.apply(access, request, whole)
    return codec.written(entity, whole)


def _bytes(api_key: int, version: int, answer: Any) -> bytes:
    if isinstance(answer, bytes):
        return answer
    return b"".join(answer) if isinstance(answer, list) else codec.encode(api_key, version, answer)


def _refusal(api_key: int, request: Any, code: ErrorCode) -> Any:
    """The answer to the denied part: its code stands at each thing, never at the top."""
    refusal = _REFUSALS.get(api_key)
    answer = error_response(api_key, request, code) if refusal is None else refusal(request, code)
    return Fields(answer, error_code=ErrorCode.none)


def _joined(first: Any, second: Any) -> Any:
    """Two answers of one version as one; the topics of a group that both name are joined too."""
    values = {}
    for field in dataclasses.fields(first):
        items, more = getattr(first, field.name), getattr(second, field.name)
        if field.name in _LISTS and isinstance(items, tuple):
            values[field.name] = _joined_lists(items, more)
    return dataclasses.replace(first, **values)


def _joined_lists(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    if not any(hasattr(one, "group_id") and hasattr(one, "topics") for one in first):
        return first + second
    by_group = {one.group_id: one for one in first}
    for one in second:
        known = by_group.get(one.group_id)
        by_group[one.group_id] = one if known is None else _joined(known, one)
    return tuple(by_group.values())
