import pytest

from serving.admission.retries import LONGEST_RETURN_S, Refused
from serving.http.messages import AdmitRequest


def attempt(number: int | None, **other: object) -> AdmitRequest:
    facts: dict[str, object] = {"prompt_tokens": 90, "tenant": "acme", "model": "m", "max_tokens": 50}
    return AdmitRequest.model_validate(facts | {"retry_count": number} | other)


def test_each_attempt_repeats_the_refused_one_before_it():
    refused = Refused(10)
    refused.add(attempt(0), "a-0", 0.0)
    assert refused.repeated_by(attempt(1), 1.0) == "a-0"
    refused.add(attempt(1), "a-1", 1.0)
    assert refused.repeated_by(attempt(2), 3.0) == "a-1"


@pytest.mark.parametrize(
    "other",
    [
        {"prompt_tokens": 91},
        {"tenant": "other"},
        {"model": None},
        {"session": "s"},
        {"max_tokens": None},
        {"n": 2},
        {"retry_count": 2},
        {"retry_count": 0},
        {"retry_count": None},
    ],
)
def test_nothing_is_claimed_of_a_request_that_differs(other: dict[str, object]):
    refused = Refused(10)
    refused.add(attempt(0), "a-0", 0.0)
    assert refused.repeated_by(attempt(1, **other), 1.0) is None


def test_nothing_is_claimed_of_what_was_refused_longer_ago_than_clients_wait():
    refused = Refused(10)
    refused.add(attempt(0), "a-0", 0.0)
    assert refused.repeated_by(attempt(1), LONGEST_RETURN_S + 0.1) is None


def test_clients_that_do_not_count_are_not_remembered_and_the_oldest_make_room():
    refused = Refused(2)
    refused.add(attempt(None), "a-0", 0.0)
    assert refused.repeated_by(attempt(1), 0.0) is None
    for number, tenant in enumerate("abc"):
        refused.add(attempt(0, tenant=tenant), tenant, float(number))
    assert [refused.repeated_by(attempt(1, tenant=tenant), 3.0) for tenant in "abc"] == [None, "b", "c"]
