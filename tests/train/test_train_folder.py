"""An untrusted run folder gives one sentence or a result, never a traceback or more memory than its bytes."""

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
from nearfar.report.gather import _environment, _events, _held_out, _scores, _summary, curves_of, edges_of
from nearfar.report.sections import sections_of
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


def forged(run: Run, tensors: dict[str, torch.Tensor], facts: dict[str, Any], path: Path) -> Run:
    """The run with another checkpoint, complete and hashed."""
    checkpoints.save(path / "ckpt", 2, tensors, facts, keep=1)
    (path / "config.yaml").write_bytes((run.path / "config.yaml").read_bytes())
    return Run.open(path)


def test_invalid_facts_get_a_sentence(run: Run, tmp_path: Path) -> None:
    """With a manifest that fits them: 53 of 242 used to end in a traceback."""
    tensors, facts = checkpoints.load(run.checkpoint)
    rng, sentences = random.Random(0), []
    pixels = open_data("digits").load(np.arange(2))
    for number in range(80):
        forged_run = forged(run, tensors, changed(facts, rng), tmp_path / str(number))
        try:
            forged_run.method()
            forged_run.plain_view()(pixels, 0, 0, np.arange(2))
            forged_run.views()
            forged_run.certificate()
        except UserError as problem:
            sentences.append(str(problem))
    assert len(sentences) > 30
    assert max(map(len, sentences)) < 1000


def test_states_of_hooks_are_checked(tmp_path: Path) -> None:
    """Of every hook that a run stores: text in the place of each value is refused before it is restored."""
    digits = open_data("digits").subset(np.arange(300))
    changes = {"precision": "fp16", "selection": {"name": "ring", "lower": "on_variance(0,0.5,1)"}}
    stopped = pretrain("moco", digits, tmp_path / "run", quiet=True, config={**CONFIG, **changes})
    tensors, facts = checkpoints.load(stopped.checkpoint)
    assert {"AdaptiveSchedules", "FiniteMonitor", "LossScale"} < facts["hooks"].keys()
    for name, state in facts["hooks"].items():
        for key in state:
            hooks = {**facts["hooks"], name: {**state, key: "x"}}
            path = tmp_path / f"{name}-{key}"
            with pytest.raises(UserError, match=rf"hooks\.{name}\.{key}.* is invalid"):
                forged(stopped, tensors, {**facts, "hooks": hooks}, path).method()
    scales = {**facts["hooks"], "LossScale": {"scale": 2.0**300, "streak": 0}}
    with pytest.raises(UserError, match=r"hooks\.LossScale\.scale is invalid"):
        forged(stopped, tensors, {**facts, "hooks": scales}, tmp_path / "scale").method()


@pytest.mark.parametrize("channels", [2**40, 10**19, 10**30])
def test_impossible_numbers_get_a_sentence(channels: int, run: Run, tmp_path: Path) -> None:
    """Beyond 64 bits torch raises its own error; below, it would allocate too much."""
    tensors, facts = checkpoints.load(run.checkpoint)
    with pytest.raises(UserError):
        forged(run, tensors, {**facts, "data": {**facts["data"], "channels": channels}}, tmp_path).method()


@pytest.mark.parametrize("kind", [torch.int64, torch.float64, torch.float16])
def test_weights_of_another_dtype_are_refused(kind: torch.dtype, run: Run, tmp_path: Path) -> None:
    """Integers were loaded in silence, as zeros and ones."""
    tensors, facts = checkpoints.load(run.checkpoint)
    name = "method/encoders.network.backbone.conv1.weight"
    with pytest.raises(UserError, match="does not hold the tensors that its settings describe"):
        forged(run, {**tensors, name: tensors[name].to(kind)}, facts, tmp_path).encoder()


def test_settings_of_a_network_beyond_memory_are_refused_before_it_is_built(run: Run, tmp_path: Path) -> None:
    """65536 x 65536 numbers are 16 GiB: the checkpoint has not got them."""
    tensors, facts = checkpoints.load(run.checkpoint)
    forged_run = forged(run, tensors, facts, tmp_path)
    text = (tmp_path / "config.yaml").read_text()
    changes = {"hidden: 512": "hidden: 65536", "dim: 128": "dim: 65536"}
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "config.yaml").write_text(text)
    forged_run = Run.open(tmp_path)
    for build in (forged_run.method, forged_run.certificate, forged_run.untrained):
        with pytest.raises(UserError, match="does not hold the tensors that its settings describe"):
            build()


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_method_is_described_without_memory(recipe: str) -> None:
    """What is built on torch's meta device has the names, sizes and kinds of what is built in memory."""
    resolved = resolve(recipe, "x")
    small = (
        {"backbone": resolved.modality.networks.smallest} if resolved.backbone.startswith("resnet") else {}
    )
    settings = resolve(recipe, "x", small)
    description = settings.modality.reader.example_description(50).labelled(7)
    with torch.device("meta"):
        described = fresh_method(settings, description)
    method = fresh_method(settings, description)
    assert facts.fits(described, method.state_dict())
    assert described.state_dict().keys() == method.state_dict().keys()


@pytest.mark.parametrize("change", ["dtype", "missing", "strange"])
def test_an_invalid_optimiser_state_is_refused(change: str, run: Run, tmp_path: Path) -> None:
    tensors, facts = checkpoints.load(run.checkpoint)
    name = next(name for name in tensors if name.startswith("optimizer/exp_avg/"))
    if change == "dtype":
        tensors = {**tensors, name: tensors[name].to(torch.int32)}
    elif change == "missing":
        tensors = {key: value for key, value in tensors.items() if key != name}
    else:
        tensors = {**tensors, name.replace("exp_avg", "other"): tensors[name]}
    forged(run, tensors, {**facts, "step": 1}, tmp_path)
    (tmp_path / "ckpt" / "step-00000002").rename(tmp_path / "gone")
    checkpoints.save(tmp_path / "ckpt", 1, tensors, {**facts, "step": 1})
    digits = open_data("digits").subset(np.arange(300))
    with pytest.raises(UserError, match=r"optimiser state|does not fit"):
        pretrain("moco", digits, tmp_path, quiet=True, config=CONFIG)


def test_a_page_is_made_from_any_json_in_a_run(run: Run, tmp_path: Path) -> None:
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
    set_facts = {"name": "a", "samples": 9, "fingerprint": "f", "unit": "images"}
    figures = {
        "top1": 0.5,
        "top5": 0.9,
        "interval": [0.4, 0.6],
        "test": set_facts,
        "confusion": {"classes": ["a", "b"], "counts": [[3, 1], [2, 3]]},
        "per_class": {"a": 0.75, "b": 0.6},
    }
    linear = {"nats": 0.5, "entropy": 0.7, "at_least": {"nats": 0.1, "certificate": {"status": "proven"}}}
    detection = {
        "results": [
            {
                "pretrained": {"bbox": {"map": 0.2, "map_50": 0.3, "spread": 0.1}},
                "settings": {"task": "boxes", "epochs": 3, "size": 96, "fine_tune": False, "seeds": 2},
                **{role: {"name": "a", "samples": 4, "objects": 9} for role in ("train", "test")},
            }
        ]
    }
    evaluation = {
        "results": [
            {
                "train": set_facts,
                "test": set_facts,
                "knn": figures,
                "linear": linear,
                "baselines": {"pixels": {"knn": figures}},
            }
        ]
    }
    environment = json.loads((run.path / "env.json").read_text())
    rng = random.Random(1)
    for _ in range(300):
        metrics, results = changed(rows, rng), changed(evaluation, rng)
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
        (tmp_path / "env.json").write_text(json.dumps(changed(environment, rng)))
        (tmp_path / "evaluation.json").write_text(json.dumps(results))
        (tmp_path / "detection.json").write_text(json.dumps(changed(detection, rng)))
        stored_metrics = read_metrics(tmp_path / "metrics.jsonl")
        forged_run = Run(tmp_path, run.settings)
        curves_of(stored_metrics)
        edges_of(stored_metrics, run.settings.selection)
        _held_out(stored_metrics)
        list(_events(stored_metrics))
        list(_scores(results_of(results)))
        list(sections_of(forged_run))
        list(_summary(forged_run, run.settings.as_plain(), _environment(forged_run), stored_metrics))
