import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from data.lake.connection import connect, quoted, with_values
from data.lake.location import locate

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def test_a_value_is_data_whatever_it_says() -> None:
    with connect(locate("nowhere")) as db:

        @given(TEXTS, st.integers(-(2**62), 2**62), st.lists(TEXTS, min_size=1), st.floats(allow_nan=False))
        def comes_back(text: str, number: int, texts: list[str], real: float) -> None:
            values = {"text": text, "number": number, "texts": texts, "real": real, "none": None}
            sql = with_values("SELECT $text, $number, $texts, $real, $none", values)
            assert db.execute(sql).fetchall() == [(text, number, texts, real, None)]

        comes_back()


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="can't be a dict"):
        with_values("SELECT $a", {"a": {}})


def test_a_nul_character_is_refused() -> None:
    with pytest.raises(InputError, match="must not hold a NUL character"):
        quoted("a\0b")
