"""What the logs of one broker share: writer name, caches, archive files, durability proofs, failover epochs."""

from __future__ import annotations

import asyncio
from typing import Final

from tidegate.log.archive_files import ArchiveFiles
from tidegate.log.durability import Durability
from tidegate.log.failover_epoch import FailoverEpochs
from tidegate.log.outgoing import Writer
from tidegate.log.record_format.record_poll import RecordPoll
from tidegate.log.tail import CACHE_BYTES_MAX, TailCache
from tidegate.log.usage import Usage
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.store import Store

POLL_MS: Final = 500
"""Upper bound on the delay that a lost notification adds to a waiting fetch."""


class LogServices:
    """What all logs of one broker share. Raises CannotStart if the archive cannot be opened."""

    failover_epochs: FailoverEpochs

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.loop = asyncio.get_event_loop()
        self.writer = Writer()
        self.usage = Usage()
        self.poll_s = POLL_MS / 1000
        self.cache = TailCache(min(CACHE_BYTES_MAX, shares_of(settings.memory_max).tail_cache))
        self.archive_files = ArchiveFiles(settings)
        self.durability = Durability(store, lambda node: self.failover_epochs.writing_to(node))
        self.record_poll = RecordPoll(store)
        self.records_without_offset = 0
        self.lost_records = 0
