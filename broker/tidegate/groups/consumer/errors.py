"""Error codes that only consumer groups of KIP-848 use."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from tidegate.errors import GroupIdNotFound, KafkaError

OTHER_TYPE: Final = -103
"""What a script answers about a group of the other type; as an exception `OtherGroupType`."""


class OtherGroupType(GroupIdNotFound):
    """The group has members of another protocol, or none of the protocol that was asked for."""


class FencedMemberEpoch(KafkaError):
    """The member epoch is not the member's; it must give up its partitions and join again (KIP-848)."""

    code = ErrorCode.fenced_member_epoch


class UnreleasedInstanceId(KafkaError):
    """Another live member has this static instance (KIP-848)."""

    code = ErrorCode.unreleased_instance_id


class UnsupportedAssignor(KafkaError):
    """No server-side assignor has this name (KIP-848)."""

    code = ErrorCode.unsupported_assignor


class StaleMemberEpoch(KafkaError):
    """The member epoch is not the member's; the client repeats the request with its new one (KIP-848)."""

    code = ErrorCode.stale_member_epoch
