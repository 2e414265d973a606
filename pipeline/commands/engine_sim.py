"""The command that runs a simulated engine."""

from typing import Annotated

import typer


def engine_sim(
    profile: Annotated[
        str, typer.Option(help="h100, a100, or a file that `tidegate profile fit` wrote.")
    ] = "h100",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    model: Annotated[str, typer.Option(help="Name that it serves under.")] = "sim",
    kv_blocks: Annotated[
        int | None, typer.Option(help="KV blocks, in place of the profile's.", min=1)
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Requests that run at one time.", min=1)] = 256,
    chunk_tokens: Annotated[
        int,
        typer.Option(
            help="Prompt tokens that a step prefills beside its decode; 0: whole prompts, one after the "
            "other, while decode waits.",
            min=0,
        ),
    ] = 2_048,
    max_waiting: Annotated[
        int | None, typer.Option(help="Requests in line before it answers 503; by default no bound.", min=1)
    ] = None,
    max_model_tokens: Annotated[
        int | None,
        typer.Option(help="Prompt and output tokens of a request at most; by default what the cache holds."),
    ] = None,
    prefix_cache: Annotated[bool, typer.Option(help="Reuse the KV blocks of equal prefixes.")] = True,
    mean_output_tokens: Annotated[
        float, typer.Option(help="Mean of the output lengths that are drawn, log-normal with a sigma of 1.")
    ] = 256.0,
    speed: Annotated[float, typer.Option(help="Times faster than the profile says.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the output lengths.")] = 0,
) -> None:
    """Run an engine without a GPU or a model: vLLM's API, timed by an engine profile.

    It answers /v1/chat/completions and /v1/completions, whole or streamed,
    /v1/models, /health, and /metrics under vLLM's names.

    Requests wait in line, share steps and KV blocks, reuse equal prefixes, and
    are preempted where blocks run out. The answer is words about the sea.

    A prompt is taken for one token for every four characters of its text. To
    play a known workload, give the lengths by the request headers
    x-sim-prompt-tokens and x-sim-output-tokens.
    """
    from serving.engine_sim.server import SimSettings, serve

    settings = SimSettings(
        profile=profile,
        model=model,
        kv_blocks=kv_blocks,
        max_batch=max_batch,
        chunk_tokens=chunk_tokens or None,
        max_waiting=max_waiting,
        max_model_tokens=max_model_tokens,
        prefix_cache=prefix_cache,
        mean_output_tokens=mean_output_tokens,
        speed=speed,
        seed=seed,
    )
    serve(settings, host, port)
