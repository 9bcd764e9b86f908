"""What a member of a classic group asks; who sends it, and when, is for others to decide."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.frames import request_of_version

OFFSET_COMMIT, OFFSET_FETCH, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 11, 12, 13, 14


def subscription(topics: Sequence[str], user_data: bytes = b"") -> bytes:
    """ConsumerProtocolSubscription v0."""
    parts = [struct.pack(">hi", 0, len(topics))]
    parts += [struct.pack(">h", len(topic)) + topic.encode() for topic in topics]
    return b"".join(parts) + struct.pack(">i", len(user_data)) + user_data


class ClassicMember:
    """The requests of one member, each in any version, by what it knows of itself."""

    group_id: str
    instance_id: str | None = None
    metadata: bytes = subscription(["t"])
    protocols: tuple[str, ...] = ("range",)
    session_timeout_ms: float = 10_000
    rebalance_timeout_ms: float = 60_000
    member_id: str = ""
    generation: int = -1
    is_leader: bool = False

    def _request(self, api_key: int, version: int, **values: Any) -> Any:
        return request_of_version(
            api_key, version, group_id=self.group_id, group_instance_id=self.instance_id, member_id=self.member_id,
            generation_id=self.generation, generation_id_or_member_epoch=self.generation, **values,
        )  # fmt: skip

    def join_request(self, version: int = 9, reason: str | None = None) -> Any:
        """JoinGroup."""
        return self._request(
            JOIN, version, session_timeout=self.session_timeout_ms, rebalance_timeout=self.rebalance_timeout_ms,
            protocol_type="consumer", protocols=[{"name": name, "metadata": self.metadata} for name in self.protocols],
            reason=reason,
        )  # fmt: skip

    def follow_join(self, joined: Any) -> None:
        """Be the member that a successful JoinGroup response describes."""
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.is_leader = joined.leader == joined.member_id

    def sync_request(self, plan: Mapping[str, bytes] | None = None, protocol: str | None = None) -> Any:
        """SyncGroup of the generation joined; `plan` is everybody's assignment, by the leader."""
        assignments = [{"member_id": member_id, "assignment": blob} for member_id, blob in (plan or {}).items()]
        return self._request(
            SYNC, 5, protocol_type="consumer", protocol_name=protocol or self.protocols[0], assignments=assignments
        )

    def heartbeat_request(self) -> Any:
        """Heartbeat."""
        return self._request(HEARTBEAT, 4)

    def leave_request(self, reason: str | None = None) -> Any:
        """LeaveGroup of this member."""
        identity = {"member_id": self.member_id, "group_instance_id": self.instance_id, "reason": reason}
        return self._request(LEAVE, 5, members=[identity])

    def commit_request(
        self, offsets: Mapping[str, Mapping[int, int]], version: int = 8, metadata: str | None = ""
    ) -> Any:
        """OffsetCommit of offsets by topic and partition."""
        topics = [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
                    for index, offset in partitions.items()
                ],
            }
            for topic, partitions in offsets.items()
        ]
        return self._request(OFFSET_COMMIT, version, topics=topics)

    def offsets_request(
        self, topic: str, partitions: Iterable[int], version: int = 8, require_stable: bool = False
    ) -> Any:
        """OffsetFetch of some partitions."""
        topics = [{"name": topic, "partition_indexes": list(partitions)}]
        groups = [{"group_id": self.group_id, "topics": topics}]
        return self._request(OFFSET_FETCH, version, groups=groups, topics=topics, require_stable=require_stable)
