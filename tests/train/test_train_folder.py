"""A run folder that somebody made: whatever is in it, one sentence or a result, never a traceback, never more memory than it has bytes."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import resolve
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.report.curves import curves_of, edges_of
from nearfar.report.gather import _environment, _events, _held_out, _Numbers, _scores, _summary
from nearfar.run import checkpoints, facts
from nearfar.run.metrics import read_metrics
from nearfar.run.results import results_of
from nearfar.run.trained import Run, fresh_method
from nearfar.train.pretrain import pretrain

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    "x",
    "",
    [],
    [None],
    {},
    {"a": {"b": []}},
    [[1, "x"]],
    0.5,
]
CONFIG: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 128,
    "epochs": 1,
    "workers": 0,
    "selection": {"name": "ring", "lower": "linear(0,0.5)"},
    "negatives": {"size": 256},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    digits = open_data("digits").subset(np.arange(300))
    return pretrain("moco", digits, tmp_path_factory.mktemp("run"), quiet=True, config=CONFIG)


def changed(tree: Any, rng: random.Random) -> Any:
    """The tree with one node, anywhere in it, replaced by junk, dropped, or doubled."""
    tree = copy.deepcopy(tree)
    places = list(nodes(tree))
    holder, key = rng.choice(places)
    kind = rng.randrange(4)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = copy.deepcopy(rng.choice(JUNK))
    return tree


def nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(inside):
        yield tree, key
        yield from nodes(value)


def forged(run: Run, tensors: dict[str, torch.Tensor], told: dict[str, Any], path: Path) -> Run:
    """The run with another checkpoint, complete and hashed."""
    checkpoints.save(path / "ckpt", 2, tensors, told, keep=1)
    (path / "config.yaml").write_bytes((run.path / "config.yaml").read_bytes())
    return Run.open(path)


def test_facts_that_make_no_sense_get_a_sentence(run: Run, tmp_path: Path) -> None:
    """With a manifest that fits them: 53 of 242 used to end in a traceback."""
    tensors, told = checkpoints.load(run.checkpoint)
    rng, sentences = random.Random(0), []
    pixels = open_data("digits").load(np.arange(2))
    for number in range(80):
        other = forged(run, tensors, changed(told, rng), tmp_path / str(number))
        try:
            other.method()
            other.plain_view()(pixels, 0, 0, np.arange(2))
            other.views()
            other.certificate()
        except UserError as problem:
            sentences.append(str(problem))
    assert len(sentences) > 30
    assert max(map(len, sentences)) < 1000


@pytest.mark.parametrize("channels", [2**40, 10**19, 10**30])
def test_numbers_that_no_data_have_get_a_sentence(channels: int, run: Run, tmp_path: Path) -> None:
    """Beyond 64 bits torch ends in an error of its own; below, in memory that nobody has."""
    tensors, told = checkpoints.load(run.checkpoint)
    with pytest.raises(UserError):
        forged(run, tensors, {**told, "data": {**told["data"], "channels": channels}}, tmp_path).method()


@pytest.mark.parametrize("kind", [torch.int64, torch.float64, torch.float16])
def test_weights_of_another_kind_of_number_are_refused(kind: torch.dtype, run: Run, tmp_path: Path) -> None:
    """Integers were loaded in silence, as zeros and ones."""
    tensors, told = checkpoints.load(run.checkpoint)
    name = "method/encoders.network.backbone.conv1.weight"
    with pytest.raises(UserError, match="does not hold the tensors that its settings describe"):
        forged(run, {**tensors, name: tensors[name].to(kind)}, told, tmp_path).encoder()


def test_settings_of_a_network_beyond_memory_are_refused_before_it_is_built(run: Run, tmp_path: Path) -> None:
    """65536 x 65536 numbers are 16 GiB: the checkpoint has not got them."""
    tensors, told = checkpoints.load(run.checkpoint)
    other = forged(run, tensors, told, tmp_path)
    text = (tmp_path / "config.yaml").read_text()
    changes = {"hidden: 512": "hidden: 65536", "dim: 128": "dim: 65536"}
    for before, now in changes.items():
        assert before in text
        text = text.replace(before, now)
    (tmp_path / "config.yaml").write_text(text)
    other = Run.open(tmp_path)
    for build in (other.method, other.certificate, other.untrained):
        with pytest.raises(UserError, match="does not hold the tensors that its settings describe"):
            build()


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_method_is_described_without_memory(recipe: str) -> None:
    """What is built on torch's meta device has the names, sizes and kinds of what is built in memory."""
    asked = resolve(recipe, "x")
    small = {"backbone": asked.modality.networks.smallest} if asked.backbone.startswith("resnet") else {}
    settings = resolve(recipe, "x", small)
    known = settings.modality.reader.example_description(50).labelled(7)
    with torch.device("meta"):
        described = fresh_method(settings, known)
    method = fresh_method(settings, known)
    assert facts.fits(described, method.state_dict())
    assert described.state_dict().keys() == method.state_dict().keys()


@pytest.mark.parametrize("change", ["dtype", "missing", "strange"])
def test_an_optimisers_state_that_makes_no_sense_is_refused(change: str, run: Run, tmp_path: Path) -> None:
    tensors, told = checkpoints.load(run.checkpoint)
    name = next(name for name in tensors if name.startswith("optimizer/exp_avg/"))
    if change == "dtype":
        tensors = {**tensors, name: tensors[name].to(torch.int32)}
    elif change == "missing":
        tensors = {key: value for key, value in tensors.items() if key != name}
    else:
        tensors = {**tensors, name.replace("exp_avg", "other"): tensors[name]}
    forged(run, tensors, {**told, "step": 1}, tmp_path)
    (tmp_path / "ckpt" / "step-00000002").rename(tmp_path / "gone")
    checkpoints.save(tmp_path / "ckpt", 1, tensors, {**told, "step": 1})
    digits = open_data("digits").subset(np.arange(300))
    with pytest.raises(UserError, match=r"optimiser state|does not fit"):
        pretrain("moco", digits, tmp_path, quiet=True, config=CONFIG)


def test_a_page_is_made_of_whatever_json_a_run_holds(run: Run, tmp_path: Path) -> None:
    rows = read_metrics(run.path / "metrics.jsonl")
    rows.append(
        {
            "kind": "held-out",
            "step": 2,
            "epoch": 1.0,
            "nats": 1.0,
            "error": 0.1,
            "ceiling": 2.0,
            "instances": 9,
        }
    )
    told = {"name": "a", "samples": 9, "fingerprint": "f", "unit": "images"}
    figures = {"top1": 0.5, "top5": 0.9, "interval": [0.4, 0.6], "test": told}
    evaluation = {
        "results": [{"train": told, "test": told, "knn": figures, "baselines": {"pixels": {"knn": figures}}}]
    }
    environment = json.loads((run.path / "env.json").read_text())
    rng = random.Random(1)
    for _ in range(300):
        metrics, results = changed(rows, rng), changed(evaluation, rng)
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
        (tmp_path / "env.json").write_text(json.dumps(changed(environment, rng)))
        read = read_metrics(tmp_path / "metrics.jsonl")
        here = Run(tmp_path, run.settings)
        curves_of(read)
        edges_of(read, run.settings.selection)
        _held_out(read)
        list(_events(read))
        list(_scores(results_of(results)))
        list(_summary(_Numbers(run.settings.as_plain(), _environment(here), read, "", "images")))
