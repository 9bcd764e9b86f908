"""Kafka's error codes as exceptions, one class a code.

The domain raises them, `server/pending_request.py` and the handlers' loops turn them into codes. Codes and
names are those of Kafka's `Errors.java`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from kio.schema.errors import ErrorCode

NONE: Final = 0
MESSAGE_LENGTH_MAX: Final = 1_000  # it may repeat what a client sent, and Kafka's strings end at 32,767 bytes

_by_code: dict[int, type[KafkaError]] = {}


class KafkaError(Exception):
    """A failure that reaches a client as its code; `message` is for people."""

    code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error

    def __init__(self, message: str | None = None) -> None:
        self.message = message and message[:MESSAGE_LENGTH_MAX]
        super().__init__(self.message or self.code.name)

    def __init_subclass__(cls) -> None:
        _by_code.setdefault(cls.code.value, cls)


def from_code(code: int, message: str | None = None) -> KafkaError:
    """The exception of a code that a script returned."""
    return _by_code.get(code, KafkaError)(message)


class OffsetOutOfRange(KafkaError):
    """The offset is below the log start or above the log end."""

    code = ErrorCode.offset_out_of_range


class CorruptMessage(KafkaError):
    """A batch whose CRC or size is wrong."""

    code = ErrorCode.corrupt_message


class UnknownTopicOrPartition(KafkaError):
    """No such topic, or not that many partitions."""

    code = ErrorCode.unknown_topic_or_partition


class LeaderNotAvailable(KafkaError):
    """The partition is being created."""

    code = ErrorCode.leader_not_available


class OffsetNotAvailable(KafkaError):
    """Retriable: the high watermark is not known yet, after a fail-over (KIP-207)."""

    code = ErrorCode.offset_not_available


class NotLeaderOrFollower(KafkaError):
    """Retriable: ask another broker."""

    code = ErrorCode.not_leader_or_follower


class RequestTimedOut(KafkaError):
    """The change was not confirmed in time."""

    code = ErrorCode.request_timed_out


class MessageTooLarge(KafkaError):
    """A batch above max.message.bytes."""

    code = ErrorCode.message_too_large


class OffsetMetadataTooLarge(KafkaError):
    """Commit metadata above offset.metadata.max.bytes."""

    code = ErrorCode.offset_metadata_too_large


class CoordinatorLoadInProgress(KafkaError):
    """Retriable: the group's state is being rebuilt."""

    code = ErrorCode.coordinator_load_in_progress


class CoordinatorNotAvailable(KafkaError):
    """Retriable: the store is away, or no broker is live."""

    code = ErrorCode.coordinator_not_available


class NotCoordinator(KafkaError):
    """Retriable: look up the coordinator again."""

    code = ErrorCode.not_coordinator


class InvalidTopic(KafkaError):
    """A topic name outside Kafka's rules."""

    code = ErrorCode.invalid_topic_exception


class NotEnoughReplicas(KafkaError):
    """Too few replicas before the write."""

    code = ErrorCode.not_enough_replicas


class NotEnoughReplicasAfterAppend(KafkaError):
    """Written, but not proved on enough replicas."""

    code = ErrorCode.not_enough_replicas_after_append


class InvalidRequiredAcks(KafkaError):
    """acks other than -1, 0 and 1."""

    code = ErrorCode.invalid_required_acks


class IllegalGeneration(KafkaError):
    """A generation other than the group's."""

    code = ErrorCode.illegal_generation


class InconsistentGroupProtocol(KafkaError):
    """Protocol type or names do not fit the group."""

    code = ErrorCode.inconsistent_group_protocol


class InvalidGroupId(KafkaError):
    """An empty group id where one is needed, or one that is too long."""

    code = ErrorCode.invalid_group_id


class UnknownMemberId(KafkaError):
    """Not a member of the group."""

    code = ErrorCode.unknown_member_id


class InvalidSessionTimeout(KafkaError):
    """A session timeout outside the broker's bounds."""

    code = ErrorCode.invalid_session_timeout


class RebalanceInProgress(KafkaError):
    """The group is rebalancing: rejoin."""

    code = ErrorCode.rebalance_in_progress


class TopicAuthorizationFailed(KafkaError):
    """The principal may not do that to the topic."""

    code = ErrorCode.topic_authorization_failed


class GroupAuthorizationFailed(KafkaError):
    """The principal may not do that to the group."""

    code = ErrorCode.group_authorization_failed


class ClusterAuthorizationFailed(KafkaError):
    """The principal may not do that to the cluster."""

    code = ErrorCode.cluster_authorization_failed


class InvalidTimestamp(KafkaError):
    """A record's timestamp outside the topic's bounds."""

    code = ErrorCode.invalid_timestamp


class UnsupportedVersion(KafkaError):
    """A version or feature that is not served."""

    code = ErrorCode.unsupported_version


class TopicAlreadyExists(KafkaError):
    """A topic of that name exists."""

    code = ErrorCode.topic_already_exists


class InvalidPartitions(KafkaError):
    """A partition count that cannot be."""

    code = ErrorCode.invalid_partitions


class InvalidReplicationFactor(KafkaError):
    """A replication factor that is not possible."""

    code = ErrorCode.invalid_replication_factor


class InvalidReplicaAssignment(KafkaError):
    """A replica assignment that cannot be."""

    code = ErrorCode.invalid_replica_assignment


class InvalidConfig(KafkaError):
    """An unknown config or a value outside its type."""

    code = ErrorCode.invalid_config


class InvalidRequest(KafkaError):
    """A request that contradicts itself."""

    code = ErrorCode.invalid_request


class PolicyViolation(KafkaError):
    """The topic's policy forbids it."""

    code = ErrorCode.policy_violation


class OutOfOrderSequenceNumber(KafkaError):
    """A gap in an idempotent producer's sequence."""

    code = ErrorCode.out_of_order_sequence_number


class InvalidProducerEpoch(KafkaError):
    """A producer epoch older than the partition's."""

    code = ErrorCode.invalid_producer_epoch


class InvalidTxnState(KafkaError):
    """The transaction's state does not allow it."""

    code = ErrorCode.invalid_txn_state


class InvalidTransactionTimeout(KafkaError):
    """A transaction timeout outside the bounds."""

    code = ErrorCode.invalid_transaction_timeout


class TransactionalIdAuthorizationFailed(KafkaError):
    """The principal may not use that transactional id."""

    code = ErrorCode.transactional_id_authorization_failed


class KafkaStorageError(KafkaError):
    """Retriable: the log could not be read or written."""

    code = ErrorCode.kafka_storage_error


class NonEmptyGroup(KafkaError):
    """The group has members."""

    code = ErrorCode.non_empty_group


class GroupIdNotFound(KafkaError):
    """No such group."""

    code = ErrorCode.group_id_not_found


class FetchSessionIdNotFound(KafkaError):
    """No such fetch session on this connection's broker."""

    code = ErrorCode.fetch_session_id_not_found


class InvalidFetchSessionEpoch(KafkaError):
    """A fetch session epoch out of turn."""

    code = ErrorCode.invalid_fetch_session_epoch


class TopicDeletionDisabled(KafkaError):
    """delete.topic.enable is false."""

    code = ErrorCode.topic_deletion_disabled


class FencedLeaderEpoch(KafkaError):
    """The client's leader epoch is old."""

    code = ErrorCode.fenced_leader_epoch


class UnknownLeaderEpoch(KafkaError):
    """The client's leader epoch is ahead of ours."""

    code = ErrorCode.unknown_leader_epoch


class UnsupportedCompressionType(KafkaError):
    """A codec that the version cannot carry."""

    code = ErrorCode.unsupported_compression_type


class MemberIdRequired(KafkaError):
    """Join again with the member id given (KIP-394)."""

    code = ErrorCode.member_id_required


class GroupMaxSizeReached(KafkaError):
    """The group is full."""

    code = ErrorCode.group_max_size_reached


class FencedInstanceId(KafkaError):
    """Another member took over this static instance (KIP-345)."""

    code = ErrorCode.fenced_instance_id


class GroupSubscribedToTopic(KafkaError):
    """A member of the group is subscribed to the topic."""

    code = ErrorCode.group_subscribed_to_topic


class InvalidRecord(KafkaError):
    """A record or batch that breaks the format's or the topic's rules."""

    code = ErrorCode.invalid_record


class UnknownTopicId(KafkaError):
    """No topic of that id."""

    code = ErrorCode.unknown_topic_id


class InconsistentTopicId(KafkaError):
    """The topic of that name has another id."""

    code = ErrorCode.inconsistent_topic_id


class FetchSessionTopicIdError(KafkaError):
    """A fetch session mixes topic names and ids."""

    code = ErrorCode.fetch_session_topic_id_error


class BrokerIdNotRegistered(KafkaError):
    """No live broker has that node id."""

    code = ErrorCode.broker_id_not_registered


class MismatchedEndpointType(KafkaError):
    """DescribeCluster asked a broker for controllers."""

    code = ErrorCode.mismatched_endpoint_type


class UnsupportedEndpointType(KafkaError):
    """DescribeCluster with an unknown endpoint type."""

    code = ErrorCode.unsupported_endpoint_type


class StoreUnavailable(CoordinatorNotAvailable):
    """Redis is away, slow or refuses; whether the command took effect is unknown.

    Group APIs answer its code; the log's handlers map it to a code that is retriable there.
    """


class ChangeNotConfirmed(StoreUnavailable):
    """A change is stored, but not as durable as `durability` says."""
