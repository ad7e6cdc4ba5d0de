"""Recordings and text: decoded as they were written, opened like pictures, and mistakes get a sentence."""

import csv
import io
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities import DataSet, Images, Reading, Recordings, Texts
from nearfar.modalities.dataset import Unusable, grouped
from nearfar.modalities.sound.data import decode_sound
from nearfar.modalities.text.data import UNKNOWN_SYMBOL


def wav(samples: list[list[int]], bits: int = 16, rate: int = 8000) -> bytes:
    """A PCM file byte by byte, from the format's description: frames of one integer for each channel."""
    width, channels = bits // 8, len(samples[0])
    body = b"".join(
        (s + 128).to_bytes(1, "little") if bits == 8 else s.to_bytes(width, "little", signed=True)
        for frame in samples
        for s in frame
    )
    head = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * width, channels * width, bits)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head
    chunks += b"data" + struct.pack("<I", len(body)) + body + (b"\0" if len(body) % 2 else b"")
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def encoded(samples: np.ndarray, kind: str, subtype: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 8000, format=kind, subtype=subtype)
    return buffer.getvalue()


def flac(samples: list[list[int]]) -> bytes:
    return encoded(np.array(samples, dtype=np.int16), "FLAC", "PCM_16")


def tone(count: int, seed: int = 0) -> list[list[int]]:
    return [[int(s)] for s in np.random.default_rng(seed).integers(-1000, 1000, count)]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), bits=st.sampled_from([8, 16, 24, 32]), channels=st.integers(1, 3))
def test_pcm_is_decoded_to_the_value_of_its_integers(data: st.DataObject, bits: int, channels: int) -> None:
    top = 2 ** (bits - 1)
    sample = st.integers(-top, top - 1) | st.sampled_from([-top, -1, 0, 1, top - 1])
    frames = data.draw(
        st.lists(st.lists(sample, min_size=channels, max_size=channels), min_size=1, max_size=9)
    )
    decoded = decode_sound(wav(frames, bits, 11025))
    assert decoded.rate == 11025
    expected = [sum(frame) / len(frame) / top for frame in frames]
    assert decoded.wave.tolist() == pytest.approx(expected, abs=2e-7)
    assert decoded.wave.dtype == np.float32


@pytest.mark.parametrize("channels", [1, 2])
def test_flac_holds_the_same_samples_as_wav(channels: int) -> None:
    frames = [[value] * channels for (value,) in tone(300)]
    np.testing.assert_array_equal(decode_sound(flac(frames)).wave, decode_sound(wav(frames)).wave)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a WAV or FLAC file"),
        (b"RIFF1234WAVE", "corrupt"),
        (b"RIFF\4\0\0\0WAVE", "corrupt"),
        (b"ID3 not sound at all, whatever its name says", "not a WAV or FLAC file"),
        (wav(tone(50))[:-20], "truncated: 80 of 100 bytes of sound"),
        (flac(tone(2000))[:-500], "corrupt|truncated"),
        # a header that claims 2^36 samples
        (flac(tone(20))[:21] + b"\xff" * 5 + flac(tone(20))[26:], "too long"),
        (wav([[1]])[:-2].replace(b"data\x02", b"data\x00"), "empty"),
        (wav(tone(5)).replace(b"fmt \x10\0\0\0\x01\0", b"fmt \x10\0\0\0\x31\0"), "corrupt|unsupported"),
        (encoded(np.array([0.0, np.nan]), "WAV", "FLOAT"), "not finite"),
    ],
    # libsndfile writes the time into float files, so the bytes are no stable ids
    ids=[
        "empty file",
        "no chunks",
        "short header",
        "text",
        "truncated WAV",
        "truncated FLAC",
        "huge FLAC",
        "no samples",
        "unknown codec",
        "NaN",
    ],
)
def test_unusable_sound_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        decode_sound(data)


def write_parquet(file: Path, sounds: list[bytes | None], **columns: object) -> Path:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    audio = pa.array([None if s is None else {"bytes": s, "path": "x.wav"} for s in sounds], kind)
    pq.write_table(pa.table({"audio": audio, **columns}), file, row_group_size=4)
    return file


SPEAKERS = ["bo", "al", "al", "cy", "bo", "al"]
SOUNDS = [wav(tone(20 + 10 * n, n)) for n in range(6)]


def speech(tmp_path: Path) -> Recordings:
    file = write_parquet(
        tmp_path / "s.parquet", list(SOUNDS), label=[0, 1, 2, 0, 1, 2], speaker=SPEAKERS, take=[3] * 6
    )
    opened = open_data(file)
    assert isinstance(opened, Recordings)
    return opened


def test_parquet_with_audio_opens_with_labels_and_groups(tmp_path: Path) -> None:
    opened = speech(tmp_path)
    assert (len(opened), opened.rate) == (6, 8000)
    assert opened.labels is not None
    assert opened.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert opened.groups["speaker"].tolist() == [1, 0, 0, 2, 1, 0]
    assert opened.groups["take"].tolist() == [0] * 6
    series = opened.load(np.array([2, 0]))
    assert series.length.tolist() == [40, 20]
    assert series.data.shape == (2, 40)
    assert np.array_equal(series.data[1, :20], decode_sound(SOUNDS[0]).wave)
    assert not series.data[1, 20:].any()


def test_subsets_and_splits_keep_groups_and_classes_in_step(tmp_path: Path) -> None:
    opened = speech(tmp_path)
    part = opened.subset(np.array([5, 3]))
    assert part.groups["speaker"].tolist() == [0, 2]
    assert part.load(np.array([1])).length.tolist() == [50]
    assert part.fingerprint != opened.fingerprint
    rest, holdout = opened.split(0.5, seed=1)
    assert isinstance(rest, Recordings)
    assert sorted([*rest.paths, *holdout.paths]) == sorted(opened.paths)
    for half in (rest, holdout):
        numbers = [int(path.partition("#")[2]) for path in half.paths]
        assert half.groups["speaker"].tolist() == [opened.groups["speaker"][n] for n in numbers]


def test_groups_by_name(tmp_path: Path) -> None:
    opened = speech(tmp_path)
    assert grouped(opened, "speaker").tolist() == [1, 0, 0, 2, 1, 0]
    assert grouped(opened, "label").tolist() == [0, 1, 2, 0, 1, 2]
    assert grouped(opened, "self").tolist() == list(range(6))
    with pytest.raises(
        UserError,
        match=r"selection.by was 'spaeker'; .* can be grouped by known-label, label, self, speaker, take",
    ):
        grouped(opened, "spaeker")


def test_fingerprint_changes_with_groups(tmp_path: Path) -> None:
    first = speech(tmp_path).fingerprint
    rewritten = write_parquet(
        tmp_path / "s.parquet",
        list(SOUNDS),
        label=[0, 1, 2, 0, 1, 2],
        speaker=[*SPEAKERS[:5], "bo"],
        take=[3] * 6,
    )
    assert open_data(rewritten).fingerprint != first
    assert speech(tmp_path).fingerprint == first


def test_bad_recordings_and_other_rates_go_to_the_quarantine(tmp_path: Path) -> None:
    sounds = [*SOUNDS, None, SOUNDS[0][:-8], wav(tone(30), rate=16000), *SOUNDS] * 2
    file = write_parquet(tmp_path / "s.parquet", sounds)
    opened = open_data(file, max_bad_share=0.3, quarantine=tmp_path / "q.csv")
    assert len(opened) == 24
    rows = list(csv.reader((tmp_path / "q.csv").read_text().splitlines()))[1:]
    assert [reason.split(":")[0] for _, reason in rows[:3]] == [
        "empty row",
        "truncated",
        "sampled at 16000 Hz; most of the set is at 8000 Hz",
    ]
    assert len(rows) == 6
    with pytest.raises(
        UserError, match=r"6 of 30 recordings cannot be used and the limit is a share of 0\.05"
    ):
        open_data(file)


def test_folders_of_wav_files_have_their_folders_as_classes(tmp_path: Path) -> None:
    for number, sound in enumerate(SOUNDS):
        path = tmp_path / ("yes" if number % 2 else "no") / f"{number}.wav"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(sound)
    opened = open_data(tmp_path)
    assert isinstance(opened, Recordings)
    assert opened.classes == ("no", "yes")
    assert opened.labels is not None
    assert opened.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert opened.paths[3] == "yes/1.wav"
    assert opened.load(np.array([3])).length.tolist() == [30]


def test_recordings_beyond_the_cache_are_decoded_at_each_load(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "s.parquet", list(SOUNDS))
    cached, uncached = open_data(file), open_data(file, cache_bytes=200)
    everything = np.array([4, 0, 5, 1])
    assert np.array_equal(cached.load(everything).data, uncached.load(everything).data)
    assert cached.fingerprint == uncached.fingerprint


def test_image_column_takes_precedence_over_numbers(tmp_path: Path) -> None:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (9, 8)).save(out, "PNG")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array([{"bytes": out.getvalue(), "path": "x"}], kind)}
    pq.write_table(pa.table({**columns, "audio": columns["image"]}), tmp_path / "p.parquet")
    opened = open_data(tmp_path / "p.parquet")
    assert isinstance(opened, Images)
    assert not isinstance(opened, Recordings)


TEXT = "to be or not to be"


def symbols(opened: DataSet, row: int) -> str:
    assert isinstance(opened, Texts)
    series = opened.load(np.array([row]))
    return "".join(opened.symbols[n] for n in series.data[0, : series.length[0]])


def test_text_is_blocks_of_its_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    opened = open_data(tmp_path / "a.txt", reading=Reading(length=8))
    assert [symbols(opened, row) for row in range(3)] == ["to be or", " not to ", "be"]
    assert opened.paths == ("a.txt#0", "a.txt#1", "a.txt#2")
    assert opened.symbols[:3] == (UNKNOWN_SYMBOL, " ", "o")
    assert len(opened.symbols) == len(set(TEXT)) + 1
    assert opened.load(np.array([2, 0])).data.tolist()[0][2:] == [-1] * 6


def test_words_and_a_vocabulary_of_the_most_frequent(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    opened = open_data(tmp_path / "a.txt", reading=Reading("words", length=4, most=2))
    assert isinstance(opened, Texts)
    assert opened.symbols == (UNKNOWN_SYMBOL, "be", "to")
    assert opened.load(np.arange(2)).data.tolist() == [[2, 1, 0, 0], [2, 1, -1, -1]]
    second = tmp_path / "b.txt"
    second.write_text("be quick", encoding="utf-8")
    reopened = open_data(second, reading=Reading("words", 4, 2, opened.symbols))
    assert reopened.load(np.array([0])).data.tolist() == [[1, 0]]


def test_a_folder_of_text_has_class_folders_and_a_quarantine(tmp_path: Path) -> None:
    for name, content in (("x/1.txt", TEXT), ("x/2.txt", TEXT[:5]), ("y/3.txt", TEXT)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "y" / "4.txt").write_bytes(b"\xff\xfe\xfa not text")
    (tmp_path / "y" / "5.txt").write_bytes(b" \n")
    opened = open_data(tmp_path, reading=Reading(length=10), max_bad_share=0.5, quarantine=tmp_path / "q.csv")
    assert opened.labels is not None
    assert opened.labels.tolist() == [0, 0, 0, 1, 1]
    reasons = [reason for _, reason in csv.reader((tmp_path / "q.csv").read_text().splitlines())][1:]
    assert reasons == ["not UTF-8 text", "empty: nothing but white space"]
    with pytest.raises(UserError, match="2 of 5 text files cannot be used"):
        open_data(tmp_path)


def test_tokens_of_an_npz(tmp_path: Path) -> None:
    tokens = np.array([[4, 0, 2], [1, 1, -1]], dtype=np.int32)
    np.savez(tmp_path / "t.npz", tokens=tokens, labels=np.array(["b", "a"]))
    opened = open_data(tmp_path / "t.npz")
    assert isinstance(opened, Texts)
    assert (len(opened.symbols), opened.classes) == (5, ("a", "b"))
    assert opened.load(np.arange(2)).data.tolist() == tokens.tolist()
    assert opened.load(np.array([1])).length.tolist() == [2]
    with pytest.raises(UserError, match="tokens range from -1 to 4; expected numbers from 0 to 2"):
        open_data(tmp_path / "t.npz", reading=Reading(vocabulary=("a", "b", "c")))
    np.savez(tmp_path / "t.npz", tokens=np.array([[1, -1, 2]]))
    with pytest.raises(UserError, match="-1 only at the end of a row"):
        open_data(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", tokens=np.array([1.5, 2.5]))
    with pytest.raises(UserError, match="expected integers of shape"):
        open_data(tmp_path / "t.npz")


def test_error_names_an_unusable_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"data 'a\.txt': 1 of 1 text files cannot be used"):
        open_data("a.txt")
