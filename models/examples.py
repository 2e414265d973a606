"""A trace made ready for learning: labelled ticks, their features and what the forecaster should say."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.batch import channel_seconds, flow_features
from features.bins import WorkBins, bin_work
from features.bursts import Events, baseline, find_events, load
from features.flows import flow_seconds
from features.ticks import HORIZON_S, SLOT_S, Ticks, label_ticks
from features.windows import CHANNELS, NAMES
from models.baselines import KnownLoad
from models.forecaster import NONE, Examples


@dataclass(frozen=True, slots=True)
class TraceExamples:
    """Everything that contenders learn from and are scored on; one row a tick.

    Attributes:
        bins: offered work by second, realised output included: for labels only.
        events: burst events.
        ticks: labelled ticks.
        load, baseline: L and b of the last second before each tick, tokens/s, (ticks,).
        known: load as it was known at the time.
        examples: features and targets of every tick.

    """

    bins: WorkBins
    events: Events
    ticks: Ticks
    load: NDArray[np.float64]
    baseline: NDArray[np.float64]
    known: KnownLoad
    examples: Examples


def prepare(requests: pl.DataFrame) -> TraceExamples:
    """Label a frame of requests, sorted by arrival, and compute the features of its ticks."""
    bins = bin_work(requests)
    found = find_events(bins)
    ticks = label_ticks(len(bins.work), found)
    flows = flow_seconds(requests)
    features = flow_features(flows)
    known = KnownLoad(flows.origin_us, channel_seconds(flows)[CHANNELS.index("work")])
    realised, level = load(bins.work), baseline(bins.work)
    last = np.maximum(ticks.t_s - 1, 0)
    peak = peak_ahead(realised, ticks.t_s) / np.exp(features[:, NAMES.index("baseline")])
    ahead = ticks.next_onset_s - ticks.t_s
    slot = np.where(ticks.onset_within(0, HORIZON_S[1]), (ahead - 1) // SLOT_S, NONE)
    examples = Examples(features, slot, peak.astype(np.float32))
    return TraceExamples(bins, found, ticks, realised[last], level[last], known, examples)


def peak_ahead(level: NDArray[np.float64], t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Highest load in the 60 s after each tick, tokens/s, (n,); at the end of the trace, of what is left."""
    padded = np.concatenate([level, np.zeros(HORIZON_S[1] + 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, HORIZON_S[1])
    return np.asarray(windows[t_s + 1].max(axis=1))
