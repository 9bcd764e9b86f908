"""Errors as RFC 9457 problem details, with Kafka's error code where there is one."""

from __future__ import annotations

import http
import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from tidegate import errors
from tidegate.cluster.audit import FAILED, REFUSED, ActionFailed
from tidegate.errors import ChangeNotConfirmed, KafkaError, StoreUnavailable

CONTENT_TYPE: Final = "application/problem+json"

_STATUS: Final[dict[type[KafkaError], int]] = {
    errors.UnknownTopicOrPartition: 404,
    errors.UnknownTopicId: 404,
    errors.GroupIdNotFound: 404,
    errors.UnknownMemberId: 404,
    errors.BrokerIdNotRegistered: 404,
    errors.NonEmptyGroup: 409,
    errors.TopicAlreadyExists: 409,
    errors.RebalanceInProgress: 409,
    errors.FencedInstanceId: 409,
    errors.GroupSubscribedToTopic: 409,
    errors.InvalidTopic: 400,
    errors.InvalidPartitions: 400,
    errors.InvalidConfig: 400,
    errors.InvalidRequest: 400,
    errors.InvalidGroupId: 400,
    errors.OffsetOutOfRange: 400,
    errors.TopicDeletionDisabled: 403,
    errors.PolicyViolation: 403,
}
"""All other codes are retriable or internal: 503."""


class Problem(ActionFailed):
    """An error response; `detail` is one sentence, `more` are extension members."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more
        self.outcome = FAILED if status >= 500 else REFUSED


def as_problem(error: KafkaError) -> Problem:
    """The problem of a KafkaError."""
    if isinstance(error, StoreUnavailable) and not isinstance(error, ChangeNotConfirmed):
        return Problem(503, f"Redis does not answer: {error}", headers={"Retry-After": "1"}, **_kafka(error))
    return Problem(_STATUS.get(type(error), 503), error.message or _sentence(error), **_kafka(error))


def answer(problem: Problem, instance: str) -> web.Response:
    """The problem as an HTTP response."""
    body = {
        "type": "about:blank",
        "title": http.HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "instance": instance,
        **problem.more,
    }
    return web.Response(
        text=json.dumps(body), status=problem.status, content_type=CONTENT_TYPE, headers=problem.headers
    )


def _kafka(error: KafkaError) -> dict[str, Any]:
    return {"kafka_error": error.code.name.upper(), "kafka_code": error.code.value}


def _sentence(error: KafkaError) -> str:
    """A fallback detail from the name of the error code: `non empty group`."""
    return error.code.name.replace("_", " ")
