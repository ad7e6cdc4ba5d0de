"""Checks of whole numbers, and tables and durations as they are shown."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.core.tables import duration, markdown_table, text_table
from nearfar.errors import UserError, check_whole

CELLS = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="|"), min_size=1, max_size=9)


@given(value=st.integers(-5, 15), low=st.integers(0, 5), high=st.integers(6, 10) | st.none())
def test_whole_numbers_pass_exactly_within_their_range(value: int, low: int, high: int | None) -> None:
    if low <= value <= (np.inf if high is None else high):
        check_whole("k", value, low, high)
        check_whole("k", np.int64(value), low, high)
    else:
        with pytest.raises(UserError, match=f"^k was {value}; expected a whole number from {low}"):
            check_whole("k", value, low, high)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(
        UserError, match=re.escape(f"k was {value!r}; expected a whole number from 0 to 1,000")
    ):
        check_whole("k", value, 0, 1000)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5))
def test_tables_hold_their_cells(rows: list[tuple[str, str, str]]) -> None:
    lines = markdown_table(rows)
    assert lines.pop(1) == "|---|---|---|"
    assert [tuple(line.strip("| ").split(" | ")) for line in lines] == rows
    for numbers in (False, True):
        assert [tuple(line.split()) for line in text_table(rows, numbers=numbers)] == rows


def test_durations_have_the_unit_people_use() -> None:
    assert [duration(s) for s in (0, 89, 90, 750, 5400, 36000)] == [
        "0 s", "89 s", "1.5 min", "12.5 min", "1.5 h", "10.0 h",
    ]  # fmt: skip
