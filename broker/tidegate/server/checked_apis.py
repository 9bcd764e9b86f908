"""The served APIs with access control and audit around their handlers."""

from __future__ import annotations

from tidegate.apis.call import BrokerContext
from tidegate.apis.registry import Api
from tidegate.security.authorizer import Authorizer
from tidegate.server.audited_requests import Auditing
from tidegate.server.authorization.guard import Authorization


def checked_apis(apis: dict[int, Api], context: BrokerContext, authorizer: Authorizer | None) -> dict[int, Api]:
    """The APIs with what is enabled; as they are without."""
    audited = None if context.audit is None else Auditing(context.audit)
    if authorizer is not None:
        on_denied = _nothing if audited is None else audited.denied
        apis = Authorization(context, authorizer, on_denied).guarded(apis)
    return apis if audited is None else audited.audited(apis)


def _nothing(*_: object) -> None:
    """No audit."""
