from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.recent import Recent


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=2)), st.integers(1, 5))
def test_the_latest_names_are_known_and_the_number_of_names_is_bounded(names: list[str], most: int) -> None:
    recent = Recent(most)
    for name in names:
        recent.add(name)
        assert len(recent) <= 2 * most
    latest = list(dict.fromkeys(reversed(names)))[:most]
    assert all(name in recent for name in latest)


def test_forgotten_names_are_new_again() -> None:
    recent = Recent(1, "ab")
    recent.forget(["a", "b", "never known"])
    assert "a" not in recent
    assert "b" not in recent
