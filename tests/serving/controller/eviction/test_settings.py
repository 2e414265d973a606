import math

import pytest

from data.errors import InputError
from serving.controller.eviction.settings import EvictionRules, LoadBands, Retention, TenantBlocks


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retention(priority=101), "priority must be a whole number from 0 to 100; got 101"),
        (lambda: Retention(priority=-1), "got -1"),
        (lambda: Retention(priority=1.5), "got 1.5"),
        (lambda: Retention(duration_s=0.0), "duration_s must be over 0 and finite, or None; got 0.0"),
        (lambda: Retention(duration_s=math.nan), "got nan"),
        (lambda: TenantBlocks(floor=-1), "floor must be 0 blocks or more; got -1"),
        (lambda: TenantBlocks(floor=5, ceiling=4), r"must not be under its floor \(5\); got 4"),
        (lambda: LoadBands(edges=(0.9, 0.5)), "edges must rise"),
        (lambda: LoadBands(floors=(0.3, 0.15, 0.05)), "floors must not fall"),
        (lambda: EvictionRules(block_tokens=0), "block_tokens must be over 0; got 0"),
        (lambda: EvictionRules(remembered_blocks=-1), "remembered_blocks must be 0 or more; got -1"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_tightening_moves_one_band_higher_and_never_over_the_last():
    bands = LoadBands()

    assert bands.floor(0.49) == 0.05
    assert bands.floor(0.49, tightening=0.2) == bands.floor(0.5) == 0.15
    assert bands.floor(0.5, tightening=0.2) == bands.floor(0.85) == 0.30
    assert bands.floor(1.0, tightening=1.0) == 0.30
