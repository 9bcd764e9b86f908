"""Restores a backup line by line. Each line adds what is missing, so a restore that was interrupted can be repeated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tidegate.cli.client.backup_contents import share_hashes, slices, text
from tidegate.cli.client.backup_file import Line, Verified
from tidegate.cli.failures import CommandFailed
from tidegate.cluster.identity import LAYOUT_VERSION
from tidegate.cluster.resource_configs import ALTER_RESOURCE_CONFIGS, CONFIGS_MAX
from tidegate.quotas.table import CHANGE_QUOTAS
from tidegate.records.build import build_empty_batch
from tidegate.security.rules import CHANGE_ACLS
from tidegate.security.users import REPLACE_USER
from tidegate.store.keys import BATCH_FORMAT, RECORD_FORMAT, ClusterKeys, GroupKeys, LogKeys
from tidegate.store.scripts import Script
from tidegate.topics.names import plain
from tidegate.topics.steps import RESTORE_TOPIC

BEGIN_RESTORE = Script("cluster/begin_restore")
END_RESTORE = Script("cluster/end_restore")
RESTORE_GROUP = Script("groups/restore_group")
RESTORE_LOG = Script("log/restore_log")
RESTORE_SEGMENTS = Script("archive/restore_segments")

_BATCH_OFFSETS_MAX: Final = (1 << 31) - 1
_NO_LOG: Final[Line] = {"start": 0, "end": "0", "epochs": "0:0", "failover_epoch": 0, "archive": []}
_FIRST_ID: Final = "0-0"
_DELETED: Final = 3
_ANY_VERSION: Final = ""
"""Of configs: nobody else changes them during a restore."""
_NO_MAXIMUM: Final = 1 << 53
"""Of access rules and quotas: without some of its denials and limits, a cluster would allow more than it did."""

Progress = Callable[[int, int], None]


class Restore:
    """One restore into one Redis. `made` and `present` count the lines of each kind that were added, or were there."""

    def __init__(self, client: Any, prefix: str, backup: Verified) -> None:
        self._client, self._prefix, self._backup = client, prefix, backup
        self._keys = ClusterKeys(prefix)
        self._shards: int = backup.header["coordinator_shards"]
        self._source = backup.checksum[:16]
        self.made: Counter[str] = Counter()
        self.present: Counter[str] = Counter()
        self.warnings: list[str] = []
        self._max_timestamps: dict[str, int] = {}
        """The largest timestamp of archived segments, ms, by the key of their index."""

    def begin(self) -> None:
        """Claim an empty Redis, or one that an interrupted restore of this backup has claimed. Raises CommandFailed."""
        header, keys = self._backup.header, self._keys
        self._require_layout(header["layout"])
        fields = {
            "cluster_id": header["cluster_id"],
            "layout": header["layout"],
            "coordinator_shards": self._shards,
            "incarnation": header["failover_epoch"],
            "groups_incarnation": header["groups_failover_epoch"],
        }
        code, *_ = self._run(
            BEGIN_RESTORE,
            [keys.info, keys.producer_ids, keys.topics, keys.users, keys.acls, keys.quotas, keys.resource_configs],
            [self._backup.checksum, header["next_producer_id"]]
            + [one for name, value in fields.items() if value for one in (name, value)],
        )
        if code:
            raise CommandFailed(
                f"there is a cluster with the prefix {self._prefix!r}, or an interrupted restore of another backup: "
                "use an empty Redis or another --key-prefix, or add what that cluster lacks with --into-existing"
            )

    def join_existing(self) -> None:
        """Use the cluster that is there. Raises CommandFailed if there is none, or if it is being restored."""
        names = ("cluster_id", "layout", "coordinator_shards", "restoring")
        cluster_id, layout, shards, restoring = self._client.hmget(self._keys.info, names)
        if cluster_id is None:
            raise CommandFailed(f"there is no cluster with the prefix {self._prefix!r}: leave --into-existing out")
        if restoring is not None:
            raise CommandFailed("a restore of this cluster was interrupted: repeat it without --into-existing")
        self._require_layout(text(layout))
        self._shards = int(shards)

    def _require_layout(self, layout: str) -> None:
        if layout != str(LAYOUT_VERSION):
            raise CommandFailed(f"the keys have layout {layout}; this tidegate has {LAYOUT_VERSION}")

    def run(self, progress: Progress) -> None:
        """Add every line: topics before the groups that read them."""
        steps: dict[str, Callable[[Line], bool]] = {
            "user": self._user, "acl": self._acl, "quota": self._quota, "config": self._config,
            "segments": self._segments, "topic": self._topic, "group": self._group, "offsets": self._offsets,
        }  # fmt: skip
        done, total = 0, sum(self._backup.counts.values())
        for kinds in (("user", "acl", "quota", "config", "segments", "topic"), ("group", "offsets")):
            for line in self._backup.lines(*kinds):
                (self.made if steps[line["kind"]](line) else self.present)[line["kind"]] += 1
                done += 1
                progress(done, total)

    def end(self) -> None:
        """Let brokers start."""
        self._run(END_RESTORE, [self._keys.info], [self._backup.checksum])

    def _run(self, script: Script, keys: Sequence[str], args: Iterable[Any]) -> list[Any]:
        encoded = (one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one for one in args)
        reply: list[Any] = self._client.eval(script.source, len(keys), *keys, *encoded)
        return reply

    # -- access

    def _user(self, line: Line) -> bool:
        _, done = self._run(
            REPLACE_USER, [self._keys.users], [self._keys.user_changes, line["name"], "", line["value"]]
        )
        return bool(done)

    def _acl(self, line: Line) -> bool:
        args = [self._keys.acl_changes, line["value"], _org_of(line), _NO_MAXIMUM, 1, line["name"]]
        _, _, added, _ = self._run(CHANGE_ACLS, [self._keys.acls, self._keys.info], args)
        return bool(added)

    def _quota(self, line: Line) -> bool:
        if self._client.hexists(self._keys.quotas, line["name"]):
            return False
        args = [self._keys.quota_changes, _org_of(line), _NO_MAXIMUM, line["name"], line["value"]]
        self._run(CHANGE_QUOTAS, [self._keys.quotas, self._keys.info], args)
        return True

    def _config(self, line: Line) -> bool:
        if self._client.hexists(self._keys.resource_configs, line["name"]):
            return False
        args = [self._keys.resource_config_changes, CONFIGS_MAX, _ANY_VERSION, 1, line["name"], line["value"]]
        if self._run(ALTER_RESOURCE_CONFIGS, [self._keys.resource_configs, self._keys.info], args)[0]:
            raise CommandFailed(f"a cluster has {CONFIGS_MAX} configs of brokers and client metrics at most")
        return True

    # -- topics

    def _is_taken(self, line: Line) -> bool:
        """Whether another topic has the name, or one that differs only by . and _."""
        name = f"{line['org']}/{line['topic']}"
        stored = self._client.hget(self._keys.topics, name)
        if stored is not None:
            return bool(json.loads(stored)["id"] != line["id"])
        other = self._client.hget(self._keys.topic_names, _plain_name(line))
        return other is not None and text(other) != name

    def _segments(self, line: Line) -> bool:
        if self._is_taken(line):
            return False
        keys = LogKeys.of(self._prefix, line["org"], line["topic"], line["partition"], line["id"])
        timestamps = (json.loads(segment)["max_timestamp"] for _, segment in line["segments"])
        self._max_timestamps[keys.segments] = max(self._max_timestamps.get(keys.segments, -1), *timestamps)
        pairs = [one for pair in line["segments"] for one in pair]
        return bool(self._run(RESTORE_SEGMENTS, [keys.segments, keys.meta], pairs)[1])

    def _topic(self, line: Line) -> bool:
        org, topic, keys = line["org"], line["topic"], self._keys
        if self._is_taken(line):
            self.warnings.append(f"topic {org}/{topic} is another one there: it stays, and offsets do not apply to it")
            return False
        for partition, log in enumerate(line["logs"]):
            if not self._log(LogKeys.of(self._prefix, org, topic, partition, line["id"], line["format"]), log):
                self.warnings.append(f"topic {org}/{topic} was deleted there within a day: it is not restored")
                return False
        count = len(line["logs"])
        record = (
            f'{{"id":"{line["id"]}","partitions":{count},"wanted":{count},"format":"{line["format"]}",'
            f'"state":"ready","config":{line["config"]}}}'
        )
        configs = [one for pair in line["configs"].items() for one in pair]
        _, made = self._run(
            RESTORE_TOPIC,
            [keys.topics, keys.topic_names, keys.topic(org, topic), keys.info],
            [f"{org}/{topic}", _plain_name(line), record, keys.topic_changes, *configs],
        )
        return bool(made)

    def _log(self, keys: LogKeys, found: Line | None) -> bool:
        """Whether there is a log; False for one that was deleted: brokers refuse late writes by its id for a day."""
        log = found or _NO_LOG
        log_format = RECORD_FORMAT if keys.is_record else BATCH_FORMAT
        log_end = (found or {"end": _FIRST_ID})["end"] if keys.is_record else log["end"]
        log_start, local_start, base, batches = _without_records(log, keys.is_record)
        archive = log["archive"] or ["", ""]
        code, *_ = self._run(
            RESTORE_LOG,
            [keys.log, keys.meta, keys.producers, keys.archive],
            [
                *(log_format, log_start, local_start, log_end, log["epochs"], log["failover_epoch"]),
                *(*archive, log.get("aborted", ""), self._max_timestamps.get(keys.segments, -1), base, *batches),
            ],
        )
        return bool(code != _DELETED)

    # -- groups

    def _group(self, line: Line) -> bool:
        fields: dict[str, str] = dict(line["fields"])
        kind = "configs"
        if fields:
            kind = f"{fields['type']} Empty {fields.get('protocol_type', '')}"
            if fields["type"] != "classic":
                fields["target_epoch"] = fields["generation"]
        return self._restore_group(line, kind, fields, line["configs"], {}, line["shares"])

    def _offsets(self, line: Line) -> bool:
        return self._restore_group(line, "offsets", {}, {}, line["offsets"], [])

    def _restore_group(
        self,
        line: Line,
        kind: str,
        fields: Mapping[str, str],
        configs: Mapping[str, str],
        offsets: Mapping[str, str],
        shares: Sequence[Sequence[Any]],
    ) -> bool:
        keys = GroupKeys.of(self._prefix, self._shards, line["org"], line["group"])
        shard = keys.shard_keys
        restored = False
        for some in [*slices(shares)] or [[]]:
            args: list[Any] = [keys.ref, self._source, kind]
            for pairs in (fields.items(), configs.items(), offsets.items(), some):
                items = [one for pair in pairs for one in pair]
                args += [len(items), *items]
            _, done = self._run(
                RESTORE_GROUP,
                [
                    *(keys.group, keys.offsets, keys.configs, keys.shares, shard.groups, shard.configured),
                    *share_hashes(keys, (place for place, *_ in some)),
                ],
                args,
            )
            restored = bool(done)
        return restored


def _org_of(line: Line) -> str:
    """The organisation of an access rule or a quota."""
    org: str = line["name"].partition("/")[0]
    return org


def _plain_name(line: Line) -> str:
    name = plain(line["topic"])
    return f"{line['org']}/{name}" if name else ""


def _without_records(log: Line, is_record: bool) -> tuple[int, int, int, list[bytes]]:
    """Log start, local start, and base offset and batches of the entry that shows the log end.

    What the archive has stays readable. The offsets between its end and the log end have no records: the batches cover
    them, so a reader of the archive reaches the new records.
    """
    if is_record:
        return log["start"], log["start"], 0, []
    log_end = int(log["end"])
    archive_end = log["archive"][1] if log["archive"] else 0
    if log["start"] >= archive_end:
        log_start = local_start = log_end
    else:
        log_start, local_start = log["start"], archive_end
    base = min(local_start, log_end - 1)
    batches, at = [], base
    while 0 <= at < log_end:
        count = min(log_end - at, _BATCH_OFFSETS_MAX)
        batches.append(build_empty_batch(at, count))
        at += count
    return log_start, local_start, max(base, 0), batches
