"""Losses inside other people's trainers: Lightning in bfloat16, averages of a model, accumulated gradients."""

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import nearfar as nf
from nearfar import losses

TWO_VIEWS: dict[str, Any] = {
    "ntxent": lambda: losses.NTXentLoss(),
    "ntxent memory": lambda: losses.NTXentLoss(memory_bank_size=16),
    "dclw": lambda: losses.DCLWLoss(),
    "vicreg": lambda: losses.VICRegLoss(),
    "cosine": lambda: losses.NegativeCosineSimilarity(),
    "ranking": lambda: losses.MultipleNegativesRankingLoss(),
    "sigreg": lambda: OfOneView(losses.SIGRegLoss(num_vectors=8)),
}


class OfOneView(nn.Module):
    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.loss(torch.cat([a, b]))


class Module(pl.LightningModule):
    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.loss = nn.Linear(6, 4), loss
        self.values: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        value = self.loss(*(self.network(view) for view in batch))
        self.values.append(value.detach())
        return value

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.mark.parametrize("name", TWO_VIEWS)
@pytest.mark.filterwarnings("ignore")  # Lightning warns about workers and loggers
def test_lightning_in_bfloat16_and_an_average_of_the_model(name: str) -> None:
    """Lightning converts the loss with the module; values stay float32, near those of a float32 trainer. An
    average that copies buffers follows a memory whose width was not known."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2, 24, 6, generator=generator)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    values = []
    for precision in ("32-true", "bf16-true"):
        module = Module(TWO_VIEWS[name]())
        average = AveragedModel(module.loss, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", precision=precision, enable_model_summary=False, **quiet
        )
        trainer.fit(module, DataLoader(TensorDataset(*rows), 8))
        average.update_parameters(module.loss)
        average.module.load_state_dict(module.loss.state_dict())
        assert all(value.dtype == torch.float32 for value in module.values)
        values.append(torch.stack(module.values))
    # embeddings of 8 bits, cosines over temperatures of 0.05 at the least
    torch.testing.assert_close(*values, rtol=0.05, atol=0.05)


def test_advance_once_per_optimiser_step_under_accumulation() -> None:
    """docs/losses.md: with accumulated gradients, all micro-batches are computed before any is advanced. They
    then see one queue, and their mean gradient is that of the outcomes at the same weights."""
    torch.manual_seed(0)
    network, queue = nn.Linear(6, 4), nf.Queue(16, dim=4)
    method = nf.Method(nf.Momentum(network, momentum=0.9), nf.Cosine(0.2), queue, nf.Everyone(), nf.InfoNCE())
    batches = [nf.Batch((torch.randn(4, 6), torch.randn(4, 6)), torch.arange(4) + 4 * k) for k in range(3)]
    method.advance(method(batches[2]))
    outcomes = [method(batch) for batch in batches[:2]]
    (sum(outcome.loss for outcome in outcomes) / 2).backward()
    again = [method(batch).loss.item() for batch in batches[:2]]
    assert again == [outcome.loss.item() for outcome in outcomes]  # nothing moved yet
    for outcome in outcomes:
        method.advance(outcome)
    stored = queue.index
    assert stored.sort().values.tolist() == sorted(2 * list(range(8)))  # both views of both micro-batches
