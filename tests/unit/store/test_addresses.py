"""Every form of `redis_url`, and what is said of those that are none."""

from __future__ import annotations

import pytest

from tidegate.store.addresses import parse_redis_url, without_password


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_one_server(scheme: str) -> None:
    found = parse_redis_url(f"{scheme}://tide:p%40ss@redis.example:6380/3")

    assert (found.kind, found.hosts, found.database, found.tls) == ("standalone", (("redis.example", 6380),), 3, False)
    assert (found.username, found.password) == ("tide", "p@ss")


def test_sentinels_and_their_service() -> None:
    found = parse_redis_url("redis+sentinel://:secret@a:1,[::1]:2,c/orders-main/4")

    assert (found.kind, found.service, found.database) == ("sentinel", "orders-main", 4)
    assert found.hosts == (("a", 1), ("::1", 2), ("c", 26379))
    assert (found.username, found.password) == (None, "secret")


def test_nodes_of_a_cluster() -> None:
    found = parse_redis_url("redis+cluster://a:7000,b:7001")

    assert (found.kind, found.hosts) == ("cluster", (("a", 7000), ("b", 7001)))


@pytest.mark.parametrize("url", ["rediss://h", "valkeys://h", "rediss+sentinel://h/main", "rediss+cluster://h"])
def test_second_s_is_for_tls(url: str) -> None:
    assert parse_redis_url(url).tls


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "not a Redis address"),
        ("redis://", "not a Redis address"),
        ("redis+proxy://h", "not a Redis address"),
        ("redis://h:port", "not a Redis address"),
        ("redis://h:0", "not a Redis address"),
        ("redis://h/first", "h/first has no Redis database number"),
        ("redis://h/1/2", "h/1/2 has no Redis database number"),
        ("redis+sentinel://h:1", "names no service"),
        ("redis+cluster://h:1/1", "database 0 only"),
        ("redis://h?ssl_ca_certs=f", "unknown parameters"),
        ("rediss://h?ssl_cert_reqs=none", "unknown parameters"),
    ],
)
def test_invalid_address_is_reported_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as reported:
        parse_redis_url(url.replace("://h", "://u:hidden@h"))

    assert "hidden" not in str(reported.value)


@pytest.mark.parametrize("password", ["one/two", "one?two=x", "one#two", "/two", "one/two/0?two=x"])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel"])
def test_password_that_is_not_encoded_is_never_reported(scheme: str, password: str) -> None:
    with pytest.raises(ValueError, match=r"\*\*\*@h") as reported:
        parse_redis_url(f"{scheme}://u:{password}@h:6379/service/0")

    assert "one" not in str(reported.value) and "two" not in str(reported.value)


def test_address_is_shown_without_its_password() -> None:
    assert without_password("redis://u:p@a:1,b:2/main") == "redis://u:***@a:1,b:2/main"
    assert without_password("redis://:p@a") == "redis://:***@a"
    assert without_password("redis://u@a") == "redis://u@a"
    assert without_password("redis://a/0") == "redis://a/0"
