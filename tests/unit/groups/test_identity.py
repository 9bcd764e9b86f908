"""Slugs: what a group is called in its resource locator."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.groups.identity import SLUG_LENGTH_MAX, candidate, locator, sanitize, slug
from tidegate.store.keys import GroupKeys

SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SLUGS = st.from_regex(r"[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,5}", fullmatch=True)
GROUP_IDS = st.text(st.characters(exclude_categories=[])) | SLUGS | st.text("aA-_. 9é", max_size=80)


@pytest.mark.parametrize(
    ("text", "sanitized"),
    [
        ("order-processor", "order-processor"),
        ("Order Processor", "order-processor"),
        ("team.orders_v2", "team-orders-v2"),
        ("--orders--!!", "orders"),
        ("Größe", "grosse"),
        ("Café №9", "cafe-no9"),
        ("заказы", ""),
        ("", ""),
        ("a" * 62 + " b", "a" * 62),
    ],
)
def test_sanitizing_keeps_letters_digits_and_single_hyphens(text: str, sanitized: str) -> None:
    assert sanitize(text) == sanitized


def test_group_id_that_is_a_slug_is_its_own() -> None:
    assert locator("default", "order-processor") == "default/consumer-groups/order-processor"


def test_group_ids_that_sanitize_alike_keep_locators_of_their_own() -> None:
    alike = ["orders", "Orders", "orders!", " orders", "órders"]

    slugs = [slug(group_id) for group_id in alike]

    assert slugs[0] == "orders"
    assert all(re.fullmatch(r"orders-[0-9a-f]{8}", other) for other in slugs[1:])
    assert len(set(slugs)) == len(alike)


def test_group_id_without_a_letter_that_can_stay_is_its_digest() -> None:
    assert re.fullmatch(r"[0-9a-f]{8}", slug("заказы"))
    assert slug("заказы") != slug("!!!")
    assert SLUG.fullmatch(slug(""))


@given(GROUP_IDS)
def test_slug_is_words_joined_by_hyphens_and_its_own_slug(group_id: str) -> None:
    made = slug(group_id)

    assert SLUG.fullmatch(made)
    assert len(made) <= SLUG_LENGTH_MAX
    assert slug(made) == made


@given(st.lists(GROUP_IDS, min_size=2, max_size=20, unique=True))
def test_different_groups_have_different_slugs(group_ids: list[str]) -> None:
    assert len({slug(group_id) for group_id in group_ids}) == len(group_ids)


@given(SLUGS)
def test_slug_stays_as_it_is(group_id: str) -> None:
    assert slug(group_id) == group_id == sanitize(group_id)


def test_candidate_is_an_id_and_the_locator() -> None:
    assigned, _, rest = candidate(GroupKeys.of("tidegate", 50, "acme", "orders")).partition(" ")

    assert re.fullmatch(r"cgp_[0-9a-hjkmnp-tv-z]{26}", assigned)
    assert rest == "acme/consumer-groups/orders"
