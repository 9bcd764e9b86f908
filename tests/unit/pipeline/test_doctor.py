"""What the doctor makes of what the driver and the executors saw."""

from __future__ import annotations

from typing import Any

from tidegate_pipeline.doctor.examination import lines
from tidegate_pipeline.doctor.findings import Check, CheckStatus, compared, of_redis


def observed(host: str = "a", **other: Any) -> dict[str, Any]:
    """A process where all is well."""
    packages = {"pyspark": "4.3.0", "pyarrow": "21.0.0"}
    return {"host": host, "python": "3.11.7", "tidegate": "0.1.0", "packages": packages, "errors": {}} | other


def found(*findings: Check) -> dict[str, tuple[CheckStatus, str]]:
    return {one.what: (one.severity, one.reported) for one in findings}


def test_equal_machines_are_well() -> None:
    reported = found(
        *compared(observed(clock_skew_ms=3), [observed("b", clock_skew_ms=-7), observed("c", python="3.11.9")], 2)
    )

    assert {severity for severity, _ in reported.values()} == {CheckStatus.OK}
    assert reported["executors"][1] == "2: b, c"
    assert reported["clocks"][1] == "at most 7 ms from Redis's"


def test_printed_checks_show_no_keys_and_move_no_cursor() -> None:
    (line, _) = lines([Check(CheckStatus.OK, "archive", "s3://AKIA:se/cret@bucket/a\x1b[2J can be written")])

    assert line.endswith("s3://***@bucket/a\\x1b[2J can be written")


def test_each_difference_is_named() -> None:
    executors = [
        observed(
            "b", python="3.12.1", packages={"pyspark": "4.3.0", "pyarrow": "20.0.0"}, errors={"redis": "no route"}
        ),
        observed("c", tidegate="0.0.9", clock_skew_ms=1_500, errors={"redis": "no route", "archive": "read-only"}),
        {"host": "d", "python": "3.11.7", "errors": {"import": "No module named 'pipeline'"}},
    ]
    findings = list(compared(observed(), executors, 4))
    wrong = [(one.what, one.reported) for one in findings if one.severity is CheckStatus.ERROR]

    assert wrong == [
        ("Python", "3.11.7 on the driver, 3.12.1 on executors"),
        ("tidegate", "cannot be imported on d: No module named 'pipeline'"),
        ("tidegate", "0.1.0 on the driver, 0.0.9 on executors"),
        ("packages", "pyarrow 20.0.0 and 21.0.0"),
        ("redis", "executors on b, c: no route"),
        ("archive", "executors on c: read-only"),
    ]
    warnings = {one.what: one.reported for one in findings if one.severity is CheckStatus.WARNING}
    assert warnings == {"executors": "3 of 4 were reached", "clocks": "at most 1500 ms from Redis's"}
    assert list(lines(findings))[-1] == "errors: 6, warnings: 2"


def test_optional_package_may_be_missing() -> None:
    driver = observed(packages={"pyspark": "4.3.0", "numba": "0.62.0"})

    assert found(*compared(driver, [observed(packages={"pyspark": "4.3.0"})], 1))["packages"] == (
        CheckStatus.WARNING,
        "numba 0.62.0 and missing",
    )


def test_server_that_may_lose_records() -> None:
    facts = {"redis_version": "7.2.4", "maxmemory_policy": "allkeys-lru", "maxmemory": "0", "aof_enabled": "0"}
    reported = found(*of_redis(facts, "redis://r:6379/0"))
    assert reported["redis"] == (CheckStatus.OK, "Redis 7.2.4 at redis://r:6379/0")
    assert reported["eviction"][0] is CheckStatus.ERROR
    assert (reported["memory"][0], reported["persistence"][0]) == (CheckStatus.WARNING, CheckStatus.WARNING)

    good = {"valkey_version": "8.1", "maxmemory_policy": "noeviction", "maxmemory": "1024", "aof_enabled": "1"}
    assert found(*of_redis(good, "x")) == {"redis": (CheckStatus.OK, "Valkey 8.1 at x")}
