"""Is the objective of a masked language model a bound on information? (Wu et al. 2020, sec. 5.1.)

A chain of symbols whose information is known: a symbol is repeated with probability `repeat`, otherwise drawn
by its frequency. Frequencies are equal, or fall as 1 / rank. Every arm trains `mlm` on one text and predicts
the hidden symbols of another. Three figures for each, in nats:

    truth        H(w) - E[-log p(w | x)], p the chain's own posterior, by forward and backward messages
    objective    log V - E[-log q(w | x)], q the model's: InfoNCE over the vocabulary, each symbol once
    corrected    H(w) - E[-log q(w | x)], the Barber-Agakov bound

The paper: because every symbol is a negative equally often, InfoNCE does not cover the objective where
frequencies differ, and VINCE does. The latter needs weights, which the objective has not: it exceeds the
corrected figure by log V - H(w), for every model.

Command: nearfar study masked-tokens      Cost: about 6 minutes of one core.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from nearfar.errors import check_number, check_whole
from nearfar.modalities.text.show import hidden_symbols, masked_scores
from nearfar.modalities.text.views import REPLACED, UNCHANGED
from nearfar.studies.frame import StudyResult, StudyTable, Values, Workspace, mean_row, study
from nearfar.sweeps.engine import Cell
from nearfar.train.pretrain import pretrain

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FREQUENCIES = {"equal": 0.0, "1 / rank": 1.0}  # power of the rank
LENGTH, TEST_SYMBOLS = 32, 20_000
FIGURES = ("truth", "objective", "corrected")


def frequencies(power: float, symbols: int) -> Float[np.ndarray, "symbol"]:
    weights = np.arange(1, symbols + 1) ** -power
    return weights / weights.sum()


def draw_chain(
    share: Float[np.ndarray, "symbol"], repeat: float, length: int, rng: np.random.Generator
) -> Int[np.ndarray, "time"]:
    """A stationary chain: its marginals are `share` at every time."""
    new_symbols = rng.choice(len(share), size=length, p=share)
    renewed = rng.random(length) >= repeat
    renewed[0] = True
    return new_symbols[np.maximum.accumulate(np.where(renewed, np.arange(length), 0))]


def posterior_nats(
    visible_symbols: Int[np.ndarray, "block time"],
    hidden: Int[np.ndarray, "block time"],
    share: Float[np.ndarray, "symbol"],
    repeat: float,
    mask_share: float,
) -> float:
    """Mean of -log p(hidden symbol | what is read), over positions with `hidden` >= 0.

    What is read at a position is the mask symbol (the number after the last), or a symbol that may have been
    replaced by any other.
    """
    symbols = len(share)
    replaced = REPLACED - UNCHANGED
    # p(read | symbol) of a visible position: it was not chosen, or chosen and left, or chosen and replaced
    visible = np.eye(symbols) * (1 - mask_share + mask_share * UNCHANGED) + mask_share * replaced / symbols
    hidden_channel = np.eye(symbols) * UNCHANGED + replaced / symbols  # the same, given that it was chosen
    no_evidence = np.ones((1, symbols))
    evidence = np.concatenate([visible, no_evidence])[visible_symbols]
    transition = repeat * np.eye(symbols) + (1 - repeat) * share
    forward, backward = np.empty(evidence.shape), np.ones(evidence.shape)
    forward[:, 0] = share  # before the evidence of its own time
    for t in range(1, visible_symbols.shape[1]):
        forward[:, t] = _normalised((forward[:, t - 1] * evidence[:, t - 1]) @ transition)
        backward[:, -1 - t] = _normalised((backward[:, -t] * evidence[:, -t]) @ transition.T)
    posterior = _normalised(
        forward * backward * np.concatenate([hidden_channel, no_evidence])[visible_symbols]
    )
    block, time = np.nonzero(hidden >= 0)
    return float(-np.log(posterior[block, time, hidden[block, time]]).mean())


def _normalised(rows: np.ndarray) -> np.ndarray:
    return rows / rows.sum(axis=-1, keepdims=True)


@study(
    "masked-tokens",
    "Wu et al. 2020, sec. 5.1: the objective of a masked language model against information known exactly",
)
def run(
    workspace: Workspace,
    seeds: int = 3,
    symbols: int = 16,
    repeat: float = 0.7,
    train: int = 60_000,
    epochs: int = 30,
    jobs: int = 1,
) -> StudyResult:
    check_whole("symbols", symbols, 2, len(LETTERS))
    check_number("repeat", repeat, 0, 1, exclude_high=True)
    options = {"symbols": symbols, "repeat": repeat, "train": train, "epochs": epochs}
    cell_of = lambda name, seed: Cell(f"{name},seed={seed}", {"frequencies": name, "seed": seed, **options})
    figures = workspace.run_arms(list(FREQUENCIES), range(seeds), cell_of, compute, jobs)
    tables, remarks = [], []
    for name, finished in figures.items():
        rows = tuple(mean_row(key, [one[key] for one in finished]) for key in FIGURES)
        tables.append(StudyTable(f"frequencies {name}, nats per hidden symbol", rows))
        excess = [one["objective"] - one["truth"] for one in finished]
        above_count = sum(value > 0 for value in excess)
        remarks.append(
            f"frequencies {name}: the objective is above the truth for {above_count} of {len(excess)} seeds, by "
            f"{np.mean(excess):+.3f} nats; log V - H(w) is {finished[0]['excess']:.3f}."
        )
    return StudyResult(tuple(tables), tuple(remarks))


def compute(cell: Cell, folder: Path) -> Values:
    identity = cell.identity
    share = frequencies(FREQUENCIES[identity["frequencies"]], identity["symbols"])
    rng = np.random.default_rng([identity["seed"], 28])
    folder.mkdir(parents=True, exist_ok=True)
    files = {"train": identity["train"], "test": TEST_SYMBOLS}
    for name, length in files.items():
        chain = draw_chain(share, identity["repeat"], length, rng)
        (folder / f"{name}.txt").write_text("".join(LETTERS[symbol] for symbol in chain), encoding="utf-8")
    settings: dict[str, Any] = {
        "seed": identity["seed"],
        "epochs": identity["epochs"],
        "batch_size": 32,
        "views.length": LENGTH,
        "encoders.dim": 64,
        "probe_every": 0,
        "held_out": 0,
        "workers": 0,
    }
    trained = pretrain("mlm", str(folder / "train.txt"), folder / "run", config=settings, quiet=True)
    test = trained.open_data(str(folder / "test.txt"))
    views = trained.views()
    predicted = masked_scores(trained.method(), test, views, device=trained.device)["nats"]
    pairs = zip(*hidden_symbols(test, views, 0), strict=True)
    visible_symbols, hidden = (torch.cat(blocks).numpy() for blocks in pairs)
    by_letter = dict(zip(LETTERS, share, strict=False))
    # one symbol stands for unknown ones
    in_vocabulary = np.array([by_letter.get(symbol, 0.0) for symbol in test.symbols])
    optimal = posterior_nats(visible_symbols, hidden, in_vocabulary, identity["repeat"], views.share)
    entropy = float(-(share * np.log(share)).sum())
    size = np.log(len(in_vocabulary))
    return {
        "truth": entropy - optimal,
        "objective": float(size - predicted),
        "corrected": float(entropy - predicted),
        "excess": float(size - entropy),
    }
