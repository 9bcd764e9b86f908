"""The transitions of a transactional id. Pure: each function takes the stored record and returns the next one.

A function returns its argument where nothing changes, and raises the error for the client where the request is refused.
Source: KIP-98, KIP-360, KIP-890, Kafka's TransactionCoordinator and TransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tidegate.errors import InvalidTxnState, KafkaError
from tidegate.transactions.errors import ConcurrentTransactions, InvalidProducerIdMapping, ProducerFenced
from tidegate.transactions.model import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    State,
    Transaction,
    TransactionPartition,
)


def initialise(one: Transaction, timeout_ms: int, producer_id: int, epoch: int, new_producer_id: int) -> Transaction:
    """InitProducerId of a known transactional id; `producer_id` and `epoch` are the client's own, -1 without (KIP-360).

    The result is Empty, or PrepareAbort with a raised epoch: then the client must try again once that is complete.
    """
    if one.state.is_prepared:
        raise ConcurrentTransactions("the previous transaction is being ended")
    identified = producer_id != NO_PRODUCER_ID
    if identified and producer_id != one.producer_id:
        rotated = producer_id == one.previous_producer_id and epoch >= EPOCH_MAX - 1 and one.last_epoch == epoch
        if not rotated or one.state is State.ONGOING:
            raise ProducerFenced("the transactional id has another producer id")
        return one
    if one.state is State.ONGOING:
        if identified and epoch != one.epoch:
            raise ProducerFenced("a newer producer has a transaction open")
        return fence(one)
    if identified and epoch not in (one.epoch, one.last_epoch):
        raise ProducerFenced("a newer producer uses the transactional id")
    ready = replace(one, state=State.EMPTY, timeout_ms=timeout_ms, start_ms=-1)
    if identified and epoch == one.last_epoch and epoch != one.epoch and one.epoch < EPOCH_MAX:
        return ready  # its first reply was lost
    last_epoch = epoch if identified else NO_EPOCH
    if one.epochs_used_up:
        return replace(_with_new_id(ready, new_producer_id), last_epoch=last_epoch)
    return replace(ready, epoch=one.epoch + 1, last_epoch=last_epoch)


def fence(one: Transaction) -> Transaction:
    """Abort the open transaction with a raised epoch, so that its producer can add nothing more."""
    return replace(one, state=State.PREPARE_ABORT, epoch=min(one.epoch + 1, EPOCH_MAX), last_epoch=one.epoch)


def check_producer(one: Transaction | None, producer_id: int, epoch: int) -> Transaction:
    """The record, if the producer may work on a transaction. Raises InvalidProducerIdMapping, ProducerFenced."""
    if one is None or one.producer_id != producer_id:
        raise _other_producer_id(one, producer_id)
    if one.epoch != epoch:
        raise ProducerFenced("a newer producer uses the transactional id")
    if one.state.is_prepared:
        raise ConcurrentTransactions("the previous transaction is being ended")
    return one


def add(
    one: Transaction, partitions: Collection[TransactionPartition] = (), groups: Collection[str] = ()
) -> Transaction:
    """Add partitions and groups to the transaction, and begin it with the first of them."""
    if one.state is State.ONGOING:
        if one.partitions.issuperset(partitions) and one.groups.issuperset(groups):
            return one
        return replace(one, partitions=one.partitions.union(partitions), groups=one.groups.union(groups))
    return replace(one, state=State.ONGOING, partitions=frozenset(partitions), groups=frozenset(groups))


def end(one: Transaction | None, producer_id: int, epoch: int, *, is_commit: bool) -> Transaction:
    """EndTxn v0-4: decide; returns the record itself for a repeated request whose transaction is complete."""
    if one is None or one.producer_id != producer_id:
        raise _other_producer_id(one, producer_id)
    if one.epoch != epoch:
        raise ProducerFenced("a newer producer uses the transactional id")
    prepared, complete = _outcome(is_commit)
    if one.state is State.ONGOING:
        return replace(one, state=prepared)
    if one.state is complete:
        return one
    if one.state is prepared:
        raise ConcurrentTransactions("the transaction is being ended")
    raise InvalidTxnState(f"the transaction is {one.state.value}")


def end_and_bump(
    one: Transaction | None, producer_id: int, epoch: int, new_producer_id: int, *, is_commit: bool
) -> Transaction:
    """EndTxn v5 (KIP-890): as `end`, and raise the epoch, which the markers carry; abort also what has not begun."""
    overflowed = (
        one is not None
        and one.previous_producer_id == producer_id
        and epoch == EPOCH_MAX - 1
        and one.epoch == 0
        and one.last_epoch == epoch
    )
    if one is None or (one.producer_id != producer_id and not overflowed):
        raise _other_producer_id(one, producer_id)
    is_repeat = overflowed or one.epoch == epoch + 1
    is_complete = one.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    allowed = is_repeat if one.state.is_prepared else one.epoch == epoch or (is_complete and is_repeat)
    if not allowed:
        raise ProducerFenced("a newer producer uses the transactional id")
    prepared, complete = _outcome(is_commit)
    if one.state.is_prepared:
        if one.state is prepared:
            raise ConcurrentTransactions("the transaction is being ended")
        raise InvalidTxnState(f"the transaction is {one.state.value}")
    if is_complete and is_repeat:
        if one.state is complete:
            return _with_new_id(one, new_producer_id) if one.epoch == EPOCH_MAX else one
        raise InvalidTxnState(f"the transaction is {one.state.value}")
    if one.state is not State.ONGOING and is_commit:
        raise InvalidTxnState(f"the transaction is {one.state.value}")
    next_producer_id = new_producer_id if one.epochs_used_up else NO_PRODUCER_ID
    return replace(one, state=prepared, epoch=one.epoch + 1, last_epoch=one.epoch, next_producer_id=next_producer_id)


def complete(one: Transaction) -> Transaction:
    """All markers are written and all groups have the offsets."""
    state = State.COMPLETE_COMMIT if one.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
    done = replace(one, state=state, partitions=frozenset(), groups=frozenset(), next_producer_id=NO_PRODUCER_ID)
    if one.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(done, producer_id=one.next_producer_id, epoch=0, previous_producer_id=one.producer_id)


def next_identity(one: Transaction) -> tuple[int, int]:
    """The producer id and epoch of the transaction after this one."""
    if one.next_producer_id != NO_PRODUCER_ID:
        return one.next_producer_id, 0
    return one.producer_id, one.epoch


def _other_producer_id(one: Transaction | None, producer_id: int) -> KafkaError:
    """The error for a producer id that is not the present one: the next one waits for the transaction's end."""
    if one is not None and one.next_producer_id == producer_id != NO_PRODUCER_ID:
        return ConcurrentTransactions("the previous transaction is being ended")
    return InvalidProducerIdMapping("the transactional id has another producer id")


def _with_new_id(one: Transaction, new_producer_id: int) -> Transaction:
    """The record with another producer id: the epochs of the present one are used up."""
    return replace(one, producer_id=new_producer_id, epoch=0, previous_producer_id=one.producer_id)


def _outcome(is_commit: bool) -> tuple[State, State]:
    return (State.PREPARE_COMMIT, State.COMPLETE_COMMIT) if is_commit else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
