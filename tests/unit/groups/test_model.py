"""Requests of classic groups as values."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidegate.groups.directory import metadata_of
from tidegate.groups.model import GroupState, JoinRequest, pack_protocols

REQUEST = JoinRequest("", None, "client", "/127.0.0.1", 10_000, 20_000, "consumer", (("range", b"m"),))


@given(st.dictionaries(st.text(max_size=40), st.binary(max_size=80), max_size=5))
def test_every_protocols_metadata_is_found_again(offered: dict[str, bytes]) -> None:
    packed = pack_protocols(tuple(offered.items()))

    assert {name: metadata_of(packed, name) for name in offered} == offered
    assert metadata_of(packed, "x" * 41) == b""


def test_order_distinguishes_packed_lists() -> None:
    assert pack_protocols((("a", b""), ("b", b""))) != pack_protocols((("b", b""), ("a", b"")))


def test_member_id_starts_with_the_client_or_instance() -> None:
    assert REQUEST.candidate_id.startswith("client-")
    assert replace(REQUEST, instance_id="s1").candidate_id == f"s1-{REQUEST.suffix}"
    assert replace(REQUEST, client_id="").candidate_id.startswith("-")
    assert replace(REQUEST, client_id="x" * 32_000).candidate_id == f"{'x' * 255}-{REQUEST.suffix}"


def test_join_entered_again_is_the_same_but_for_its_token_and_arrival() -> None:
    again = REQUEST.again("m-1")

    assert again.token != REQUEST.token
    assert again.arrived_s > REQUEST.arrived_s
    assert replace(again, member_id="", token=REQUEST.token, arrived_s=REQUEST.arrived_s) == REQUEST


def test_states_have_the_names_of_the_protocol() -> None:
    assert [state.value for state in GroupState] == ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"]
