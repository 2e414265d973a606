from serving.gateways.request_facts import MAX_WAIT_MS, Size, admit_request

SIZE = Size(100, "header")


def test_a_wait_is_a_finite_number_over_zero_or_none():
    for told, max_wait_ms in {
        "800": 800,
        "0": None,
        "-1": None,
        "inf": None,
        "nan": None,
        "long": None,
    }.items():
        assert admit_request({MAX_WAIT_MS: told}, "x-who", SIZE).max_wait_ms == max_wait_ms


def test_a_clients_count_of_its_attempts_is_taken_where_it_is_one():
    for told, count in {"0": 0, "2": 2, "": None, "-1": None, "two": None, "9" * 12: 1_000}.items():
        assert admit_request({"x-stainless-retry-count": told}, "x-who", SIZE).retry_count == count


def test_a_continuation_is_taken_from_anyone_and_one_that_is_no_name_from_none():
    for told, handle in {"ab12": "ab12", "": None, "a" * 300: None}.items():
        assert admit_request({"x-tidegate-continuation": told}, "x-who", SIZE).continuation == handle
