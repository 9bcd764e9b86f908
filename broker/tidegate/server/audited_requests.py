"""Notes what administrators' requests changed, and every denial, in the audit trail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from tidegate.apis.call import Call, Client
from tidegate.apis.registry import Api
from tidegate.apis.slices import in_slices
from tidegate.audit import ocsf
from tidegate.audit.ocsf import RESOURCES_MAX, AccountActivity, Activity, Origin
from tidegate.audit.trail import AuditTrail
from tidegate.errors import KafkaError
from tidegate.log.offload import DECODED
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.server.dispatch import LARGE_BYTES

CHANGES: Final = {
    ApiKey.CREATE_TOPICS: Activity.CREATE,
    ApiKey.DELETE_TOPICS: Activity.DELETE,
    ApiKey.CREATE_PARTITIONS: Activity.UPDATE,
    ApiKey.DELETE_RECORDS: Activity.DELETE,
    ApiKey.ALTER_CONFIGS: Activity.UPDATE,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Activity.UPDATE,
    ApiKey.DELETE_GROUPS: Activity.DELETE,
    ApiKey.OFFSET_DELETE: Activity.DELETE,
    ApiKey.CREATE_ACLS: Activity.CREATE,
    ApiKey.DELETE_ACLS: Activity.DELETE,
    ApiKey.ALTER_CLIENT_QUOTAS: Activity.UPDATE,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Activity.UPDATE,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Activity.DELETE,
    ApiKey.WRITE_TXN_MARKERS: Activity.UPDATE,
}
"""The administrators' APIs that change something; those of users are account changes."""
DENIALS: Final = frozenset(
    {
        ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed, ErrorCode.transactional_id_authorization_failed,
        ErrorCode.delegation_token_authorization_failed,
    }
)  # fmt: skip
_UNCHANGED: Final = DENIALS | {ErrorCode.unknown_topic_id}
"""Answers that clients without any right get to requests for changes at any rate, besides those that name nothing."""
_LISTS: Final = {
    "topics": "topic", "groups": "group", "groups_names": "group", "resources": "config", "creations": "acl",
    "filters": "acl", "entries": "quota", "group_id": "group", "markers": "producer",
}  # fmt: skip
_NAMES: Final = ("name", "group_id", "resource_name", "resource_name_filter", "producer_id", "topic", "group")


def origin_of(client: Client, client_id: str = "") -> Origin:
    """Who is at the other end of a connection."""
    return Origin(client.principal, client.org, client.host, client.port, client.listener, client_id)


class Auditing:
    """Wraps the handlers of served APIs; the outermost wrapper, so that it gets what the client gets."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    def audited(self, apis: Mapping[int, Api]) -> dict[int, Api]:
        """The same APIs; their changes are noted."""
        return {key: self._audited(api) if _changes(key) else api for key, api in apis.items()}

    def _audited(self, api: Api) -> Api:
        handler = api.handler

        async def handle(call: Call, request: Any) -> Any:
            try:
                answer = await handler(call, request)
            except KafkaError as error:
                await self._note(api, call, request, [error.code])
                raise
            await self._note(api, call, request, await codes_of(await _decoded(api, call, answer)))
            return answer

        return dataclasses.replace(api, handler=handle)

    async def _note(self, api: Api, call: Call, request: Any, codes: Sequence[ErrorCode]) -> None:
        failed = [code.name.upper() for code in codes if code is not ErrorCode.none]
        error, client = ",".join(failed) or None, call.client
        key = (client.principal, client.org, client.host, api.key, frozenset(codes))
        unchanged = _UNCHANGED.issuperset(codes)
        async for event in in_slices(_events(api, origin_of(client, call.client_id), request, error)):
            if unchanged:
                self._trail.note_repeatable(key, event)
            else:
                self._trail.note(event())

    def denied(self, call: Call, codes: Iterable[ErrorCode]) -> None:
        """A request was denied, in whole or in part. Those of administrators are noted with their outcome."""
        if _changes(call.api_key):
            return
        client = call.client
        for code in set(codes) & DENIALS:
            api = ApiKey(call.api_key).name.lower()
            self._trail.note_repeatable(
                (client.principal, client.org, client.host, call.api_key, code),
                lambda api=api, code=code: ocsf.api_activity(  # type: ignore[misc]
                    origin_of(client, call.client_id), api, Activity.READ, (), code.name.upper()
                ),
            )


def _events(api: Api, origin: Origin, request: Any, error: str | None) -> Iterator[Callable[[], Mapping[str, Any]]]:
    """What makes the events of a request for changes: one, or one for each account."""
    if api.key != ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
        named, left_out = resources_of(request)
        change = CHANGES[api.key]
        yield lambda: ocsf.api_activity(origin, api.name, change, named, error, left_out=left_out)
        return
    changed = {one.name for one in request.upsertions}
    for name in dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions)):
        activity = AccountActivity.PASSWORD_CHANGE if name in changed else AccountActivity.DELETE
        yield partial(ocsf.account_change, origin, name, activity, error)


def _changes(api_key: int) -> bool:
    return api_key in CHANGES or api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS


async def _decoded(api: Api, call: Call, answer: Any) -> Any:
    if not isinstance(answer, bytes):
        return answer
    read = entity_reader(codec.response_class(api.key, call.version))
    return (await DECODED.run(read, answer, 0) if len(answer) > LARGE_BYTES else read(answer, 0))[0]


async def codes_of(answer: Any) -> list[ErrorCode]:
    """The error codes of an answer, NONE among them, each once; in slices."""
    codes: dict[ErrorCode, None] = {}
    async for one in in_slices(_elements(answer, depth=3)):
        code = getattr(one, "error_code", None)
        if code is not None:
            codes[ErrorCode(code)] = None
    return list(codes)


def _elements(answer: Any, depth: int) -> Iterator[Any]:
    """An object, and those in its tuples."""
    yield answer
    if depth:
        for name in _fields(answer):
            value = getattr(answer, name, None)
            if isinstance(value, tuple):
                for one in value:
                    yield from _elements(one, depth - 1)


def _fields(answer: Any) -> Iterable[str]:
    if dataclasses.is_dataclass(answer):
        return [field.name for field in dataclasses.fields(answer)]
    return list(getattr(answer, "__dict__", ()))


def resources_of(request: Any) -> tuple[list[tuple[str, str]], int]:
    """The type and name of what a request is about, at most `RESOURCES_MAX`, and how many are left out."""
    named: list[tuple[str, str]] = []
    count = 0
    for field, kind in _LISTS.items():
        value = getattr(request, field, None) or ()
        values = (value,) if isinstance(value, str) else value
        count += len(values)
        named += [(kind, one if isinstance(one, str) else _name(one)) for one in values[: RESOURCES_MAX - len(named)]]
    return named, count - len(named)


def _name(one: Any) -> str:
    entity = getattr(one, "entity", None)
    if entity is not None:
        return "&".join(f"{part.entity_type}={part.entity_name or ''}" for part in entity)
    for name in _NAMES:
        value = getattr(one, name, None)
        if value is not None:
            return str(value)
    return str(getattr(one, "topic_id", "") or "")
