"""What a gateway's check asked of an overloaded engine, done in front of the engine, in its own process.

Envoy and nginx hand on what Tidegate answered in headers, and change no body. This middleware sets the limit
on the output and the smaller model in the body, for any ASGI app, and for vLLM's API server:

    vllm serve MODEL --middleware serving.gateways.asgi_degrade.DegradeMiddleware

It decides nothing. It believes the headers `x-tidegate-clamp-output-tokens` and `x-tidegate-model`, so only a
gateway that takes them away from clients may reach the app. A body that can't be changed, such as one that is
no JSON or over 256 KiB, goes on as it is: what was asked for is a measure against overload, no bound.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from data.live.envoy_log import CALLS
from serving.gateways import openai_body
from serving.gateways.asgi_exchange import Replay, with_length
from serving.gateways.engine_headers import CLAMP, MODEL
from serving.gateways.request_facts import MAX_READ_BYTES, whole_number

_WANTED = {name.encode(): name for name in (CLAMP, MODEL)}


class DegradeMiddleware:
    """Changes bodies as the headers of a gateway say."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, changed where its headers ask for it."""
        if (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and scope["path"].rstrip("/").endswith(CALLS)
        ):
            told = {_WANTED[name]: value for name, value in scope["headers"] if name in _WANTED}
            clamp = whole_number(told.get(CLAMP, b"").decode("latin-1")) or None
            model = told.get(MODEL, b"").decode("utf-8", "replace") or None
            if clamp is not None or model is not None:
                replay = Replay(receive)
                ahead = await replay.read(MAX_READ_BYTES)
                body = openai_body.degraded(ahead.body, scope["path"], clamp, model) if ahead.whole else None
                if body is not None:
                    replay.replace(body)
                    scope = with_length(scope, len(body))
                receive = replay
        await self.app(scope, receive, send)
