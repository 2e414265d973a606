import copy
import json
import math
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import InputError
from models.guard.ledger import WINDOWS, Ledger

SMALL = ((200, 0.1), (60, 0.25))
"""Short windows, so that ticks of a small example enter and leave them."""


@dataclass
class PlainLedger:
    """The rule as written, without any bookkeeping: every call looks at the whole past."""

    windows: tuple[tuple[int, float], ...]
    asked: list[int] = field(default_factory=list)
    charged: set[int] = field(default_factory=set)
    outcome: dict[int, bool] = field(default_factory=dict)

    def charge(self, t_s: int) -> bool:
        if any(t_s <= past for past in [*self.asked, *self.outcome]):
            return False
        self.asked.append(t_s)
        for length_s, share in self.windows:
            window = range(t_s - length_s + 1, t_s + 1)
            calm = sum(self.outcome.get(t, False) for t in window)
            standing = sum(t in self.charged and self.outcome.get(t, True) for t in window)
            if standing + 1 > Fraction(str(share)) * calm:
                return False
        self.charged.add(t_s)
        return True

    def settle(self, t_s: int, negative: bool) -> bool:
        if any(t_s <= past for past in self.outcome):
            return False
        self.outcome[t_s] = negative
        return True


@st.composite
def streams(draw: st.DrawFn) -> list[tuple]:
    """Calls as a service makes them: rising ticks, wishes, and outcomes in order that lag or never come.

    The outcome of a tick is known only at some later tick; now and then a call comes out of order.
    """
    n = draw(st.integers(1, 120))
    mostly_calm = draw(st.sampled_from([0.5, 0.9, 1.0]))
    eager = draw(st.sampled_from([0.1, 0.5, 1.0]))
    chance = st.floats(0, 1, exclude_max=True)
    calls: list[tuple] = []
    unsettled: list[int] = []
    t_s = draw(st.integers(-1_000, 1_000))
    for _ in range(n):
        t_s += draw(st.sampled_from([5, 5, 5, 5, 5, 10, 45]))
        unsettled.append(t_s)
        if draw(chance) < eager:
            calls.append(("charge", t_s))
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 3, 20]))):
            if not unsettled or unsettled[0] == t_s:
                break
            past_s = unsettled.pop(0)
            if draw(chance) < 0.95:
                calls.append(("settle", past_s, draw(chance) < mostly_calm))
        if draw(chance) < 0.05:
            calls.append(draw(st.sampled_from([("charge", t_s - 20), ("settle", t_s - 200, True)])))
    return calls


@st.composite
def calm_starts(draw: st.DrawFn) -> list[tuple]:
    """Streams after a settled calm spell, so that there is a budget to spend."""
    calls = draw(streams())
    first_s = calls[0][1] if calls else 0
    history = draw(st.integers(0, 80))
    return [("settle", first_s - 400 + 5 * i, True) for i in range(history)] + calls


def play(ledger: Ledger | PlainLedger, calls: list[tuple]) -> list[bool]:
    return [getattr(ledger, name)(*arguments) for name, *arguments in calls]


@given(calm_starts())
@settings(max_examples=100, deadline=None)
def test_equals_the_plain_rule(calls: list[tuple]):
    ledger, plain = Ledger(SMALL), PlainLedger(SMALL)
    assert play(ledger, calls) == play(plain, calls)
    for length_s, _ in SMALL:
        window = range(ledger.now_s - length_s + 1, ledger.now_s + 1) if calls else ()
        calm = sum(plain.outcome.get(t, False) for t in window)
        standing = sum(t in plain.charged and plain.outcome.get(t, True) for t in window)
        if calm:
            assert ledger.share(length_s) == standing / calm
        else:
            assert math.isnan(ledger.share(length_s))


@given(calm_starts())
@settings(max_examples=100, deadline=None)
def test_false_alarms_keep_their_share_of_every_window_and_of_every_prefix(calls: list[tuple]):
    ledger = Ledger(SMALL)
    answers = play(ledger, calls)
    alarms = {c[1] for c, ok in zip(calls, answers, strict=True) if c[0] == "charge" and ok}
    outcome = {c[1]: c[2] for c, ok in zip(calls, answers, strict=True) if c[0] == "settle" and ok}
    negative = {t for t, calm in outcome.items() if calm}
    false_alarms = alarms & negative
    for length_s, share in SMALL:
        for t in alarms:
            inside = range(t - length_s + 1, t + 1)
            assert len(false_alarms.intersection(inside)) <= Fraction(str(share)) * len(
                negative.intersection(inside)
            )
        for end in alarms | negative:
            so_far = sum(t <= end for t in false_alarms)
            assert so_far <= Fraction(str(share)) * sum(t <= end for t in negative)


@given(calm_starts(), st.integers(0, 200))
@settings(max_examples=100, deadline=None)
def test_a_restart_changes_nothing(calls: list[tuple], at: int):
    unbroken, stopped = Ledger(SMALL), Ledger(SMALL)
    play(unbroken, calls[:at])
    play(stopped, calls[:at])
    state = stopped.to_dict()
    restarted = Ledger.from_dict(json.loads(json.dumps(state)))
    assert restarted.to_dict() == state
    assert restarted.remaining() == unbroken.remaining()
    assert play(restarted, calls[at:]) == play(unbroken, calls[at:])
    assert restarted.to_dict() == unbroken.to_dict()


def calm_until(t_s: int) -> Ledger:
    """A ledger that has seen calm ticks from 0 s to before ``t_s``."""
    ledger = Ledger()
    for past_s in range(0, t_s, 5):
        ledger.settle(past_s, negative=True)
    return ledger


def test_a_fresh_ledger_earns_its_budget():
    assert not any(Ledger().charge(t_s) for t_s in range(0, 600, 5))
    assert not calm_until(95).charge(100)  # 19 calm ticks
    assert calm_until(100).charge(100)  # 20


def test_two_days_of_constant_alarm_stay_at_five_per_cent_of_calm():
    ledger = Ledger()
    alarms = []
    for t_s in range(0, 2 * 86_400, 5):
        if ledger.charge(t_s):
            alarms.append(t_s)
        if t_s >= 65:
            ledger.settle(t_s - 65, negative=True)
    ticks = 2 * 86_400 // 5
    assert 0.049 * ticks < len(alarms) <= 0.05 * ticks
    assert ledger.charges == len(alarms)
    assert ledger.denials == ticks - len(alarms)


def test_the_hour_binds_after_a_quiet_day():
    ledger = calm_until(86_400)
    assert ledger.remaining() == 108  # 15 % of the last hour's 720 calm ticks; the day would pay for 864
    raised = sum(ledger.charge(t_s) for t_s in range(86_400, 86_400 + 3_600, 5))
    assert raised == 93  # the hour loses a calm tick at each: 93 <= 0.15 * (720 - 93)
    assert ledger.remaining() == 0


def test_anticipated_bursts_cost_nothing():
    ledger = calm_until(3_600)
    for t_s in range(3_600, 7_200, 5):
        ledger.charge(t_s)
        ledger.settle(t_s, negative=False)
    assert ledger.share(86_400) == 0.0


def test_an_outcome_that_never_comes_keeps_its_charge_until_the_window_has_passed():
    ledger = calm_until(100)
    assert ledger.charge(100)
    for t_s in range(105, 195, 5):
        ledger.settle(t_s, negative=True)
    assert not ledger.charge(195)  # 38 calm ticks pay for one charge, and 100 s still stands
    assert not ledger.settle(100, negative=False)  # too late: outcomes come in order
    assert ledger.share(86_400) == 1 / 38
    ledger.settle(100 + 86_399, negative=True)
    assert ledger.share(86_400) == 1 / 19
    ledger.settle(100 + 86_400, negative=True)
    assert ledger.share(86_400) == 0.0


def test_time_that_goes_backwards_is_denied_without_an_error():
    ledger = calm_until(3_600)
    assert ledger.charge(3_600)
    assert not ledger.charge(3_600)  # asked once
    assert not ledger.charge(3_595)
    ledger.settle(3_700, negative=True)
    assert not ledger.charge(3_700)  # its outcome is known already
    assert ledger.denials == 3
    assert ledger.charge(3_705)


def test_a_settled_tick_is_not_counted_twice():
    ledger = calm_until(100)
    before = ledger.to_dict()
    assert not ledger.settle(95, negative=True)
    assert ledger.to_dict() == before


def test_shares_are_exact():
    # 0.29 * 100 is 28.999999999999996 in floating point.
    ledger = Ledger([(1_000, 0.29)])
    for t_s in range(100):
        ledger.settle(t_s, negative=True)
    assert ledger.remaining() == 29


def test_nothing_outlives_the_longest_window():
    ledger = Ledger(SMALL)
    for t_s in range(0, 10_000, 5):
        ledger.settle(t_s, negative=True)
    assert ledger.to_dict()["calm"] == [[9_800, 9_995, 5]]


def test_a_full_day_fits_in_a_kilobyte_when_calm():
    assert len(json.dumps(calm_until(86_400).to_dict())) < 1_000


def test_share_of_an_unknown_window_is_refused():
    with pytest.raises(InputError, match=r"one of \[86400, 3600\] seconds; got 60"):
        Ledger().share(60)


@pytest.mark.parametrize("windows", [[], [(0, 0.05)], [(3_600, 0.0)], [(3_600, 1.0)], [(3_600, math.nan)]])
def test_bad_windows_are_refused(windows: list[tuple[int, float]]):
    with pytest.raises(InputError, match="Ledger windows must be"):
        Ledger(windows)


def test_windows_travel_with_the_state():
    assert Ledger.from_dict(Ledger().to_dict()).windows == WINDOWS
    assert Ledger.from_dict(Ledger(SMALL).to_dict()).windows == SMALL


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("windows", []),
        ("windows", [[3_600.5, 0.05]]),
        ("windows", 5),
        ("windows", [[3_600, "much"]]),
        ("asked_s", "now"),
        ("settled_s", None),
        ("settled_s", 30.0),
        ("charges", -1),
        ("denials", True),
        ("charged", [[100, 100]]),
        ("charged", [[105, 105, 1]]),  # later than the last tick asked about
        ("calm", [[0, 95, 0]]),
        ("calm", [[0, 94, 5]]),
        ("calm", [[50, 0, 5]]),
        ("calm", [[0, 50, 5], [50, 95, 5]]),
        ("calm", [[-90_000, 95, 5]]),
        ("calm", [[0, 10**15, 5]]),  # later than the last tick settled, and far too many
        ("calm", None),
    ],
)
def test_damaged_state_is_refused(name: str, value: object):
    ledger = calm_until(100)
    ledger.charge(100)
    state = ledger.to_dict()
    Ledger.from_dict(copy.deepcopy(state))
    with pytest.raises(InputError, match=r"Ledger (state|windows)"):
        Ledger.from_dict(state | {name: value})
    with pytest.raises(InputError, match="Ledger state"):
        Ledger.from_dict({key: kept for key, kept in state.items() if key != name})


@pytest.mark.parametrize("state", [None, [], "ledger", {}])
def test_what_is_no_state_at_all_is_refused(state: object):
    with pytest.raises(InputError, match="version 1"):
        Ledger.from_dict(state)  # type: ignore[arg-type]
