"""The four APIs of delegation tokens (KIP-48): not enabled, as in a Kafka without `delegation.token.secret.key`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import ErrorShape, api
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_DATETIME, at_top

if TYPE_CHECKING:
    from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest
    from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest
    from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest
    from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest

_DISABLED: Final = ErrorCode.delegation_token_auth_disabled

_created: Final[ErrorShape] = at_top(
    principal_type="", principal_name="", token_requester_principal_type="", token_requester_principal_name="",
    issue_timestamp=NO_DATETIME, expiry_timestamp=NO_DATETIME, max_timestamp=NO_DATETIME, token_id="", hmac=b"",
)  # fmt: skip
_changed: Final[ErrorShape] = at_top(expiry_timestamp=NO_DATETIME)
_described: Final[ErrorShape] = at_top(tokens=())


@api(ApiKey.CREATE_DELEGATION_TOKEN, first=1, last=3, safe_late=True, error=_created)
async def create_delegation_token(call: Call, request: CreateDelegationTokenRequest) -> Any:
    """DELEGATION_TOKEN_AUTH_DISABLED."""
    return _created(request, _DISABLED)


@api(ApiKey.RENEW_DELEGATION_TOKEN, first=1, last=2, safe_late=True, error=_changed)
async def renew_delegation_token(call: Call, request: RenewDelegationTokenRequest) -> Any:
    """DELEGATION_TOKEN_AUTH_DISABLED."""
    return _changed(request, _DISABLED)


@api(ApiKey.EXPIRE_DELEGATION_TOKEN, first=1, last=2, safe_late=True, error=_changed)
async def expire_delegation_token(call: Call, request: ExpireDelegationTokenRequest) -> Any:
    """DELEGATION_TOKEN_AUTH_DISABLED."""
    return _changed(request, _DISABLED)


@api(ApiKey.DESCRIBE_DELEGATION_TOKEN, first=1, last=3, safe_late=True, error=_described)
async def describe_delegation_token(call: Call, request: DescribeDelegationTokenRequest) -> Any:
    """DELEGATION_TOKEN_AUTH_DISABLED."""
    return _described(request, _DISABLED)
