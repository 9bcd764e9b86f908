"""The internal topics that a broker publishes."""

from __future__ import annotations

from tidegate.log.logs import Logs
from tidegate.monitoring.internal_topics.groups import GroupRecords
from tidegate.monitoring.internal_topics.publisher import InternalTopic, Leads
from tidegate.monitoring.internal_topics.transactions import TransactionRecords
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog
from tidegate.transactions.records import Records


def internal_topics(
    store: Store, settings: Settings, catalog: Catalog, logs: Logs, transactions: Records, leads: Leads
) -> list[InternalTopic]:
    """A publisher for each topic; `leads` is which partitions this broker leads."""
    sources = (GroupRecords(store), TransactionRecords(store, transactions))
    return [InternalTopic(store, settings, catalog, logs, leads, source) for source in sources]
