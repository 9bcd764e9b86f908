"""The four APIs of delegation tokens (KIP-48): not enabled, as in a Kafka without `delegation.token.secret.key`."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import ErrorShape, api
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_DATETIME, at_top


def _refuse(key: ApiKey, last: int, error: ErrorShape) -> None:
    """Answer every request with DELEGATION_TOKEN_AUTH_DISABLED."""

    @api(key, first=1, last=last, safe_late=True, error=error)
    async def refuse(call: Call, request: Any) -> Any:
        return error(request, ErrorCode.delegation_token_auth_disabled)


_refuse(
    ApiKey.CREATE_DELEGATION_TOKEN, 3,
    at_top(
        principal_type="", principal_name="", token_requester_principal_type="", token_requester_principal_name="",
        issue_timestamp=NO_DATETIME, expiry_timestamp=NO_DATETIME, max_timestamp=NO_DATETIME, token_id="", hmac=b"",
    ),
)  # fmt: skip
_refuse(ApiKey.RENEW_DELEGATION_TOKEN, 2, at_top(expiry_timestamp=NO_DATETIME))
_refuse(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, at_top(expiry_timestamp=NO_DATETIME))
_refuse(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, at_top(tokens=()))
