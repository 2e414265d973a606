"""A simulation as it stands in report.json, made up lane by lane."""

from typing import Any

TARGETS_S = {"premium": 0.2, "standard": 0.8, "batch": 5.0}


def estimate(value: float | None, half: float | None = 0.002) -> dict[str, float | None]:
    known = value is not None and half is not None
    return {
        "value": value,
        "low": value - half if known else None,  # type: ignore[operator]
        "high": value + half if known else None,  # type: ignore[operator]
    }


def lane(name: str, good: int, offered: int = 1_000, **changed: Any) -> dict[str, Any]:
    found = {
        "lane": name,
        "offered": offered,
        "good": good,
        "good_share": good / offered,
        "goodput_per_s": good / 3_600,
        "late": offered - good,
        "refused": 0,
        "failed": 0,
        "restrained": 0,
        "falsely_restrained": 0,
        "answers_429": 12,
        "ttft_p50_s": 0.11,
        "ttft_p95_s": 0.52,
        "ttft_p99_s": None,
        "difference": {"good_share": estimate(0.0, 0.0), "relative": 0.0},
    }
    return found | changed


def apart(value: float | None, half: float | None = 0.002) -> dict[str, Any]:
    return {"good_share": estimate(value, half), "relative": None}


def simulation() -> dict[str, Any]:
    """The forecast gains in standard and loses in batch; the oracle gains less of both."""
    rows = {
        "rules": [lane("standard", 600), lane("batch", 900), lane("all", 1_500, 2_000)],
        "forecast": [
            lane("standard", 616, restrained=90, falsely_restrained=7, difference=apart(0.016)),
            lane("batch", 897, restrained=1_234, falsely_restrained=3, difference=apart(-0.003)),
            lane("all", 1_513, 2_000, restrained=1_324, falsely_restrained=10, difference=apart(0.0065)),
        ],
        "oracle": [
            lane("standard", 611, difference=apart(0.011)),
            lane("batch", 899, difference=apart(-0.001)),
            lane("all", 1_510, 2_000, difference=apart(0.005)),
        ],
    }
    titles = {"rules": "rules alone", "forecast": "rules and forecast", "oracle": "rules and oracle"}
    return {
        "span": {"start_s": 259_200, "end_s": 288_000},
        "calls": 2_000,
        "unknown_output": 17,
        "fleet": {
            "engine": "llama2-70b on 8 H100-80GB, 0.81 times as fast",
            "replicas": 2,
            "load": 0.6,
            "kv_tokens": 633_376,
            "capacity_tokens": 633_376,
        },
        "targets_s": TARGETS_S,
        "settings": {"load": 0.6, "kv_room": 0.6, "replicas": None, "waits": False, "seed": 0},
        "config_sha256": None,
        "arms": [{"name": name, "title": titles[name], "lanes": lanes} for name, lanes in rows.items()],
    }
