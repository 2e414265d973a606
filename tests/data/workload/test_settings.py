from datetime import datetime

import numpy as np
import pytest

from data.errors import InputError
from data.workload import Settings
from data.workload.settings import stream


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"days": 0.0}, "days must be from"),
        ({"days": float("nan")}, "days must be from"),
        ({"days": 1e9}, "days must be from"),
        ({"seed": -1}, "seed must be a whole number from 0 on; got -1"),
        ({"requests_per_s": 0.0}, "requests_per_s must be at least 0.5"),
        ({"requests_per_s": float("inf")}, "requests_per_s must be at least 0.5"),
        ({"days": 365.0, "requests_per_s": 100.0}, "at most 100,000,000 requests"),
        ({"start": datetime(2026, 1, 5)}, "start must have a time zone"),
        ({"chat_tenants": 0}, "chat_tenants must be at least 1; got 0"),
    ],
)
def test_a_wrong_setting_is_told_in_a_sentence(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Settings(**wrong)  # type: ignore[arg-type]


def test_streams_differ_by_seed_and_component_and_nothing_else() -> None:
    draws = [stream(seed, name).random(4) for seed in (0, 1) for name in ("jobs", "agents")]
    assert len({tuple(draw) for draw in draws}) == 4
    assert np.array_equal(draws[0], stream(0, "jobs").random(4))
