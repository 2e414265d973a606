import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from features.returns import CLASSES, LAST_AGE_S, Returns, waiting_before, waits

Turns = list[tuple[int, int, int]]
TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 600), st.integers(0, 200)), max_size=40)


def plain(turns: Turns, t_s: int) -> list[int]:
    """Sessions by how long ago they went silent, from every (session, arrival, end) up to the tick."""
    counts = [0] * len(CLASSES)
    for name in {session for session, _, _ in turns}:
        events = [(at, 0) for session, at, _ in turns if session == name and at < t_s]
        events += [(end, 1) for session, _, end in turns if session == name and end < t_s]
        if not events:
            continue
        latest, ended = max(events)
        for index, (low, high) in enumerate(CLASSES):
            counts[index] += bool(ended) and low <= t_s - 1 - latest < high
    return counts


@given(TURNS)
def test_batch_and_online_equal_a_plain_count(rows: Turns) -> None:
    turns = [(session, at, at + took) for session, at, took in rows]
    seconds = 700
    t_s = np.arange(0, seconds, 5)
    columns = list(zip(*turns, strict=True)) or [(), (), ()]
    frame = pl.DataFrame(
        dict(zip(("session", "second", "known_s"), columns, strict=True)),
        schema={"session": pl.Int64, "second": pl.Int64, "known_s": pl.Int64},
    )
    batch = waiting_before(waits(frame), seconds, t_s)
    returns, online = Returns(), []
    for second in range(seconds):
        if second % 5 == 0:
            online.append(returns.waiting(second))
        returns.close(
            second,
            came=[session for session, at, _ in turns if at == second],
            left=[session for session, _, end in turns if end == second],
        )
    np.testing.assert_array_equal(np.stack(online, axis=1), batch)
    assert [batch[:, tick].tolist() for tick in range(0, len(t_s), 10)] == [
        plain(turns, int(t_s[tick])) for tick in range(0, len(t_s), 10)
    ]


def test_a_session_that_stays_silent_is_forgotten() -> None:
    returns = Returns()
    returns.close(0, came=[], left=["a"])
    for second in range(1, LAST_AGE_S):
        returns.close(second, came=[], left=[])
    assert returns.waiting(LAST_AGE_S).tolist() == [0, 0, 0, 1]
    returns.close(LAST_AGE_S, came=[], left=[])
    assert not returns.waiting(LAST_AGE_S + 1).any()
    assert not returns._since
    assert not returns._count


def test_a_copy_goes_on_by_itself() -> None:
    returns = Returns()
    returns.close(0, came=[], left=["a"])
    twin = returns.copy()
    twin.close(1, came=["a"], left=[])
    assert returns.waiting(1).sum() == 1
    assert not twin.waiting(2).any()
