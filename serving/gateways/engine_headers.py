"""What gateways tell an engine of a request that they let in, and which pool it goes to.

    x-tidegate-reservation-id         to settle by
    x-tidegate-tenant, -lane          who pays, and the lane that it was judged in
    x-tidegate-tightening             level in [0, 1] that the forecast applied
    x-tidegate-prompt-tokens          that it was judged by
    x-tidegate-clamp-output-tokens    an overloaded engine's wish: no answer longer than this
    x-tidegate-model                  smaller model to answer with
    x-tidegate-pool                   hot or cold: gateways route by it
    x-tidegate-continuation           goes on to the client, who asks for the rest of a clamped answer by it

What a check tells changes no body. The limit and the model are set by who reads these headers in front of the
engine: `serving.gateways.asgi_degrade` does for any ASGI app, vLLM's server among them.
"""

from serving.controller.decision import Decision
from serving.gateways.request_facts import CONTINUATION, PROMPT_TOKENS, RESERVATION

CLAMP = "x-tidegate-clamp-output-tokens"
MODEL = "x-tidegate-model"


def engine_headers(
    decision: Decision | None, tenant: str | None, prompt_tokens: int | None
) -> dict[str, str | None]:
    """Every header that an engine trusts; None for what is not known, or does not apply.

    >>> [name for name, value in engine_headers(None, "acme", None).items() if value]
    ['x-tidegate-tenant']
    """
    told: dict[str, object] = {"x-tidegate-tenant": tenant, PROMPT_TOKENS: prompt_tokens}
    told |= dict.fromkeys((RESERVATION, "x-tidegate-lane", "x-tidegate-tightening"))
    told |= dict.fromkeys((CLAMP, MODEL, "x-tidegate-pool", CONTINUATION))
    if decision is not None:
        told |= {
            RESERVATION: decision.reservation_id,
            "x-tidegate-lane": decision.lane,
            "x-tidegate-tightening": f"{decision.tightening:.3f}",
            CLAMP: decision.clamp_output_tokens,
            # From the configuration, where it may be any text; headers hold bytes.
            MODEL: decision.model and decision.model.encode().decode("latin-1"),
            "x-tidegate-pool": decision.pool,
            CONTINUATION: decision.continuation,
        }
    return {name: None if value is None else str(value) for name, value in told.items()}
