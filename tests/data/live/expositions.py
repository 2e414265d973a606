"""Metrics pages as the engines of that name and age serve them, short."""

VLLM_06 = """\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="llama"} 4.0
vllm:num_requests_swapped{model_name="llama"} 0.0
vllm:num_requests_waiting{model_name="llama"} 2.0
vllm:gpu_cache_usage_perc{model_name="llama"} 0.25
vllm:cpu_cache_usage_perc{model_name="llama"} 0.0
vllm:gpu_prefix_cache_hit_rate{model_name="llama"} 0.75
vllm:cache_config_info{block_size="16",num_gpu_blocks="2048",gpu_memory_utilization="0.9"} 1.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="llama"} 5000.0
vllm:generation_tokens_total{model_name="llama"} 900.0
vllm:request_success_total{finished_reason="stop",model_name="llama"} 30.0
vllm:request_success_total{finished_reason="length",model_name="llama"} 12.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le="1.0",model_name="llama"} 3.0
vllm:iteration_tokens_total_sum{model_name="llama"} 77.0
vllm:iteration_tokens_total_count{model_name="llama"} 9.0
vllm:time_per_output_token_seconds_sum{model_name="llama"} 3.0
vllm:time_per_output_token_seconds_count{model_name="llama"} 100.0
"""

VLLM = """\
process_start_time_seconds 1.7e+09
vllm:num_requests_running{engine="0",model_name="qwen, large"} 7.0
vllm:num_requests_waiting{engine="0",model_name="qwen, large"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="qwen, large",reason="capacity"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="qwen, large",reason="deferred"} 6.0
vllm:num_requests_running{engine="1",model_name="qwen, large"} 1.0
vllm:num_requests_waiting{engine="1",model_name="qwen, large"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="qwen, large"} 0.5
vllm:gpu_cache_usage_perc{engine="0",model_name="qwen, large"} 0.99
vllm:kv_cache_usage_perc{engine="1",model_name="qwen, large"} 0.125
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="None"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="qwen, large"} 800.0
vllm:prefix_cache_hits_total{engine="0",model_name="qwen, large"} 600.0
vllm:prefix_cache_hits_created{engine="0",model_name="qwen, large"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="qwen, large"} 800.0
vllm:generation_tokens_total{engine="0",model_name="qwen, large"} 400.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="qwen, large"} 20.0
vllm:num_preemptions_total{engine="0",model_name="qwen, large"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="qwen, large"} 11.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="qwen, large"} 6.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="qwen, large"} 20.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="qwen, large"} 8.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="qwen, large"} 400.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="qwen, large"} 1.0
vllm:request_queue_time_seconds_count{engine="0",model_name="qwen, large"} 20.0
"""

SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="qwen",pp_rank="0",priority="",tp_rank="0"} 10.0
sglang:num_running_reqs{engine_type="unified",model_name="qwen",pp_rank="0",priority="",tp_rank="1"} 10.0
sglang:num_queue_reqs{engine_type="unified",model_name="qwen",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_queue_reqs{engine_type="unified",model_name="qwen",pp_rank="0",priority="3",tp_rank="0"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="qwen",pp_rank="0",priority="7",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="qwen",pp_rank="0",tp_rank="0"} 0.4
sglang:cache_hit_rate{engine_type="unified",model_name="qwen",pp_rank="0",tp_rank="0"} 0.0
sglang:page_size{model_name="qwen"} 64.0
sglang:num_pages{model_name="qwen"} 512.0
sglang:prompt_tokens_total{is_streaming="true",model_name="qwen"} 300.0
sglang:prompt_tokens_total{is_streaming="false",model_name="qwen"} 100.0
sglang:cached_tokens_total{cache_source="device",model_name="qwen"} 90.0
sglang:cached_tokens_total{cache_source="host",model_name="qwen"} 10.0
sglang:generation_tokens_total{is_streaming="true",model_name="qwen"} 50.0
sglang:num_requests_total{is_streaming="true",model_name="qwen"} 3.0
sglang:queue_time_seconds_sum{model_name="qwen"} 1.5
sglang:queue_time_seconds_count{model_name="qwen"} 3.0
"""

TRTLLM = """\
trtllm_num_requests_waiting{engine_type="trtllm",model_name="nemo"} 1.0
trtllm_num_requests_running{engine_type="trtllm",model_name="nemo"} 2.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="nemo"} 0.3
trtllm_kv_cache_hit_rate{engine_type="trtllm",model_name="nemo"} 0.6
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="nemo"} 32.0
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="nemo"} 4096.0
trtllm_time_to_first_token_seconds_sum{engine_type="trtllm",model_name="nemo"} 2.0
trtllm_time_to_first_token_seconds_count{engine_type="trtllm",model_name="nemo"} 4.0
"""

TRITON = """\
nv_inference_count{model="tensorrt_llm",version="1"} 12
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 8
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.05
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 100
"""
