"""Requests drawn from a pool: renewal processes that run on through the edges of their windows.

A client's gaps are drawn in operational time, in which it has one arrival a unit on average; the window's
rate turns that into seconds. What is left of a gap at a window's edge goes on in the next window, at the
next rate, so the edge itself can be seen in nothing but the change of rate. An idle window stops the clock.
"""

from collections.abc import Iterator
from math import lgamma

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.schema import UTC_US
from data.servegen.pool import WINDOW_S, Client, Pool, Window

SCHEMA = {
    "request_id": pl.String(),
    "arrived_at": UTC_US,
    "tenant": pl.String(),
    "model": pl.String(),
    "prompt_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "outcome": pl.String(),
}


def draw_requests(pool: Pool, span_s: int, *, seed: int = 0, scale: float = 1.0) -> Iterator[pl.DataFrame]:
    """The requests of the first `span_s` seconds, one frame a window that has any, in order of arrival.

    `span_s` is a whole number of windows; `scale` multiplies every rate. Each client has a random stream of
    its own, so that the same seed gives a client the same requests whatever the span.
    """
    streams = [_Stream(client, np.random.default_rng([seed, client.number])) for client in pool.clients]
    drawn = 0
    for start_s in range(0, span_s, WINDOW_S):
        parts = [
            (stream.client, *stream.draw(start_s, scale))
            for stream in streams
            if start_s in stream.client.windows
        ]
        frame = _frame(pool.name, start_s, parts, drawn)
        drawn += frame.height
        if frame.height:
            yield frame


class _Stream:
    """One client's process: what is left of the gap that runs, in operational time."""

    def __init__(self, client: Client, random: np.random.Generator) -> None:
        self.client = client
        self.random = random
        self.left: float | None = None

    def draw(
        self, start_s: int, scale: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Arrivals of a window in seconds from its start, and their prompt and output tokens."""
        window = self.client.windows[start_s]
        rate_per_s = window.rate_per_s * scale
        if self.left is None:
            self.left = first_gap(self.random, window)
        arrivals, self.left = renew(self.random, window, self.left, rate_per_s * WINDOW_S)
        prompt, output = self.client.lengths_at(start_s)
        size = len(arrivals)
        return arrivals / rate_per_s, prompt.draw(self.random, size), output.draw(self.random, size)


def renew(
    random: np.random.Generator, window: Window, left: float, until: float
) -> tuple[NDArray[np.float64], float]:
    """Arrivals in [0, until) of operational time, the first at `left`, and what is left after `until`."""
    found = [np.array([left])]
    while found[-1][-1] < until:
        size = int((until - found[-1][-1]) * 1.1) + 16
        found.append(found[-1][-1] + np.cumsum(gaps(random, window, size)))
    arrivals = np.concatenate(found)
    inside = int(np.searchsorted(arrivals, until, side="left"))
    return arrivals[:inside], float(arrivals[inside] - until)


def gaps(random: np.random.Generator, window: Window, size: int) -> NDArray[np.float64]:
    """Gaps between arrivals, with a mean of 1."""
    shape = window.shape
    if window.family == "Gamma":
        return random.gamma(shape, 1 / shape, size)
    scale = float(np.exp(-lgamma(1 + 1 / shape)))
    return random.weibull(shape, size) * scale


def first_gap(random: np.random.Generator, window: Window) -> float:
    """Time to the first arrival of a process that has run for long.

    A moment falls into a gap with a chance that grows with the gap's length, and anywhere within it.
    """
    shape = window.shape
    if window.family == "Gamma":
        length = random.gamma(shape + 1, 1 / shape)
    else:
        length = np.exp(np.log(random.gamma(1 + 1 / shape)) / shape - lgamma(1 + 1 / shape))
    return float(length * random.random())


def _frame(
    pool: str,
    start_s: int,
    parts: list[tuple[Client, NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]],
    drawn: int,
) -> pl.DataFrame:
    """The window's requests of all clients by arrival; `drawn` requests come before them."""
    if not parts:
        return pl.DataFrame(schema=SCHEMA)
    at_s = np.concatenate([arrivals for _, arrivals, _, _ in parts])
    clients = np.repeat([c.number for c, _, _, _ in parts], [len(arrivals) for _, arrivals, _, _ in parts])
    micros = np.minimum(at_s * 1e6, WINDOW_S * 1e6 - 1).astype(np.int64) + start_s * 1_000_000
    return (
        pl.DataFrame(
            {
                "arrived_at": micros,
                "client": clients,
                "prompt_tokens": np.concatenate([prompt for _, _, prompt, _ in parts]),
                "output_tokens": np.concatenate([output for _, _, _, output in parts]),
            }
        )
        .sort("arrived_at", maintain_order=True)
        .select(
            pl.format("r{}", pl.int_range(drawn, drawn + pl.len())).alias("request_id"),
            pl.col("arrived_at").cast(UTC_US),
            pl.format("client-{}", "client").alias("tenant"),
            pl.lit(pool).alias("model"),
            "prompt_tokens",
            "output_tokens",
            pl.lit("served").alias("outcome"),
        )
    )
