"""Starting and stopping the simulated engine on a socket."""

import signal
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from data.errors import InputError
from serving.clock import Clock, SystemClock
from serving.controller.engine_model import A100, H100, EngineProfile
from serving.engine_sim.app import create_app
from serving.engine_sim.core import EngineSim
from serving.engine_sim.lengths import OutputLengths
from serving.engine_sim.metrics import Metrics
from serving.engine_sim.realtime import RealTime
from serving.profiles import read_profile
from serving.server import listen

PROFILES = {"h100": H100, "a100": A100}
GRACE_S = 2


@dataclass(frozen=True, slots=True)
class SimSettings:
    """What to simulate.

    Attributes:
        profile: h100, a100, or a file that `tidegate profile fit` wrote.
        model: name that it serves under.
        kv_blocks: KV blocks, in place of the profile's.
        max_batch: requests that run at one time.
        chunk_tokens: prompt tokens that a step prefills beside its decode; None: whole prompts, and decode
            waits for them.
        max_waiting: requests in line before it answers 503; None: no bound.
        max_model_tokens: prompt and output tokens of one request at most; None: what the KV cache holds.
        prefix_cache: reuse the KV blocks of equal prefixes.
        mean_output_tokens: of the drawn output lengths.
        speed: times faster than the profile says.
        seed: of the output lengths.

    """

    profile: str = "h100"
    model: str = "sim"
    kv_blocks: int | None = None
    max_batch: int = 256
    chunk_tokens: int | None = 2_048
    max_waiting: int | None = None
    max_model_tokens: int | None = None
    prefix_cache: bool = True
    mean_output_tokens: float = 256.0
    speed: float = 1.0
    seed: int = 0

    def engine(self) -> EngineSim:
        """An idle engine.

        Raises:
            InputError: when a setting can't be.

        """
        named = PROFILES.get(self.profile)
        if named is None and not Path(self.profile).exists():
            raise InputError(f"--profile must be {', '.join(PROFILES)} or a file; got '{self.profile}'.")
        profile = named or read_profile(Path(self.profile))
        if self.kv_blocks is not None:
            profile = replace(profile, kv_blocks=self.kv_blocks)
        return EngineSim(
            faster(profile, self.speed),
            max_batch=self.max_batch,
            chunk_tokens=self.chunk_tokens,
            max_waiting=self.max_waiting,
            prefix_cache=self.prefix_cache,
        )


def faster(profile: EngineProfile, speed: float) -> EngineProfile:
    """A profile of an engine that is so many times as fast; below 1 it is slower.

    >>> faster(H100, 10.0).decode_step_s(64) == H100.decode_step_s(64) / 10
    True

    """
    if not 0 < speed < float("inf"):
        raise InputError(f"--speed must be over 0 and finite; got {speed}.")
    return replace(
        profile,
        prefill_base_s=profile.prefill_base_s / speed,
        prefill_s_per_token=profile.prefill_s_per_token / speed,
        prefill_floor_s=profile.prefill_floor_s / speed,
        decode_base_s=profile.decode_base_s / speed,
        decode_s_per_request=profile.decode_s_per_request / speed,
    )


def build(settings: SimSettings, clock: Clock) -> FastAPI:
    """The app of a simulated engine.

    Raises:
        InputError: when a setting can't be.

    """
    if not settings.mean_output_tokens >= 1:
        raise InputError(f"--mean-output-tokens must be 1 or more; got {settings.mean_output_tokens}.")
    engine = settings.engine()
    capacity = engine.profile.capacity_tokens
    longest = capacity if settings.max_model_tokens is None else settings.max_model_tokens
    if not 2 <= longest <= capacity:
        raise InputError(
            f"--max-model-tokens must be 2 to {capacity}, the tokens that the KV cache holds; got {longest}."
        )
    live = RealTime(engine, clock, Metrics(engine, settings.model))
    lengths = OutputLengths(settings.mean_output_tokens, settings.seed)
    return create_app(live, lengths, settings.model, longest)


def serve(settings: SimSettings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        InputError: when a setting or the address can't be used.

    """
    app = build(settings, SystemClock())
    listening = listen(host, port)
    # uvicorn raises the signal again once it has shut down; an orderly stop is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    print(f"engine-sim listens on http://{host}:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S)
    uvicorn.Server(config).run(sockets=[listening])
