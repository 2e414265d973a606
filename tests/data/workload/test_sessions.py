import numpy as np
import pytest

from data.workload import Settings
from data.workload.calls import Calls
from data.workload.sessions import MAX_CONTEXT_TOKENS, chat_tenants, hold_sessions

CHAT = chat_tenants(Settings(seed=1))


@pytest.fixture(scope="module")
def calls() -> Calls:
    random = np.random.default_rng(0)
    tenant = random.choice(len(CHAT.share), 5_000, p=CHAT.share)
    return hold_sessions(random, CHAT, tenant, random.uniform(0, 1000, 5_000), first_session=7)


def test_sessions_are_numbered_in_their_order_and_keep_their_tenant(calls: Calls) -> None:
    assert calls.session[0] == 7
    assert calls.session[-1] == 7 + 4_999
    same = np.diff(calls.session) == 0
    assert (np.diff(calls.sender)[same] == 0).all()


def test_a_turn_repeats_its_whole_context_and_comes_after_the_answer(calls: Calls) -> None:
    same = np.diff(calls.session) == 0
    before = (calls.prompt + calls.output)[:-1]
    assert (calls.prompt[1:][same] > before[same]).all()
    assert (calls.arrived_s[1:][same] > calls.finished_s[:-1][same]).all()


def test_the_cache_holds_whole_blocks_of_what_came_before(calls: Calls) -> None:
    same = np.diff(calls.session) == 0
    cached = calls.cached[1:][same]
    assert (cached <= (calls.prompt + calls.output)[:-1][same]).all()
    assert (cached % 16 == 0).all()
    long_before = (calls.prompt + calls.output)[:-1][same] >= 16
    assert (cached[long_before] == 0).mean() == pytest.approx(0.04, abs=0.01)
    assert calls.cached[np.r_[True, ~same]].max() == 0
    assert calls.prompt.max() <= MAX_CONTEXT_TOKENS


def test_think_times_and_turns_are_the_tenants_own(calls: Calls) -> None:
    same = np.diff(calls.session) == 0
    think_s = (calls.arrived_s[1:] - calls.finished_s[:-1])[same]
    largest = calls.sender[1:][same] == 0
    assert np.median(think_s[largest]) == pytest.approx(CHAT.think_s[0], rel=0.1)
    turns = np.unique(calls.session[calls.sender == 0], return_counts=True)[1]
    assert turns.mean() == pytest.approx(CHAT.turns[0], rel=0.1)


def test_expected_work_is_what_sessions_come_to() -> None:
    random = np.random.default_rng(0)
    per_session = CHAT.share / CHAT.turns
    tenant = random.choice(len(CHAT.share), 60_000, p=per_session / per_session.sum())
    calls = hold_sessions(random, CHAT, tenant, np.zeros(60_000), 0)
    work = (calls.prompt - calls.cached + calls.output).mean()
    assert work == pytest.approx(CHAT.mean_work_tokens, rel=0.1)
