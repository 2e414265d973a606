"""The forecaster: a small ensemble of perceptrons, and boosted trees, trained on when the next onset comes.

Both sort the next onset into the 10 s slots of the coming minute, or "none": one softmax, so that the
probabilities of any horizon add up; the forecast is their mean. A second head of the network gives quantiles
of the highest load in that minute.
"""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from features.ticks import SLOTS
from features.windows import NAMES
from models.bundle import PEAK_QUANTILES
from models.trees import Trees, TreeSettings, as_tensors, grow

NONE = SLOTS
"""Class of a tick with no onset within the minute."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the forecaster is built and trained."""

    members: int = 5
    hidden: int = 32
    bins: int = 8
    input_dropout: float = 0.4
    dropout: float = 0.4
    epochs: int = 24
    batch: int = 512
    learning_rate: float = 2e-3
    weight_decay: float = 2e-2
    peak_weight: float = 0.2
    trees: TreeSettings = field(default_factory=TreeSettings)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Examples:
    """Ticks to learn from or to score; n ticks.

    Attributes:
        features: float32, (n, len(NAMES)), finite.
        slot: which 10 s slot of the coming minute holds the next onset, `NONE` where none does, int64, (n,).
        peak_ratio: highest load of the coming minute over the tick's known baseline, float32, (n,).

    """

    features: NDArray[np.float32]
    slot: NDArray[np.int64]
    peak_ratio: NDArray[np.float32]


class Encoder(nn.Module):
    """Scale features and add their piecewise linear encoding, (n, F) to (n, (1 + bins) F).

    A feature's range is cut at quantiles of the training ticks; each bin tells how far the feature has passed
    through it. Sharp steps, such as a minute of the hour, then take one weight, as they take one split of a
    tree (Gorishniy, Rubachev and Babenko, "On embeddings for numerical features in tabular deep learning",
    NeurIPS 2022). A feature that never changed in training says nothing, whatever it is later: engines that
    the training trace had no word of must not throw a forecast off once they are known.
    """

    mean: Tensor
    scale: Tensor
    varies: Tensor
    low: Tensor
    width: Tensor
    bin_mean: Tensor
    bin_scale: Tensor

    def __init__(self, features: Tensor, bins: int) -> None:
        super().__init__()
        scale, mean = torch.std_mean(features, dim=0)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale.clamp_min(1e-3))
        self.register_buffer("varies", (features.amax(dim=0) > features.amin(dim=0)).float())
        edges = torch.from_numpy(np.quantile(features.numpy(), np.linspace(0.0, 1.0, bins + 1), axis=0))
        self.register_buffer("low", edges[:-1].float())
        self.register_buffer("width", edges.diff(dim=0).float().clamp_min(1e-4))
        bin_scale, bin_mean = torch.std_mean(self._bins(features), dim=0)
        self.register_buffer("bin_mean", bin_mean)
        self.register_buffer("bin_scale", bin_scale.clamp_min(0.05))

    def forward(self, features: Tensor) -> Tensor:
        """Encode n ticks."""
        scaled = ((features - self.mean) / self.scale).clamp(-6.0, 6.0) * self.varies
        bins = (self._bins(features) - self.bin_mean) / self.bin_scale * self.varies
        return torch.cat([scaled, bins.flatten(1)], dim=1)

    def _bins(self, features: Tensor) -> Tensor:
        return ((features.unsqueeze(1) - self.low) / self.width).clamp(0.0, 1.0)


class Forecaster(nn.Module):
    """Features (n, F) to (p_slots (n, SLOTS), peak_load (n, quantiles) in tokens/s); the scaler is inside."""

    def __init__(self, encoder: Encoder, settings: Settings, trees: Trees | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.trees = trees
        inputs = len(encoder.mean) * (1 + settings.bins)
        outputs = SLOTS + 1 + len(PEAK_QUANTILES)
        self.input_dropout = nn.Dropout(settings.input_dropout)
        self.first = _Members(settings.members, inputs, settings.hidden)
        self.second = _Members(settings.members, settings.hidden, settings.hidden)
        self.last = _Members(settings.members, settings.hidden, outputs)
        self.dropout = nn.Dropout(settings.dropout)
        self.baseline_column = NAMES.index("baseline")

    def members(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the slots, (members, n, SLOTS + 1), and log peak ratios, (members, n, quantiles)."""
        encoded = self.input_dropout(self.encoder(features)).unsqueeze(0)
        hidden = self.dropout(functional.silu(self.first(encoded)))
        hidden = hidden + self.dropout(functional.silu(self.second(hidden)))
        out = self.last(hidden)
        median = out[..., SLOTS + 1 : SLOTS + 2]
        # Quantiles in order by construction.
        steps = functional.softplus(out[..., SLOTS + 2 :]).cumsum(dim=-1)
        return out[..., : SLOTS + 1], torch.cat([median, median + steps], dim=-1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Chances of an onset in each slot, the mean of network and trees, and peak load quantiles."""
        logits, log_peak = self.members(features)
        chances = functional.softmax(logits, dim=-1).mean(dim=0)
        if self.trees is not None:
            chances = (chances + self.trees(features)) / 2.0
        p_slots = chances[:, :SLOTS]
        baseline = features[:, self.baseline_column].exp()
        return p_slots, log_peak.exp().mean(dim=0) * baseline.unsqueeze(-1)


class _Members(nn.Module):
    """A linear layer for each member of the ensemble: (1 or members, n, inputs) to (members, n, outputs)."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, values: Tensor) -> Tensor:
        return torch.matmul(values, self.weight) + self.bias


class Training(lightning.LightningModule):
    """Cross entropy on the slot of the next onset + pinball loss on the peak."""

    def __init__(self, forecaster: Forecaster, settings: Settings, steps: int) -> None:
        super().__init__()
        self.forecaster = forecaster
        self.settings = settings
        self.steps = steps

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Loss of a batch of (features, slot, log peak ratio)."""
        features, slot, log_ratio = batch
        logits, log_peak = self.forecaster.members(features)
        members = logits.shape[0]
        onset = functional.cross_entropy(logits.flatten(0, 1), slot.repeat(members))
        error = log_ratio[None, :, None] - log_peak
        quantile = torch.tensor(PEAK_QUANTILES)
        peak = torch.maximum(quantile * error, (quantile - 1.0) * error).mean()
        return onset + self.settings.peak_weight * peak

    def configure_optimizers(self) -> lightning.pytorch.utilities.types.OptimizerLRSchedulerConfig:
        """AdamW under a one-cycle learning rate."""
        settings = self.settings
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=settings.learning_rate, total_steps=self.steps, pct_start=0.15
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(
    examples: Examples, settings: Settings, callbacks: list[lightning.Callback] | None = None
) -> Forecaster:
    """Train a forecaster; the same examples, settings and machine give the same weights."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(settings.seed, verbose=False)
    features = torch.from_numpy(examples.features)
    trees = as_tensors(grow(examples.features, examples.slot, settings.trees, settings.seed))
    forecaster = Forecaster(Encoder(features, settings.bins), settings, trees)
    # Start from how often each slot occurs: a trace too short to learn from then says "as often as ever".
    often = np.log(np.bincount(examples.slot, minlength=SLOTS + 1) + 0.5)
    with torch.no_grad():
        forecaster.last.bias[..., : SLOTS + 1] = torch.from_numpy((often - often.mean()).astype(np.float32))
    log_ratio = torch.from_numpy(np.log(np.maximum(examples.peak_ratio, 1e-3)).astype(np.float32))
    shuffled = RandomSampler(features, generator=torch.Generator().manual_seed(settings.seed))
    loader = DataLoader(
        TensorDataset(features, torch.from_numpy(examples.slot), log_ratio),
        # Whole batches of indices: a tensor is sliced once a batch, not once a tick.
        sampler=BatchSampler(shuffled, min(settings.batch, len(features)), drop_last=True),
        batch_size=None,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=settings.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=callbacks,
    )
    with warnings.catch_warnings(), _one_thread():
        # One process reads tensors from memory: worker processes would only cost start-up time.
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        trainer.fit(Training(forecaster, settings, settings.epochs * len(loader)), loader)
    return forecaster.eval()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Train on one thread: the layers are so small that two waited for each other, 165 s against 10 s."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
