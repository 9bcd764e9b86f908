"""Meant differences that the comparison does not show: each names its test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Tested:
    """One meant difference; `test` is `<file below tests/>::<function>`."""

    where: str
    kafka: str
    tidegate: str
    reason: str
    test: str


TESTED: Final = (
    Tested(
        "Produce",
        "the sixth last batch of a producer, sent again: OUT_OF_ORDER_SEQUENCE_NUMBER",
        "its offset, at a broker that has not read the newest batch yet",
        "it is the true offset, and the batch is not appended again",
        "scripts/test_log_producers.py::test_log_60_broker_that_has_not_read_the_sixth_batch",
    ),
    Tested(
        "Fetch",
        "a fetch beyond its quota is answered without records",
        "with its records; the debt is waited for afterwards, as with Produce",
        "the records were read already; the client has them at the same rate",
        "scripts/test_log_quota_scenarios.py::test_throttled_fetch_has_its_records",
    ),
    Tested(
        "OffsetFetch of more than 1,000 partitions of a group",
        "one that is named twice is answered twice",
        "INVALID_REQUEST",
        "64 KiB may ask for 4 KiB of metadata 16,000 times",
        "scripts/test_offsets_fetch.py::test_partition_named_many_times_is_refused",
    ),
    Tested(
        "DescribeGroups, ConsumerGroupDescribe and its like, OffsetFetch, DescribeProducers, DescribeTransactions",
        "an answer has whatever the request names, however often",
        "beyond 16 MiB the rest gets COORDINATOR_LOAD_IN_PROGRESS (partitions: NOT_LEADER_OR_FOLLOWER)",
        "4 kB may ask for 8 GB; clients ask again for what they miss",
        "scripts/test_directory_groups.py::test_groups_beyond_the_bytes_of_an_answer_are_retriable",
    ),
    Tested(
        "CreateAcls, DescribeAcls, DeleteAcls",
        "UNKNOWN anywhere closes the connection; ANY as permission or pattern: UNKNOWN_SERVER_ERROR",
        "INVALID_REQUEST, of that rule alone",
        "the client can act on it",
        "scripts/test_security_scenarios.py::test_log_154_access_rules_that_are_refused",
    ),
    Tested(
        "Metadata, DeleteTopics",
        "the id of a topic without DESCRIBE: TOPIC_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_ID",
        "clients do not learn that there is a topic which they may not see",
        "scripts/test_security_answers.py::test_id_of_a_topic_without_describe_is_unknown",
    ),
    Tested(
        "Metadata v12, v13",
        "neither a name nor an id: UNKNOWN_SERVER_ERROR, in v13 of the whole answer too",
        "INVALID_REQUEST, of that topic alone",
        "the request is wrong, as it is in v10 and v11; the other topics are answered",
        "scripts/test_topics_apis.py::test_log_17_neither_name_nor_id",
    ),
    Tested(
        "AlterConfigs, IncrementalAlterConfigs of brokers",
        "a config that no broker has, such as `cleanup.policy` or a misspelt one, is stored and has no effect; "
        "`log.retention.ms` below -1 is stored too",
        "INVALID_REQUEST, which names the config that was probably meant: `log.cleanup.policy`",
        "the administrator learns that nothing has changed; there are no plug-ins that would read such configs",
        "scripts/test_broker_configs.py::test_broker_configs_that_no_broker_has_are_refused",
    ),
    Tested(
        "`__consumer_offsets`",
        "a transactional commit is a batch of its producer, then a marker",
        "a plain record, once the transaction is committed",
        "the topic shows what is stored; readers of either isolation level see committed offsets only",
        "scripts/test_internal_topics.py::test_log_134_transaction_states",
    ),
    Tested(
        "JoinGroup",
        "any number of protocols",
        "INVALID_REQUEST above 100",
        "each costs Redis time; assignors are few",
        "scripts/test_classic_metadata.py::test_join_more_protocols_than_a_member_may_have_is_invalid",
    ),
    Tested(
        "ShareFetch",
        "2,000 share sessions of a broker, from any connection: SHARE_SESSION_LIMIT_REACHED",
        "8 of a connection, with 20,000 partitions, too",
        "one client would take those of all others; a client has one a connection",
        "unit/groups/test_share_sessions.py::test_sessions_of_one_connection_leave_others_theirs",
    ),
    Tested(
        "StreamsGroupHeartbeat",
        "any number of subtopologies",
        "INVALID_REQUEST above 2,000",
        "all of them are checked at one time",
        "scripts/test_streams_wire.py::test_topology_of_too_many_subtopologies_creates_no_group",
    ),
)


def rows() -> list[str]:
    """The table of the page."""
    return [f"| {one.where} | {one.kafka} | {one.tidegate} | {one.reason} | `{one.test}` |" for one in TESTED]
