import math
from random import Random

import pytest

from data.errors import InputError
from serving.controller.quota import Quota
from serving.controller.tenants import TenantLimits, Tenants

NOON = 1_700_049_600.0
LIMITED = TenantLimits(hourly=Quota(1_000))


def make(most: int = 100, default: TenantLimits = LIMITED, **configured: TenantLimits) -> Tenants:
    return Tenants(default, configured, most)


def use(tenants: Tenants, name: str, tokens: int, wall_s: float = NOON) -> None:
    charge = tenants.charge(tenants.account(name, wall_s), tokens, wall_s)
    tenants.settle(charge, tokens, wall_s)


def test_an_unknown_tenant_has_the_default_limits_and_a_configured_one_its_own():
    tenants = make(acme=TenantLimits(hourly=Quota(5_000)))

    assert tenants.account("new", NOON).wait_s(1_001, NOON) == math.inf
    assert tenants.account("acme", NOON).wait_s(5_000, NOON) == 0


def test_the_longer_of_two_waits_counts():
    limits = TenantLimits(hourly=Quota(1_000), daily=Quota(1_500))
    tenants = make(default=limits)
    use(tenants, "a", 1_000)

    assert tenants.account("a", NOON).wait_s(500, NOON) == 3_600
    assert tenants.account("a", NOON).wait_s(600, NOON) == 12 * 3_600


def test_a_closed_tenant_never_gets_in():
    assert make(a=TenantLimits(closed=True)).account("a", NOON).wait_s(1, NOON) == math.inf


def test_limits_change_while_what_was_charged_stays():
    tenants = make()
    use(tenants, "a", 800)
    tenants.set("a", TenantLimits(hourly=Quota(2_000)), NOON)
    assert tenants.account("a", NOON).hour.left_tokens(NOON) == 1_200
    tenants.set("a", None, NOON)
    assert tenants.account("a", NOON).hour.left_tokens(NOON) == 200


def test_the_table_is_bounded_and_says_whom_it_forgot():
    tenants = make(most=50)
    for number in range(1_000):
        use(tenants, f"t{number}", 10)

    assert (len(tenants), tenants.evicted) == (50, 950)


def test_crowding_the_table_with_new_names_wins_no_fresh_quota():
    tenants = make(most=50)
    use(tenants, "spent", 1_000)
    for number in range(500):
        use(tenants, f"t{number}", 1)

    assert tenants.evicted > 400
    assert tenants.account("spent", NOON).wait_s(1, NOON) > 0
    assert tenants.account("spent", NOON + 3_600).wait_s(1_000, NOON + 3_600) == 0


def test_names_that_were_forgotten_seldom_count_against_new_ones():
    tenants = make(most=50)
    for number in range(2_000):
        use(tenants, f"t{number}", 1_000)
    refused = sum(tenants.account(f"new{number}", NOON).wait_s(1_000, NOON) > 0 for number in range(1_000))

    assert refused < 50  # 2,000 of 16,384 cells are taken in each of two rows: 1.5 %


def test_a_tenant_with_open_requests_and_a_configured_one_are_never_forgotten():
    tenants = make(most=10, known=TenantLimits())
    known = tenants.account("known", NOON)
    running = tenants.charge(tenants.account("running", NOON), 100, NOON)
    for number in range(100):
        use(tenants, f"t{number}", 1)

    assert tenants.account("known", NOON) is known
    assert tenants.account("running", NOON) is running.account


def test_settling_leaves_what_was_used_and_cancelling_nothing():
    tenants = make()
    charge = tenants.charge(tenants.account("a", NOON), 900, NOON)
    tenants.settle(charge, 300, NOON)
    assert charge.account.hour.left_tokens(NOON) == 700
    tenants.settle(tenants.charge(charge.account, 700, NOON), 0, NOON)
    assert charge.account.hour.left_tokens(NOON) == 700


def test_a_random_walk_of_names_keeps_the_books():
    tenants, random, open_ = make(most=20, default=TenantLimits(daily=Quota(10**9))), Random(3), []
    for step in range(20_000):
        wall_s = NOON + step
        if open_ and random.random() < 0.5:
            tenants.settle(open_.pop(random.randrange(len(open_))), random.randrange(200), wall_s)
        else:
            account = tenants.account(f"t{random.randrange(200)}", wall_s)
            open_.append(tenants.charge(account, random.randrange(200), wall_s))
        assert len(tenants) <= 20 + len(open_) + 1
    for charge in open_:
        tenants.settle(charge, 0, wall_s)
    assert all(account.open == 0 for account in tenants._accounts.values())
    assert set(tenants._idle) == set(tenants._accounts)


@pytest.mark.parametrize(("settings", "message"), [({"weight": 0.0}, "weight"), ({"lane": "gold"}, "lane")])
def test_limits_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TenantLimits(**settings)
