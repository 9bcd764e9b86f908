"""`tidegate group ...` as it is typed, on three real brokers with real consumers."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner
from yarl import URL

from bench.cluster import Cluster
from tests.kit.forked_cluster import ForkedCluster
from tests.kit.member import Member
from tests.kit.wire import RawClient
from tidegate.cli.client.group_guard import Guard
from tidegate.cli.client.group_requests import Place
from tidegate.command_line import command_line
from tidegate.telemetry.visible import CONTROLS

RECORDS = 40
PARTITIONS = 2
STAYS_LISTED = {"TIDEGATE_BROKER_LEASE_TIMEOUT_MS": "60000"}


@dataclass
class Shell:
    """A terminal that is none, with a topic of 40 records and the id of a group to be, which needs quoting."""

    cluster: Cluster
    topic: str
    group: str

    async def type(self, *words: str, code: int = 0, answer: str | None = None) -> str:
        """Run `tidegate group WORDS`; what it prints, errors included."""
        places = ["--bootstrap", self.cluster.bootstrap]
        admin = ["--admin", f"http://127.0.0.1:{self.cluster.brokers[2].admin_port}"]
        if words[0] in ("show", "members", "history", "explain"):
            places = admin
        elif words[0] in ("list", "lag"):
            places += admin
        done = await asyncio.to_thread(CliRunner().invoke, command_line, ["group", *words, *places], input=answer)
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    async def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(await self.type(*words, "-o", "json", code=code))

    @asynccontextmanager
    async def consuming(self, **traits: Any) -> AsyncIterator[AIOKafkaConsumer]:
        """One consumer of the group that has read everything and committed it."""
        values = {
            "client_id": "billing-1",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
        }
        consumer = AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.cluster.bootstrap, group_id=self.group, **(values | traits)
        )
        async with consumer:
            for _ in range(RECORDS):
                await asyncio.wait_for(consumer.getone(), 60)
            await consumer.commit()
            yield consumer

    async def committed(self) -> dict[int, int | None]:
        return {row["partition"]: row["committed"] for row in await self.json("lag", self.group)}


@pytest.fixture
async def shell(cluster: Cluster) -> Shell:
    return await _shell(cluster)


async def _shell(cluster: Cluster) -> Shell:
    name = uuid.uuid4().hex[:8]
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    kept = {"retention.ms": "-1"}  # the records are of 1970
    await admin.create_topics([NewTopic(f"orders-{name}", PARTITIONS, 1, topic_configs=kept)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(RECORDS):
            await producer.send(
                f"orders-{name}", b"x", partition=number % PARTITIONS, timestamp_ms=1_000 * (number + 1)
            )
    return Shell(cluster, f"orders-{name}", f"bill/ing % {{{name}}}")


# -- looking


async def test_list_shows_every_group_worst_first(shell: Shell) -> None:
    async with shell.consuming():
        row = next(row for row in await shell.json("list") if row["group"] == shell.group)
        assert (row["state"], row["type"], row["members"], row["generation"], row["lag"]) == (
            "Stable",
            "classic",
            1,
            1,
            0,
        )
        assert row["trouble"] == ""

    table = await shell.type("list")
    assert re.search(r"^GROUP +STATE +TYPE +MEMBERS +GENERATION +LAG", table)
    assert "\x1b" not in table and re.search(
        rf"^{re.escape(shell.group)} +Empty +classic +0 +2 +0", table, re.MULTILINE
    )


async def test_show_describes_a_group(shell: Shell) -> None:
    async with shell.consuming(group_instance_id="pod-0"):
        shown = await shell.type("show", shell.group)
        facts = await shell.json("show", shell.group)

    assert re.search(r"^id +cgp_[0-9a-z]{26}$", shown, re.MULTILINE)
    assert re.search(r"^locator +default/consumer-groups/bill-ing", shown, re.MULTILINE)
    assert re.search(r"^members +1: 1 static, 0 dynamic$", shown, re.MULTILINE)
    assert re.search(r"^last rebalance .*static member pod-0 \(billing-1 at 127.0.0.1\) joined", shown, re.MULTILINE)
    assert (facts["generation"], facts["subscribed"], facts["static_members"]) == (1, [shell.topic], 1)
    assert facts["last_rebalance"]["cause"] == "member_joined"


async def test_members_lists_owners_of_partitions(shell: Shell) -> None:
    async with shell.consuming():
        (member,) = await shell.json("members", shell.group)
        table = await shell.type("members", shell.group)

    assert member["owned"] == {shell.topic: [0, 1]} and member["phase"] == "synced" and member["leads"]
    assert 0 <= member["last_contact_age_ms"] < 10_000 and member["session_timeout_ms"] == 10_000
    assert f"{shell.topic}:0-1" in table


async def test_lag_is_of_each_partition(shell: Shell) -> None:
    async with shell.consuming() as consumer:
        await consumer.commit({TopicPartition(shell.topic, 1): 5})
        rows = list(csv.DictReader(io.StringIO(await shell.type("lag", shell.group, "-o", "csv"))))

    assert [(row["partition"], row["committed"], row["end"], row["lag"]) for row in rows] == [
        ("0", "20", "20", "0"),
        ("1", "5", "20", "15"),
    ]
    assert {row["client_id"] for row in rows} == {"billing-1"}
    assert all(int(row["commit_age_ms"]) >= 0 for row in rows)


async def test_history_lists_causes_newest_first(shell: Shell) -> None:
    async with shell.consuming():
        pass
    async with _joined(shell):
        reported = await shell.json("history", shell.group)
        events = await shell.json("history", shell.group, "--events", "-n", "3")

    assert [one["cause"] for one in reported] == ["member_joined", "member_left", "member_joined"]
    assert reported[0]["sentence"] == "billing-2 at 127.0.0.1 joined"
    assert [one["outcome"] for one in reported] == ["stable", "emptied", "stable"]
    assert [one["kind"] for one in events] == ["stable", "assignment_stored", "barrier_joined"]
    assert "left by itself" in await shell.type("history", shell.group)


@asynccontextmanager
async def _joined(shell: Shell) -> AsyncIterator[None]:
    """A second consumer, which finds nothing left to read."""
    async with AIOKafkaConsumer(
        shell.topic, bootstrap_servers=shell.cluster.bootstrap, group_id=shell.group, client_id="billing-2"
    ):
        yield


async def test_explain_ends_with_1_where_something_is_wrong(shell: Shell) -> None:
    async with shell.consuming() as consumer:
        assert "Nothing is wrong." in await shell.type("explain", shell.group)
        await consumer.commit({TopicPartition(shell.topic, 1): 5})

    text = await shell.type("explain", shell.group)
    assert "15 records wait." in text and "the last member that left: billing-1 at 127.0.0.1 left by itself" in text, (
        text
    )
    assert "Nothing is wrong." in text, "who closed its consumer knows that nobody reads"

    own_commits = {"group_id": shell.group, "enable_auto_commit": False}  # else closing it commits where it stands
    async with AIOKafkaConsumer(bootstrap_servers=shell.cluster.bootstrap, **own_commits) as reader:
        reader.assign([TopicPartition(shell.topic, 1)])
        await reader.commit({TopicPartition(shell.topic, 1): 5_000})
    assert "beyond the log's end" in await shell.type("explain", shell.group, code=1)
    assert (await shell.json("explain", shell.group, code=1))["findings"][0]["kind"] == "beyond_end"
    assert f"{shell.group},beyond_end,trouble," in await shell.type("explain", shell.group, "-o", "csv", code=1)
    assert f"Group {shell.group} is Empty" in await shell.type("explain", code=1)


@pytest.mark.parametrize(
    "words",
    [["show"], ["members"], ["lag"], ["history"], ["explain"], ["evict", "m-1"], ["delete", "-y"]],
    ids=lambda words: words[0],
)
async def test_group_that_does_not_exist(shell: Shell, words: list[str]) -> None:
    text = await shell.type(words[0], "nobody", *words[1:], code=2)
    assert text.endswith("tidegate: there is no group nobody\n")


@pytest.mark.parametrize(
    "words", [("list", "--bootstrap"), ("show", "g", "--admin"), ("delete", "g", "-y", "--bootstrap")]
)
async def test_unreachable_address_is_one_line(words: tuple[str, ...]) -> None:
    done = await asyncio.to_thread(CliRunner().invoke, command_line, ["group", *words, "127.0.0.1:1"])

    assert done.exit_code == 2
    assert re.fullmatch(
        r"tidegate: no (broker|admin HTTP) answers at [^\n]*127\.0\.0\.1:1: Connection refused( \(--admin\))?\n",
        done.output,
    )


async def test_any_admin_http_that_answers_will_do(shell: Shell) -> None:
    admin = f"127.0.0.1:1,127.0.0.1:{shell.cluster.brokers[1].admin_port}"
    done = await asyncio.to_thread(CliRunner().invoke, command_line, ["group", "show", "nobody", "--admin", admin])

    assert (done.exit_code, done.output) == (2, "tidegate: there is no group nobody\n")


async def test_brokers_that_died_are_named_and_the_others_asked() -> None:
    with ForkedCluster(brokers=3, settings=STAYS_LISTED) as cluster:
        shell = await _shell(cluster)
        async with shell.consuming():
            pass
        for broker in cluster.brokers[:2]:
            broker.kill()
        reported = await shell.type("list")
        rows = await shell.json("lag", shell.group)

    for broker in cluster.brokers[:2]:
        why = f"no broker answers at {broker.address}: Connection refused"
        assert re.search(rf"^tidegate: groups of broker \d may be missing: {why}$", reported, re.MULTILINE)
    assert reported.count("may be missing") == 2 and "GROUP " in reported
    assert [(row["committed"], row["end"], row["lag"]) for row in rows] == [(20, 20, 0), (20, 20, 0)]


async def test_invalid_address_is_refused() -> None:
    done = await asyncio.to_thread(
        CliRunner().invoke, command_line, ["group", "list", "--bootstrap", "127.0.0.1:70000"]
    )

    assert (done.exit_code, done.output) == (2, "tidegate: not an address: '127.0.0.1:70000' (host:port)\n")


async def test_other_protocol_is_one_line() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\0\0\0\x0e\0\0\0\1 babble ...")
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        done = await asyncio.to_thread(CliRunner().invoke, command_line, ["group", "list", "--bootstrap", address])

    assert (done.exit_code, done.output) == (2, f"tidegate: {address} answered, but not in the Kafka protocol\n")


# -- changing


async def test_reset_plans_only_without_execute(shell: Shell) -> None:
    async with shell.consuming():
        pass
    text = await shell.type("reset", shell.group, "--all-topics", "--to-earliest")

    assert "dry run, nothing is changed; --execute applies it" in text
    assert await shell.committed() == {0: 20, 1: 20}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-offset", "7"], {0: 7, 1: 7}),
        (["--to-offset", "99"], {0: 20, 1: 20}),
        (["--shift-by", "-3"], {0: 17, 1: 17}),
        (["--to-datetime", "1970-01-01T00:00:11"], {0: 5, 1: 5}),
        (["--by-duration", "P7D"], {0: 20, 1: 20}),
        (["--to-current"], {0: 20, 1: 20}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_ways_to_choose(shell: Shell, tmp_path: Path, words: list[str], expected: dict[int, int]) -> None:
    async with shell.consuming():
        pass
    await shell.type("reset", shell.group, "--all-topics", *words, "--execute", "--undo", str(tmp_path / "undo"))

    assert await shell.committed() == expected


async def test_reset_is_recorded_and_undone(shell: Shell, tmp_path: Path) -> None:
    async with shell.consuming():
        pass
    undo = tmp_path / "undo.csv"
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{shell.topic},0,3\n{shell.topic},1,-\n")
    text = await shell.type("reset", shell.group, "--from-file", str(plan), "--execute", "--undo", str(undo))

    assert await shell.committed() == {0: 3}
    events = await shell.json("history", shell.group, "--events", "-n", "2")
    assert {event["kind"]: event["detail"] for event in events} == {
        "offsets_reset": f"{shell.topic}:0 20 3",
        "offsets_deleted": f"{shell.topic}:1",
    }
    assert events[1]["client_id"].startswith("tidegate-group@")
    assert f"--from-file {undo} --execute" in text

    await shell.type("reset", shell.group, "--from-file", str(undo), "--execute", "--undo", str(tmp_path / "again"))
    assert await shell.committed() == {0: 20, 1: 20}


async def test_undo_is_never_written_over(shell: Shell, tmp_path: Path) -> None:
    async with shell.consuming():
        pass
    (tmp_path / "undo").write_text("precious")
    words = ["reset", shell.group, "--all-topics", "--to-earliest", "--execute", "--undo", str(tmp_path / "undo")]

    assert "nothing was changed" in await shell.type(*words, code=2)
    assert await shell.committed() == {0: 20, 1: 20}


async def test_members_block_a_reset_and_are_named(shell: Shell) -> None:
    async with shell.consuming():
        words = ["reset", shell.group, "--all-topics", "--to-earliest"]
        assert "this would be refused" in await shell.type(*words)
        text = await shell.type(*words, "--execute", code=1)

        assert re.search(r"^  billing-1-[0-9a-f-]{36} \(billing-1 at 127.0.0.1\)$", text, re.MULTILINE)
        assert "--fence" in text
        assert await shell.committed() == {0: 20, 1: 20}


GUARD = "tidegate-group@"
"""Begins the client id of `tidegate group`, which joins as the guard."""


@pytest.mark.parametrize("auto_commit", [False, True], ids=["commits by hand", "commits by itself"])
async def test_reset_fenced_members_continue_from_the_new_offsets(
    shell: Shell, tmp_path: Path, auto_commit: bool
) -> None:
    async with shell.consuming(enable_auto_commit=auto_commit, auto_commit_interval_ms=100) as consumer:
        words = ["reset", shell.group, "--topic", shell.topic, "--shift-by", "-5", "--fence", "--execute"]
        typed = asyncio.create_task(shell.type(*words, "--undo", str(tmp_path / "undo")))
        again = [await asyncio.wait_for(consumer.getone(), 30) for _ in range(10)]
        text = await typed

    assert sorted((record.partition, record.offset) for record in again) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(15, 20)
    ]
    assert "2 of 2 partitions moved" in text and "removed billing-1 at 127.0.0.1" in text
    events = await shell.json("history", shell.group, "--events", "-n", "1000")  # members may join again several times
    in_order = [(event["kind"], event["client_id"]) for event in reversed(events)]
    resets = [place for place, (kind, _) in enumerate(in_order) if kind == "offsets_reset"]
    guarded = next(place for place, (kind, who) in enumerate(in_order) if kind == "member_joined" and GUARD in who)
    assert GUARD in in_order[resets[0]][1]
    assert resets[-1] < guarded, "nobody writes over it once the guard has joined; before it, a client may"


async def test_reset_new_member_in_between_guard_joins_first(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence_and_move = Guard.fence_and_move

    async def too_late(guard: Guard, offsets: dict[Place, int], forgotten: Iterable[Place]) -> dict[Place, ErrorCode]:
        await fence_and_move(guard, {}, ())
        return dict.fromkeys(offsets, ErrorCode.unknown_member_id)

    monkeypatch.setattr(Guard, "fence_and_move", too_late)
    async with shell.consuming(enable_auto_commit=True, auto_commit_interval_ms=100) as consumer:
        words = ["reset", shell.group, "--topic", shell.topic, "--shift-by", "-5", "--fence", "--execute"]
        typed = asyncio.create_task(shell.type(*words, "--undo", str(tmp_path / "undo")))
        again = [await asyncio.wait_for(consumer.getone(), 30) for _ in range(10)]
        text = await typed

    assert sorted((record.partition, record.offset) for record in again) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(15, 20)
    ]
    assert "2 of 2 partitions moved" in text and "removed billing-1 at 127.0.0.1" in text


async def test_undo_restores_deleted_commits_of_a_live_group(shell: Shell, tmp_path: Path) -> None:
    plan, undo = tmp_path / "plan", tmp_path / "undo"
    plan.write_text(f"{shell.topic},0,-\n")
    async with shell.consuming() as consumer:
        words = ["reset", shell.group, "--fence", "--execute", "--from-file"]
        typed = asyncio.create_task(shell.type(*words, str(plan), "--undo", str(undo)))
        again = [await asyncio.wait_for(consumer.getone(), 30) for _ in range(20)]
        text = await typed

        assert [(record.partition, record.offset) for record in again] == [(0, offset) for offset in range(20)]
        assert "1 of 1 partition moved" in text and f"--from-file {undo} --execute --fence" in text
        assert await shell.committed() == {0: None, 1: 20}

        await shell.type(*words, str(undo), "--undo", str(tmp_path / "again"))
        assert await shell.committed() == {0: 20, 1: 20}


async def test_reset_of_an_absent_group_reports_that_it_creates_it(shell: Shell) -> None:
    text = await shell.type("reset", "biling", "--topic", shell.topic, "--to-earliest")

    assert "there is no group biling yet" in text


async def test_evict_removes_a_member_and_gives_the_reason(shell: Shell) -> None:
    async with shell.consuming(group_instance_id="pod-0"):
        assert "has no member pod-1; it has pod-0" in await shell.type("evict", shell.group, "pod-1", code=2)
        assert "removed pod-0-" in await shell.type("evict", shell.group, "pod-0", "--reason", "bad host")
        removed = await _event(shell, "member_removed")

    assert (removed["reason"], removed["instance_id"]) == ("bad host", "pod-0")
    assert removed["detail"].startswith("/127.0.0.1 tidegate-group@")


async def _event(shell: Shell, kind: str) -> Any:
    return next(event for event in await shell.json("history", shell.group, "--events") if event["kind"] == kind)


async def test_delete_asks_first(shell: Shell) -> None:
    async with shell.consuming():
        assert "is not empty: billing-1 at 127.0.0.1" in await shell.type("delete", shell.group, "--yes", code=2)
    assert "nothing changed" in await shell.type("delete", shell.group, answer="n\n", code=1)
    await shell.type("show", shell.group)
    assert f"deleted {shell.group}" in await shell.type("delete", shell.group, answer="y\n")
    await shell.type("show", shell.group, code=2)
    assert (await shell.json("history", shell.group, "--events"))[0]["kind"] == "deleted", "its events outlive it"


# -- the admin HTTP


async def test_changes_print_no_control_characters_of_names(shell: Shell) -> None:
    group = f"{shell.group}\x1b[2J\nforged"
    async with await RawClient.connect(shell.cluster.brokers[0].address, client_id="web\x1b[2J\nforged") as client:
        member = Member(client, group, instance_id="one\x1b[2J\nforged", session_timeout_ms=300_000)
        await member.round()
        printed = [
            await shell.type("delete", group, "--yes", code=2),
            await shell.type("evict", group, "nobody", code=2),
            await shell.type("reset", group, "--topic", shell.topic, "--to-earliest", "--execute", "--yes", code=1),
            await shell.type("evict", group, member.member_id),
            await shell.type("delete", group, "--yes"),
        ]
    text = "".join(printed)
    assert r"web\x1b[2J\nforged" in text and r"one\x1b[2J\nforged" in text
    assert not CONTROLS.search(text.replace("\n", ""))
    assert not [line for line in text.splitlines() if line.startswith("forged")]


async def test_group_command_admin_http_answers_for_any_group_of_an_org(shell: Shell) -> None:
    async with shell.consuming():
        for broker in shell.cluster.brokers:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{broker.admin_port}") as http:
                quoted = (
                    shell.group.replace("%", "%25")
                    .replace("/", "%2F")
                    .replace(" ", "%20")
                    .replace("{", "%7B")
                    .replace("}", "%7D")
                )
                answers = []
                for path in (quoted, f"{quoted}?org=other", f"{quoted}/history?count=no"):
                    async with http.get(URL(f"/api/v1/groups/{path}", encoded=True)) as answer:
                        answers.append((answer.status, await answer.text()))

            assert [status for status, _ in answers] == [200, 404, 400]
            assert json.loads(answers[0][1])["group_id"] == shell.group
            assert json.loads(answers[2][1])["detail"].startswith("query.count: ")
            assert json.loads(answers[1][1])["detail"] == f"there is no group {shell.group}"
