"""Settings: layers override one another, written files are read back, 500 wrong ones each get a sentence."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearfar.config.fields import CHOICES, KEYS
from nearfar.config.reading import load_yaml, numbers
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import check, read_file, read_words, resolve
from nearfar.config.schema import settable
from nearfar.config.sections import PARTS_BY_CHOICE, describe
from nearfar.errors import UserError
from nearfar.studies.run import read_options, studies


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_complete_and_survives_yaml(recipe: str) -> None:
    settings = resolve(recipe, "photos")
    assert check(yaml.safe_load(settings.as_yaml())) == settings
    assert set(describe({room: getattr(settings, room) for room in CHOICES})) == set(CHOICES)


def test_words_override_the_file_and_the_file_the_recipe() -> None:
    settings = resolve(
        "moco", "x", {"epochs": 5, "negatives": {"size": 64}}, read_words(["negatives.size=128"])
    )
    assert (settings.epochs, settings.negatives["size"]) == (5, 128)


def test_documented_settings_exist() -> None:
    words = [
        "epochs=3",
        "batch_size=64",
        "seed=1",
        "backbone=resnet8-w16",
        "image_size=32",
        "optimizer=sgd",
        "lr=0.1",
        "weight_decay=0",
        "temperature=0.3",
        "precision=fp32",
        "workers=0",
        "device=cpu",
        "checkpoint_every=5",
        "max_time=90m",
        "chunk=16",
        "bound=infonce",
        "negatives.size=128",
        "encoders.momentum=cosine(0.99,1)",
        "views.blur=0.5",
        "views.second.solarise=0.2",
    ]
    settings = resolve("moco", "x", read_words(words))
    assert settings.max_time == 5400
    assert settings.critic["temperature"] == 0.3
    assert settings.as_plain()["encoders"]["momentum"] == "cosine(0.99,1.0)"
    assert settings.views["second"] == {"solarise": 0.2}
    assert resolve("instdisc", "x", read_words(["negatives.momentum=0.1"])).negatives["momentum"] == 0.1


def test_naming_another_part_drops_the_settings_of_the_old_one() -> None:
    settings = resolve("instdisc", "x", {"negatives": "queue", "views": {"count": 2}})
    assert settings.negatives == {"name": "queue", "size": 4096}


def test_keyword_style_and_dotted_style_are_the_same() -> None:
    nested = resolve("moco", "x", {"negatives": {"size": 99}, "critic": {"temperature": 0.5}})
    dotted = resolve("moco", "x", {"negatives.size": 99, "temperature": 0.5})
    assert nested == dotted


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("1e-4", 1e-4), ("1E-4", 1e-4), ("1.e-4", 1e-4), (".5", 0.5), ("+2", 2), ("-3", -3), ("010", 10),
        ("0.10", 0.1),
        ("1_000", 1000), ("1e3", 1000), ("2.0", 2.0), ("1e+2", 100), ("5e-1", 0.5), (" 7 ", 7),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(written: str, number: float) -> None:
    """YAML 1.1 takes 1e-4 for text, 010 for 8 and 1:30 for 90."""
    value = numbers(written)
    assert value == number
    assert type(value) is type(number)
    assert load_yaml(f"a: [{written}, {{b: {written}}}]") == {"a": [number, {"b": number}]}


@pytest.mark.parametrize(
    "text", ["1:30", "0x10", "1e", "e4", "1-2", "--1", "1.2.3", "nan", "inf", "٣", "1e-4x"]
)
def test_text_that_is_not_a_number_stays_text(text: str) -> None:
    assert load_yaml(text) == numbers(text) == text


def test_numbers_are_read_alike_from_words_files_and_python(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "weight_decay: 1e-4\nbatch_size: 1e2\nlr: {linear: {start: 1e-3, end: 0}}\nnegatives: {size: "
        "2e2}\nviews: {crop_scale: [2e-1, 1]}\n"
    )
    words = [
        "weight_decay=1e-4", "batch_size=1e2", "lr=linear(1e-3,0)", "negatives.size=2e2",
        "views.crop_scale=[2e-1,1]",
    ]  # fmt: skip
    python = {
        "weight_decay": "1e-4", "batch_size": 1e2, "lr": "linear(1e-3,0)", "negatives": {"size": "2e2"},
        "views": {"crop_scale": ["2e-1", "1"]},
    }  # fmt: skip
    layers = [read_file(file), read_words(words), python]
    first, *rest = [resolve("moco", "x", layer) for layer in layers]
    assert all(settings == first for settings in rest)
    assert (first.weight_decay, first.batch_size, first.negatives["size"]) == (1e-4, 100, 200)
    assert type(first.batch_size) is int
    assert resolve("moco", "x", {"epochs": "30"}) == resolve("moco", "x", {"epochs": 30})
    assert read_options(studies()["gaussians"], ["steps=2e1"])[0]["steps"] == 20
    with pytest.raises(UserError, match=r"batch_size was 1\.5"):
        resolve("moco", "x", {"batch_size": 1.5})


WRONG_VALUES = [
    ".inf",
    ".nan",
    "1" + "0" * 400,
    "linear(-1,-2)",
    "true",
    "",
    "abc",
    "-7",
    "[1]",
    "{a: 1}",
    "1e400",
    "nan",
    "linear(1)",
    "!!python/object:os.system x",
    "'",
    "null,",
]
NUMBER_KEYS = [
    "epochs", "batch_size", "seed", "lr", "warmup", "weight_decay", "clip", "checkpoint_every", "max_time",
    "probe_every", "skip_steps", "max_bad_share", "temperature", "negatives.size", "encoders.hidden",
    "encoders.dim", "encoders.dropout", "views.blur", "views.first.flip", "views.count",
]  # fmt: skip
WORD_KEYS = [
    "backbone",
    "optimizer",
    "precision",
    "device",
    "bound",
    "negatives",
    "selection",
    "encoders",
    "critic",
]


def misspelt(key: str, choose: random.Random) -> str:
    place = choose.randrange(len(key))
    return key[:place] + choose.choice("qxz_") + key[place + choose.choice((0, 1)) :]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_wrong_settings_get_one_sentence_naming_the_key(seed: int) -> None:
    choose = random.Random(seed)
    keys = [*KEYS, *NUMBER_KEYS]
    kind = choose.choice(("number", "word", "key"))
    if kind == "key":
        key = misspelt(choose.choice(keys), choose)
        word = f"{key}=3"
        if key in keys:
            return
    else:
        key = choose.choice(NUMBER_KEYS if kind == "number" else WORD_KEYS)
        word = f"{key}={choose.choice(WRONG_VALUES)}"
    with pytest.raises(UserError) as caught:
        resolve("moco", "x", read_words([word]))
    message = str(caught.value)
    assert key.split(".")[-1].split("_")[0][:3] in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b",
        "a: [",
        "!!python/object/apply:os.system ['true']",
        "\x00",
        "epochs: {a: 1}",
        "bound: [1, 2]",
        "3: 4",
    ],
)
def test_bad_files_get_a_sentence_and_run_nothing(text: str, tmp_path: object) -> None:
    path = tmp_path / "run.yaml"  # type: ignore[operator]
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        resolve("simclr", "x", read_file(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: object) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml cannot be read"):
        read_file(tmp_path / "nowhere.yaml")  # type: ignore[operator]


def test_a_parts_signature_is_its_schema() -> None:
    """A new part needs one file and one line in its room's PARTS, but for sequences, graphs and labels."""
    home = {
        "predictive": "cpc",
        "masked": "mlm",
        "dictionary": "mlm",
        "prototypes": "supervised",
        "infograph": "infograph",
        "nodes": "grace",
        "dgi": "dgi",
        "corrupted": "dgi",
        "sinkhorn": "swav",
        "centred": "dino",
        "distillation": "distill",
    }
    for room, parts in PARTS_BY_CHOICE.items():
        for name, part in parts.items():
            settings = resolve(
                "barlow" if (room, name) == ("bound", "none") else home.get(name, "simclr"),
                "x",
                {"bound": "agreement", room: name} if name == "none" and room != "bound" else {room: name},
            )
            assert set(settable(part)) <= set(getattr(settings, room)), (room, name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["views.count=1"], "views.count was 1"),
        (["negatives=none"], "bound was infonce with negatives=none"),
        (
            ["bound=agreement", "critic=dot"],
            "bound was agreement with critic=dot: .*critic=cosine or distance",
        ),
        (["bound=barber-agakov", "critic=bilinear"], "bound was barber-agakov with critic=bilinear"),
        (["bound=agreement", "critic=joint"], "grow without limit"),
        (["temperature=linear(0.1,-0.1)"], "temperature was"),
        (["encoders=momentum", "encoders.momentum=linear(0,5)"], "encoders.momentum was"),
        (["lr=linear(0.1,-1)"], "lr was"),
        (["epochs=yes"], "epochs was True"),
        (["epochs=" + "[" * 3000], "epochs was"),
        (["data=other"], "data was given as a setting too"),
    ],
)
def test_settings_that_train_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("simclr", "x", read_words(words))


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        ("simclr", ["optimizer.nesterov=true"],
        "optimizer.nesterov is a setting of sgd, not of optimizer=adamw"),
        ("simclr", ["encoders=masked", "backbone=resnet18"],
        "encoders was masked with views=simclr; it takes views=mask"),
        ("simclr", ["encoders=infograph", "backbone=resnet18"],
        "it is for graphs, and these views are for pictures"),
        ("instdisc", ["negatives=dictionary"],
        "only encoders=masked and encoders=prototypes have a vocabulary"),
        ("simclr", ["probe=2"], "probe was '2'; expected knn, linear, quality"),
        ("simclr", ["optimizer.amsgrad=1e99"], r"optimizer.amsgrad was 1e\+99; expected true or false"),
    ],
)  # fmt: skip
def test_refusals_name_the_setting_to_change(recipe: str, words: list[str], message: str) -> None:
    """Each was once refused by a sentence that led to the next refusal or was untrue."""
    with pytest.raises(UserError, match=message):
        resolve(recipe, "x", read_words(words))


def test_text_that_looks_like_a_number_stays_text() -> None:
    """A folder may be called 2026, and a column 7."""
    settings = resolve(
        "simclr", "x", read_words(["probe_data=2026", "label_column=07", "init=1e5", "image_column=none"])
    )
    assert (settings.probe_data, settings.label_column, settings.init, settings.image_column) == (
        "2026",
        "07",
        "1e5",
        None,
    )
    assert check(load_yaml(settings.as_yaml())) == settings


def test_changing_the_views_keeps_their_pairing() -> None:
    assert resolve("moco", "x", {"views": "byol"}).views["symmetric"] is False
    assert resolve("instdisc", "x", {"views": "simclr"}).views["count"] == 1


def test_near_misses_are_suggested() -> None:
    with pytest.raises(UserError, match="did you mean epochs"):
        resolve("simclr", "x", read_words(["epoch=3"]))
    with pytest.raises(UserError, match="did you mean simclr"):
        resolve("simclir", "x")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epochs": "ten"}, "epochs was 'ten'; expected a whole number"),
        ({"epochs": 0}, "epochs was 0; expected a number of at least 1"),
        ({"clip": -1}, "clip was -1; expected a number above 0"),
        ({"held_out": 2}, "held_out was 2; expected a number below 0.5"),
        ({"max_bad_share": 3}, "max_bad_share was 3; expected a number of at most 1"),
        ({"precision": "fp8"}, "precision was 'fp8'; expected 'auto', 'fp32', 'bf16' or 'fp16'"),
    ],
)
def test_messages_about_values_do_not_come_from_pydantic(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        resolve("simclr", "digits", wrong)
    assert str(error.value) == sentence


def test_reading_settings_imports_no_torchvision() -> None:
    """It takes a second, and only networks and exports need it."""
    program = "import sys, nearfar.config.resolving; sys.exit('torchvision' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
