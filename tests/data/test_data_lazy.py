"""Sets that are not decoded when they are opened: what is seen does not depend on when a bad row is found."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.core.randomness import first_of_windowed_order, windowed_order
from nearfar.core.types import Batch, Pixels
from nearfar.data import Stream, open_data, pack
from nearfar.data.lazy import check_all
from nearfar.errors import UserError
from tests.data.test_data_packed import COUNT, as_folder, as_parquet, pictures, png

BAD = (4, 5, 37)


def views(pixels: Pixels, seed: int, epoch: int, index: np.ndarray) -> tuple[torch.Tensor, ...]:
    return (torch.from_numpy(pixels.data.astype(np.float32)), torch.from_numpy(index + 1000.0 * epoch))


def batches_of(stream: Stream, first: int, last: int) -> list[Batch]:
    return list(stream.batches(first, last))


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.index, b.index)
        and all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
        for a, b in zip(first, second, strict=True)
    )


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 14), st.integers(0, 2**63), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_a_windowed_order_is_a_permutation_that_mixes_a_window(
    blocks: int, rows: int, window: int, seed: int, epoch: int
) -> None:
    block = np.repeat(np.arange(blocks), rows)
    order = windowed_order(seed, epoch, block, window)
    np.testing.assert_array_equal(np.sort(order), np.arange(blocks * rows))
    np.testing.assert_array_equal(order, windowed_order(seed, epoch, block, window))
    # blocks may come in any order, or only some of them: it is their rank that counts
    np.testing.assert_array_equal(windowed_order(seed, epoch, 3 * block + 1, window), order)
    turned = windowed_order(seed, epoch, block[::-1], window)
    np.testing.assert_array_equal(np.sort(turned), np.sort(order))
    for count in (0, 1, len(block) // 2, len(block), len(block) + 3):
        np.testing.assert_array_equal(
            first_of_windowed_order(seed, epoch, block, window, count), order[:count]
        )
    # rows of a block at place p have keys in [p, p + window): round the end, only those of 2 window blocks
    # come between them
    at = block[order]
    for number in range(blocks):
        places = np.flatnonzero(at == number)
        absence = np.diff(np.concatenate([places, places[:1] + len(at)])).max()
        assert len(at) - absence < 2 * min(window, blocks) * rows


def test_a_window_of_all_blocks_is_a_uniform_shuffle() -> None:
    block = np.repeat(np.arange(4), 25)
    first = np.stack([windowed_order(0, epoch, block, 64)[0] for epoch in range(2000)])
    counts = np.bincount(first, minlength=100)
    assert ((counts - 20) ** 2 / 20).sum() < 99 + 5 * np.sqrt(2 * 99)  # chi-square with 99 degrees of freedom


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_see_each_row_once_an_epoch(
    world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.data.row_groups.MAX_GROUPS", 3)
    data = open_data(as_parquet(tmp_path, pictures(), rows=5), scan_bytes=0)
    ranks = [Stream(data, views, 8, seed=2, rank=rank, world=world) for rank in range(world)]
    single = Stream(data, views, 8, seed=2)
    for epoch in range(2):
        first, last = epoch * single.steps_per_epoch, (epoch + 1) * single.steps_per_epoch
        rows = [batch.index for rank in ranks for batch in batches_of(rank, first, last)]
        every = torch.cat(rows).numpy()
        assert len(set(every.tolist())) == len(every) == COUNT // 8 * 8
        joint = [
            torch.cat([batch.index for batch in step])
            for step in zip(*(batches_of(r, first, last) for r in ranks), strict=True)
        ]
        assert all(
            torch.equal(a, b.index) for a, b in zip(joint, batches_of(single, first, last), strict=True)
        )


@pytest.mark.parametrize("writer", [as_parquet, as_folder])
def test_batches_do_not_depend_on_when_a_bad_row_is_found(writer: Any, tmp_path: Path) -> None:
    images = pictures()
    spec = (
        as_parquet(tmp_path / "s", images, bad=BAD)
        if writer is as_parquet
        else as_folder(tmp_path / "s", images)
    )
    if writer is as_folder:
        for path in sorted((tmp_path / "s").rglob("*.png"))[3:6]:
            path.write_bytes(png(images[0])[:60])
    opened = lambda: open_data(spec, scan_bytes=0, quarantine=tmp_path / "bad.csv")
    early = opened()
    assert len(check_all(early)) == COUNT - 3  # all is known
    unchecked = opened()
    assert len(unchecked) == COUNT  # nothing was decoded, so nothing is known
    steps = 2 * Stream(unchecked, views, 9, seed=1).steps_per_epoch
    full = batches_of(Stream(unchecked, views, 9, seed=1, workers=3), 0, steps)
    assert same(full, batches_of(Stream(early, views, 9, seed=1, workers=0), 0, steps))
    assert same(full[7:], batches_of(Stream(opened(), views, 9, seed=1), 7, steps))
    with open(tmp_path / "bad.csv", newline="") as file:
        listed = list(csv.reader(file))
    assert listed[0] == ["path", "reason"]
    assert len(listed) == 4  # each once, however many found it
    reader = unchecked.unusable_rows
    assert reader is not None
    assert len(reader.bad) == 3
    # ids, labels and pictures are those of the replacement
    for batch in full:
        assert not set(batch.index.tolist()) & set(reader.bad)
        assert batch.labels is not None
        assert unchecked.labels is not None
        np.testing.assert_array_equal(batch.labels.numpy(), unchecked.labels[batch.index.numpy()])
        np.testing.assert_array_equal(batch.views[0].numpy(), unchecked.load(batch.index.numpy()).data)


def test_replacement_of_a_bad_row_is_of_the_same_split(tmp_path: Path) -> None:
    """Held-out rows never replace training rows."""
    data = open_data(as_parquet(tmp_path, pictures(), bad=(10,)), scan_bytes=0)
    train = data.subset(np.array([9, 10, 30, 31]))
    _, rows = train.load_usable(np.array([1]))
    assert rows.tolist() == [2]


def test_too_many_bad_rows_stop_a_run(tmp_path: Path) -> None:
    data = open_data(as_parquet(tmp_path, pictures(), bad=tuple(range(20))), scan_bytes=0)
    with pytest.raises(UserError, match=r"of 90 instances cannot be used and the limit is a share of 0.05"):
        data.load(np.arange(COUNT))


def test_loading_ends_where_no_row_is_usable(tmp_path: Path) -> None:
    """The next row replaces an unusable one, so a set of unusable rows alone must not go round for ever."""
    folder = Path(as_folder(tmp_path, pictures()))
    for place, file in enumerate(sorted(folder.rglob("*.png"))):
        if place % 3:
            file.write_bytes(b"not a picture")
    data = open_data(str(folder), scan_bytes=0, max_bad_share=1.0)
    bad = np.flatnonzero(np.arange(len(data)) % 3)
    for rows in (bad, bad[:1], np.repeat(bad[:2], 3)):
        with pytest.raises(UserError, match=r"none of .* can be used; the last was row \d+: not an image"):
            data.subset(rows).load(np.arange(len(rows)))
    for file in folder.rglob("*.png"):
        file.write_bytes(b"not a picture")
    empty = open_data(str(folder), scan_bytes=0, max_bad_share=1.0)
    for _ in range(2):  # also when all are known already
        with pytest.raises(UserError, match="none is left"):
            empty.load(np.arange(2))


def test_bad_rows_are_counted_across_processes(tmp_path: Path) -> None:
    """Five of 90 exceed a share of 0.05, whichever process reads them; once repaired they are not counted."""
    listed = tmp_path / "bad.csv"
    spec = as_parquet(tmp_path / "s", pictures(), bad=(4, 5, 37, 60, 80))
    opened = lambda: open_data(spec, scan_bytes=0, quarantine=listed)
    opened().load(np.arange(41))
    later = opened()
    reader = later.unusable_rows
    assert reader is not None
    assert sorted(reader.bad) == [4, 5, 37]
    with pytest.raises(UserError, match="5 of 90 instances cannot be used"):
        later.load(np.arange(41, COUNT))
    with pytest.raises(UserError, match="5 of 90 instances cannot be used"):
        opened()
    assert len(listed.read_text().splitlines()) == 6
    as_parquet(tmp_path / "s", pictures())
    reader = opened().unusable_rows
    assert reader is not None
    assert not reader.bad
    assert listed.read_text() == "path,reason\n"


def test_checked_lazy_and_packed_sets_agree(tmp_path: Path) -> None:
    spec = as_parquet(tmp_path / "s", pictures(), bad=(3,))
    scanned, unscanned = open_data(spec), check_all(open_data(spec, scan_bytes=0))
    np.testing.assert_array_equal(scanned.load(np.arange(89)).data, unscanned.load(np.arange(89)).data)
    np.testing.assert_array_equal(scanned.labels, unscanned.labels)
    assert tuple(scanned.paths) == tuple(unscanned.paths)
    assert scanned.quarantine == unscanned.quarantine
    packed = open_data(str(pack(spec, tmp_path / "p", shuffle=False)))
    np.testing.assert_array_equal(scanned.load(np.arange(89)).data, packed.load(np.arange(89)).data)


def test_row_groups_too_large_to_be_mixed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = as_parquet(tmp_path, pictures())
    monkeypatch.setattr("nearfar.data.row_groups.WINDOW_BYTES", 1000)
    with pytest.raises(UserError, match="nearfar pack writes smaller ones"):
        open_data(spec, scan_bytes=0)


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    marks = {
        open_data(as_parquet(tmp_path / "s", pictures(seed)), scan_bytes=0).fingerprint for seed in (0, 1, 0)
    }
    folders = {
        open_data(as_folder(tmp_path / f"f{n}", pictures(n)), scan_bytes=0).fingerprint for n in (0, 1)
    }
    assert len(marks) == 2
    assert len(folders) == 2
