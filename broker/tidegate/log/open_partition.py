"""What the cached state of a partition of either format has on one broker: its services, its topic, its keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate.errors import KafkaError
from tidegate.log.services import LogServices
from tidegate.store.key_lanes import KeyLanes
from tidegate.store.keys import BATCH_FORMAT

if TYPE_CHECKING:
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

_LOG_APPEND_TIME: Final = "LogAppendTime"


class OpenPartition:
    """One partition on one broker, until the broker closes it. `log_format` selects its keys."""

    def __init__(self, services: LogServices, topic: Topic, index: int, log_format: str = BATCH_FORMAT) -> None:
        self.store = services.store
        self.settings = services.settings
        self.loop = services.loop
        self.writer = services.writer
        self.durability = services.durability
        self.patience_s = services.settings.redis_command_timeout_ms / 1000
        self.topic = topic
        self.index = index
        self.keys = services.store.log_keys(topic.org, topic.name, index, topic.topic_hex, log_format)
        self.lanes = KeyLanes(self.store, self.keys.log)
        self.counted_bytes = self.own_references = 0
        self.queued_s = 0.0
        self._closed: KafkaError | None = None

    @property
    def log_append_time(self) -> bool:
        """Whether the topic uses LogAppendTime."""
        return bool(self.topic.config.message_timestamp_type == _LOG_APPEND_TIME)

    @property
    def closed(self) -> bool:
        """Whether the log is closed."""
        return self._closed is not None

    @property
    def may_lack_batches(self) -> bool:
        """Whether earlier batches of a producer may have been refused: Redis had been away, or their topic unknown."""
        store = self.store
        return store.node(self.keys.log).outage.recently_recovered or store.metadata_node.outage.has_returned

    def release(self) -> None:
        """Free the memory of an idle log that no other object refers to.

        Its components refer to it. Without them it is freed at once; the collector, which would find it, runs rarely.
        """
        vars(self).clear()

    def guarded(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call; log an exception, so that one failing listener does not affect the others."""
        try:
            callback(*args)
        except Exception:
            logger.exception("log_callback_failed", log=self.keys.log)
