"""The transaction of a produced batch: how its log asks the coordinator, and the errors of each version of Produce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.apis.call import Call
from tidegate.errors import InvalidProducerEpoch, InvalidTxnState, KafkaError, NotEnoughReplicas
from tidegate.log.outgoing import InTransaction, OnConfirmed
from tidegate.transactions.errors import ConcurrentTransactions, ProducerFenced, TransactionAbortable
from tidegate.transactions.model import TransactionPartition

if TYPE_CHECKING:
    from tidegate.records.batch import Batch
    from tidegate.topics.model import Topic

_ABORTABLE_FROM: Final = 11
_ADDS_FROM: Final = 12
"""From this version on a batch adds its partition to the transaction by itself (KIP-890)."""


def in_transaction(call: Call, transactional_id: str, topic: Topic, index: int, batch: Batch) -> InTransaction:
    """The transaction of a batch; the log asks about it once the batch's turn has come."""
    coordinator, version = call.context.transactions, call.version
    keys = coordinator.records.keys(call.org, transactional_id)
    partition = TransactionPartition(topic.name, index, topic.topic_hex)

    def confirm(on_confirmed: OnConfirmed) -> None:
        coordinator.confirm(
            keys, batch.producer_id, batch.producer_epoch, partition,
            lambda failure: on_confirmed(None if failure is None else _as_of(version, failure)),
            adds=version >= _ADDS_FROM, not_added=lambda: not_in_transaction(version >= _ABORTABLE_FROM),
        )  # fmt: skip

    return InTransaction(confirm, from_zero=version >= _ADDS_FROM)


def not_in_transaction(abortable: bool) -> KafkaError:
    """The error for a partition or group that was not added; `abortable` for clients that know KIP-890's."""
    error = TransactionAbortable if abortable else InvalidTxnState
    return error("not in the transaction")


def _as_of(version: int, failure: KafkaError) -> KafkaError:
    """The coordinator's error as clients of that version take it; older ones repeat the batch only for some."""
    if isinstance(failure, ProducerFenced):
        return InvalidProducerEpoch(failure.message)
    if isinstance(failure, ConcurrentTransactions) and version < _ADDS_FROM:
        return NotEnoughReplicas(failure.message)
    return failure
