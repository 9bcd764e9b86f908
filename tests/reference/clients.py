"""docs/clients.md: which client software is tested how, from what the tests and the constraints declare."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.clients import CLIENTS
from bench.jars import CONNECTOR, CONNECTOR_VERSION, KAFKA_VERSION, NEWEST_KAFKA_VERSION, STREAMS_VERSION

_ROOT: Final = Path(__file__).resolve().parents[2]
_TESTS: Final = _ROOT / "tests"


@dataclass(frozen=True, slots=True)
class Suite:
    """A command, what it makes clients do, and when it runs."""

    command: str
    does: str
    runs: str


SUITES: Final = {
    "conformance": Suite(
        "make test",
        "produce and consume in every codec, groups, offsets kept over a restart, administration",
        "every push",
    ),
    "peers": Suite(
        "make test SUITE=peers", "the tools of Kafka's own distribution; Spark's connector", "every push where Maven is"
    ),
    "tiers": Suite(
        "make test SUITE=clients",
        "old offsets from the archive and new ones from Redis, in one group",
        "every push; Java with `make test SUITE=peers`",
    ),
    "kill": Suite(
        "make test SUITE=outside",
        "groups whose offsets are committed by hand, while a broker is killed every 5 s",
        "rarely",
    ),
    "matrix": Suite(
        "make test SUITE=matrix",
        "joins, closes, three kinds of commits, static restarts and crashes, with [delayed heartbeats]"
        "(decisions/0019-delayed-heartbeats.md) and without",
        "rarely: it takes an hour and Java, Go, node",
    ),
}


@dataclass(frozen=True, slots=True)
class Software:
    """One client, the tests that use it, and how they are recognised in the tree."""

    name: str
    version: str
    suites: dict[str, str]
    """Suite -> what shows that it uses this client: a file below tests/ and words in it, as `file: words`."""


def _pinned(package: str) -> str:
    found = re.search(rf"^{re.escape(package)}==(\S+)$", (_ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found, f"{package} is not in constraints.txt"
    return found[1]


def _go(module: str) -> str:
    found = re.search(rf"^\t{re.escape(module)} v(\S+)$", (_TESTS / "clients/go/go.mod").read_text(), re.MULTILINE)
    assert found, f"{module} is not in go.mod"
    return found[1]


def _matrix(name: str) -> dict[str, str]:
    assert name in CLIENTS
    return {"matrix": f'../bench/clients.py: "{name}"'}


def software() -> tuple[Software, ...]:
    """Every client, the most tested first."""
    real, cold, outside = "conformance/test_clients.py", "conformance/test_cold_clients.py", "outside/client_group.py"
    kafkajs = json.loads((_TESTS / "clients/node/package.json").read_text())["dependencies"]["kafkajs"]
    connector_clients = next(version for _, name, version in CONNECTOR.artifacts if name == "kafka-clients")
    return (
        Software(
            "aiokafka",
            _pinned("aiokafka"),
            {
                "conformance": f"{real}: test_aiokafka_works",
                "tiers": f"{cold}: test_aiokafka",
                "kill": f"{outside}: aiokafka",
                **_matrix("aiokafka"),
            },
        ),
        Software(
            "librdkafka, by confluent-kafka for Python",
            _pinned("confluent-kafka"),
            {
                "conformance": f"{real}: test_confluent_kafka_works",
                "tiers": f"{cold}: test_librdkafka",
                "kill": f"{outside}: librdkafka",
                **_matrix("librdkafka"),
            },
        ),
        Software(
            "kafka-python",
            _pinned("kafka-python"),
            {
                "conformance": f"{real}: test_kafka_python_works",
                "kill": f"{outside}: kafka_python",
                **_matrix("kafka-python"),
            },
        ),
        Software(
            "Java (kafka-clients and the distribution's tools)",
            KAFKA_VERSION,
            {
                "peers": "conformance/test_java.py: test_java_producer",
                "tiers": f"{cold}: test_java",
                **_matrix("java"),
            },
        ),
        Software(
            "Kafka Streams, `group.protocol=streams`",
            STREAMS_VERSION,
            {"peers": "conformance/test_java_streams.py: test_word_count"},
        ),
        Software("kcat", "the distribution's", {"conformance": f"{real}: test_kcat_works"}),
        Software(
            "Spark's Kafka connector",
            f"{CONNECTOR_VERSION}, kafka-clients {connector_clients}",
            {"peers": "spark/test_kafka_connector.py: test_equal_rows"},
        ),
        Software("franz-go", _go("github.com/twmb/franz-go"), _matrix("franz-go")),
        Software("sarama", _go("github.com/IBM/sarama"), _matrix("sarama")),
        Software("KafkaJS", kafkajs, _matrix("kafkajs")),
    )


def page() -> str:
    """The page."""
    clients = software()
    head = " | ".join(suite for suite in SUITES)
    rows = [
        f"| {one.name} | {one.version} | {' | '.join('yes' if suite in one.suites else '' for suite in SUITES)} |"
        for one in clients
    ]
    suites = [f"| {name} | `{suite.command}` | {suite.does} | {suite.runs} |" for name, suite in SUITES.items()]
    unstatic = ", ".join(client.name for client in CLIENTS.values() if not client.static)
    held = ", ".join(client.name for client in CLIENTS.values() if client.held)
    return _PAGE.format(
        head=head,
        rule="|---" * len(SUITES),
        rows="\n".join(rows),
        suites="\n".join(suites),
        peer=NEWEST_KAFKA_VERSION,
        unstatic=unstatic,
        held=held,
    )


_PAGE: Final = """\
# Clients

Made by `make docs` from what the tests declare. Clients are unmodified releases, of the versions named here.

| Client | Version | {head} |
|---|---{rule}|
{rows}

| | Command | Makes them | Runs |
|---|---|---|---|
{suites}

Where a client cannot be had (no Java, no Go, no node, no kcat), its tests are skipped and say so.

- Heartbeat responses are delayed for: {held}. Others are answered at once.
- Static members (`group.instance.id`) are tried with all but: {unstatic}, which does not know them.
- Members of different software share a group (aiokafka and librdkafka, `make test`).
- A distributed Kafka Connect worker runs a file source (exactly once) and a file sink while a broker and the worker
  are killed (`tests/conformance/test_java_connect.py`).
- Each client's conversations are also compared with Apache Kafka {peer}, request by request:
  [differences](differences.md). How long joins take: [performance](performance.md#joining-a-group).

Clients of Kafka 0.8 to 0.10 are tried as well (`tests/conformance/test_old_clients.py`): kafka-python with
`api_version` 0.8.1 to 0.10.2, librdkafka with `broker.version.fallback` 0.8.2 to 0.10.0, sarama with `Config.Version`
0.8.2 to 0.10.2. [What they get](apis.md#clients-of-kafka-08-to-010).

Not tried: every client not named on this page, among them those for .NET, Rust and Ruby that do not wrap librdkafka,
ksqlDB and MirrorMaker.

`group.protocol=consumer` and share groups are tried with Java 4.4, librdkafka and franz-go: their members share one
group of each kind, leave and join, beside an application of Kafka Streams with `group.protocol=streams`, while brokers
are killed (`make test SUITE=outside`).

A running group changes from `classic` to `consumer` and back member by member (`tests/chaos/test_group_upgrade.py`). As
in Kafka, a classic group whose assignments carry user data is not converted: members that join with the other protocol
get GROUP_ID_NOT_FOUND (`cooperative-sticky` of Java and librdkafka; `range` works).

Authentication over TLS is tried with librdkafka, aiokafka, kafka-python, Java, franz-go, sarama and KafkaJS
(`tests/conformance/test_client_logins.py`): PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER and client certificates;
with a wrong password, an expired token and an expired certificate each is refused, which the audit shows.

Transactions are tried with Kafka Streams and, by `tests/chaos/test_transaction_chains.py`, with librdkafka, aiokafka,
Java, franz-go, sarama and KafkaJS: each consumes, transforms and produces while brokers and Redis are killed, and its
output is its input, once. aiokafka, sarama and KafkaJS commit offsets without the member's generation (KIP-447): as
with Apache Kafka, nothing fences a member that loses a partition in the middle of a transaction.

Tried by hand, as it is not on PyPI: Karapace 6.2.0, two instances with Avro schemas in a compacted `_schemas`. While a
broker was killed and the topic compacted, no schema or id was lost.

A consumer of librdkafka 2.16 can lock itself up, with any broker, when the leader of a partition is killed, and reads
no more until its process starts again (librdkafka issue 5476).

The libraries' own tests against brokers:

| Tests of | Pass | The others |
|---|---|---|
| franz-go `kgo` | 115 of 115 | |
| aiokafka 0.14.0 | 416 of 417 | expects a broker with id 0 |
| kafka-python 3.0.11 | 50 of 52 | expect an authorizer, and `advertised.listeners` set |
| sarama 1.61.1, `functional`, behind toxiproxy | 63 of 66 | see below |
| kafka-go 0.4.51 | 156 of 158 | see below |
| KafkaJS 2.2.4, with SASL_SSL and access control | 1,223 of 1,243 | see below |
| kcat 1.7.1 | 4 of 4 | |

The first three without SASL and TLS, with `internal_topics_interval_ms=1000` and `group_min_session_timeout_ms=1000`.

- sarama: one test reads from a follower, one reassigns to two replicas, one sets a broker's `log.cleaner.backoff.ms`.
  Four more need containers with Java clients.
- kafka-go: one finds a deleted topic again, which its Metadata request has created; one waits 30 s for records that the
  group's other reader has.
- KafkaJS: seven need replicas, or leaders on certain brokers; five join with a rebalance timeout of 0, after which
  Kafka 4.4 does not know the member either; five expect Kafka 2.4; three depend on the machine.

## Kafka Streams

With `group.protocol=streams` (KIP-1071) the brokers assign the tasks: any broker serves any thread, and the views of
groups, lag and members show streams groups as they do others. Tried with `exactly_once_v2`.

- Repartition and changelog topics are created at the first join, with CREATE on the topic or the cluster; otherwise the
  group is `NotReady`, and the status of each heartbeat names what is missing.
- `streams.num.standby.replicas` of the group, 0 to 2, is the number of standby tasks, on other processes;
  `num.standby.replicas` of the application is not used. `streams.session.timeout.ms` and
  `streams.heartbeat.interval.ms` of the group are its times.
- The topology can change once all members have left, as can `group.protocol`, between `classic` and `streams`.
- Not supported: sources by pattern and warm-up tasks (Kafka has neither), sources of format `record`.
""".replace("{kafka}", KAFKA_VERSION)
