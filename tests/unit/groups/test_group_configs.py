"""Values of group configs and of client metrics: what is accepted, and what is refused by name."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.errors import InvalidConfig, InvalidRequest
from tidegate.groups.configs import CONFIGS, DEAD_LETTER_TOPIC, plan
from tidegate.list_configs import VALUE_BYTES_MAX
from tidegate.settings import Settings
from tidegate.telemetry.client_metrics import changes_of, check
from tidegate.topics import dynamic_defaults
from tidegate.topics.configs import Operation


@given(st.sampled_from(sorted(CONFIGS)), st.text(max_size=20))
@example("share.delivery.count.limit", "9" * 5_000)  # more digits than `int` reads
@example("share.delivery.count.limit", "5\x1f")  # `str.strip` strips it, `int` does not
def test_group_config_value_is_accepted_or_refused(name: str, value: str) -> None:
    with suppress(InvalidConfig):
        CONFIGS[name].check(value)
        if CONFIGS[name].is_number:
            assert int(value.strip()) >= 0


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_group_config_accepts_its_default(name: str) -> None:
    if default := CONFIGS[name].default_value(Settings()):
        CONFIGS[name].check(default)


@given(st.text(max_size=20))
@example("9" * 5_000)
@example("60000\x1f")
def test_client_metrics_interval_is_accepted_or_refused(value: str) -> None:
    with suppress(InvalidRequest):
        assert int(check("interval.ms", value)) > 0


def test_config_value_above_the_length_of_a_string_is_refused() -> None:
    long = "a" * (VALUE_BYTES_MAX + 1)
    with pytest.raises(InvalidConfig, match="bytes"):
        plan([(DEAD_LETTER_TOPIC, False, long)])
    stored = {"metrics": long[:-10]}
    with pytest.raises(InvalidConfig, match="bytes"):
        changes_of(stored, [("metrics", Operation.APPEND, "org.apache.kafka.")])
    with pytest.raises(InvalidRequest, match="bytes"):
        dynamic_defaults.changes_of(Settings(), {}, [("log.cleanup.policy", Operation.SET, long)], replace=False)
