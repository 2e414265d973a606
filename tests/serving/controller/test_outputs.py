import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.outputs import FIRST_OUTPUTS, OutputQuantile, OutputTable


@pytest.mark.parametrize("seed", range(3))
def test_the_quantile_covers_the_wanted_share_of_outputs(seed):
    outputs = np.random.default_rng(seed).lognormal(5.0, 1.0, 6_000)
    learned = OutputQuantile(0.9)
    covered = []
    for tokens in outputs:
        covered.append(tokens <= learned.value(512))
        learned.learn(tokens, censored=False)

    assert np.mean(covered[1_000:]) == pytest.approx(0.9, abs=0.02)


def test_the_quantile_follows_when_a_tenant_changes():
    learned = OutputQuantile(0.9)
    for tokens in [2_000] * 200 + [100] * 1_000:
        learned.learn(tokens, censored=False)

    assert learned.value(512) < 130


def test_the_prior_stands_until_a_flow_is_known():
    learned = OutputQuantile(0.9)
    for _ in range(FIRST_OUTPUTS - 1):
        learned.learn(10, censored=False)
    assert learned.value(512) == 512

    learned.learn(10, censored=False)
    assert learned.value(512) == 10


def test_outputs_cut_by_their_limit_do_not_lower_what_is_expected():
    table = OutputTable(512, 0.9, 10)
    flow = table.flow("a", "m")
    for _ in range(100):
        table.learn(flow, 200, limit_tokens=None)
    before = table.expected_tokens(flow, None)
    for _ in range(100):
        table.learn(flow, 1, limit_tokens=1)

    assert table.expected_tokens(flow, None) == before
    assert table.expected_tokens(flow, 1) == 1


def test_outputs_cut_by_their_limit_raise_what_is_expected():
    learned = OutputQuantile(0.9)
    for _ in range(FIRST_OUTPUTS):
        learned.learn(10, censored=False)
    for _ in range(50):
        learned.learn(1_000, censored=True)

    assert learned.value(512) >= 1_000


def test_tens_of_thousands_of_tenants_keep_the_table_bounded():
    table = OutputTable(512, 0.9, max_flows=100)
    for tenant in range(30_000):
        table.flow("regular", "m")
        table.flow(str(tenant), "m")

    assert len(table) == 100
    assert table.evicted == 30_001 - 100


def test_a_flow_in_use_is_not_the_one_forgotten():
    table = OutputTable(512, 0.9, max_flows=2)
    regular = table.flow("regular", None)
    table.flow("b", None)
    table.flow("regular", None)
    table.flow("c", None)

    assert table.flow("regular", None) is regular


@given(st.lists(st.tuples(st.integers(1, 10**9), st.booleans())), st.integers(1, 10**6))
def test_what_is_expected_stays_positive_and_within_the_limit(outputs, limit):
    table = OutputTable(512, 0.9, 10)
    flow = table.flow(None, None)
    for tokens, limited in outputs:
        table.learn(flow, tokens, tokens if limited else None)

    assert 1 <= table.expected_tokens(flow, limit) <= limit
    assert table.expected_tokens(flow, None) >= 1
