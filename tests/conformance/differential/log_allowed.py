"""Differences from Apache Kafka 4.4.0 of the log and of transactions that are meant; docs/differences.md lists them."""

from __future__ import annotations

import re
from typing import Any, Final

from tests.conformance.differential.log_batches import RECENT
from tests.conformance.differential.observed import ABSENT, Allowed, Difference

_OFFSETS: Final = "__consumer_offsets"


def _around(difference: Difference) -> tuple[Any, Any]:
    """The partition, or the topic, that the field is in, at both; empty where it is not there."""
    places = re.findall(r"([a-z_]+)\[(\d+)\]", difference.path)[:2]

    def found(tree: Any) -> Any:
        for name, index in places:
            tree = tree.get(name) or []
            tree = tree[int(index)] if int(index) < len(tree) else {}
        return tree

    kafka, tidegate = map(found, difference.whole)
    return kafka, tidegate


def _field(difference: Difference) -> str:
    return difference.path.rpartition(".")[2]


def _codes(difference: Difference, api: str, *codes: tuple[str, str]) -> bool:
    """Whether the field is of a partition that the targets refuse by such codes, of Kafka and of Tidegate."""
    if difference.api != api or not all(isinstance(one, dict) for one in difference.whole):
        return False
    kafka, tidegate = _around(difference)
    return (kafka.get("error_code"), tidegate.get("error_code")) in codes


def _no_aborted_transactions(difference: Difference) -> bool:
    if difference.api != "Fetch" or ".aborted_transactions" not in difference.path:
        return False
    kafka, tidegate = _around(difference)
    are_empty = kafka.get("records") == tidegate.get("records") == []
    are_good = kafka.get("error_code") == tidegate.get("error_code") == "none"
    return are_empty and are_good and kafka["aborted_transactions"] is None and tidegate["aborted_transactions"] == []


def _fetched(difference: Difference, kafka: str) -> bool:
    """Whether Kafka refuses all of a fetch by that code, and Tidegate does not."""
    return difference.api == "Fetch" and _fetch_codes(difference.whole[0]) == {kafka} != _fetch_codes(
        difference.whole[1]
    )


def _fetch_codes(whole: Any) -> set[str]:
    own = {one["error_code"] for topic in whole["responses"] for one in topic["partitions"]}
    return (own | {whole.get("error_code", "none")}) - {"none"}


def _start_of_a_refused_batch(difference: Difference) -> bool:
    kafka, tidegate = _around(difference)
    return (
        (difference.api, _field(difference)) == ("Produce", "log_start_offset")
        and kafka.get("error_code") == tidegate.get("error_code") != "none"
        and difference.kafka >= 0 > difference.tidegate == -1
    )


def _time_of_a_marker(difference: Difference) -> bool:
    if (difference.api, _field(difference)) != ("DescribeProducers", "last_timestamp"):
        return False
    place = int(re.findall(r"active_producers\[(\d+)\]", difference.path)[0])
    kafka, tidegate = (one["active_producers"][place] for one in _around(difference))
    is_idle = kafka["current_txn_start_offset"] == tidegate["current_txn_start_offset"] == -1
    is_marked = kafka["coordinator_epoch"] == tidegate["coordinator_epoch"] == "<epoch>"
    return is_idle and is_marked and difference.kafka != difference.tidegate == "<now>"


def _aborted_beyond_the_records(difference: Difference) -> bool:
    if difference.api != "Fetch" or ".aborted_transactions" not in difference.path:
        return False
    kafka, tidegate = _around(difference)
    if not kafka.get("records"):
        return False
    last = kafka["records"][-1]
    end = last["base_offset"] + last["last_offset_delta"] + 1
    within = [one for one in kafka["aborted_transactions"] or () if one["first_offset"] < end]
    return within == list(tidegate["aborted_transactions"] or ()) and kafka["records"] == tidegate["records"]


RULES: Final = (
    Allowed(
        "start of a refused batch",
        "Produce",
        "a refused batch: `log_start_offset` is the log's",
        "-1",
        "clients read it of accepted batches only",
        _start_of_a_refused_batch,
    ),
    Allowed(
        "time of a duplicate",
        "Produce",
        "a batch with CreateTime that is sent again: its newest record time as `log_append_time`",
        "-1, as the first time",
        "the topic has no append time",
        lambda one: (
            (one.api, _field(one)) == ("Produce", "log_append_time")
            and isinstance(one.kafka, int)
            and one.kafka < RECENT
            and one.tidegate is None
            and _around(one)[0]["base_offset"] == _around(one)[1]["base_offset"]
        ),
    ),
    Allowed(
        "gaps in the records of a batch",
        "Produce",
        "record offsets with gaps: stored as they are, in a compressed batch UNKNOWN_SERVER_ERROR",
        "INVALID_RECORD, of the whole batch, before times are checked",
        "a consumer would skip the offsets between",
        lambda one: (
            "offset delta" in one.after
            and (
                _codes(one, "Produce", ("none", "invalid_record"), ("unknown_server_error", "invalid_record"))
                or _codes(one, "Produce", ("invalid_timestamp", "invalid_record"))
                or (".record_errors" in one.path and _codes(one, "Produce", ("invalid_record", "invalid_record")))
            )
        ),
        lasts=True,
    ),
    Allowed(
        "codec that does not decompress",
        "Produce",
        "records that their codec cannot decompress, and unknown codecs: UNKNOWN_SERVER_ERROR",
        "CORRUPT_MESSAGE",
        "clients send the batch again: it may be damaged",
        lambda one: _codes(one, "Produce", ("unknown_server_error", "corrupt_message")),
    ),
    Allowed(
        "batch that refuses its request",
        "Produce",
        "a batch of a magic above 2 or below 0 or of too few bytes refuses the other partitions too: CORRUPT_MESSAGE, "
        "one of an unknown codec: UNKNOWN_SERVER_ERROR",
        "they are judged by themselves",
        "nothing is wrong with them",
        lambda one: (
            (
                one.after.startswith(("magic", "length", "negative length"))
                and _codes(one, "Produce", ("corrupt_message", "none"), ("corrupt_message", "invalid_record"))
            )
            or (one.after.startswith("codec") and _codes(one, "Produce", ("unknown_server_error", "none")))
        ),
        lasts=True,
    ),
    Allowed(
        "zstd for old readers",
        "Fetch v4-v9",
        "batches of zstd are sent to clients that do not know it",
        "UNSUPPORTED_COMPRESSION_TYPE, as Kafka before 4.0",
        "the client says what is wrong instead of reading garbage",
        lambda one: one.version < 10 and _codes(one, "Fetch", ("none", "unsupported_compression_type")),
    ),
    Allowed(
        "isolation level",
        "Fetch",
        "an isolation level above 1: UNKNOWN_SERVER_ERROR, of each partition too",
        "as level 0",
        "a level that later versions may add hides nothing that level 0 shows",
        lambda one: one.after == "level" and _fetched(one, "unknown_server_error"),
        lasts=True,
    ),
    Allowed(
        "negative limit",
        "Fetch",
        "a negative `PartitionMaxBytes`: UNKNOWN_SERVER_ERROR",
        "as 0: the first batch",
        "a consumer goes on, as with a limit below the size of that batch",
        lambda one: one.after == "limit" and _codes(one, "Fetch", ("unknown_server_error", "none")),
    ),
    Allowed(
        "no aborted transactions",
        "Fetch",
        "`AbortedTransactions` is null for a partition that the limit leaves without records",
        "empty",
        "it is what read_committed readers get at the end of a log",
        _no_aborted_transactions,
    ),
    Allowed(
        "session of no partitions",
        "Fetch",
        "a session for a first fetch that names no partitions",
        "no session",
        "there is nothing to remember; a client that names partitions later gets one",
        lambda one: (
            (one.api, one.path, one.kafka, one.tidegate) == ("Fetch", "session_id", "<session>", 0)
            and all(whole["responses"] == [] for whole in one.whole)
        ),
        lasts=True,
    ),
    Allowed(
        "partition that is named twice",
        "Produce",
        "a partition that one topic entry names twice: only the last batch is appended, one reply",
        "every batch is appended and has its reply",
        "no record is lost that a client sent",
        lambda one: (
            one.api == "Produce" and one.after == "twice" and [len(whole["responses"]) for whole in one.whole] == [1, 2]
        ),
        lasts=True,
    ),
    Allowed(
        "fetch of a replica",
        "Fetch",
        "a replica id that no replica has: NOT_LEADER_OR_FOLLOWER of each partition",
        "CLUSTER_AUTHORIZATION_FAILED, of the whole answer",
        "there are no replicas: brokers do not fetch from each other",
        lambda one: (
            one.after == "replica"
            and _fetched(one, "not_leader_or_follower")
            and _fetch_codes(one.whole[1]) == {"cluster_authorization_failed"}
        ),
        lasts=True,
    ),
    Allowed(
        "coordinator of offsets",
        "DescribeTransactions",
        "offsets of a transaction: the partition of `__consumer_offsets` of the group's coordinator",
        "the shard that has the group",
        "groups are spread over as many shards, whatever the partitions of that topic",
        lambda one: one.api == "DescribeTransactions" and _around(one)[0].get("topic") == _OFFSETS,
    ),
    Allowed(
        "time of a batch behind a marker",
        "DescribeProducers",
        "`LastTimestamp` of a producer whose last batch is behind a marker, without a transaction: that batch's",
        "the marker's, if it is newer",
        "the state of a producer has the end of its last transaction, not whether the batch is behind it",
        _time_of_a_marker,
    ),
    Allowed(
        "metadata of an unknown member",
        "TxnOffsetCommit",
        "offsets with too long metadata only: the member is checked first",
        "OFFSET_METADATA_TOO_LARGE",
        "nothing is left to store, so the group is not asked",
        lambda one: _codes(one, "TxnOffsetCommit", ("unknown_member_id", "offset_metadata_too_large")),
    ),
    Allowed(
        "aborted transactions beyond the records",
        "Fetch",
        "`AbortedTransactions` goes up to the end that the index gives, which may be beyond the records of the answer",
        "up to the end of those records",
        "a reader needs those of its records only",
        _aborted_beyond_the_records,
    ),
    Allowed(
        "epoch of another producer during a transaction",
        "InitProducerId v3-v5",
        "while a transaction is open only the producer id is compared: any epoch aborts the transaction, and the next "
        "one is given as well",
        "PRODUCER_FENCED, the transaction stays open",
        "KIP-360: an instance that was replaced must not abort the transaction of the newer one",
        lambda one: (
            one.api == "InitProducerId"
            and one.after == "other epoch"
            and [whole["error_code"] for whole in one.whole]
            == ["none", "producer_fenced" if one.version >= 4 else "invalid_producer_epoch"]
        ),
        lasts=True,
    ),
    Allowed(
        "transactional id during a transaction",
        "TxnOffsetCommit v5, v6",
        "a wrong transactional id is accepted once the producer's transaction has the group",
        "INVALID_PRODUCER_ID_MAPPING, and INVALID_REQUEST for an empty one",
        "the transaction that the request names is the one that is asked",
        lambda one: (
            one.after == "other id"
            and _codes(one, "TxnOffsetCommit", ("none", "invalid_producer_id_mapping"), ("none", "invalid_request"))
        ),
        lasts=True,
    ),
    Allowed(
        "empty transactional id during a transaction",
        "Produce",
        "an empty transactional id is accepted once the producer's transaction has the partition",
        "INVALID_REQUEST, as before",
        "the request is wrong by itself",
        lambda one: one.after == "no id" and _codes(one, "Produce", ("none", "invalid_request")),
        lasts=True,
    ),
    Allowed(
        "configs of Tidegate",
        "CreateTopics, DescribeConfigs",
        "`tidegate.` configs are unknown",
        "they are described",
        "topics have formats that Kafka has not",
        lambda one: one.api in _CONFIGS and ".configs.tidegate." in one.path and one.kafka == ABSENT,
    ),
    Allowed(
        "source of min.insync.replicas",
        "CreateTopics, DescribeConfigs",
        "`min.insync.replicas` comes from the cluster's dynamic default, which its controllers set for ELR",
        "from the default",
        "replication is the store's",
        lambda one: one.api in _CONFIGS and ".configs.min.insync.replicas." in one.path,
    ),
    Allowed(
        "names that collide within a request",
        "CreateTopics",
        "two names of one request that differ by . and _ only: both are made",
        "INVALID_TOPIC_EXCEPTION of the second, as of a later request",
        "they would have the same names of metrics, which is why the check is there",
        lambda one: _codes(one, "CreateTopics", ("none", "invalid_topic_exception")),
        lasts=True,
    ),
    Allowed(
        "description of a topic without a name",
        "DescribeTopicPartitions",
        "an empty name: UNKNOWN_SERVER_ERROR of all topics",
        "INVALID_TOPIC_EXCEPTION of that one",
        "nothing is wrong with the others",
        lambda one: (
            one.api == "DescribeTopicPartitions" and _around(one)[0].get("error_code") == "unknown_server_error"
        ),
        lasts=True,
    ),
    Allowed(
        "more partitions than a topic may have",
        "CreatePartitions",
        "more than 10,000 new partitions: POLICY_VIOLATION of all topics",
        "INVALID_PARTITIONS of a topic that would have more than 10,000",
        "nothing is wrong with the others",
        lambda one: one.api == "CreatePartitions" and _around(one)[0].get("error_code") == "policy_violation",
        lasts=True,
    ),
    Allowed(
        "short segments",
        "CreateTopics, AlterConfigs, IncrementalAlterConfigs",
        "`segment.bytes` below 1 MiB: INVALID_CONFIG",
        "it is accepted",
        "there are no segments, and tools that were written for Kafka before 4.0 set it",
        lambda one: "segments" in one.after and _around(one)[0].get("error_code") == "invalid_config",
        lasts=True,
    ),
    Allowed(
        "retention below -1",
        "CreateTopics, AlterConfigs, IncrementalAlterConfigs",
        "`retention.bytes` below -1 is accepted, as no limit",
        "INVALID_CONFIG",
        "-1 says so; another value is a mistake",
        lambda one: "retention" in one.after and _around(one)[1].get("error_code") == "invalid_config",
        lasts=True,
    ),
    Allowed(
        "values as they were written",
        "CreateTopics, DescribeConfigs",
        "a value is described as it was written: `TRUE`, ` 5000 `",
        "`true`, `5000`",
        "programs that read configs compare texts",
        lambda one: (
            one.api in _CONFIGS and one.path.endswith(".value") and str(one.kafka).strip().lower() == one.tidegate
        ),
    ),
    Allowed(
        "more replicas than brokers",
        "CreateTopics",
        "a replication factor above the number of brokers: INVALID_REPLICATION_FACTOR",
        "the topic is made",
        "replication is the store's, and applications that ask for three replicas work with one broker",
        lambda one: one.api == "CreateTopics" and _around(one)[0].get("error_code") == "invalid_replication_factor",
        lasts=True,
    ),
)
_CONFIGS: Final = ("CreateTopics", "DescribeConfigs")


def rows() -> list[str]:
    """The table of the page."""
    return [f"| {rule.where} | {rule.kafka} | {rule.tidegate} | {rule.reason} |" for rule in RULES]
