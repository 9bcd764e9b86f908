"""Which header a version has, and API keys read back from a header's first bytes."""

from __future__ import annotations

import struct

import pytest

from tests.support.versions import VERSIONS
from tidegate.protocol import headers


@pytest.mark.parametrize(("api_key", "version"), [(12, 4), (0, 13), (9999, 0), (-1, -1), (18, -5), (32767, 32767)])
def test_route_key_is_the_headers_first_four_bytes(api_key: int, version: int) -> None:
    (found,) = struct.unpack(">I", struct.pack(">hh", api_key, version))
    assert found == headers.route_key(api_key, version)
    assert headers.api_and_version(found) == (api_key, version)


def test_api_versions_is_always_answered_with_the_plain_header() -> None:
    for version in range(5):
        assert headers.answer_header(18, version) is headers.ANSWER
    assert headers.request_has_tags(18, 3)
    assert not headers.request_has_tags(18, 2)


def test_other_apis_have_tags_in_both_headers_from_the_same_version_on() -> None:
    for api_key, (first, last) in VERSIONS.items():
        for version in range(first, last + 1):
            tagged = headers.answer_header(api_key, version) is headers.ANSWER_TAGS
            assert api_key == 18 or tagged == headers.request_has_tags(api_key, version)
