"""`tidegate topic repair`: copies the valid entries of a log into a new stream, which atomically replaces the old one.

A stream never accepts an id at or below its last one, so a stray entry cannot be removed in place: appends would still
be refused. Brokers observe the changed version of the log and reload it.
"""

from __future__ import annotations

from typing import Any, Final

from tidegate.cli.client.stray_entries import Partition, Scanned, read_log, scan, with_plain_entries
from tidegate.cli.failures import CommandFailed
from tidegate.log.entries import StrayEntry
from tidegate.store.scripts import Script

SWAP_REPAIRED = Script("log/swap_repaired")

_ABANDONED_MS: Final = 86_400_000
_TRIES: Final = 100
_NONE: Final = 0


def scan_partition(client: Any, partition: Partition) -> Scanned:
    """What a repair would leave out. Raises CommandFailed when there is no log."""
    if not client.exists(partition.keys.log, partition.keys.meta):
        raise CommandFailed(f"{partition}: there is no log {partition.keys.log}")
    return scan(client, partition.keys)


def repair(client: Any, partition: Partition) -> tuple[int, list[StrayEntry]]:
    """Repair; returns the new log end offset and what was left out. On CommandFailed the log is unchanged."""
    client, keys = with_plain_entries(client), partition.keys
    before = client.hmget(keys.meta, "incarnation", "log_version")
    failover_epoch, version = (int(value or 0) for value in before)
    replid = _replid(client, keys.log)
    _make_empty(client, keys.restored)
    copy = _Copy(client, partition)
    try:
        for _ in range(_TRIES):
            copy.go_on()
            names = [keys.log, keys.restored, keys.meta, keys.producers, keys.times]
            code, *swapped = client.eval(
                SWAP_REPAIRED.source, len(names), *names,
                failover_epoch, replid, version, copy.entries, copy.after, copy.bytes, keys.wake,
            )  # fmt: skip
            if code != _NONE:
                raise CommandFailed(f"{partition}: the server or the log was replaced meanwhile; nothing changed")
            if swapped[0]:
                return swapped[1], copy.strays
    finally:
        client.unlink(keys.restored)
    raise CommandFailed(f"{partition}: the log grows faster than it can be copied; nothing changed")


def rows(partition: Partition, scanned: Scanned) -> list[dict[str, Any]]:
    """One row each for entries that a repair would leave out, and for the entry that blocks appends."""
    strays = {stray.entry_id: stray for stray in scanned.strays}
    if scanned.stopped is not None:
        strays.setdefault(scanned.stopped.entry_id, scanned.stopped)
    return [
        {
            "topic": partition.topic,
            "partition": partition.index,
            "end": scanned.end,
            "entry": "{}-{}".format(*stray.entry_id),
            "stops_appends": stray.stops(scanned.end),
            "reason": stray.reason,
        }
        for stray in strays.values()
    ]


class _Copy:
    """The new stream with the valid entries, and the list of skipped ones."""

    def __init__(self, client: Any, partition: Partition) -> None:
        self._client, self._keys = client, partition.keys
        self.after = "0-0"
        self.entries = self.bytes = 0
        self.strays: list[StrayEntry] = []

    def go_on(self) -> None:
        """Copy the entries after the last one read."""
        for entry_id, fields, parsed in read_log(self._client, self._keys.log, self.after):
            self.after = entry_id.decode()
            if isinstance(parsed, StrayEntry):
                self.strays.append(parsed)
                continue
            self._client.execute_command("XADD", self._keys.restored, entry_id, *fields)
            self.entries += 1
            self.bytes += parsed.size
        self._client.pexpire(self._keys.restored, _ABANDONED_MS)


def _make_empty(client: Any, key: str) -> None:
    client.unlink(key)
    client.execute_command("XGROUP CREATE", key, "made", "0-0", "MKSTREAM")
    client.execute_command("XGROUP DESTROY", key, "made")


def _replid(client: Any, key: str) -> str:
    if hasattr(client, "get_primaries"):
        return str(client.info("replication", target_nodes=client.get_node_from_key(key))["master_replid"])
    return str(client.info("replication")["master_replid"])
