"""Kafka's error codes of transactions as exceptions, one class a code (see `tidegate.errors`)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError


class InvalidProducerIdMapping(KafkaError):
    """The transactional id is unknown, or has another producer id."""

    code = ErrorCode.invalid_producer_id_mapping


class ConcurrentTransactions(KafkaError):
    """The previous transaction of the transactional id is still being ended."""

    code = ErrorCode.concurrent_transactions


class TransactionCoordinatorFenced(KafkaError):
    """A marker of an older coordinator epoch."""

    code = ErrorCode.transaction_coordinator_fenced


class OperationNotAttempted(KafkaError):
    """Nothing was done, because another part of the request failed."""

    code = ErrorCode.operation_not_attempted


class UnstableOffsetCommit(KafkaError):
    """An open transaction has a newer offset of the partition."""

    code = ErrorCode.unstable_offset_commit


class ProducerFenced(KafkaError):
    """A newer producer uses the transactional id."""

    code = ErrorCode.producer_fenced


class TransactionalIdNotFound(KafkaError):
    """No such transactional id."""

    code = ErrorCode.transactional_id_not_found


class TransactionAbortable(KafkaError):
    """The transaction can only be aborted (KIP-890)."""

    code = ErrorCode.transaction_abortable
