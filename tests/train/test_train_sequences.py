"""`cpc` and `mlm` from data to evaluation: resumed runs are bit-equal, and bad settings get a sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nearfar.cli import main
from nearfar.config.resolving import resolve
from nearfar.errors import Stopped, UserError
from nearfar.evaluate import evaluate_run
from nearfar.modalities import Recordings, Texts
from nearfar.modalities.dataset import RowStore, padded
from nearfar.modalities.text.show import frequency_scores, masked_scores, symbol_frequencies
from nearfar.run.metrics import read_metrics
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain
from tests.helpers import newest_tensors

SPEECH: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "checkpoint_every": 1, "workers": 0, "probe_every": 0,
    "views": {"samples": 96}, "encoders": {"width": 8, "context": 8, "steps": 2, "strides": [4, 2, 2, 1, 1]},
}  # fmt: skip
TEXT: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "checkpoint_every": 1, "workers": 0, "probe_every": 0,
    "views": {"length": 24}, "encoders": {"dim": 8, "layers": 1, "heads": 2},
}  # fmt: skip


def recordings(count: int = 24, seed: int = 0, low: float = 0.02, high: float = 0.2) -> Recordings:
    """Two kinds of tones by two speakers."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    waves = []
    for label in labels:
        time = np.arange(int(generator.integers(60, 160)))
        wave = np.sin(2 * np.pi * (high if label else low) * time + generator.uniform(0, 6))
        waves.append((wave + 0.1 * generator.normal(size=len(time))).astype(np.float32))
    return Recordings(
        name="tones", fingerprint=f"tones {count} {seed}", labels=labels, classes=("low", "high"),
        paths=tuple(f"{n}.wav" for n in range(count)), store=RowStore(waves.__getitem__, padded),
        rows=np.arange(count), lengths=np.array([len(w) for w in waves]),
        rate=8000, groups={"speaker": np.arange(count) // 2 % 2},
    )  # fmt: skip


def write_text(path: Path, seed: int = 0, count: int = 1200) -> Path:
    """Letters that are successors of the previous one, with noise: half of the information is on either
    side."""
    generator = np.random.default_rng(seed)
    letters = [0]
    for step in generator.integers(0, 4, count):
        letters.append((letters[-1] + (1 if step else int(generator.integers(0, 8)))) % 8)
    path.write_text("".join(chr(97 + n) for n in letters), encoding="utf-8")
    return path


def losses(out: Path) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in read_metrics(out / "metrics.jsonl") if r["kind"] == "train"]


@pytest.mark.parametrize(
    ("recipe", "changed"),
    [
        ("cpc", {}),
        (
            "cpc",
            {
                "selection": {"name": "group", "by": "speaker"},
                "encoders": {**SPEECH["encoders"], "others": "times"},
            },
        ),
        ("cpc", {"negatives": {"name": "queue", "size": 512}}),
        ("cpc", {"views": {"samples": 96, "count": 2}, "negatives": {"name": "bank"}}),
        ("cpc", {"selection": {"name": "cave", "clusters": 2}}),
        (
            "cpc",
            {"selection": {"name": "neighbours", "clusters": 2, "lower": 0.0}, "negatives": {"name": "bank"}},
        ),
        ("mlm", {}),
        ("mlm", {"negatives": {"name": "in-batch", "views": "one"}, "bound": "ml-cpc"}),
    ],
)
def test_a_run_interrupted_after_every_step_ends_bit_equal(
    recipe: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**(SPEECH if recipe == "cpc" else TEXT), **changed}
    data: Any = recordings() if recipe == "cpc" else write_text(tmp_path / "a.txt")
    pretrain(recipe, data, tmp_path / "whole", quiet=True, config=settings)
    for _ in range(2):
        with pytest.raises(Stopped):
            pretrain(recipe, data, tmp_path / "cut", quiet=True, config={**settings, "max_time": 1e-9})
    pretrain(recipe, data, tmp_path / "cut", quiet=True, config=settings)
    uninterrupted, cut = newest_tensors(tmp_path / "whole"), newest_tensors(tmp_path / "cut")
    assert uninterrupted.keys() == cut.keys()
    assert [name for name in uninterrupted if not torch.equal(uninterrupted[name], cut[name])] == []
    assert losses(tmp_path / "whole")[-1] == losses(tmp_path / "cut")[-1]


def test_groups_are_in_the_checkpoint(tmp_path: Path) -> None:
    grouped = {**SPEECH, "epochs": 1, "selection": {"name": "group", "by": "speaker"}}
    pretrain("cpc", recordings(), tmp_path / "run", quiet=True, config=grouped)
    assert (
        newest_tensors(tmp_path / "run")["method/selection.ids"].tolist()
        == recordings().groups["speaker"].tolist()
    )
    with pytest.raises(
        UserError,
        match=r"selection\.by was 'singer'; tones can be grouped by known-label, label, self, speaker",
    ):
        pretrain(
            "cpc",
            recordings(),
            tmp_path / "x",
            quiet=True,
            config={**grouped, "selection": {"name": "group", "by": "singer"}},
        )


def test_cpc_learns_tones_and_the_page_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way by the command line: Parquet, pretrain, evaluate, embed, report."""
    for name, seed in (("train", 0), ("test", 1)):
        examples = recordings(60, seed)
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        sounds = [wav(examples.load(np.array([n])).data[0]) for n in range(60)]
        table = {
            "audio": pa.array([{"bytes": s, "path": "x"} for s in sounds], kind),
            "label": pa.array(examples.labels),
        }
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    words = [
        "epochs=8",
        "batch_size=16",
        "views.samples=96",
        "encoders.width=8",
        "encoders.context=8",
        "encoders.steps=2",
    ]
    run, train, test = str(tmp_path / "run"), str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")
    assert (
        main(["pretrain", "cpc", train, "--out", run, "--quiet", "encoders.strides=[4,2,2,1,1]", *words]) == 0
    )
    capsys.readouterr()
    assert main(["evaluate", run, "--data", test, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["linear"]["top1"] > 0.7  # chance is 0.5
    assert set(document["baselines"]) == {"mfcc", "mfcc-moments", "untrained"}
    assert main(["evaluate", run, "--data", test]) == 0
    assert "fitted on 60 recordings: " in capsys.readouterr().out
    assert main(["embed", run, test, "--out", str(tmp_path / "f.parquet")]) == 0
    assert pq.read_table(tmp_path / "f.parquet")["feature"].type.list_size == 16
    assert any(row["kind"] == "probe" for row in read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert main(["report", run]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "data:image/webp" in page  # spectrograms
    assert "could not be" not in page


def wav(wave: np.ndarray) -> bytes:
    import io
    import wave as format

    out = io.BytesIO()
    with format.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((np.clip(wave, -1.9, 1.9) * 16000).astype("<i2").tobytes())
    return out.getvalue()


def test_mlm_learns_a_markov_chain_and_reports_nats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = str(write_text(tmp_path / "a.txt", 0, 6000)), str(write_text(tmp_path / "b.txt", 1))
    run = str(tmp_path / "run")
    words = [
        "epochs=12",
        "batch_size=16",
        "views.length=32",
        "encoders.dim=64",
        "encoders.layers=1",
        "encoders.dropout=0",
        "lr=0.01",
    ]
    assert main(["pretrain", "mlm", train, "--out", run, "--quiet", *words]) == 0
    capsys.readouterr()
    assert main(["evaluate", run, "--data", test, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    by_frequency = document["baselines"]["frequencies"]["masked"]
    assert by_frequency["nats"] == pytest.approx(np.log(8), abs=0.1)
    assert document["masked"]["nats"] < by_frequency["nats"] - 0.4
    assert document["masked"]["top1"] > by_frequency["top1"] + 0.25
    assert document["masked"]["interval"][0] < document["masked"]["top1"] < document["masked"]["interval"][1]
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["results"] == [document]
    assert main(["evaluate", run]) == 0
    assert "the training text" in capsys.readouterr().out
    assert main(["report", run]) == 0


def test_masked_scores_are_those_of_a_loop_over_hidden_symbols(tmp_path: Path) -> None:
    run = pretrain("mlm", write_text(tmp_path / "a.txt"), tmp_path / "run", quiet=True, config=TEXT)
    method, blocks, hiding = run.method(), run.open_data(), run.views()
    result = masked_scores(method, blocks, hiding, device=torch.device("cpu"), seed=5)
    nats, first, five, informations = [], [], [], []
    counts = np.ones(len(blocks.symbols))
    for row in range(len(blocks)):
        series: Any = blocks.load(np.array([row]))
        for symbol in series.data[0, : series.length[0]]:
            counts[symbol] += 1
    for row in range(len(blocks)):
        inputs, hidden = hiding(blocks.load(np.array([row])), 5, 0, np.array([row]))
        with torch.no_grad():
            outputs = method.encoders.backbone().outputs(inputs)  # type: ignore[operator]
        table = method.encoders.backbone().table()  # type: ignore[operator]
        for t in range(inputs.shape[1]):
            if hidden[0, t] < 0:
                continue
            p = (table @ outputs[0, t]).double().softmax(dim=0).detach().numpy()
            order = np.argsort(-p, kind="stable")
            nats.append(-np.log(p[hidden[0, t]]))
            first.append(order[0] == hidden[0, t])
            five.append(hidden[0, t] in order[:5])
            informations.append(-np.log(counts[hidden[0, t]] / counts.sum()))
    assert result["nats"] == pytest.approx(np.mean(nats), rel=1e-5)
    assert result["top1"] == pytest.approx(np.mean(first))
    assert result["top5"] == pytest.approx(np.mean(five))
    assert frequency_scores(blocks, blocks, hiding, seed=5)["nats"] == pytest.approx(
        np.mean(informations), rel=1e-6
    )
    bags = symbol_frequencies(blocks).numpy()
    last_block: Any = blocks.load(np.array([len(blocks) - 1]))
    expected = np.bincount(last_block.data[0], minlength=len(blocks.symbols)) / last_block.length[0]
    assert bags[-1] == pytest.approx(expected)


def test_labelled_text_is_also_evaluated_by_its_labels(tmp_path: Path) -> None:
    for kind, seed in (("up", 0), ("other", 1)):
        (tmp_path / "data" / kind).mkdir(parents=True)
        write_text(tmp_path / "data" / kind / "a.txt", seed, 600)
    run = pretrain("mlm", tmp_path / "data", tmp_path / "run", quiet=True, config=TEXT)
    result = evaluate_run(run, protocols=("knn",), baselines=True)
    assert {"knn", "masked"} <= set(result)
    assert set(result["baselines"]["frequencies"]) == {"knn", "masked"}
    repeated = evaluate_run(Run.open(tmp_path / "run"), protocols=("nearest",))
    (stored,) = json.loads((tmp_path / "run" / "evaluation.json").read_text())["results"]
    assert {"knn", "nearest", "masked"} <= set(stored)
    assert stored["test"]["name"].startswith("a held-out 20% of")
    assert stored["masked"]["test"]["name"].endswith("the training text")
    assert repeated["masked"] == result["masked"]


def test_a_vocabulary_belongs_to_the_run(tmp_path: Path) -> None:
    run = pretrain(
        "mlm", write_text(tmp_path / "a.txt"), tmp_path / "run", quiet=True, config={**TEXT, "epochs": 1}
    )
    (tmp_path / "b.txt").write_text("hgz", encoding="utf-8")
    opened = run.open_data(tmp_path / "b.txt")
    assert isinstance(opened, Texts)
    trained = run.open_data()
    assert isinstance(trained, Texts)
    assert opened.symbols == trained.symbols
    symbols = [opened.symbols[n] for n in opened.load(np.array([0])).data[0]]
    assert symbols == ["h", "g", opened.symbols[0]]


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("cpc", {"views": "simclr"}, "encoders was predictive with views=simclr; it takes views=window"),
        (
            "simclr",
            {"views": "mask"},
            "encoders was shared with views=mask; it takes several views of one instance",
        ),
        (
            "simclr",
            {"negatives": "dictionary"},
            "only encoders=masked and encoders=prototypes have a vocabulary",
        ),
        (
            "mlm",
            {"negatives": "bank"},
            "negatives=bank remembers something of each instance, but the keys of encoders=masked are "
            "symbols",
        ),
        ("mlm", {"selection": "cave"}, "selection=cave remembers something of each instance"),
        (
            "cpc",
            {"negatives": "bank", "encoders.others": "times"},
            "encoders.others was times with negatives=bank",
        ),
        (
            "cpc",
            {"selection": "cave", "encoders.others": "times"},
            "encoders.others was times with selection=cave",
        ),
        (
            "byol",
            {"bound": "ml-cpc"},
            "it compares positive scores with those of negatives, and there are none",
        ),
        (
            "cmc",
            {"views.count": 4},
            "its three channels are shown as luminance and colour in 2 views or one by one in 3",
        ),
        ("simclr", {"views.colours": "lab"}, "views with other channels need networks of their own"),
        ("mlm", {"selection": "group"}, "selection was group with encoders=masked"),
        ("mlm", {"negatives": "in-batch"}, "negatives.views was both with encoders=masked"),
        ("cpc", {"backbone": "resnet18"}, "backbone was 'resnet18'; with encoders=predictive it is conv-gru"),
        ("simclr", {"backbone": "conv-gru"}, "backbone was 'conv-gru', which is for recordings"),
        (
            "dim",
            {"backbone": "timm/resnet10t"},
            "backbone was 'timm/resnet10t' with encoders=infomax, which needs a map",
        ),
        (
            "simclr",
            {"selection.lower": 0.5},
            "selection.lower is a setting of ball, ring, .* not of selection=everyone",
        ),
        (
            "simclr",
            {"encoders.momentum": 0.5},
            "encoders.momentum is a setting of momentum, not of encoders=shared",
        ),
        (
            "cpc",
            {"selection": {"name": "group", "by": "self"}},
            "selection.by was self, but nothing is contrasted with its own recording here",
        ),
        ("cpc", {"image_size": 32}, "image_size was 32"),
        ("mlm", {"views.count": 3}, "views.count"),
        (
            "cpc",
            {"views.samples": 900},
            "encoders.steps was 6, but a window of views.samples=900 has 6 frames",
        ),
        ("cpc", {"encoders.head": "mlp"}, "encoders.head is not one of the settings"),
        ("mlm", {"views.share": 2}, "views.share was 2"),
    ],
)
def test_unsuitable_settings_get_a_sentence(recipe: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(recipe, "x", settings)


def test_unsuitable_data_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="digits holds pictures, but cpc is made for recordings"):
        pretrain("cpc", "digits", tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="tones holds recordings, but dim is made for pictures"):
        pretrain("dim", recordings(), tmp_path / "run", quiet=True)
    with pytest.raises(
        UserError, match="24 of 24 recordings are shorter than that number of frames of 160 samples"
    ):
        pretrain("cpc", recordings(), tmp_path / "run", quiet=True, batch_size=8)
    run = pretrain("cpc", recordings(), tmp_path / "run", quiet=True, config={**SPEECH, "epochs": 1})
    with pytest.raises(UserError, match="holds text, but cpc is made for recordings"):
        run.open_data(write_text(tmp_path / "a.txt"))
