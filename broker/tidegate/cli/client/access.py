"""Users, access rules and quotas over the connection to Redis: the first user cannot be made by a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidegate.cli.failures import CommandFailed
from tidegate.quotas.table import CHANGE_QUOTAS, QUOTAS_MAX, Change, QuotaTable
from tidegate.quotas.table import change_arguments as quota_arguments
from tidegate.security.acls import AclBinding, AclTable
from tidegate.security.errors import UnacceptableCredential
from tidegate.security.rules import CHANGE_ACLS, RULES_MAX, change_arguments, tables_of
from tidegate.security.users import REPLACE_USER, SCRAM_MECHANISMS, Credential, User
from tidegate.store.keys import ClusterKeys


def users(client: Any, prefix: str) -> list[User]:
    """Every user, in order of name."""
    stored = client.hgetall(ClusterKeys(prefix).users)
    return sorted((User.parse(name.decode(), text) for name, text in stored.items()), key=lambda user: user.name)


def find_user(client: Any, prefix: str, name: str) -> User | None:
    """A user, or None."""
    text = client.hget(ClusterKeys(prefix).users, name)
    return None if text is None else User.parse(name, text)


def set_password(client: Any, prefix: str, user: User, present: User | None, password: str) -> None:
    """Store a user with a password. Raises CommandFailed."""
    try:
        credentials = {name: Credential.of_password(name, password) for name in SCRAM_MECHANISMS}
    except UnacceptableCredential as error:
        raise CommandFailed(str(error)) from None
    replace_user(client, prefix, user.name, present, replace(user, credentials=credentials))


def replace_user(client: Any, prefix: str, name: str, present: User | None, wanted: User | None) -> None:
    """Replace a record, None deletes it. Raises CommandFailed if somebody else changed it meanwhile."""
    keys = ClusterKeys(prefix)
    before, after = (one.text() if one is not None else "" for one in (present, wanted))
    _, done = client.eval(REPLACE_USER.source, 1, keys.users, keys.user_changes, name, before, after)
    if not done:
        raise CommandFailed(f"user {name} was changed by another client meanwhile")


def rules(client: Any, prefix: str, org: str) -> AclTable:
    """The access rules of an organisation. Raises CommandFailed for a rule that cannot be read."""
    try:
        stored = client.hkeys(ClusterKeys(prefix).acls)
        return tables_of(one for one in stored if one.startswith(f"{org}/".encode())).get(org, AclTable())
    except ValueError as error:
        raise CommandFailed(str(error)) from None


def change_rules(
    client: Any, prefix: str, org: str, added: Sequence[AclBinding], removed: Sequence[AclBinding]
) -> tuple[int, int]:
    """Add and remove rules in one step; returns how many were new and how many were there. Raises CommandFailed."""
    keys, args = change_arguments(ClusterKeys(prefix), org, added, removed, "tidegate acl")
    code, *changed = client.eval(CHANGE_ACLS.source, len(keys), *keys, *args)
    if code:
        raise CommandFailed(f"an organisation has {RULES_MAX} access rules at most")
    return changed[1], changed[2]


def quotas(client: Any, prefix: str) -> QuotaTable:
    """The quotas of every organisation. Raises CommandFailed for one that cannot be read."""
    try:
        return QuotaTable.of_stored(client.hgetall(ClusterKeys(prefix).quotas))
    except ValueError as error:
        raise CommandFailed(str(error)) from None


def change_quotas(client: Any, prefix: str, org: str, changes: Sequence[Change]) -> int:
    """Set and remove quotas in one step; returns how many changed. Raises CommandFailed."""
    keys, args = quota_arguments(ClusterKeys(prefix), org, changes)
    code, *changed = client.eval(CHANGE_QUOTAS.source, len(keys), *keys, *args)
    if code:
        raise CommandFailed(f"an organisation has {QUOTAS_MAX} quotas at most")
    return int(changed[1])
