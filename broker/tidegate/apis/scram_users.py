"""DescribeUserScramCredentials and AlterUserScramCredentials: the users of the caller's organisation (KIP-554)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import each, in_slices
from tidegate.errors import ClusterAuthorizationFailed, KafkaError
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.protocol.versions import Fields
from tidegate.security.errors import (
    DuplicateResource,
    ResourceNotFound,
    SecurityDisabled,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from tidegate.security.identity import NAME_LENGTH_MAX
from tidegate.security.security import Security
from tidegate.security.users import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES_MAX, Credential, User

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest
    from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest

_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Kafka's codes (`ScramMechanism.java`)."""
_CODES: Final = {name: code for code, name in _MECHANISMS.items()}
_AT_ONCE: Final = 16


@api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    first=0,
    last=0,
    answers_large=True,
    safe_late=True,
    error=error_responses.describe_users,
)
async def describe_user_scram_credentials(call: Call, request: DescribeUserScramCredentialsRequest) -> Any:
    """The mechanisms and iterations of users; null or no names: of all."""
    security = _security(call)
    listed = {user.name: user for user in await security.users.all() if user.org == call.org and user.credentials}
    names = [one.name for one in request.users or ()]
    results = []
    async for name, times in in_slices(Counter(names or list(listed)).items()):
        user = listed.get(name)
        error: KafkaError | None = None
        if times > 1:
            error = DuplicateResource(f"user {name!r} is named more than once")
        elif user is None:
            error = ResourceNotFound(f"no SCRAM credential of user {name!r}")
        code, message = (ErrorCode.none, None) if error is None else (error.code, error.message)
        credentials = user.credentials if user is not None and times == 1 else {}
        infos = tuple(
            Fields(mechanism=_CODES[mechanism], iterations=one.iterations)
            for mechanism, one in sorted(credentials.items())
        )
        results.append(Fields(user=name, error_code=code, error_message=message, credential_infos=infos))
    return Fields(throttle_time=NO_TIME, error_code=ErrorCode.none, error_message=None, results=tuple(results))


@api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, first=0, last=0, confirmed=True, error=error_responses.alter_users)
async def alter_user_scram_credentials(call: Call, request: AlterUserScramCredentialsRequest) -> Any:
    """Set and delete credentials; each user succeeds or fails by itself, and is named once."""
    security = _security(call)
    changes: dict[str, list[Any]] = defaultdict(list)
    for deletion in request.deletions:
        changes[deletion.name].append(deletion)
    for upsertion in request.upsertions:
        changes[upsertion.name].append(upsertion)

    async def alter(name: str) -> Any:
        code, message = ErrorCode.none, None
        try:
            await security.users.change(name, _plan(call, security, name, changes[name]))
        except KafkaError as error:
            code, message = error.code, error.message
        return Fields(user=name, error_code=code, error_message=message)

    return Fields(throttle_time=NO_TIME, results=tuple(await each(changes, alter, _AT_ONCE)))


def _plan(call: Call, security: Security, name: str, changes: list[Any]) -> Callable[[User | None], User | None]:
    """The change of one user's record. Raises KafkaError for a refused one."""
    if not name:
        raise UnacceptableCredential("the user's name is empty")
    if len(changes) > 1:
        raise DuplicateResource(f"user {name!r} is changed more than once")
    made = dict(map(_credential, changes))
    authorizer = security.authorizer
    if authorizer is not None and authorizer.outranks(f"User:{name}", call.client.principal):
        raise ClusterAuthorizationFailed("only a super user may change a super user")

    def plan(user: User | None) -> User | None:
        if user is not None and user.org != call.org:
            raise ClusterAuthorizationFailed(f"user name {name!r} is taken")
        credentials = dict(user.credentials) if user is not None else {}
        for mechanism, credential in made.items():
            if credential is not None:
                credentials[mechanism] = credential
            elif credentials.pop(mechanism, None) is None:
                raise ResourceNotFound(f"no {mechanism} credential of user {name!r}")
        return replace(user or User(name, call.org), credentials=credentials) if credentials else None

    return plan


def _credential(change: Any) -> tuple[str, Credential | None]:
    """The mechanism and the new credential of a change; None deletes it."""
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanism(f"mechanism {change.mechanism} is not known")
    if not hasattr(change, "salted_password"):
        return mechanism, None
    if len(change.name) > NAME_LENGTH_MAX:
        raise UnacceptableCredential(f"the user's name is longer than {NAME_LENGTH_MAX} characters")
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredential(f"iterations are between {ITERATIONS_MIN} and {ITERATIONS_MAX}")
    if not (change.salt and change.salted_password):
        raise UnacceptableCredential("neither salt nor password may be empty")
    if len(change.salt) > SALT_BYTES_MAX:
        raise UnacceptableCredential(f"the salt is longer than {SALT_BYTES_MAX} bytes")
    salted = Credential.of_salted_password(mechanism, change.salt, change.salted_password, change.iterations)
    return mechanism, salted


def _security(call: Call) -> Security:
    if call.context.security is None:
        raise SecurityDisabled("this broker has no users")
    return call.context.security
