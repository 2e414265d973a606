import math

import pytest

from data.live.engines import MOST_ENGINES, WANTED, Reading, read
from data.live.exposition import ScrapeError, parse
from tests.data.live import expositions


def readings(text: str) -> list[Reading]:
    return read(parse(text.encode(), "text/plain", WANTED))


def test_vllm_of_old_names():
    (reading,) = readings(expositions.VLLM_06)
    assert (reading.engine, reading.kind, reading.model) == ("", "vllm", "llama")
    assert reading.values == {
        "waiting": 2,
        "running": 4,
        "kv_cache_usage": 0.25,
        "kv_blocks": 2048,
        "kv_block_tokens": 16,
        "hit_rate": 0.75,
        "prompt_tokens": 5000,
        "output_tokens": 900,
        "requests": 42,
        "tpot_sum": 3,
        "tpot_count": 100,
    }


def test_vllm_of_new_names_has_a_reading_for_each_engine():
    first, second = readings(expositions.VLLM)
    assert (first.engine, second.engine, first.model) == ("0", "1", "qwen, large")
    assert first.started_s == 1.7e9
    assert first.values == {
        "waiting": 3,
        "running": 7,
        "kv_cache_usage": 0.5,
        "kv_blocks": 1000,
        "kv_block_tokens": 16,
        "cached_tokens": 600,
        "looked_up_tokens": 800,
        "prompt_tokens": 800,
        "output_tokens": 400,
        "requests": 20,
        "preemptions": 1,
        "ttft_sum": 6,
        "ttft_count": 20,
        "tpot_sum": 8,
        "tpot_count": 400,
        "queue_time_sum": 1,
        "queue_time_count": 20,
    }
    assert second.values == {"waiting": 0, "running": 1, "kv_cache_usage": 0.125, "kv_block_tokens": 16}


def test_waiting_is_counted_once_and_without_deferred_prefills():
    first, _ = readings(expositions.VLLM)
    assert first.values["waiting"] == 3  # neither 9, nor 3 + 6, nor 12


def test_sglang_ranks_and_priorities_repeat_and_do_not_add():
    (reading,) = readings(expositions.SGLANG)
    assert reading.kind == "sglang"
    assert reading.values == {
        "waiting": 5,
        "running": 10,
        "kv_cache_usage": 0.4,
        "kv_blocks": 512,
        "kv_block_tokens": 64,
        "hit_rate": 0,
        "cached_tokens": 100,
        "looked_up_tokens": 400,
        "prompt_tokens": 400,
        "output_tokens": 50,
        "requests": 3,
        "queue_time_sum": 1.5,
        "queue_time_count": 3,
    }


def test_data_parallel_queues_add_up_and_their_kv_use_does_not():
    text = "".join(
        f'sglang:num_queue_reqs{{dp_rank="{rank}",tp_rank="{2 * rank}"}} {waiting}\n'
        f'sglang:token_usage{{dp_rank="{rank}",tp_rank="{2 * rank}"}} {usage}\n'
        for rank, (waiting, usage) in enumerate([(3, 0.2), (4, 0.9)])
    )
    assert readings(text)[0].values == {"waiting": 7, "kv_cache_usage": 0.9}


def test_trtllm_serve():
    (reading,) = readings(expositions.TRTLLM)
    assert (reading.kind, reading.model) == ("trtllm", "nemo")
    assert reading.values == {
        "waiting": 1,
        "running": 2,
        "kv_cache_usage": 0.3,
        "kv_blocks": 4096,
        "kv_block_tokens": 32,
        "hit_rate": 0.6,
        "ttft_sum": 2,
        "ttft_count": 4,
    }


def test_triton_tells_its_readings_apart_by_label():
    (reading,) = readings(expositions.TRITON)
    assert (reading.kind, reading.engine, reading.model) == ("triton", "tensorrt_llm", "tensorrt_llm")
    assert reading.values == {
        "waiting": 6,
        "running": 8,
        "kv_cache_usage": 0.05,
        "kv_blocks": 100,
        "kv_block_tokens": 64,
    }


def test_ray_renames_and_exports_counters_twice():
    (reading,) = readings(
        'ray_vllm_num_requests_waiting{WorkerId="w1",engine="0"} 2\n'
        'ray_vllm_prompt_tokens{Version="2",WorkerId="w1",engine="0"} 70\n'
        'ray_vllm_prompt_tokens_total{WorkerId="w1",engine="0"} 70\n'
        'ray_vllm:generation_tokens_total{WorkerId="w1",engine="0"} 30\n'
    )
    assert reading.engine == "w1/0"
    assert reading.values == {"waiting": 2, "prompt_tokens": 70, "output_tokens": 30}


def test_escaped_names_are_the_same_names():
    escaped = expositions.VLLM.replace("vllm:", "vllm_")
    assert readings(escaped) == readings(expositions.VLLM)
    assert readings(escaped + expositions.VLLM) == readings(expositions.VLLM)


def test_replicas_of_one_ray_node_are_engines_of_their_own():
    text = "".join(f'ray_vllm_num_requests_waiting{{WorkerId="w{n}",engine="0"}} {n}\n' for n in (1, 2))
    assert [(reading.engine, reading.values) for reading in readings(text)] == [
        ("w1/0", {"waiting": 1}),
        ("w2/0", {"waiting": 2}),
    ]


def test_a_description_of_the_cache_without_engine_belongs_to_all():
    text = 'vllm:cache_config_info{block_size="16"} 1\n' + "".join(
        f'vllm:num_requests_running{{engine="{engine}"}} 1\n' for engine in (0, 1)
    )
    assert [(reading.engine, reading.values) for reading in readings(text)] == [
        (engine, {"running": 1, "kv_block_tokens": 16}) for engine in ("0", "1")
    ]


def test_a_histogram_called_total_is_no_counter():
    assert not any(name.startswith("vllm:iteration_tokens_total") for name in WANTED)
    assert not any(name.endswith("_created") for name in WANTED)


def test_an_impossible_part_is_not_hidden_by_the_others():
    text = "".join(f'sglang:token_usage{{dp_rank="{n}"}} {usage}\n' for n, usage in enumerate([0.5, -0.39]))
    assert readings(text)[0].values == {"kv_cache_usage": -0.39}
    text = 'vllm:request_success_total{finished_reason="stop"} NaN\nvllm:request_success_total 5\n'
    assert math.isnan(readings(text)[0].values["requests"])


@pytest.mark.parametrize("text", ["", "nv_inference_count 3\n", "<html>\n</html>\n", '[{"iter": 1}]\n'])
def test_a_page_without_known_metrics_is_no_engine(text: str):
    with pytest.raises(ScrapeError, match="no metric of a known engine"):
        readings(text)


def test_two_kinds_behind_one_address_are_refused():
    with pytest.raises(ScrapeError, match="sglang and vllm"):
        readings(expositions.VLLM + expositions.SGLANG)


def test_a_label_that_is_no_engine_is_refused_by_its_number_of_values():
    text = "".join(f'vllm:num_requests_running{{instance="{n}"}} 1\n' for n in range(MOST_ENGINES + 1))
    with pytest.raises(ScrapeError, match="257 engines"):
        readings(text)
