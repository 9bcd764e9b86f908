"""`tidegate round-trip`: what it says where a cluster works, and where it does not."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bench.cluster import Cluster
from tidegate.cli.commands import round_trip
from tidegate.cli.failures import DONE, FAILED
from tidegate.command_line import command_line


async def typed(*words: str) -> Result:
    """Run the command."""
    return await asyncio.to_thread(CliRunner().invoke, command_line, ["round-trip", *words])


async def test_produced_record_is_consumed(cluster: Cluster) -> None:
    offsets = []
    for _ in range(2):
        done = await typed("--bootstrap", cluster.bootstrap, "-o", "json")
        assert done.exit_code == DONE, done.output
        reported = {row["step"]: row["result"] for row in json.loads(done.stdout)}
        assert list(reported) == ["topic", "produced", "consumed", "committed", "deleted"]
        assert reported["consumed"] == "the same 16 bytes"
        offsets.append(int(reported["produced"].removeprefix("offset ")))
    assert (
        f"at {cluster.bootstrap}, about to change: topic {round_trip.TOPIC} is created unless it exists" in done.stderr
    )
    groups = await asyncio.to_thread(
        CliRunner().invoke, command_line, ["group", "list", "--bootstrap", cluster.bootstrap]
    )

    assert offsets[1] == offsets[0] + 1
    assert reported["topic"] == f"{round_trip.TOPIC}, exists"
    assert round_trip.TOPIC not in groups.output


async def test_missing_cluster_fails_in_one_line(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    produce = round_trip._produce

    async def of_something_else(kafka: Any, topic: str, value: bytes) -> int:
        return await produce(kafka, topic, b"something else")

    monkeypatch.setattr(round_trip, "_produce", of_something_else)
    monkeypatch.setattr(round_trip, "_TIMEOUT", timedelta(seconds=1))
    lost = await typed("--bootstrap", cluster.bootstrap, "--topic", "lost")
    nobody = await typed("--bootstrap", "127.0.0.1:1")

    assert (nobody.exit_code, lost.exit_code) == (FAILED, FAILED)
    assert nobody.output == "tidegate: no broker answers at 127.0.0.1:1: Connection refused\n"
    assert lost.output.splitlines()[1:] == ["tidegate: lost 0: offset 0 was acknowledged and is not read in 1 s"]
