import re
import xml.etree.ElementTree as ET

from pipeline.simulate.plot import users_plot
from tests.pipeline.simulate.sample_simulation import apart, simulation

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """Words that a reader sees; fails where the SVG is not well formed."""
    return ["".join(found.itertext()).strip() for found in ET.fromstring(svg).iter(f"{SVG}text")]


def test_every_lane_has_its_differences_in_points() -> None:
    found = texts(users_plot(simulation()))
    assert {"standard", "batch", "all", "● forecast", "● oracle"} <= set(found)
    values = [text for text in found if re.fullmatch(r"[+-]\d\.\d\d", text)]
    assert values == ["+1.60", "-0.30", "+0.65", "+1.10", "-0.10", "+0.50"]
    assert "0" in found  # the line that an interval must not touch


def test_same_numbers_give_the_same_bytes_and_every_colour_is_a_role_of_the_page() -> None:
    first = users_plot(simulation())
    assert first == users_plot(simulation())
    bare = re.sub(r"var\(--[a-z]+, #[0-9a-f]{6}\)", "", first)
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{3,6})", bare)) == set()
    assert "var(--forecaster" in first
    assert "var(--oracle" in first


def test_an_interval_that_is_unknown_is_not_drawn_and_neither_is_an_unknown_difference() -> None:
    played = simulation()
    whole = users_plot(played).count("stroke-width: 2")
    played["arms"][1]["lanes"][0]["difference"] = apart(0.016, None)
    assert users_plot(played).count("stroke-width: 2") == whole - 1
    played["arms"][1]["lanes"][0]["difference"] = apart(None)
    assert "+1.60" not in texts(users_plot(played))


def test_one_lane_and_no_difference_at_all_can_be_drawn() -> None:
    played = simulation()
    for one in played["arms"]:
        one["lanes"] = one["lanes"][::2]
        for lane in one["lanes"]:
            lane["difference"] = apart(0.0, None)
    assert texts(users_plot(played)).count("+0.00") == 4
