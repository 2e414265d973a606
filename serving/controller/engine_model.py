"""What one engine can do: prefill and decode time on two axes, and room for KV blocks.

Prompt tokens cost prefill time, output tokens cost decode steps shared by a batch; both hold KV blocks for
as long as the request runs. A count of requests sees none of that: eight long prompts fill an engine that
serves hundreds of short ones.
"""

import math
from dataclasses import dataclass, fields

from data.errors import InputError


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Linear model of one engine replica.

    Attributes:
        name: what was measured.
        prefill_base_s: a of prefill seconds = a + b * tokens; may be negative where a line was fitted.
        prefill_s_per_token: b of the same.
        prefill_floor_s: the shortest prefill seen; the line does not hold for tiny prompts.
        decode_base_s: c of decode seconds per step = c + d * batch.
        decode_s_per_request: d of the same.
        kv_blocks: KV blocks that requests can hold.
        block_tokens: tokens in a block.

    """

    name: str
    prefill_base_s: float
    prefill_s_per_token: float
    prefill_floor_s: float
    decode_base_s: float
    decode_s_per_request: float
    kv_blocks: int
    block_tokens: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            if not math.isfinite(value):
                raise InputError(f"Engine profile {self.name}: {field.name} must be finite; got {value!r}.")
            if field.name != "prefill_base_s" and not value > 0:
                raise InputError(f"Engine profile {self.name}: {field.name} must be over 0; got {value!r}.")

    @property
    def capacity_tokens(self) -> int:
        """Tokens of prompt and output that fit into the KV cache at one time."""
        return self.kv_blocks * self.block_tokens

    def prefill_s(self, tokens: float) -> float:
        """Seconds to prefill ``tokens`` prompt tokens on an idle engine.

        >>> round(H100.prefill_s(8_000), 4), H100.prefill_s(10), A100.prefill_s(10)
        (0.7381, 0.05, 0.065)
        """
        return max(self.prefill_floor_s, self.prefill_base_s + self.prefill_s_per_token * tokens)

    def decode_step_s(self, batch: float) -> float:
        """Seconds of one decode step over ``batch`` running requests.

        >>> round(H100.decode_step_s(64), 4)
        0.0494
        """
        return self.decode_base_s + self.decode_s_per_request * batch

    def drain_tokens_per_s(self, prompt_tokens: float, output_tokens: float, batch: int) -> float:
        """Tokens that finished requests free per second, in a steady batch of equal requests.

        ``batch`` requests take ``batch`` prefills, one after the other, and ``output_tokens`` shared steps.

        >>> round(H100.drain_tokens_per_s(1_024, 256, batch=64))
        4255
        """
        busy_s = batch * self.prefill_s(prompt_tokens) + output_tokens * self.decode_step_s(batch)
        return batch * (prompt_tokens + output_tokens) / busy_s


def saturation_concurrency(
    profile: EngineProfile,
    prompt_tokens: int,
    output_tokens: int,
    ttft_target_s: float,
    tpot_target_s: float | None = None,
) -> float:
    """Equal requests that may arrive together and still meet the TTFT target; under 1 not even one does.

    The smallest of three bounds: prompts that prefill within the target, requests whose KV blocks fit, and,
    given a target for the time per output token, the batch whose decode step still meets it. At a fixed
    prefill budget the bound falls as prompts grow, 40-fold from 200 tokens to 8,000:

    >>> [round(saturation_concurrency(H100, tokens, 256, ttft_target_s=0.2), 2) for tokens in (200, 8_000)]
    [10.43, 0.26]

    Raises:
        InputError: when tokens or targets are not over 0.

    """
    for name, value in (
        ("prompt_tokens", prompt_tokens),
        ("output_tokens", output_tokens),
        ("ttft_target_s", ttft_target_s),
    ):
        if not value > 0:
            raise InputError(f"Saturation concurrency: {name} must be over 0; got {value!r}.")
    if ttft_target_s < profile.prefill_floor_s:
        return 0.0
    prefill = (ttft_target_s - profile.prefill_base_s) / (profile.prefill_s_per_token * prompt_tokens)
    kv = profile.kv_blocks / math.ceil((prompt_tokens + output_tokens) / profile.block_tokens)
    bounds = [prefill, kv]
    if tpot_target_s is not None:
        bounds.append((tpot_target_s - profile.decode_base_s) / profile.decode_s_per_request)
    return max(0.0, min(bounds))


# Linear fits of the measurements of Splitwise (Patel et al., ISCA 2024), llama2-70b, tensor parallel 8:
# https://github.com/mutinifni/splitwise-sim. KV blocks: 90 % of 8 x 80 GB, less 138 GB of weights, at
# 2 x 80 layers x 8 KV heads x 128 x 2 bytes = 320 KiB a token.
H100 = EngineProfile(
    name="llama2-70b on 8 H100-80GB",
    prefill_base_s=0.0101,
    prefill_s_per_token=0.0910e-3,
    prefill_floor_s=0.050,
    decode_base_s=0.0300,
    decode_s_per_request=0.303e-3,
    kv_blocks=83_500,
)
A100 = EngineProfile(
    name="llama2-70b on 8 A100-80GB",
    prefill_base_s=-0.073,
    prefill_s_per_token=0.2308e-3,
    prefill_floor_s=0.065,
    decode_base_s=0.0445,
    decode_s_per_request=0.387e-3,
    kv_blocks=83_500,
)
