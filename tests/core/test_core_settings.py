"""Settings: layers go over one another, what is written is read back, and 500 wrong ones each get a sentence."""

import random

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearfar.errors import UserError
from nearfar.parts import settable
from nearfar.recipes import RECIPES
from nearfar.recipes.build import describe
from nearfar.recipes.choices import CHOICES, ROOMS
from nearfar.settings import Settings, check, read_file, read_words, resolve


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_complete_and_survives_yaml(recipe: str) -> None:
    chosen = resolve(recipe, "photos")
    assert check(yaml.safe_load(chosen.as_yaml())) == chosen
    assert set(describe({room: getattr(chosen, room) for room in CHOICES})) == set(CHOICES)


def test_words_go_over_the_file_and_the_file_over_the_recipe() -> None:
    chosen = resolve(
        "moco", "x", {"epochs": 5, "negatives": {"size": 64}}, read_words(["negatives.size=128"])
    )
    assert (chosen.epochs, chosen.negatives["size"]) == (5, 128)


def test_the_contracts_names_are_settings() -> None:
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
    chosen = resolve("moco", "x", read_words(words))
    assert chosen.max_time == 5400
    assert chosen.critic["temperature"] == 0.3
    assert chosen.as_plain()["encoders"]["momentum"] == "cosine(0.99,1.0)"
    assert chosen.views["second"] == {"solarise": 0.2}
    assert resolve("instdisc", "x", read_words(["negatives.momentum=0.1"])).negatives["momentum"] == 0.1


def test_naming_another_part_drops_the_settings_of_the_old_one() -> None:
    chosen = resolve("instdisc", "x", {"negatives": "queue", "views": {"count": 2}})
    assert chosen.negatives == {"name": "queue", "size": 4096}


def test_keyword_style_and_dotted_style_are_the_same() -> None:
    nested = resolve("moco", "x", {"negatives": {"size": 99}, "critic": {"temperature": 0.5}})
    dotted = resolve("moco", "x", {"negatives.size": 99, "temperature": 0.5})
    assert nested == dotted


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
    known = [*Settings.model_fields, *NUMBER_KEYS]
    kind = choose.choice(("number", "word", "key"))
    if kind == "key":
        key = misspelt(choose.choice(known), choose)
        word = f"{key}=3"
        if key in known:
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
    """A new part needs one file and one line in its room's PARTS; only those that sequences need have another home."""
    home = {"predictive": "cpc", "masked": "mlm", "dictionary": "mlm"}
    for room, parts in ROOMS.items():
        for name, part in parts.items():
            chosen = resolve(
                home.get(name, "simclr"),
                "x",
                {"bound": "agreement", room: name} if name == "none" else {room: name},
            )
            assert set(settable(part)) <= set(getattr(chosen, room)), (room, name)


@pytest.mark.parametrize(
    ("words", "said"),
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
def test_what_would_train_nothing_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        resolve("simclr", "x", read_words(words))


def test_another_pipeline_keeps_how_views_are_paired() -> None:
    assert resolve("moco", "x", {"views": "byol"}).views["symmetric"] is False
    assert resolve("instdisc", "x", {"views": "simclr"}).views["count"] == 1


def test_near_misses_are_suggested() -> None:
    with pytest.raises(UserError, match="did you mean epochs"):
        resolve("simclr", "x", read_words(["epoch=3"]))
    with pytest.raises(UserError, match="did you mean simclr"):
        resolve("simclir", "x")
