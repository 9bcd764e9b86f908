"""The lag on topics of format record, whose offsets have gaps: records are counted."""

from __future__ import annotations

from tidegate.apis.call import BrokerContext
from tidegate.errors import KafkaError
from tidegate.log.record_format.record_log import RecordLog
from tidegate.topics.model import Topic


async def counted_lag(context: BrokerContext, topic: Topic, partition: int, committed: int) -> int | None:
    """Records of a topic of format record from the committed offset on; None if they cannot be counted now."""
    log = context.logs.partition(topic, partition)
    assert isinstance(log, RecordLog)
    try:
        return await log.count_from(committed)
    except KafkaError:
        return None
