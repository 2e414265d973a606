"""Which minutes of the held-out part are played, and how large an engine their burst is too much for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from features.ticks import HORIZON_S
from pipeline import scoring
from pipeline.demo import moments
from pipeline.play.shots import Shot, prompt_text
from serving.controller.engine_model import H100, EngineProfile
from serving.engine_sim.core import EngineSim
from serving.engine_sim.lengths import prefix_keys

ROOM = 0.6
"""KV room of the demo's engine, as a share of what the calls would hold at their peak without a bound."""
UNBOUNDED_BLOCKS = 10_000_000
UNKNOWN_OUTPUT_TOKENS = 256
"""Taken for requests that failed in the trace: the engine chooses their lengths."""


@dataclass(frozen=True, slots=True)
class Window:
    """The minutes to play, and how often the alarm anticipated onsets on that trace.

    Attributes:
        start_s: first second, from the trace's first request.
        seconds: how long it is.
        at_s: the onset, from the trace's first request.
        what: onset, or what stands in for one where there is none.
        foreseen: the rehearsal's alarm anticipated it.
        anticipated, onsets: of the held-out part.
        false_alarm_rate: alarms among its negative ticks; None without any.
        held_out_s: how long it is.

    """

    start_s: int
    seconds: int
    at_s: int
    what: str
    foreseen: bool
    anticipated: int
    onsets: int
    false_alarm_rate: float | None
    held_out_s: int

    def story(self) -> list[str]:
        """How the window was chosen, and what it can't tell."""
        how = (
            "the first that its alarm anticipated out of a quiet gate"
            if self.foreseen
            else "its alarm anticipated none, so the forecast will hardly show"
        )
        rate = "unknown" if self.false_alarm_rate is None else f"{self.false_alarm_rate:.1%}"
        return [
            f"Chosen: the {self.what} {clock(self.at_s)} after the start, from {self.held_out_s / 3600:.1f} "
            f"held-out hours; {how}. Nothing else of how it came out was looked at.",
            f"There, alarms anticipated {self.anticipated} of {self.onsets} onsets, with false alarms "
            f"in {rate} of calm ticks: this is one burst of those, no measure of the forecast.",
        ]


def clock(second: int) -> str:
    """Seconds as hours, minutes and seconds.

    >>> clock(3_725)
    '01:02:05'
    """
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def choose(ticks: pl.DataFrame, seconds: int) -> Window:
    """The window with the first onset that the alarm anticipated out of a quiet gate, its middle if it can.

    Args:
        ticks: of a held-out span: t_s, alarm, eligible, next_onset_s (null: none), load.
        seconds: length of the window.

    """
    found = moments(ticks)
    table = scoring.Ticks(
        ticks["t_s"].to_numpy(),
        ticks["alarm"].cast(pl.Boolean).to_numpy(),
        ticks["eligible"].to_numpy(),
        ticks["next_onset_s"].fill_null(-1).cast(pl.Int64).to_numpy(),
    )
    onsets = scoring.scorable(table, ticks["next_onset_s"].drop_nulls().unique())
    negative = table.labels.negative
    start_s = max(0, found.at_s[0] - max(seconds // 2, min(seconds - 5, HORIZON_S[1] + 10)))
    return Window(
        start_s=start_s,
        seconds=seconds,
        at_s=found.at_s[0],
        what=found.what,
        foreseen=found.foreseen,
        anticipated=int(scoring.anticipated(table, onsets).sum()) if len(onsets) else 0,
        onsets=len(onsets),
        false_alarm_rate=scoring.share_of((table.alarm & negative).sum(), int(negative.sum())),
        held_out_s=int(table.t_s[-1] - table.t_s[0]),
    )


def kv_blocks(shots: Sequence[Shot]) -> int:
    """KV blocks of an engine that the burst is too much for: `ROOM` of what the calls would hold at most.

    Found by what is offered alone, on a simulated H100 replica without bounds; enough for any one call.
    """
    size = H100.block_tokens
    engine = EngineSim(_unbounded(), max_batch=100_000, chunk_tokens=2_048)
    most, largest = 0, 1
    for shot in shots:
        output = int(shot.headers.get("x-sim-output-tokens", UNKNOWN_OUTPUT_TOKENS))
        engine.submit(
            shot.at_s,
            prompt_tokens=shot.prompt_tokens,
            output_tokens=output,
            prefix=prefix_keys(prompt_text(shot), size),
        )
        most = max(most, engine.blocks.used)
        largest = max(largest, -(-(shot.prompt_tokens + output + 1) // size))
    return max(largest + 1, round(ROOM * most))


def _unbounded() -> EngineProfile:
    return replace(H100, kv_blocks=UNBOUNDED_BLOCKS)
