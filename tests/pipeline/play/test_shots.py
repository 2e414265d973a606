from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from data.errors import InputError
from data.readers import load_trace
from data.schema import POLARS_REQUESTS
from pipeline.play.shots import Shot, prompt_text, shots
from serving.engine_sim.lengths import prefix_keys, text_tokens

START = datetime(2026, 1, 5, 9, tzinfo=UTC)


def requests(*rows: dict[str, Any]) -> pl.DataFrame:
    told = [{"request_id": f"r{n}", "source": "t", "prompt_tokens": 100} | row for n, row in enumerate(rows)]
    for row in told:
        row["arrived_at"] = START + timedelta(seconds=row.pop("at_s"))
    return pl.DataFrame(told, schema=POLARS_REQUESTS)


def test_calls_carry_what_the_trace_knows_and_nothing_else():
    (known, bare) = shots(
        requests(
            {
                "at_s": 0,
                "tenant": "acme",
                "lane": "batch",
                "session": "s1",
                "max_tokens": 9,
                "output_tokens": 7,
            },
            {"at_s": 3, "output_tokens": 0},
        ),
        headers={"authorization": "Bearer sk-{tenant}"},
    )
    assert known.headers == {
        "x-request-id": "r0",
        "x-tidegate-tenant": "acme",
        "x-tidegate-lane": "batch",
        "x-tidegate-session": "s1",
        "x-tidegate-prompt-tokens": "100",
        "x-sim-prompt-tokens": "100",
        "x-sim-output-tokens": "7",
        "authorization": "Bearer sk-acme",
    }
    assert (known.at_s, known.lane, known.body("m")["max_tokens"]) == (0.0, "batch", 9)
    assert (bare.at_s, bare.lane, bare.headers["authorization"]) == (3.0, "standard", "Bearer sk-")
    assert "x-sim-output-tokens" not in bare.headers
    assert "max_tokens" not in bare.body("m")


def test_a_span_is_played_from_its_own_start_at_the_pace_that_was_asked_for():
    rows = requests(*({"at_s": at_s} for at_s in (0, 9.5, 10, 14, 20)))
    played = shots(rows, speed=4.0, start_s=10.0, span_s=10.0)
    assert [(shot.at_s, shot.headers["x-request-id"]) for shot in played] == [(0.0, "r2"), (1.0, "r3")]
    with pytest.raises(InputError, match=r"No request of the trace lies in \[50, 60\) s"):
        shots(rows, start_s=50.0, span_s=10.0)
    with pytest.raises(InputError, match="--speed must be over 0"):
        shots(rows, speed=0.0)
    with pytest.raises(InputError, match=r"--header may hold \{tenant\}"):
        shots(rows, headers={"x": "{user}"})


def test_a_sessions_turns_begin_alike_and_others_do_not():
    def keys(key: str, tokens: int) -> list[Any]:
        text = prompt_text(Shot(0.0, "batch", {}, tokens, None, key))
        assert text_tokens(text) == tokens
        return prefix_keys(text, 16)

    assert keys("s1", 500)[:12] == keys("s1", 200)
    assert not set(keys("s1", 200)) & set(keys("s2", 200))


def test_block_hashes_of_a_real_trace_become_texts_that_share_as_the_prompts_did(
    real_trace: Callable[[str], Path],
) -> None:
    played = shots(load_trace(real_trace("mooncake_conversation.jsonl")).requests, span_s=60.0)
    one, other = next(
        (a, b)
        for n, a in enumerate(played)
        for b in played[:n]
        if a.block_hashes[:2] == b.block_hashes[:2] and a.block_hashes != b.block_hashes
    )
    shared = next(
        n
        for n, pair in enumerate(zip(one.block_hashes, other.block_hashes, strict=False))
        if len(set(pair)) > 1
    )
    texts = [prompt_text(shot) for shot in (one, other)]
    assert [text_tokens(text) for text in texts] == [one.prompt_tokens, other.prompt_tokens]
    same = [a == b for a, b in zip(*(prefix_keys(text, 512) for text in texts), strict=False)]
    assert sum(same) == shared
