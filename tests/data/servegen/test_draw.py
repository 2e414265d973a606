import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.servegen.draw import SCHEMA, draw_requests, first_gap, gaps, renew
from data.servegen.pool import WINDOW_S, Client, Empirical, LogNormal, Pool, Window

HUNDRED = Empirical(np.array([100]), np.array([1.0]))


def pool(windows: dict[int, Window], number: int = 0) -> Pool:
    return Pool("m", (Client(number, windows, {0: (HUNDRED, HUNDRED)}),), max(windows) + WINDOW_S)


def arrivals_s(drawn: Pool, span_s: int, seed: int = 0) -> np.ndarray:
    frames = list(draw_requests(drawn, span_s, seed=seed))
    return pl.concat(frames)["arrived_at"].dt.epoch("us").to_numpy() / 1e6


@pytest.mark.parametrize(
    ("family", "shape"), [("Gamma", 0.3), ("Gamma", 4.0), ("Weibull", 0.6), ("Weibull", 2.0)]
)
def test_gaps_have_a_mean_of_one_and_the_shape_of_their_family(family: str, shape: float) -> None:
    random, window = np.random.default_rng(1), Window(1.0, family, shape)
    drawn = gaps(random, window, 400_000)
    assert drawn.mean() == pytest.approx(1, rel=0.02)
    cv = {("Gamma", 0.3): 1.826, ("Gamma", 4.0): 0.5, ("Weibull", 0.6): 1.758, ("Weibull", 2.0): 0.523}
    assert drawn.std() == pytest.approx(cv[family, shape], rel=0.03)
    # A process that has run for long waits (1 + cv^2) / 2 on average.
    first = np.mean([first_gap(random, window) for _ in range(40_000)])
    assert first == pytest.approx((1 + cv[family, shape] ** 2) / 2, rel=0.05)


@given(
    st.lists(st.floats(0.1, 50), min_size=1, max_size=8),
    st.sampled_from([("Gamma", 0.2), ("Gamma", 9.0), ("Weibull", 0.7)]),
    st.integers(0, 1000),
)
def test_a_gap_runs_on_through_an_edge(spans: list[float], shape: tuple[str, float], seed: int) -> None:
    window = Window(1.0, *shape)
    cut, left, at = [], 0.5, 0.0
    random = np.random.default_rng(seed)
    for span in spans:
        arrivals, left = renew(random, window, left, span)
        assert left >= 0
        assert ((arrivals >= 0) & (arrivals < span)).all()
        cut += [*(arrivals + at)]
        at += span
    assert cut == sorted(cut)
    assert not cut or cut[0] == 0.5 or spans[0] <= 0.5


def test_edges_between_equal_windows_leave_no_mark() -> None:
    """Restarted processes would begin every window alike; a gap across an edge is like any other gap."""
    windows = {start: Window(0.05, "Gamma", 25.0) for start in range(0, 3_000 * WINDOW_S, WINDOW_S)}
    at = arrivals_s(pool(windows), 3_000 * WINDOW_S)
    between = np.diff(at)
    crossing = at[:-1] // WINDOW_S != at[1:] // WINDOW_S
    assert between.mean() == pytest.approx(20, rel=0.01)
    # Gaps that contain a given moment are longer, by cv^2 = 1/25, and as even as Gamma gaps of shape 26 are;
    # a process that starts anew at the edge would make them twice as uneven.
    assert between[crossing].mean() == pytest.approx(20 * (1 + 1 / 25), rel=0.015)
    assert between[crossing].std() == pytest.approx(20 * 26**0.5 / 25, rel=0.05)
    place = at % WINDOW_S
    first_bins = np.histogram(place, bins=30, range=(0, WINDOW_S))[0]
    assert first_bins[0] == pytest.approx(first_bins.mean(), rel=0.06)
    assert first_bins[-1] == pytest.approx(first_bins.mean(), rel=0.06)


def test_an_idle_window_has_no_request_and_the_rate_follows_the_windows() -> None:
    windows = {0: Window(2.0, "Gamma", 1.0), 2 * WINDOW_S: Window(8.0, "Weibull", 1.0)}
    counts = np.histogram(arrivals_s(pool(windows), 3 * WINDOW_S), bins=[0, 600, 1200, 1800])[0]
    assert counts[0] == pytest.approx(1200, rel=0.1)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(4800, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_a_seed_gives_the_same_requests_whatever_the_span(seed: int, windows: int) -> None:
    described = {n * WINDOW_S: Window(0.1, "Gamma", 0.5) for n in range(4)}
    whole = pl.concat([pl.DataFrame(schema=SCHEMA), *draw_requests(pool(described), 2400, seed=seed)])
    part = pl.concat(
        [pl.DataFrame(schema=SCHEMA), *draw_requests(pool(described), windows * WINDOW_S, seed=seed)]
    )
    assert part.equals(whole.head(part.height))
    assert whole["arrived_at"].is_sorted()
    assert whole["request_id"].is_unique().all()


def test_clients_are_named_and_do_not_disturb_each_other() -> None:
    windows = {0: Window(1.0, "Gamma", 1.0)}
    both = Pool("m", (*pool(windows, 3).clients, *pool(windows, 8).clients), WINDOW_S)
    drawn = pl.concat(draw_requests(both, WINDOW_S))
    alone = pl.concat(draw_requests(pool(windows, 8), WINDOW_S))
    assert set(drawn["tenant"]) == {"client-3", "client-8"}
    assert drawn.filter(tenant="client-8")["arrived_at"].equals(alone["arrived_at"])


def test_lengths_come_from_the_last_measurement_and_keep_its_figures() -> None:
    client = Client(0, {}, {21_600: (HUNDRED, HUNDRED), 43_200: (HUNDRED, LogNormal(1, 1, 1, 1))})
    assert client.lengths_at(0)[1] is HUNDRED
    assert client.lengths_at(43_199)[1] is HUNDRED
    assert isinstance(client.lengths_at(43_200)[1], LogNormal)
    lengths = LogNormal(mean=427.0, p50=250.0, p95=1_300.0, p99=2_600.0)
    tokens = lengths.draw(np.random.default_rng(0), 200_000)
    assert tokens.mean() == pytest.approx(427, rel=0.03)
    assert np.quantile(tokens, 0.95) == pytest.approx(1_300, rel=0.1)
    assert (tokens.min() >= 1, tokens.max() <= 4 * 2_600) == (True, True)
    counted = Empirical(np.array([100, 200]), np.array([0.25, 1.0])).draw(np.random.default_rng(0), 40_000)
    assert set(counted) == {100, 200}
    assert (counted == 100).mean() == pytest.approx(0.25, abs=0.01)
