"""The space of a sweep: lists, brackets, ranges and seeds; bad input is one sentence."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.errors import UserError
from nearfar.sweeps.space import Range, read_space, space_of, split_commas

pieces = st.recursive(
    st.text("ab01.- ", min_size=1, max_size=4),
    lambda inner: st.builds(
        lambda pair, parts: pair[0] + ",".join(parts) + pair[1],
        st.sampled_from(["()", "[]", "{}"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@given(st.lists(pieces, min_size=1, max_size=5))
def test_commas_inside_brackets_do_not_split(parts: list[str]) -> None:
    assert split_commas(",".join(parts)) == parts


def test_words_are_axes_ranges_seeds_and_settings() -> None:
    space = read_space(
        [
            "temperature=0.1,0.25",
            "selection.lower=0,linear(0,0.9)",
            "optimizer.betas=[0.9,0.95],[0.9,0.999]",
            "lr=1e-4..1e-1:log",
            "batch_size=32..512",
            "epochs=5",
            "probe=knn,linear",
            "seed=0,1,2",
        ]
    )
    assert space.axes == {
        "temperature": (0.1, 0.25),
        "selection.lower": (0, "linear(0,0.9)"),
        "optimizer.betas": ([0.9, 0.95], [0.9, 0.999]),
    }
    assert space.ranges == {
        "lr": Range(1e-4, 0.1, log=True),
        "batch_size": Range(32, 512, integers=True),
    }
    assert space.fixed == {"epochs": 5, "probe": "knn,linear"}
    assert space.seeds == (0, 1, 2)
    assert read_space(["seed=3..5"]).seeds == (3, 4, 5)
    assert len(list(space.points())) == 8


def test_python_lists_are_axes() -> None:
    space = space_of({"temperature": [0.1, 0.5], "lr": "1e-3..1e-1", "epochs": 2, "betas": [[0.9, 0.95]]})
    assert space.axes == {"temperature": (0.1, 0.5)}
    assert space.ranges == {"lr": Range(1e-3, 0.1)}
    assert space.fixed == {"epochs": 2, "betas": [0.9, 0.95]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["temperature"], "'temperature' is not a setting"),
        (["temperature=0.1,0.1"], "temperature has the value 0.1 twice"),
        (["temperature=0.1,,0.5"], "nothing between two commas"),
        (["temperature=0.1", "temperature=0.5"], "temperature was given twice"),
        (["temperature=0.1", "critic.temperature=0.5"], "are one setting"),
        (["lr=1e-1..1e-4"], "the first number must be below the second"),
        (["lr=0..1:log"], "begins above 0"),
        (["lr=1..2:cube"], "expected :log or nothing"),
        (["seed=1,1"], "expected different whole numbers"),
        (["seed=a"], "expected different whole numbers"),
        (["seed=0.5..2.5"], "expected different whole numbers"),
    ],
)
def test_bad_space_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        read_space(words)
