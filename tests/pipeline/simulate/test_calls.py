import pytest

from pipeline.simulate.calls import calls_of
from tests.pipeline.simulate.samples import call, requests


def test_a_span_holds_its_start_and_not_its_end() -> None:
    rows = [{"at_s": at_s} for at_s in (0.0, 4.999, 5.0, 9.5, 10.0, 30.0)]
    found = calls_of(requests(*rows), 5.0, 10.0)
    assert ([one.at_s for one in found.calls], found.unknown) == ([5.0, 9.5], 0)


def test_requests_of_unknown_length_are_counted_and_not_played() -> None:
    rows = [
        {"output_tokens": None},
        {"at_s": 1.0, "output_tokens": 0},
        {"at_s": 2.0, "prompt_tokens": 0},
        {"at_s": 3.0},
        {"at_s": 99.0, "output_tokens": None},  # of another span
    ]
    found = calls_of(requests(*rows), 0.0, 10.0)
    assert ([one.at_s for one in found.calls], found.unknown) == ([3.0], 3)


def test_a_call_is_what_the_trace_says_and_one_without_a_lane_is_standard() -> None:
    row = {"tenant": "acme", "model": "m", "cached_tokens": 30, "max_tokens": 64, "lane": "batch"}
    first, second = calls_of(requests(row, {"at_s": 1.5}), 0.0, 10.0).calls
    assert (first.tenant, first.model, first.lane, first.max_tokens) == ("acme", "m", "batch", 64)
    assert (first.prompt_tokens, first.cached_tokens, first.to_prefill) == (100, 30, 70)
    assert (second.tenant, second.lane, second.cached_tokens, second.to_prefill) == (
        None,
        "standard",
        None,
        100,
    )


@pytest.mark.parametrize(
    ("cached", "generated", "prefilled"), [(None, 0, 100), (99, 0, 1), (100, 0, 1), (0, 5, 1)]
)
def test_what_an_engine_has_to_prefill(cached: int | None, generated: int, prefilled: int) -> None:
    one = call(0.0, cached_tokens=cached, generated_tokens=generated)
    assert one.to_prefill == prefilled
    assert one.left_tokens == 20 - generated
    # All of it is in the KV cache, whoever computed it: the gate counts the same tokens.
    assert one.to_prefill + one.held_besides == 100 + generated
