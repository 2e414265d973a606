import pytest

from data.errors import InputError
from serving.controller.rules import LaneRule, Rules


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity_tokens": 0}, "capacity_tokens must be over 0 and finite; got 0"),
        ({"lease_s": float("inf")}, "lease_s must be over 0 and finite; got inf"),
        ({"lease_s": float("nan")}, "lease_s must be over 0 and finite; got nan"),
        ({"alpha": 0.5}, "alpha, beta and gamma must sum to 1"),
        ({"alpha": 0.0, "beta": 0.7}, "alpha must be over 0"),
        ({"beta": -0.1, "gamma": 0.7}, r"beta must be in \[0, 1\]; got -0.1"),
        ({"premium": LaneRule(0.5, 200.0)}, "lane weights must sum to 1; got 0.5"),
        ({"batch": LaneRule(0.15, 5_000.0, cut=1.5)}, "batch must have weight and cut in"),
        ({"hard_reject_above": 0.1}, "hard_reject_cut must not be over hard_reject_above"),
        ({"output_quantile": 1.0}, r"output_quantile must be in \(0, 1\); got 1.0"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=message):
        Rules(**settings)


def test_the_defaults_are_the_documented_ones():
    rules = Rules()

    assert [rules.lane(name).weight for name in ("premium", "standard", "batch")] == [0.40, 0.45, 0.15]
    assert [rules.lane(name).ttft_target_ms for name in ("premium", "standard", "batch")] == [200, 800, 5_000]
    assert (rules.alpha, rules.beta, rules.gamma, rules.hard_reject_above) == (0.4, 0.3, 0.3, 0.85)
    assert rules.lease_s == 120
