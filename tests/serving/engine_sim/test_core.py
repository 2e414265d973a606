import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import Busy, InputError
from serving.controller.engine_model import A100, H100, EngineProfile
from serving.engine_sim.core import EngineSim
from serving.engine_sim.request import Request
from tests.serving.engine_sim.plain_engine import Plain, play

SMALL = replace(H100, kv_blocks=40, block_tokens=4)

arrivals = st.lists(
    st.builds(
        Plain,
        prompt_tokens=st.integers(1, 70),
        output_tokens=st.integers(1, 60),
        arrives_s=st.sampled_from([0.0, 0.0, 0.05, 0.3, 0.301, 1.7, 9.0]),
    ),
    max_size=14,
)


def drive(engine: EngineSim, plain: list[Plain]) -> tuple[list[Request], list[Request], int]:
    """The same requests through the engine: in order of arrival, in order of finish, and the most blocks."""
    calls = [(r.arrives_s, 1, n) for n, r in enumerate(plain)]
    calls += [(r.leaves_s, 0, n) for n, r in enumerate(plain) if r.leaves_s < math.inf]
    requests: dict[int, Request] = {}
    finished: list[Request] = []
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, engine.blocks.used)

    for at_s, comes, n in sorted(calls, key=lambda call: (call[0], call[1])):
        while engine.next_s is not None and engine.next_s <= at_s:
            finished += engine.advance(engine.next_s)
            look()
        if comes:
            r = plain[n]
            requests[n] = engine.submit(at_s, prompt_tokens=r.prompt_tokens, output_tokens=r.output_tokens)
        else:
            engine.abort(requests[n], at_s)
        look()
    while engine.next_s is not None:
        finished += engine.advance(engine.next_s)
        look()
    return [requests[n] for n in range(len(plain))], finished, most


@given(arrivals, st.integers(1, 6), st.sampled_from([None, 8, 50]), st.data())
def test_it_does_what_the_plain_engine_does(plain, max_batch, chunk_tokens, data):
    plain.sort(key=lambda r: r.arrives_s)
    for r in plain:
        if data.draw(st.booleans()):
            r.leaves_s = r.arrives_s + data.draw(st.sampled_from([0.01, 0.2, 1.0, 4.0]))
    engine = EngineSim(SMALL, max_batch=max_batch, chunk_tokens=chunk_tokens)
    requests, finished, most = drive(engine, plain)
    expected, most_expected = play(SMALL, plain, max_batch, chunk_tokens)
    assert [r.finished_s for r in finished] == pytest.approx([r.times_s[-1] for r in expected], rel=1e-12)
    assert most == most_expected
    for request, r in zip(requests, plain, strict=True):
        assert engine.generated(request) == len(r.times_s)
        assert request.preemptions == r.preemptions
        assert request.first_token_s == (pytest.approx(r.times_s[0], rel=1e-12) if r.times_s else None)
        assert (request.state == "finished") == (r in expected)


@given(arrivals, st.integers(1, 6), st.sampled_from([None, 8, 50]))
def test_tokens_are_conserved_and_blocks_given_back(plain, max_batch, chunk_tokens):
    plain.sort(key=lambda r: r.arrives_s)
    engine = EngineSim(SMALL, max_batch=max_batch, chunk_tokens=chunk_tokens)
    _, _, most = drive(engine, plain)
    assert most <= SMALL.kv_blocks
    assert (engine.waiting, engine.running, engine.blocks.used, engine.next_s) == (0, 0, 0, None)
    assert engine.totals.output_tokens == sum(r.output_tokens for r in plain)
    assert engine.totals.prompt_tokens == sum(r.prompt_tokens for r in plain)
    assert engine.totals.finished == len(plain)


conversations = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), st.booleans()), min_size=1, max_size=20
)


@given(conversations, st.booleans())
def test_shared_prefixes_never_hold_more_than_there_is(shapes, chunked):
    """Requests of four conversations, each with a prompt of some turns: heads are shared, tails are not.

    Some leave as the next one but two comes.
    """
    engine = EngineSim(SMALL, max_batch=4, chunk_tokens=16 if chunked else None)
    requests = []
    for place, (conversation, turns, _) in enumerate(shapes):
        prefix = [(conversation, turn) for turn in range(turns)]
        tokens = 4 * turns + 1
        requests.append(engine.submit(place * 0.06, prompt_tokens=tokens, output_tokens=20, prefix=prefix))
        if place > 2 and shapes[place - 3][2]:
            engine.abort(requests[place - 3], place * 0.06)
    while engine.next_s is not None:
        engine.advance(engine.next_s)
        assert 0 <= engine.blocks.used <= SMALL.kv_blocks
        assert engine.blocks.used + len(engine.blocks._idle) <= SMALL.kv_blocks
    assert engine.blocks.used == 0
    assert engine.totals.finished + engine.totals.aborted == len(shapes)
    assert engine.totals.output_tokens == sum(engine.generated(request) for request in requests)
    assert all(engine.generated(r) == 20 for r in requests if r.state == "finished")


@pytest.mark.parametrize("profile", [H100, A100])
@pytest.mark.parametrize("chunk_tokens", [None, 1, 512, 2_048])
@pytest.mark.parametrize("tokens", [1, 300, 8_000])
def test_an_idle_engines_ttft_is_the_models(profile: EngineProfile, chunk_tokens, tokens):
    engine = EngineSim(profile, chunk_tokens=chunk_tokens)
    request = engine.submit(5.0, prompt_tokens=tokens, output_tokens=4)
    engine.advance(100.0)
    assert request.first_token_s == pytest.approx(5.0 + profile.prefill_s(tokens))
    assert request.finished_s == pytest.approx(request.first_token_s + 3 * profile.decode_step_s(1))


def test_first_tokens_come_in_the_order_of_arrival_while_nothing_is_preempted():
    engine = EngineSim(H100)
    requests = [engine.submit(0.0, prompt_tokens=n, output_tokens=9) for n in (4_000, 10, 900, 50)]
    engine.advance(100.0)
    firsts = [r.first_token_s for r in requests]
    assert firsts == sorted(firsts)
    assert firsts == pytest.approx(
        [sum(H100.prefill_s(m) for m in (4_000, 10, 900, 50)[: n + 1]) for n in range(4)]
    )


def test_decode_goes_on_beside_a_chunked_prefill_and_waits_for_a_whole_one():
    def second_token_s(chunk_tokens: int | None) -> float:
        engine = EngineSim(H100, chunk_tokens=chunk_tokens)
        first = engine.submit(0.0, prompt_tokens=10, output_tokens=2)
        engine.submit(0.01, prompt_tokens=20_000, output_tokens=2)
        engine.advance(10.0)
        return first.finished_s

    assert second_token_s(None) == pytest.approx(0.05 + H100.prefill_s(20_000) + H100.decode_step_s(2))
    assert second_token_s(512) == pytest.approx(0.05 + H100.prefill_s(512) + H100.decode_step_s(1))


def test_a_known_prefix_is_not_prefilled_again():
    engine = EngineSim(H100)
    first = engine.submit(0.0, prompt_tokens=8_000, output_tokens=1, prefix=range(500))
    engine.advance(10.0)
    again = engine.submit(10.0, prompt_tokens=8_200, output_tokens=1, prefix=range(512))
    engine.advance(20.0)
    assert (first.cached_tokens, again.cached_tokens) == (0, 8_000)
    assert again.first_token_s == pytest.approx(10.0 + H100.prefill_s(200))
    assert (engine.totals.looked_up_tokens, engine.totals.cached_tokens) == (16_200, 8_000)
    whole = engine.submit(20.0, prompt_tokens=8_000, output_tokens=1, prefix=range(500))
    assert whole.cached_tokens == 7_984  # what follows the prompt must be computed from its last token


def test_without_a_prefix_cache_nothing_is_looked_up():
    engine = EngineSim(H100, prefix_cache=False)
    for at_s in (0.0, 10.0):
        engine.submit(at_s, prompt_tokens=8_000, output_tokens=1, prefix=range(500))
    engine.advance(20.0)
    assert (engine.totals.looked_up_tokens, engine.totals.cached_tokens) == (0, 0)


def test_a_full_cache_preempts_the_latest_and_it_comes_back():
    engine = EngineSim(replace(H100, kv_blocks=10, block_tokens=4))
    first = engine.submit(0.0, prompt_tokens=16, output_tokens=20)
    second = engine.submit(0.0, prompt_tokens=12, output_tokens=10)
    assert engine.advance(100.0) == [first, second]
    assert (first.preemptions, second.preemptions, engine.totals.preemptions) == (0, 1, 1)
    assert engine.generated(second) == 10
    assert engine.totals.output_tokens == 30


def test_the_line_is_bounded_and_a_refused_request_leaves_nothing():
    engine = EngineSim(H100, max_batch=1, max_waiting=2)
    for _ in range(3):
        engine.submit(0.0, prompt_tokens=10, output_tokens=10)
    with pytest.raises(Busy, match="2 requests wait already"):
        engine.submit(0.0, prompt_tokens=10, output_tokens=10)
    assert (engine.running, engine.waiting, engine.totals.refused) == (1, 2, 1)


def test_what_can_never_run_is_refused():
    engine = EngineSim(SMALL)
    with pytest.raises(InputError, match="161 tokens can't run: the engine's KV cache holds 160"):
        engine.submit(0.0, prompt_tokens=100, output_tokens=61)
    with pytest.raises(InputError, match="one prompt token and one output token"):
        engine.submit(0.0, prompt_tokens=0, output_tokens=5)
    with pytest.raises(InputError, match="max_batch must be 1 or more; got 0"):
        EngineSim(SMALL, max_batch=0)
    engine.advance(3.0)
    with pytest.raises(ValueError, match="time goes forward only"):
        engine.advance(2.0)


@settings(max_examples=20)
@given(st.floats(0.0, 3.0), st.sampled_from([None, 64]))
def test_an_abort_at_any_time_frees_what_it_held(at_s, chunk_tokens):
    engine = EngineSim(H100, chunk_tokens=chunk_tokens)
    stays = engine.submit(0.0, prompt_tokens=100, output_tokens=30)
    goes = engine.submit(0.0, prompt_tokens=500, output_tokens=40)
    was_over = not engine.abort(goes, at_s)
    assert was_over == (goes.state == "finished")
    engine.advance(100.0)
    assert not engine.abort(goes, 100.0)
    assert stays.state == "finished"
    assert engine.generated(goes) == goes.output_tokens or goes.state == "aborted"
    assert (engine.blocks.used, engine.running, engine.waiting) == (0, 0, 0)
