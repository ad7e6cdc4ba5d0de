"""The examples run, and do what they say."""

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _importable() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


def example(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that are imported
        return importlib.import_module(name)


@pytest.mark.parametrize("name", ["plain_torch", "lightning_loop", "accelerate_loop"])
@pytest.mark.filterwarnings("ignore")  # Lightning and accelerate warn about loggers, workers, deprecations
def test_custom_loops_learn_good_features(name: str) -> None:
    """After four epochs without labels, kNN classifies held-out digits; a collapsed encoder would reach
    0.1."""
    untrained, trained = example(name).main(4)
    assert trained > 0.9
    assert trained != untrained


def test_two_ranks_equal_one_process() -> None:
    # float32 sums in another order: a few units in the last place of weights of size 0.1, over three steps
    assert example("two_ranks").main() < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_method_under_ddp_equals_one_process() -> None:
    """Weights of both ranks are bit-identical, and equal one process up to the order of float32 sums."""
    between, single = example("method_ddp").main()
    assert between == 0.0
    assert single < 1e-5


# dynamo looks at `.grad` of what it is given, embeddings included, and torch warns of that
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_method_has_the_same_loss() -> None:
    eager, compiled = example("compiled").main("aot_eager")
    assert compiled == pytest.approx(eager, rel=1e-5)


def test_functions_of_one_picture_are_views() -> None:
    assert example("own_views").main(epochs=1, instances=128).keys() == {"torchvision", "two functions"}


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for file in EXAMPLES.glob("*.py"):
        assert f"[{file.name}]({file.name})" in listed


def test_examples_state_their_command() -> None:
    for file in EXAMPLES.glob("*.py"):
        text: Any = file.read_text()
        assert file.name == "digits.py" or f"python examples/{file.name}" in text
