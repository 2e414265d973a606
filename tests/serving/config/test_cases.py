"""Every invalid configuration under cases/ is refused with the message that stands beside it."""

from pathlib import Path

import pytest

from data.errors import InputError
from serving.config.mapping import read_settings

CASES = sorted(Path(__file__).parent.glob("cases/*.yaml"))


def test_each_case_has_its_message():
    assert {case.with_suffix(".txt") for case in CASES} == set(Path(__file__).parent.glob("cases/*.txt"))
    assert len(CASES) > 20


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_an_invalid_configuration_is_refused_with_its_message(case):
    with pytest.raises(InputError) as refused:
        read_settings(case)

    told = str(refused.value)
    assert told.replace(str(case), "FILE") == case.with_suffix(".txt").read_text().rstrip("\n")
    assert "geheim" not in told
