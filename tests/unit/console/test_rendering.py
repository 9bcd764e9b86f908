"""How the console writes values."""

from __future__ import annotations

import pytest

from tidegate.http.console.rendering import commands, number, rendered, size, sparkline, url, when, with_times, words

ANONYMOUS = {"who": "anonymous", "csrf": "", "operator": False, "operators": False, "notice": "", "bound": False}
NASTY = "<script>alert('x')</script>&\"/../%2e%2e?#`"


def test_numbers_are_grouped_and_what_is_not_known_is_a_dash() -> None:
    assert number(1234567) == "1,234,567"
    assert number(None) == size(None) == when(None) == "\N{EN DASH}"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1_000, "1,000 B"), (1_536, "1.5 KiB"), (123_456_789, "118 MiB"), (9 << 40, "9.0 TiB")],
)
def test_sizes_are_shown_in_their_unit(count: int, text: str) -> None:
    assert size(count) == text


def test_timestamp_contains_the_time_for_the_readers_zone() -> None:
    assert when(1_700_000_000_123) == (
        '<time datetime="2023-11-14T22:13:20.123Z" title="2023-11-14 22:13:20 UTC">22:13:20 UTC</time>'
    )


def test_commands_are_marked_and_everything_is_escaped() -> None:
    assert commands("`a <b>` removes <it>") == "<code>a &lt;b&gt;</code> removes &lt;it&gt;"


def test_states_may_be_broken_between_words() -> None:
    assert words("PreparingRebalance<") == "Preparing<wbr>Rebalance&lt;"


def test_names_are_encoded_whole_in_the_query() -> None:
    address = url("group", group=NASTY, org="")

    assert address.startswith("/console/group?group=%3Cscript%3E") and "org" not in address
    assert not set("<>\"'#`") & set(address)


def test_line_of_one_point_is_none() -> None:
    assert sparkline([3]) == ""
    assert 'points="0.0,20.0 48.0,11.0 96.0,2.0"' in sparkline([0, 5, 10])


def test_times_in_a_sentence_are_moments_near_now() -> None:
    past_midnight_ms = 1_700_006_400_000 + 60_000  # 2023-11-15 00:01:00

    text = with_times(
        "it began at 23:59:30 UTC, the session ends at 00:02:00 UTC; made 2023-11-01 10:00:00 UTC", past_midnight_ms
    )

    assert 'datetime="2023-11-14T23:59:30.000Z"' in text and 'datetime="2023-11-15T00:02:00.000Z"' in text
    assert text.endswith("made 2023-11-01 10:00:00 UTC")


async def test_values_of_a_page_are_escaped() -> None:
    text = await rendered(
        "error.html", title=NASTY, sentence=NASTY, advice=NASTY, retry=False, here=NASTY, again=NASTY, org="default",
        orgs=["default"], path="/console/", version="1", node_id=1, **ANONYMOUS,
    )  # fmt: skip

    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
