import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.config.file import File, read
from serving.config.mapping import to_eviction_rules, to_settings
from serving.config.show import shown


def floats(lowest: float = 0.01, highest: float = 1e6) -> st.SearchStrategy[float]:
    return st.floats(lowest, highest)


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the keys of a section."""
    return st.fixed_dictionaries({}, optional=keys)


@st.composite
def weights(draw: st.DrawFn) -> list[float]:
    first = draw(floats(0.1, 0.6))
    second = draw(floats(0.1, 0.3))
    return [first, second, 1.0 - first - second]


@st.composite
def lanes(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.permutations(["premium", "standard", "batch"]))
    more = some(sla_ms=floats(), tightening_cut=floats(0, 1))
    return [
        {"name": name, "weight": weight, **draw(more)}
        for name, weight in zip(names, draw(weights()), strict=True)
    ]


COUNT = st.integers(1, 10**9)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
TEXT = st.text(min_size=1, max_size=20)  # of all characters: YAML has many that it treats in its own way
QUOTA = st.fixed_dictionaries({"tokens": COUNT}, optional={"sliding": st.booleans(), "burst_tokens": COUNT})
TENANT = some(
    hourly=st.none() | QUOTA,
    daily=QUOTA,
    weight=floats(),
    lane=st.sampled_from(["premium", "standard", "batch"]),
    closed=st.booleans(),
)
MAPPING = TEXT.map(lambda column: {"columns": {"arrived_at": "#: b", "prompt_tokens": column}})
TARGET = st.fixed_dictionaries({"name": NAME, "url": st.just("http://a/metrics?name=b")})
FILES = some(
    telemetry=some(
        lake=NAME,
        scrape=st.lists(TARGET, max_size=3, unique_by=lambda target: target["name"]),
        mappings=st.dictionaries(NAME, MAPPING),
    ),
    service=some(source=NAME, capacity_tokens_per_s=st.none() | floats(), max_waiting_rows=COUNT),
    engine=some(
        profile=st.sampled_from(["h100", "a100"]), capacity_tokens=st.none() | COUNT, stale_s=floats()
    ),
    priority_queues=lanes(),
    tenants=some(default=TENANT, by_name=st.dictionaries(TEXT, TENANT, max_size=3), max_remembered=COUNT),
    waiting=some(max_requests=COUNT, max_wait_ms=floats(1, 1e6), aged_after=floats(0, 1)),
    backpressure=weights().map(lambda parts: dict(zip(("alpha", "beta", "gamma"), parts, strict=True))),
    degradation=some(
        trigger=st.builds("gpu_util > {:.3f} OR queue_depth > {}".format, floats(0.1, 1), COUNT),
        smaller_models=st.dictionaries(TEXT.map("{} large".format), TEXT.map("{} small".format), max_size=3),
        calm_below=floats(0, 1),
    ),
    kv_headroom=st.none() | some(floor=floats(0.01, 1)),
    cache_eviction=some(min_reuse_rate=floats(0, 0.15), block_tokens=COUNT),
)


@settings(deadline=None, max_examples=30)
@given(content=FILES)
def test_what_is_shown_reads_back_as_the_same(content: dict[str, Any]) -> None:
    file = File.model_validate(content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tidegate.yaml"
        path.write_text(shown(file), encoding="utf-8")
        assert read(path) == file
    to_settings(file, Path())  # what the file's checks let through, the rules take
    to_eviction_rules(file.cache_eviction)


def test_defaults_are_marked_and_nothing_else() -> None:
    lines = shown(File.model_validate({"reservations": {"lease_s": 120}, "kv_headroom": None})).splitlines()

    assert "  lease_s: 120.0" in lines  # set, though to the default
    assert "  output_prior_tokens: 512  # default" in lines
    assert "reservations:" in lines
    assert "waiting:  # default" in lines
    assert "    weight: 0.4  # default" in lines


def test_secrets_are_hidden() -> None:
    told = shown(
        File.model_validate(
            {
                "telemetry": {
                    "lake": "postgresql://tide:geheim@db/lake?sslmode=require&password=geheim",
                    "scrape": [{"name": "a", "url": "https://tide:geheim@a/metrics?api_key=geheim"}],
                }
            }
        )
    )

    assert "geheim" not in told
    assert (
        "  lake: postgresql://tide:***@db/lake?sslmode=require&password=***  # a secret is hidden here"
        in told
    )
