"""Pairs: two columns, a network for each; clip and siglip equal losses written out, retrieval a slow
count."""

import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import nearfar as nf
from nearfar.config.resolving import resolve
from nearfar.core.method import Method
from nearfar.core.types import Batch
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.evaluate.run import evaluate_run
from nearfar.losses import ClipLoss, SigLipLoss
from nearfar.modalities.pairs import PAIRS
from nearfar.modalities.pairs.show import retrieval_figures
from nearfar.parts.bounds import BinaryNCE, InfoNCE
from nearfar.parts.encoders import PerView
from nearfar.parts.negatives import InBatch
from nearfar.parts.selections import Everyone
from nearfar.train.pretrain import pretrain


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (value, 255 - value, 128)).save(buffer, "PNG")
    return buffer.getvalue()


def pictures_and_words(path: Path, rows: int = 48) -> str:
    shades = [(37 * row) % 256 for row in range(rows)]
    table = pa.table(
        {
            "image": [{"bytes": png(shade), "path": ""} for shade in shades],
            "caption": ["a dark one" if shade < 128 else "a bright one" for shade in shades],
            "label": [int(shade >= 128) for shade in shades],
        }
    )
    pq.write_table(table, path)
    return f"pairs:{path}:image,caption"


def numbers(path: Path, rows: int = 96) -> str:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 3))
    np.savez(path, x=x, y=x[:, :2] + 0.1 * draw.normal(size=(rows, 2)))
    return f"pairs:{path}:x,y"


def test_two_columns_are_two_sets_of_the_same_rows(tmp_path: Path) -> None:
    data = open_data(pictures_and_words(tmp_path / "p.parquet"))
    assert (data.modality, len(data)) == ("pairs", 48)
    assert [side.modality for side in data.sides] == ["image", "text"]
    pixels, words = data.subset(np.array([5, 2])).load(np.array([0, 1]))
    assert pixels.data[:, 0, 0, 0].tolist() == [(37 * 5) % 256, 74]
    symbols = data.sides[1].symbols
    captions = ["".join(symbols[s] for s in row[:n]) for row, n in zip(words.data, words.length, strict=True)]
    assert captions == ["a bright one", "a dark one"]


def test_csv_columns_can_be_joined_and_their_modality_named(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b,c\n" + "\n".join(f"{n},{2 * n},{n % 3}" for n in range(12)) + "\n")
    data = open_data(f"pairs:{file}:a+b,c@text")
    assert [side.modality for side in data.sides] == ["vectors", "text"]
    assert data.load(np.array([4]))[0].tolist() == [[4.0, 8.0]]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("pairs:{0}:image", "expected pairs:FILE:FIRST,SECOND"),
        ("pairs:{0}.gone:image,caption", "is not a file that exists"),
        ("pairs:{0}:image,title", "there is no column 'title'"),
        ("pairs:{0}:image,caption@smell", "unknown modality 'smell'; expected image, sound, text, vectors"),
        ("pairs:{0}:image@sound,caption", "48 of 48 rows cannot be used"),
    ],
)
def test_missing_pair_columns_are_refused(tmp_path: Path, spec: str, sentence: str) -> None:
    pictures_and_words(tmp_path / "p.parquet")
    with pytest.raises(UserError, match=sentence):
        open_data(spec.format(tmp_path / "p.parquet"))


def two(critic: Any, bound: Any) -> tuple[Method, Batch]:
    torch.manual_seed(0)
    networks = [nn.Linear(3, 4).double(), nn.Linear(2, 4).double()]
    method = Method(PerView(networks), critic, InBatch("one"), Everyone(), bound).double()
    views = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    return method, Batch(views, torch.arange(6))


def embedded(method: Method, batch: Batch) -> list[Tensor]:
    role: Any = method.encoders
    return [
        F.normalize(network(view), dim=1) for network, view in zip(role.networks, batch.views, strict=True)
    ]


def test_clip_is_open_clips_loss() -> None:
    method, batch = two(nf.Cosine(nf.learnt(0.07)), InfoNCE())
    u, v = embedded(method, batch)
    expected = ClipLoss()(u, v, torch.tensor(1 / 0.07, dtype=torch.float64))
    torch.testing.assert_close(method(batch).loss, expected)


def test_siglip_is_open_clips_loss_with_log_nu_in_the_bias() -> None:
    """BinaryNCE's logit is f - log nu: SigLIP with bias b is ours with b + log nu (Zhai et al. 2023, Eq.
    1)."""
    method, batch = two(nf.Cosine(nf.learnt(0.1), nf.learnt(-10 + math.log(5))), BinaryNCE())
    u, v = embedded(method, batch)
    scale, bias = torch.tensor([10.0, -10.0], dtype=torch.float64)
    torch.testing.assert_close(method(batch).loss, SigLipLoss()(u, v, scale, bias))


def test_retrieval_counts_as_by_hand() -> None:
    """Rows 0 and 2 share a caption, so there are three to be found."""
    scores = torch.tensor([[3.0, 1, 3, 0], [2, 1, 2, 0], [0, 5, 0, 9], [1, 2, 1, 4]])
    figures = retrieval_figures(scores, np.array([0, 1, 0, 2]))
    assert figures["top1"] == 2 / 4  # rows 0 and 3; row 1 takes caption 0, row 2 caption 2
    assert figures["top5"] == 1.0
    # caption 0 retrieves row 0; caption 1 retrieves row 2, which is caption 0's; caption 2 retrieves row 2,
    # wrong
    assert figures["back_top1"] == pytest.approx(1 / 3)
    assert figures["chance"] == pytest.approx(1 / 3)
    assert figures["back_chance"] == pytest.approx((0.5 + 0.25 + 0.25) / 3)


def test_constant_scores_retrieve_at_chance() -> None:
    """Equal scores are ordered at random: collapsed networks are at chance, and non-finite scores give no
    figure."""
    second = np.repeat(np.arange(10), 3)
    figures = retrieval_figures(torch.zeros(30, 30), second)
    assert figures["top1"] == pytest.approx(figures["chance"])
    assert figures["top5"] == pytest.approx(0.5)
    assert figures["back_top1"] == pytest.approx(figures["back_chance"])
    with pytest.raises(UserError, match="not finite"):
        retrieval_figures(torch.full((30, 30), torch.nan), second)


def test_captions_of_unknown_symbols_are_different_captions(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("a,c\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(8)))
    (tmp_path / "new.csv").write_text("a,c\n0,αβ\n1,γδ\n2,αβ\n3,εζ\n")
    training_pairs: Any = open_data(f"pairs:{tmp_path}/seen.csv:a,c")
    description = PAIRS.reader.describe(training_pairs, None)
    new: Any = PAIRS.reader.open_spec(f"pairs:{tmp_path}/new.csv:a,c", {"known": description})
    assert new.store.equal.tolist() == [0, 1, 0, 2]
    assert training_pairs.store.equal.tolist() == [0, 1] * 4


SMALL = {"batch_size": 16, "workers": 0, "probe_every": 0, "encoders.dim": 8, "backbone": "both-small"}


@pytest.mark.parametrize("recipe", ["clip", "siglip"])
def test_numbers_find_their_partners(tmp_path: Path, recipe: str) -> None:
    spec = numbers(tmp_path / "n.npz")
    settings = {**SMALL, "epochs": 20, "views.augment": False, "lr": 0.01}
    run = pretrain(recipe, spec, tmp_path / "run", config=settings, quiet=True)
    result = evaluate_run(run, baselines=True)
    learned, untrained = result["retrieval"], result["baselines"]["untrained"]["retrieval"]
    assert learned["chance"] == pytest.approx(1 / 96)
    assert learned["top5"] > 0.5 > 3 * untrained["top5"]
    assert any("temperature" in key for key in run.metrics[-1])  # what is learnt is logged


def test_pictures_and_words_train_and_resume(tmp_path: Path) -> None:
    spec = pictures_and_words(tmp_path / "p.parquet")
    settings = {**SMALL, "epochs": 1, "image_size": 16}
    run = pretrain("clip", spec, tmp_path / "run", config=settings, quiet=True)
    resumed = pretrain("clip", spec, tmp_path / "run", config=settings, quiet=True)
    assert run.facts["step"] == resumed.facts["step"] == 3
    result = evaluate_run(resumed, spec, protocols=["knn"])
    assert result["retrieval"]["different"] == 2
    assert {"retrieval", "knn"} <= set(result)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"encoders": "shared"}, "two columns need encoders=per-view"),
        ({"negatives": "queue"}, "use in-batch"),
        ({"views.count": 3}, "views.count was 3; with pairs it is 2"),
    ],
)
def test_parts_that_do_not_go_with_pairs_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        resolve("clip", "DATA", changes)


def table_of_paths(folder: Path, rows: int = 48, absolute: bool = False) -> str:
    """photos.csv next to pictures/, with their paths and captions."""
    (folder / "pictures").mkdir(parents=True)
    lines = ["image,caption"]
    for row in range(rows):
        shade = (37 * row) % 256
        file = folder / "pictures" / f"{row}.PNG"
        file.write_bytes(png(shade))
        path = file if absolute else file.relative_to(folder)
        lines.append(f"{path},{'a dark one' if shade < 128 else 'a bright one'}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    return f"pairs:{folder / 'photos.csv'}:image,caption"


@pytest.mark.parametrize("absolute", [False, True])
def test_column_of_paths_is_read_as_pictures(absolute: bool, tmp_path: Path) -> None:
    """The same pictures and words as encoded bytes in Parquet; a run opens other paths in the same way."""
    by_path = open_data(table_of_paths(tmp_path / "a", absolute=absolute))
    by_bytes = open_data(pictures_and_words(tmp_path / "p.parquet"))
    assert [side.modality for side in by_path.sides] == ["image", "text"]
    rows = np.arange(48)
    np.testing.assert_array_equal(by_path.load(rows)[0].data, by_bytes.load(rows)[0].data)
    second = open_data(table_of_paths(tmp_path / "b"), known=PAIRS.reader.describe(by_path, 16))
    np.testing.assert_array_equal(second.load(rows)[0].data, by_bytes.load(rows)[0].data)
    spec = table_of_paths(tmp_path / "c", absolute=absolute)
    (file,) = (tmp_path / "c").glob("*.csv")
    header, *lines = file.read_text().splitlines()
    file.write_text("\n".join([header, *(line.replace(",", " ,") for line in lines)]))
    np.testing.assert_array_equal(open_data(spec).load(rows)[0].data, by_bytes.load(rows)[0].data)


def test_unreadable_path_is_quarantined(tmp_path: Path) -> None:
    spec = table_of_paths(tmp_path / "a")
    pictures = tmp_path / "a" / "pictures"
    (pictures / "1.PNG").unlink()
    (pictures / "2.PNG").write_bytes(png(3)[:40])
    (pictures / "3.PNG").unlink()
    os.mkfifo(pictures / "3.PNG")
    data = open_data(spec)
    assert len(data) == 45
    reasons = dict(data.quarantine)
    assert reasons["photos.csv#1"] == "unreadable: No such file or directory (pictures/1.PNG)"
    assert "photos.csv#2" in reasons
    assert (
        reasons["photos.csv#3"]
        == "unreadable: is a pipe, a socket or a device, not a regular file (pictures/3.PNG)"
    )


@pytest.mark.parametrize("name", ["gone/{}.jpg", "http://127.0.0.1:9/{}.png", "/nowhere/{}.tif", "{}.wav"])
def test_paths_of_missing_files_are_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("image,caption\n" + "".join(f"{name.format(row)},word {row}\n" for row in range(12)))
    with pytest.raises(
        UserError, match=r"column 'image' names .* but none of these files is found from the folder"
    ):
        open_data(f"pairs:{file}:image,caption")
    assert [side.modality for side in open_data(f"pairs:{file}:image@text,caption").sides] == ["text", "text"]


def test_files_with_a_wrong_suffix_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_text("no picture")
    (tmp_path / "t.csv").write_text("image,caption\n" + "secret.jpg,a word\n" * 6)
    with pytest.raises(UserError, match="6 of 6 rows cannot be used") as problem:
        open_data(f"pairs:{tmp_path / 't.csv'}:image,caption")
    assert "no picture" not in str(problem.value)


@pytest.mark.parametrize("suffix", [".ppm", ".npy", ".txt", ""])
def test_paths_of_files_of_an_unknown_type_are_refused(suffix: str, tmp_path: Path) -> None:
    names = [f"word{row}{suffix}" for row in range(300)]
    for name in names[:250]:
        (tmp_path / name).write_bytes(png(3))
    (tmp_path / "t.csv").write_text("image,caption\n" + "".join(f"{name},a word\n" for name in names))
    with pytest.raises(UserError, match=r"column 'image' names files such as 'word0.*write image@text"):
        open_data(f"pairs:{tmp_path / 't.csv'}:image,caption")
    sides = open_data(f"pairs:{tmp_path / 't.csv'}:image@text,caption").sides
    assert [side.modality for side in sides] == ["text", "text"]


def test_words_that_sometimes_end_like_files_stay_words(tmp_path: Path) -> None:
    words = ["see cat.jpg", "a dog", "a bird", "a horse.png", "a fish"]
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{word},{row}\n" for row, word in enumerate(words)))
    assert open_data(f"pairs:{tmp_path / 't.csv'}:a,b").sides[0].modality == "text"
