"""Folders, Parquet, .npz, arrays and names: equal pictures are equal data, and mistakes get a sentence."""

import inspect
import io
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nearfar.cli import main
from nearfar.data import open_data
from nearfar.data.folder import Listing
from nearfar.data.open import locate
from nearfar.errors import UserError
from nearfar.modalities import Images
from nearfar.modalities.dataset import RowStore
from nearfar.modalities.image.data import StackedStore

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def pictures(count: int = 12, height: int = 8, width: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


LABELS = np.arange(12) % 3
CLASSES = ("ant", "bee", "cat")


def png(picture: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return out.getvalue()


def write_folder(root: Path, images: np.ndarray) -> Path:
    """Written so that reading in the order of paths gives the pictures back in order, class by class."""
    for number, picture in enumerate(images):
        file = root / CLASSES[number // 4] / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(picture))
    return root


def write_parquet(
    file: Path,
    encoded: list[bytes | None],
    labels: object = None,
    names: tuple[str, ...] = (),
    rows: int = 5,
) -> Path:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array([None if e is None else {"bytes": e, "path": "x"} for e in encoded], kind)}
    if labels is not None:
        columns["label"] = labels if isinstance(labels, pa.Array) else pa.array(labels)
    table = pa.table(columns)
    if names:
        features = {"label": {"_type": "ClassLabel", "names": list(names)}, "image": {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=rows)
    return file


def everything(images: Images) -> np.ndarray:
    return images.load(np.arange(len(images))).data


def test_every_source_gives_the_same_pixels_labels_and_classes(tmp_path: Path) -> None:
    raw, labels = pictures(), np.arange(12) // 4
    encoded: list[bytes | None] = [png(picture) for picture in raw]
    np.savez(tmp_path / "a.npz", images=raw, labels=np.array(CLASSES)[labels])
    np.savez(tmp_path / "float.npz", images=raw / 255, labels=np.array(CLASSES)[labels])
    write_parquet(tmp_path / "many/0.parquet", encoded[:7], labels[:7], CLASSES)
    write_parquet(tmp_path / "many/1.parquet", encoded[7:], labels[7:], CLASSES)
    sources: list[str | Path] = [
        write_folder(tmp_path / "folder", raw),
        write_parquet(tmp_path / "a.parquet", encoded, labels, CLASSES),
        tmp_path / "many",
        tmp_path / "a.npz",
        str(tmp_path / "float.npz"),
    ]
    for spec in sources:
        for cache_bytes in (2**31, 100):
            images = open_data(spec, cache_bytes=cache_bytes)
            np.testing.assert_array_equal(everything(images), raw)
            assert images.labels is not None
            assert images.labels.dtype == np.int64
            np.testing.assert_array_equal(images.labels, labels)
            assert images.classes == CLASSES
            assert images.channels == 3
            assert (images.sizes == [8, 10]).all()
            assert len(images) == len(images.paths) == 12
        np.testing.assert_array_equal(
            everything(open_data(spec, image_size=2)), everything(open_data(raw, image_size=2))
        )
    np.testing.assert_array_equal(everything(open_data(raw)), raw)
    assert open_data(raw).labels is None


def test_paths_of_instances(tmp_path: Path) -> None:
    raw = pictures()
    np.savez(tmp_path / "a.npz", images=raw)
    assert open_data(write_folder(tmp_path / "f", raw)).paths[0] == "ant/00.png"
    assert open_data(write_parquet(tmp_path / "a.parquet", [png(p) for p in raw])).paths[7] == "a.parquet#7"
    assert open_data(tmp_path / "a.npz").paths[3] == "a.npz#3"


def test_store_depends_on_cache_and_sizes(tmp_path: Path) -> None:
    same = write_folder(tmp_path / "same", pictures())
    bytes_needed = 12 * 8 * 10 * 3
    assert isinstance(open_data(same, cache_bytes=bytes_needed).store, StackedStore)
    assert isinstance(open_data(same, cache_bytes=bytes_needed - 1).store, RowStore)
    mixed = write_folder(tmp_path / "mixed", pictures())
    (mixed / "bee" / "wide.png").write_bytes(png(pictures(1, 3, 40)[0]))
    assert isinstance(open_data(mixed).store, RowStore)


@pytest.mark.parametrize("cache_bytes", [2**31, 0])
def test_mixed_sizes_are_padded_at_the_bottom_and_right(tmp_path: Path, cache_bytes: int) -> None:
    tall, broad = pictures(1, 9, 4)[0], pictures(1, 3, 7)[0]
    (tmp_path / "a.png").write_bytes(png(tall))
    (tmp_path / "b.png").write_bytes(png(broad))
    pixels = open_data(tmp_path, cache_bytes=cache_bytes).load(np.array([1, 0, 1]))
    assert pixels.data.shape == (3, 9, 7, 3)
    assert pixels.size.tolist() == [[3, 7], [9, 4], [3, 7]]
    assert pixels.size.dtype == np.int32
    np.testing.assert_array_equal(pixels.data[0, :3, :7], broad)
    np.testing.assert_array_equal(pixels.data[1, :9, :4], tall)
    assert pixels.data.astype(int).sum() == 2 * broad.astype(int).sum() + tall.astype(int).sum()


def test_many_threads_scan_in_the_order_of_paths(tmp_path: Path) -> None:
    """Large enough files to be scanned by threads; every third is damaged."""
    raw = pictures(30, 90, 90)
    for number, picture in enumerate(raw):
        (tmp_path / f"{number:02}.png").write_bytes(png(picture)[: -5000 if number % 3 == 0 else None])
    images = open_data(tmp_path, max_bad_share=0.5)
    assert images.paths == tuple(f"{n:02}.png" for n in range(30) if n % 3)
    np.testing.assert_array_equal(everything(images), raw[np.arange(30) % 3 > 0])
    assert [Path(path).name for path, _ in images.quarantine] == [f"{n:02}.png" for n in range(0, 30, 3)]


class TestFolder:
    def test_classes_need_every_image_in_a_first_level_folder(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path, pictures())
        deep = root / "bee" / "more" / "still"
        deep.mkdir(parents=True)
        (deep / "z.png").write_bytes(png(pictures(1)[0]))
        nested = open_data(root)
        assert nested.classes == CLASSES
        assert nested.labels is not None
        assert nested.labels[nested.paths.index("bee/more/still/z.png")] == 1
        (root / "loose.PNG").write_bytes(png(pictures(1)[0]))
        assert open_data(root).labels is None
        assert open_data(root).classes == ()

    def test_folders_may_be_nested_deeper_than_calls(self, tmp_path: Path) -> None:
        deep = tmp_path.joinpath(*"d" * 300)
        deep.mkdir(parents=True)
        (deep / "a.png").write_bytes(b"")
        listing, limit = Listing((".png",)), sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack()) + 100)
        try:
            listing.add(str(tmp_path))
        finally:
            sys.setrecursionlimit(limit)
        assert [len(entry.parts) for entry in listing.entries] == [301]

    def test_a_class_of_damaged_files_does_not_shift_the_others(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path, pictures())
        for file in (root / "bee").iterdir():
            file.write_bytes(b"damaged")
        images = open_data(root, max_bad_share=0.5)
        assert images.classes == CLASSES
        assert set(images.labels.tolist() if images.labels is not None else ()) == {0, 2}

    def test_other_files_hidden_files_and_loops_are_ignored(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path, pictures())
        (root / "ant" / "notes.txt").write_text("hello")
        (root / "ant" / ".hidden.png").write_bytes(png(pictures(1)[0]))
        (root / ".cache").mkdir()
        (root / ".cache" / "b.png").write_bytes(b"")
        (root / "ant" / "up").symlink_to(root, target_is_directory=True)
        (root / "bee" / "self").symlink_to("self")
        images = open_data(root)
        assert len(images) == 12
        assert images.quarantine == ()
        assert dict(images.ignored) == {
            ".txt is data of another kind": 1,
            "hidden": 2,
            "without a known suffix": 1,
        }

    def test_linked_files_and_folders_are_followed(self, tmp_path: Path) -> None:
        real = write_folder(tmp_path / "real", pictures())
        view = tmp_path / "view"
        view.mkdir()
        (view / "ant").symlink_to(real / "ant", target_is_directory=True)
        (view / "bee").mkdir()
        (view / "bee" / "x.png").symlink_to(real / "bee" / "04.png")
        assert open_data(view).paths == ("ant/00.png", "ant/01.png", "ant/02.png", "ant/03.png", "bee/x.png")

    def test_unreadable_files_are_quarantined(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path, pictures())
        (root / "ant" / "gone.png").symlink_to(root / "nowhere.png")
        os.mkfifo(root / "ant" / "pipe.png")  # opening it would block for ever
        reasons = {Path(path).name: reason for path, reason in open_data(root, max_bad_share=0.5).quarantine}
        assert reasons["gone.png"].startswith("unreadable: No such file")
        assert reasons["pipe.png"] == "unreadable: is a pipe, a socket or a device, not a regular file"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_forbidden_files_and_folders_are_quarantined(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path, pictures())
        (root / "ant" / "00.png").chmod(0)
        (root / "bee").chmod(0)
        try:
            quarantine = open_data(root, max_bad_share=0.5).quarantine
        finally:
            (root / "bee").chmod(0o700)
        assert {Path(path).name for path, _ in quarantine} == {"00.png", "bee"}
        assert all(reason.startswith("unreadable: Permission denied") for _, reason in quarantine)

    def test_file_names_that_are_not_text_are_printable(self, tmp_path: Path) -> None:
        try:
            (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(png(pictures(1)[0]))
            (tmp_path / os.fsdecode(b"bad\xe9.png")).write_bytes(b"")
        except OSError:
            pytest.skip("this file system allows only text as names")
        images = open_data(tmp_path, max_bad_share=0.5, quarantine=tmp_path / "q.csv")
        assert images.paths == ("caf\\xe9.png",)
        assert "bad\\xe9.png" in (tmp_path / "q.csv").read_text(encoding="utf-8")

    def test_error_names_a_file_damaged_after_opening(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path, pictures())
        images = open_data(root, cache_bytes=0)
        (root / "ant" / "01.png").write_bytes(b"")
        images.load(np.array([0]))
        with pytest.raises(UserError, match=r"ant/01\.png .* no longer is: empty file"):
            images.load(np.array([1]))


class TestParquet:
    def test_damaged_and_missing_pictures_are_quarantined_by_row(self, tmp_path: Path) -> None:
        encoded: list[bytes | None] = [png(p) for p in pictures()]
        encoded[2], encoded[5], encoded[8] = b"", None, encoded[8][:-30]  # type: ignore[index]
        file = write_parquet(tmp_path / "a.parquet", encoded, LABELS)
        for cache_bytes in (2**31, 0):
            images = open_data(file, max_bad_share=0.5, cache_bytes=cache_bytes)
            assert dict(images.quarantine).keys() == {f"{file}#{row}" for row in (2, 5, 8)}
            rest = [row for row in range(12) if row not in (2, 5, 8)]
            np.testing.assert_array_equal(images.labels, LABELS[rest])
            np.testing.assert_array_equal(everything(images), pictures()[rest])

    def test_bytes_missing_inside_the_struct(self, tmp_path: Path) -> None:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        rows = [{"bytes": None, "path": "/etc/passwd"}, {"bytes": png(pictures(1)[0]), "path": None}]
        pq.write_table(pa.table({"image": pa.array(rows, kind)}), tmp_path / "a.parquet")
        images = open_data(tmp_path / "a.parquet", max_bad_share=0.5)
        assert len(images) == 1
        assert "no image bytes" in images.quarantine[0][1]

    def test_plain_binary_images_are_accepted(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"image": [png(p) for p in pictures()]}), tmp_path / "a.parquet")
        np.testing.assert_array_equal(everything(open_data(tmp_path / "a.parquet")), pictures())

    def test_labels(self, tmp_path: Path) -> None:
        encoded: list[bytes | None] = [png(p) for p in pictures()]

        def opened(labels: object, names: tuple[str, ...] = ()) -> Images:
            return open_data(write_parquet(tmp_path / "a.parquet", encoded, labels, names))

        words = opened([CLASSES[2 - label] for label in LABELS])
        assert words.classes == CLASSES
        np.testing.assert_array_equal(words.labels, 2 - LABELS)
        coded = opened(pa.array([CLASSES[label] for label in LABELS]).dictionary_encode())
        np.testing.assert_array_equal(coded.labels, LABELS)
        sparse = opened(LABELS * 5)
        assert (sparse.classes, sparse.class_count) == ((), 3), "no names are made up"
        np.testing.assert_array_equal(sparse.labels, LABELS * 5)
        for unknown in ([-1] * 12, pa.nulls(12, pa.int64())):
            assert opened(unknown).labels is None
            assert opened(unknown, CLASSES).classes == ()

    @pytest.mark.parametrize(
        ("labels", "names", "message"),
        [
            ([0] * 11 + [-1], (), "label of image 11 is -1"),
            ([0] * 3 + [-7] * 9, (), "label of image 3 is -7"),
            ([0] * 11 + [None], (), "label of image 11 is -1"),
            ([0] * 11 + [3], CLASSES, "label of image 11 is 3; expected class numbers from 0 to 2"),
            ([0] * 11 + [10**12], (), f"label of image 11 is {10**12}"),
            (["a"] * 11 + [None], (), "1 rows have no `label`"),
            ([0.5] * 12, (), "the column `label` is double; expected class numbers or names"),
            ([[1]] * 12, (), "the column `label` is list<element: int64>; expected class numbers"),
        ],
    )
    def test_invalid_labels_are_refused(
        self, tmp_path: Path, labels: object, names: tuple[str, ...], message: str
    ) -> None:
        file = write_parquet(tmp_path / "a.parquet", [png(p) for p in pictures()], labels, names)
        with pytest.raises(UserError) as caught:
            open_data(file)
        assert message in str(caught.value)
        assert str(tmp_path) in str(caught.value)

    def test_invalid_metadata_are_ignored(self, tmp_path: Path) -> None:
        file = write_parquet(tmp_path / "a.parquet", [png(p) for p in pictures()], LABELS)
        for metadata in (
            b"{",
            b"[]",
            b'{"info": {"features": {"label": {"names": [1, 2]}}}}',
            b"[" * 100_000,
        ):
            table = pq.read_table(file).replace_schema_metadata({b"huggingface": metadata})
            pq.write_table(table, tmp_path / "b.parquet")
            assert open_data(tmp_path / "b.parquet").classes == ()

    @pytest.mark.parametrize(
        ("image", "label"), [("img", "label"), ("image", "labels"), ("img", "fine_label")]
    )
    def test_the_column_names_of_hugging_faces_own_sets(self, tmp_path: Path, image: str, label: str) -> None:
        """CIFAR-10 there has `img` and `label`, CIFAR-100 `img`, `fine_label` and `coarse_label`."""
        usual = write_parquet(tmp_path / "a.parquet", [png(p) for p in pictures()], LABELS, CLASSES)
        table = pq.read_table(usual)
        features = {label: {"_type": "ClassLabel", "names": list(CLASSES)}, image: {"_type": "Image"}}
        renamed = table.rename_columns([image, label]).append_column("coarse_label", pa.array([0] * 12))
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        pq.write_table(renamed.replace_schema_metadata(metadata), tmp_path / "b.parquet")
        expected, opened = open_data(usual), open_data(tmp_path / "b.parquet")
        np.testing.assert_array_equal(everything(opened), everything(expected))
        np.testing.assert_array_equal(opened.labels, LABELS)
        assert opened.classes == CLASSES

    def test_wrong_columns_and_files_are_refused(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"picture": [b"x"], "label": [1]}), tmp_path / "a.parquet")
        with pytest.raises(
            UserError, match=r"a\.parquet': the column `picture` is binary; .*`image`, `img`, .*`audio`"
        ):
            open_data(tmp_path / "a.parquet")
        pq.write_table(pa.table({"image": [1, 2]}), tmp_path / "b.parquet")
        with pytest.raises(UserError, match=r"`image` column is int64"):
            open_data(tmp_path / "b.parquet")
        (tmp_path / "c.parquet").write_bytes(b"PAR1 nonsense PAR1")
        with pytest.raises(UserError, match=r"c\.parquet' cannot be read as Parquet"):
            open_data(tmp_path / "c.parquet")
        write_parquet(tmp_path / "d.parquet", [])
        with pytest.raises(UserError, match="holds no images"):
            open_data(tmp_path / "d.parquet")
        assert locate(tmp_path / "d.parquet").preview is None  # when defaults are chosen

    def test_parquet_files_that_disagree_are_refused(self, tmp_path: Path) -> None:
        encoded: list[bytes | None] = [png(p) for p in pictures()]
        write_parquet(tmp_path / "x/0.parquet", encoded, LABELS, CLASSES)
        write_parquet(tmp_path / "x/1.parquet", encoded, LABELS, CLASSES[::-1])
        with pytest.raises(UserError, match="disagree about the class names"):
            open_data(tmp_path / "x")
        write_parquet(tmp_path / "y/0.parquet", encoded, LABELS)
        write_parquet(tmp_path / "y/1.parquet", encoded)
        with pytest.raises(UserError, match="some have not"):
            open_data(tmp_path / "y")

    def test_any_damaged_byte_gives_data_or_a_sentence(self, tmp_path: Path) -> None:
        file = write_parquet(tmp_path / "a.parquet", [png(p) for p in pictures()], LABELS, CLASSES)
        content = file.read_bytes()
        rng = np.random.default_rng(0)
        refused, quarantined = [], 0
        for _ in range(400):
            damaged = bytearray(content)
            for place in rng.integers(0, len(content), 3):
                damaged[place] = rng.integers(0, 256)
            file.write_bytes(damaged[: rng.integers(0, len(content))] if rng.random() < 0.1 else damaged)
            try:
                images = open_data(file, max_bad_share=0.99, cache_bytes=int(rng.integers(0, 2)) * 10**6)
                everything(images)
                quarantined += len(images.quarantine)
                assert len(images) + len(images.quarantine) == 12
            except UserError as error:
                refused.append(str(error))
        assert len(refused) > 10
        assert all(str(tmp_path) in message for message in refused)
        assert quarantined > 10


class TestNpz:
    def save(self, tmp_path: Path, **arrays: object) -> Path:
        np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
        return tmp_path / "a.npz"

    def test_one_channel_and_many(self, tmp_path: Path) -> None:
        grey = pictures()[..., 0]
        images = open_data(self.save(tmp_path, images=grey, labels=LABELS))
        assert images.channels == 1
        np.testing.assert_array_equal(everything(images), grey[..., None])
        assert (images.classes, images.class_count) == ((), 3)
        with_names = open_data(self.save(tmp_path, images=grey, labels=LABELS, classes=np.array(CLASSES)))
        assert with_names.classes == CLASSES
        many = np.concatenate([pictures(), pictures()], axis=-1)
        assert open_data(self.save(tmp_path, images=many)).channels == 6

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({}, "no array `images`, `tokens` or `x` (the file holds: nothing)"),
            ({"y": np.zeros(3)}, "no array `images`, `tokens` or `x` (the file holds: y)"),
            ({"images": pictures().astype(np.int64)}, "images are int64"),
            ({"images": pictures() > 3}, "images are bool"),
            ({"images": np.full((2, 3, 3), np.nan)}, "range from nan to nan"),
            ({"images": np.full((2, 3, 3), np.inf)}, "range from inf to inf"),
            ({"images": pictures()[0, 0]}, "shape (10, 3)"),
            ({"images": pictures()[:0]}, "shape (0, 8, 10, 3)"),
            ({"images": np.uint8(3)}, "shape ()"),
            ({"images": np.zeros((4, 8, 8, 17), np.uint8)}, "at most 16 channels"),
            ({"images": pictures(), "labels": LABELS[:5]}, "12 images but 5 labels"),
            ({"images": pictures(), "labels": LABELS[:, None]}, "labels have shape (12, 1)"),
            ({"images": pictures(), "labels": LABELS / 2}, "labels are float64"),
            ({"images": pictures(), "labels": LABELS - 2}, "label of image 0 is -2"),
        ],
    )
    def test_arrays_that_cannot_be_images(
        self, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
    ) -> None:
        file = self.save(tmp_path, **arrays)
        with pytest.raises(UserError) as caught:
            open_data(file)
        assert message in str(caught.value)
        assert "a.npz" in str(caught.value)

    def test_pickles_are_refused_without_being_run(self, tmp_path: Path) -> None:
        objects = np.empty(2, dtype=object)
        objects[:] = [Path("a"), Path("b")]
        file = tmp_path / "a.npz"
        np.savez(file, images=objects, allow_pickle=True)
        executed: list[str] = []
        watching = True

        def hook(event: str, _: object) -> None:
            if watching and event == "pickle.find_class":
                executed.append(event)

        sys.addaudithook(hook)
        with np.load(file, allow_pickle=True) as trusted:
            assert trusted["images"][0] == Path("a")
        assert executed  # the hook does see it when a pickle is run
        executed.clear()
        with pytest.raises(
            UserError, match=r"a\.npz' cannot be read as \.npz: .*Python objects, which are never loaded"
        ):
            open_data(file)
        (tmp_path / "b.npz").write_bytes(zipfile.ZipFile(file).read("images.npy")[128:])
        with pytest.raises(UserError, match=r"b\.npz"):
            open_data(tmp_path / "b.npz")
        watching = False
        assert not executed

    def test_any_damaged_byte_gives_data_or_a_sentence(self, tmp_path: Path) -> None:
        file = tmp_path / "a.npz"
        np.savez_compressed(file, images=pictures(3), labels=LABELS[:3])
        content = file.read_bytes()
        rng = np.random.default_rng(0)
        refused = []
        for _ in range(400):
            damaged = bytearray(content)
            for place in rng.integers(0, len(content), 2):
                damaged[place] = rng.integers(0, 256)
            file.write_bytes(damaged[: rng.integers(0, len(content))] if rng.random() < 0.1 else damaged)
            try:
                everything(open_data(file))
            except UserError as error:
                refused.append(str(error))
        assert len(refused) > 10
        assert all(str(file) in message for message in refused)


class TestNames:
    def test_digits_are_scikit_learns(self) -> None:
        from sklearn.datasets import load_digits

        images = open_data("digits")
        assert images.channels == 1
        assert images.classes == tuple("0123456789")
        np.testing.assert_array_equal(images.labels, load_digits().target)
        np.testing.assert_allclose(
            everything(images)[..., 0] / 255, load_digits().images / 16, atol=0.5 / 255
        )

    def test_cifar10_binary_version(self, tmp_path: Path) -> None:
        raw, labels = pictures(20, 32, 32), np.arange(20) % 10
        records = np.concatenate(
            [labels[:, None].astype(np.uint8), raw.transpose(0, 3, 1, 2).reshape(20, -1)], 1
        )
        (tmp_path / "data_batch_1.bin").write_bytes(records[:8].tobytes())
        (tmp_path / "data_batch_2.bin").write_bytes(records[8:15].tobytes())
        (tmp_path / "test_batch.bin").write_bytes(records[15:].tobytes())
        train, test = open_data(f"cifar10:{tmp_path}"), open_data(f"cifar10:{tmp_path}:test")
        np.testing.assert_array_equal(everything(train), raw[:15])
        np.testing.assert_array_equal(everything(test), raw[15:])
        np.testing.assert_array_equal(train.labels, labels[:15])
        assert train.classes[3] == "cat"
        assert train.paths[9] == "data_batch_2.bin#1"
        (tmp_path / "data_batch_2.bin").write_bytes(b"short")
        with pytest.raises(UserError, match=r"data_batch_2\.bin' has 5 bytes"):
            open_data(f"cifar10:{tmp_path}")

    def test_cifar10_parquet_and_pickles(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="has neither"):
            open_data(f"cifar10:{tmp_path}")
        (tmp_path / "cifar-10-batches-py").mkdir()
        (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02.")
        with pytest.raises(UserError, match="pickled and could run code"):
            open_data(f"cifar10:{tmp_path}")
        write_parquet(tmp_path / "cifar10_train.parquet", [png(p) for p in pictures()], LABELS, CLASSES)
        assert len(open_data(f"cifar10:{tmp_path}")) == 12

    @pytest.mark.parametrize(
        ("typed", "suggestion"),
        [("digts", "digits"), ("glyhps:train", "glyphs:train"), ("cifar10", "cifar10:ROOT")],
    )
    def test_misspelt_name_suggests_a_similar_one(self, typed: str, suggestion: str) -> None:
        with pytest.raises(UserError, match=f"data '{typed}' was not found; did you mean '{suggestion}'"):
            open_data(typed)

    def test_similar_file_name_is_suggested(self, tmp_path: Path) -> None:
        write_folder(tmp_path / "photographs", pictures())
        with pytest.raises(UserError, match=f"did you mean '{tmp_path}/photographs'"):
            open_data(tmp_path / "photograps")


@pytest.mark.parametrize(
    "spec",
    ["", "/no/such/thing", "x" * 5000, "a\0b", "nothing.npz", "glyphs:valid", 3, None, ["a"], "cifar10:"],
)
def test_unknown_data_are_refused(spec: object) -> None:
    with pytest.raises(UserError) as caught:
        open_data(spec)
    assert str(caught.value).startswith("data ")
    assert "\n" not in str(caught.value)


def test_unsupported_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.doc").write_text("hello")
    (tmp_path / "a.png").write_bytes(png(pictures(1)[0]))
    with pytest.raises(UserError, match=r"unknown type \(\.doc\)"):
        open_data(tmp_path / "a.doc")
    assert list(open_data(tmp_path / "a.png").paths) == ["a.png"], "one picture is a set of one, for queries"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.doc").write_text("hello")
    with pytest.raises(UserError, match=r"holds no images \(1 file ignored: \.doc is not supported\)"):
        open_data(tmp_path / "sub")
    with pytest.raises(UserError, match="image_size was 0"):
        open_data("digits", image_size=0)
    with pytest.raises(UserError, match=r"quarantine list .* cannot be written: No such file"):
        open_data("digits", quarantine=tmp_path / "no" / "q.csv")


def test_share_of_bad_files(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "f", pictures())
    (root / "ant" / "00.png").write_bytes(b"")
    listed = tmp_path / "q.csv"
    assert len(open_data(root, max_bad_share=1 / 12, quarantine=listed)) == 11
    assert listed.read_text() == f"path,reason\n{root}/ant/00.png,empty file (0 bytes)\n"
    with pytest.raises(UserError, match=r"1 of 12 images .* 0\.08 .*ant/00\.png': empty file"):
        open_data(root, max_bad_share=0.08)
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match="12 of 12 images cannot be used and none is left"):
        open_data(root, max_bad_share=1.0)


def test_the_quarantine_list_is_written_even_when_empty(tmp_path: Path) -> None:
    for spec in ("digits", pictures(), open_data("digits"), write_folder(tmp_path / "f", pictures())):
        listed = tmp_path / "q.csv"
        open_data(spec, quarantine=listed)
        assert listed.read_text().split() == ["path,reason"]
        listed.unlink()


class TestFingerprint:
    def test_fingerprint_does_not_depend_on_location_time_or_settings(self, tmp_path: Path) -> None:
        one = write_folder(tmp_path / "one", pictures())
        two = write_folder(tmp_path / "two", pictures())
        os.utime(two / "ant" / "00.png", (1, 1))
        prints = {
            open_data(one).fingerprint,
            open_data(two).fingerprint,
            open_data(one, cache_bytes=0).fingerprint,
            open_data(one, image_size=1).fingerprint,
        }
        assert len(prints) == 1
        assert len(prints.pop()) == 64

    def test_fingerprint_changes_with_the_data(self, tmp_path: Path) -> None:
        prints = [open_data(root := write_folder(tmp_path / "f", pictures())).fingerprint]
        (root / "ant" / "00.png").write_bytes(png(255 - pictures()[0]))
        prints.append(open_data(root).fingerprint)
        (root / "ant" / "00.png").rename(root / "ant" / "0.png")
        prints.append(open_data(root).fingerprint)
        (root / "ant" / "0.png").rename(root / "bee" / "0.png")
        prints.append(open_data(root).fingerprint)
        (root / "bee" / "0.png").unlink()
        prints.append(open_data(root).fingerprint)
        encoded: list[bytes | None] = [png(p) for p in pictures()]
        for labels in (None, LABELS, (LABELS + 1) % 3):
            prints.append(open_data(write_parquet(tmp_path / "a.parquet", encoded, labels)).fingerprint)
        changed = pictures()
        changed[3, 2, 1, 0] ^= 1
        prints += [open_data(a).fingerprint for a in (pictures(), changed, pictures().reshape(12, 10, 8, 3))]
        assert len(set(prints)) == len(prints)


class TestSubset:
    @pytest.mark.parametrize("cache_bytes", [2**31, 0])
    def test_subset_is_a_data_set(self, tmp_path: Path, cache_bytes: int) -> None:
        images = open_data(write_folder(tmp_path, pictures()), cache_bytes=cache_bytes)
        part = images.subset(np.array([7, 2, 9])).subset(np.array([2, 0]))
        assert len(part) == 2
        np.testing.assert_array_equal(everything(part), pictures()[[9, 7]])
        assert part.paths == (images.paths[9], images.paths[7])
        assert part.labels is not None
        assert part.labels.tolist() == [2, 1]
        assert part.fingerprint != images.fingerprint
        masked = images.subset(np.arange(12) == 5)
        np.testing.assert_array_equal(everything(masked), pictures()[[5]])

    @pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
    @pytest.mark.parametrize("labelled", [True, False])
    def test_a_split_is_deterministic_complete_and_in_proportion(self, share: float, labelled: bool) -> None:
        images = open_data("digits") if labelled else open_data(pictures(97))
        rest, holdout = images.split(share, seed=3)
        repeated = images.split(share, seed=3)
        reseeded = images.split(share, seed=4)
        assert (rest.paths, holdout.paths) == (repeated[0].paths, repeated[1].paths)
        assert holdout.paths != reseeded[1].paths
        assert sorted(rest.paths + holdout.paths) == sorted(images.paths)
        assert len(holdout) == round(share * len(images))
        if images.labels is not None and holdout.labels is not None:
            exact = share * np.bincount(images.labels)
            assert np.abs(np.bincount(holdout.labels, minlength=10) - exact).max() < 1

    def test_a_split_never_takes_a_whole_class(self) -> None:
        images = open_data("digits")
        assert images.labels is not None
        few = images.subset(np.concatenate([np.flatnonzero(images.labels == c)[:2] for c in range(10)]))
        rest, holdout = few.split(0.9, seed=0)
        assert rest.labels is not None
        assert set(rest.labels.tolist()) == set(range(10))
        assert len(holdout) > 0

    def test_splits_with_an_empty_side_are_refused(self) -> None:
        for share in (0.0, 1.0, -1.0, float("nan")):
            with pytest.raises(UserError, match=f"share {share}"):
                open_data("digits").split(share, seed=0)
        with pytest.raises(UserError, match="one side of the split empty"):
            open_data(pictures(1)).split(0.5, seed=0)


@pytest.mark.skipif(not (SHARED / "cifar10_test.parquet").exists(), reason="the shared CIFAR-10 is not here")
def test_the_real_cifar10() -> None:
    images = open_data(f"cifar10:{SHARED}:test")
    assert len(images) == 10_000
    assert images.quarantine == ()
    assert images.classes[0] == "airplane"
    assert images.labels is not None
    assert np.bincount(images.labels).tolist() == [1000] * 10
    rows = pq.read_table(SHARED / "cifar10_test.parquet", columns=["image"])["image"].to_pylist()
    for row in range(0, 10_000, 97):
        expected = np.asarray(Image.open(io.BytesIO(rows[row]["bytes"])))
        np.testing.assert_array_equal(images.load(np.array([row])).data[0], expected)


def test_ignored_files_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """60 files next to 8 pictures were once ignored without a message."""
    root = write_folder(tmp_path / "photos", pictures(8))
    for number in range(60):
        (root / "ant" / f"{number}.gif").write_bytes(b"GIF89a")
    assert dict(open_data(root).ignored) == {"GIF (.gif) is not read: convert to PNG, JPEG or TIFF": 60}
    run, words = str(tmp_path / "run"), ["backbone=resnet8-w8", "epochs=1", "batch_size=4", "image_size=8"]
    assert main(["pretrain", "simclr", str(root), "--out", run, *words]) == 0
    sentence = "60 files ignored: GIF (.gif) is not read: convert to PNG, JPEG or TIFF"
    output = capsys.readouterr()
    assert sentence in output.out + output.err
    assert main(["report", run, "--out", str(tmp_path / "report.html")]) == 0
    assert sentence in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    (root / ".DS_Store").write_bytes(b"")
    summary = "61 files ignored: GIF (.gif) is not read: convert to PNG, JPEG or TIFF (60), hidden (1)"
    assert main(["pack", str(root), "--out", str(tmp_path / "packed")]) == 0
    assert summary in capsys.readouterr().err
    assert main(["embed", run, str(root), "--out", str(tmp_path / "features.parquet")]) == 0
    assert summary in capsys.readouterr().err
    assert main(["evaluate", run, "--data", str(root), "--protocol", "knn", "--json"]) == 0
    assert summary in capsys.readouterr().err
    sweep = ["sweep", "simclr", str(root), "seed=0", "--out", str(tmp_path / "sweep"), *words]
    assert main(sweep) == 0
    assert f"sweep: {summary}" in capsys.readouterr().err
    # a packed folder reports the ignored files of its source
    assert dict(open_data(tmp_path / "packed").ignored) == {
        "GIF (.gif) is not read: convert to PNG, JPEG or TIFF": 60,
        "hidden": 1,
    }
