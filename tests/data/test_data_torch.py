"""torch `Dataset`s, tensors and arrays with labels are data like files are."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities.dataset import RowStore
from nearfar.train.pretrain import pretrain

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(20) % 4


class Items(Dataset):
    """Items made by a function of their number."""

    classes = ("ant", "bee", "cow", "dog")

    def __init__(self, make: Any) -> None:
        self.make, self.reads = make, 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> Any:
        self.reads += 1
        return self.make(number)


FORMS = {
    "pil": lambda n: Image.fromarray(PIXELS[n]),
    "array": lambda n: PIXELS[n],
    "bytes of a tensor": lambda n: torch.from_numpy(PIXELS[n]).permute(2, 0, 1),
    "floats of a tensor": lambda n: torch.from_numpy(PIXELS[n]).permute(2, 0, 1) / 255,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("labelled", [True, False])
def test_items_keep_pixels_and_labels(form: str, labelled: bool) -> None:
    make = FORMS[form]
    opened = open_data(Items(lambda n: (make(n), int(LABELS[n])) if labelled else make(n)))
    np.testing.assert_array_equal(opened.load(np.arange(20)).data, PIXELS)
    if labelled:
        assert opened.labels.tolist() == LABELS.tolist()
        assert opened.classes == Items.classes
    else:
        assert opened.labels is None
        assert "not pairs" in opened.unlabelled


def test_the_fingerprint_is_that_of_the_content() -> None:
    one, same = (open_data(Items(FORMS[form])).fingerprint for form in ("pil", "floats of a tensor"))
    changed = open_data(Items(lambda n: PIXELS[n] ^ (n == 7))).fingerprint
    assert one == same != changed


def test_a_loader_a_tensor_set_and_vectors() -> None:
    tensors = TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.from_numpy(LABELS))
    for spec in (tensors, DataLoader(tensors, batch_size=4)):
        opened = open_data(spec)
        np.testing.assert_array_equal(opened.load(np.arange(20)).data, PIXELS)
        assert opened.labels.tolist() == LABELS.tolist()
    vectors = open_data(TensorDataset(torch.randn(9, 5)))
    assert (vectors.modality, vectors.width, len(vectors)) == ("vectors", 5, 9)


def test_items_beyond_the_cache_are_read_again() -> None:
    items = Items(FORMS["pil"])
    opened = open_data(items, cache_bytes=100)
    assert isinstance(opened.store, RowStore)
    previous = items.reads
    np.testing.assert_array_equal(opened.load(np.array([4, 9])).data, PIXELS[[4, 9]])
    assert items.reads == previous + 2


def test_unusable_items_are_refused() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(UserError, match="item 0 is different each time"):
        open_data(Items(lambda n: generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)))
    with pytest.raises(UserError, match="item 0 is of type dict"):
        open_data(Items(lambda n: {"image": PIXELS[n]}))
    with pytest.raises(UserError, match="1 of 20 images cannot be used"):
        open_data(Items(lambda n: PIXELS[n] if n != 3 else PIXELS[n] / 2.0), max_bad_share=0.01)
    opened = open_data(Items(lambda n: PIXELS[n] if n != 3 else PIXELS[n][..., :1]), max_bad_share=0.1)
    assert opened.quarantine[0][1] == (
        "1 band of 8 bits, where most images have 3 bands of 8 bits; convert the ones or the others"
    )
    with pytest.raises(UserError, match="20 images but 3 labels"):
        open_data(PIXELS, labels=[0, 1, 2])
    with pytest.raises(UserError, match="labels were given with data of type str"):
        open_data("digits", labels=[0, 1, 2])


def test_a_run_from_a_torch_dataset_resumes_and_knows_its_labels(tmp_path: Path) -> None:
    items = Items(lambda n: (Image.fromarray(PIXELS[n]), int(LABELS[n])))
    config = {"backbone": "resnet8-w16", "batch_size": 5, "epochs": 1, "workers": 0, "probe_every": 0}
    run = pretrain("simclr", items, tmp_path, quiet=True, config=config)
    assert run.facts["step"] == 4
    resumed = pretrain("simclr", items, tmp_path, quiet=True, config=config)
    assert resumed.facts["step"] == 4
    assert run.embed(items).shape == (20, 128)


def test_item_that_raises_is_quarantined() -> None:
    def make(number: int) -> Any:
        if number == 7:
            raise OSError("truncated file")
        return PIXELS[number], int(LABELS[number])

    opened = open_data(Items(make), max_bad_share=0.1)
    assert len(opened) == 19
    assert list(opened.quarantine) == [("Items/item 7", "the data set raised OSError: truncated file")]
    with pytest.raises(UserError, match="the data set raised OSError: truncated file"):
        open_data(Items(make), max_bad_share=0.0)


NUMBERS = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)


def frame(library: str) -> Any:
    columns = {**{f"x{place}": NUMBERS[:, place] for place in range(3)}, "label": LABELS}
    if library == "pyarrow":
        return pa.table(columns)
    made = importlib.import_module(library).DataFrame(columns)
    return made.set_index(made.index * 7 % 20) if library == "pandas" else made


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_of_numbers_are_vectors(library: str, tmp_path: Path) -> None:
    """The same as the file with the same columns, whatever index pandas adds."""
    opened = open_data(frame(library))
    np.testing.assert_array_equal(opened.load(np.arange(20)).data, NUMBERS)
    assert opened.labels.tolist() == LABELS.tolist()
    assert open_data(frame(library), label_column="label").classes == opened.classes
    config = {"epochs": 1, "batch_size": 10, "workers": 0, "held_out": 0.0}
    run = pretrain("simclr", frame(library), tmp_path / "run", quiet=True, config=config)
    assert run.facts["step"] == 2


def test_a_frame_with_lists_is_refused_by_its_column() -> None:
    with pytest.raises(
        UserError, match=r"data 'Table': the column `name` is list.*; expected columns of numbers"
    ):
        open_data(pa.table({"x": [1.0, 2.0], "name": [["a"], ["b"]]}))
    with pytest.raises(UserError, match=r"data 'Table': it has 2 columns named `x`"):
        open_data(pa.Table.from_arrays([pa.array([1.0, 2.0])] * 2, names=["x", "x"]))
    with pytest.raises(UserError, match=r"data 'DataFrame' cannot be read as a table"):
        open_data(pd.DataFrame({"x": [2**70, 1]}))
