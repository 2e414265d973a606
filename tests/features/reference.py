"""Bins, bursts and ticks in plain Python, second by second, as defined: slow and easy to check."""

import math
from collections.abc import Sequence
from statistics import median

NAN = math.nan


def work_by_second(requests: Sequence[tuple[int, int, int | None, int | None]]) -> list[int]:
    """Work in each second from rows (arrived_us, prompt, cached, output tokens), in any order."""
    origin_us = min(arrived_us for arrived_us, *_ in requests)
    seconds = [(arrived_us - origin_us) // 1_000_000 for arrived_us, *_ in requests]
    work = [0] * (max(seconds) + 1)
    for second, (_, prompt, cached, output) in zip(seconds, requests, strict=True):
        work[second] += prompt - (cached or 0) + (output or 0)
    return work


def load(work: Sequence[int]) -> list[float]:
    """Mean of work over the 10 s ending at each second, over fewer where the trace is younger."""
    return [mean(work[max(0, s - 9) : s + 1]) for s in range(len(work))]


def baseline(work: Sequence[int]) -> list[float]:
    """max(median of load over 600 s, mean of work over 3600 s), both ending 10 s ago; NaN before 60 s."""
    level = load(work)
    found = []
    for s in range(len(work)):
        end = s - 10 + 1
        if end < 60:
            found.append(NAN)
        else:
            found.append(max(median(level[max(0, end - 600) : end]), mean(work[max(0, end - 3600) : end])))
    return found


def burst_seconds(
    work: Sequence[int], mean_work: float, mean_square_work: float, capacity: float | None = None
) -> list[bool]:
    """Seconds whose load is over twice the baseline by more than noise, and near the capacity if known."""
    bursts = []
    for now, base in zip(load(work), baseline(work), strict=True):
        if math.isnan(base):
            bursts.append(False)
            continue
        noise = math.sqrt(max(base * 10 / mean_work, 1) * mean_square_work)
        loaded = capacity is None or now > 0.7 * capacity
        bursts.append(now > 2 * base and loaded and (now - base) * 10 > 5 * noise)
    return bursts


def events(burst: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, last) burst second of each event: gaps of up to 30 quiet seconds merged, at least 5 s long."""
    merged: list[tuple[int, int]] = []
    for s in (s for s, inside in enumerate(burst) if inside):
        if merged and s - merged[-1][1] - 1 <= 30:
            merged[-1] = (merged[-1][0], s)
        else:
            merged.append((s, s))
    return [(first, last) for first, last in merged if last - first + 1 >= 5]


def label(
    t: int, seconds: int, found: Sequence[tuple[int, int]], gaps: Sequence[tuple[int, int]] = ()
) -> str | None:
    """Positive, late or negative; None for a tick that is not eligible."""
    warmup = 600 if seconds < 2 * 3600 else 3600
    if t < warmup or t + 60 >= seconds:
        return None
    if any(first <= t <= last + 60 for first, last in found):
        return None
    if any(first <= t + 60 and last >= t - warmup for first, last in gaps):
        return None
    onsets_ahead = [first - t for first, _ in found if first > t]
    if not onsets_ahead or min(onsets_ahead) > 60:
        return "negative"
    return "positive" if min(onsets_ahead) > 30 else "late"


def mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
