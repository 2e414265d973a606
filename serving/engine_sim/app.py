"""The simulated engine over HTTP, as vLLM's API server answers: routes only."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from data.errors import Busy
from serving.engine_sim.lengths import OutputLengths, prefix_keys, text_tokens, words
from serving.engine_sim.messages import Body, ChatBody, CompletionBody, Envelope, Told, usage
from serving.engine_sim.realtime import Live, RealTime
from serving.http.problems import faults

DESCRIPTION = """An engine without a model: it takes the time that a real one would, by its profile, and
answers with words about the sea. A prompt is taken for one token for every four characters of its text; the
header `x-sim-prompt-tokens` says otherwise. Output lengths are drawn; `x-sim-output-tokens` fixes one. The
fields `max_tokens`, `min_tokens` and `ignore_eos` hold as in vLLM; fields without a bearing on time are
ignored."""

TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}

Tokens = Annotated[int | None, Header(ge=1)]


def create_app(live: RealTime, lengths: OutputLengths, model: str, max_model_tokens: int) -> FastAPI:
    """The app around an engine, which runs while the app does.

    ``max_model_tokens`` bounds prompt and output of a request together.
    """

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(live.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app = FastAPI(title="Tidegate engine-sim", description=DESCRIPTION, lifespan=running)
    app.state.engine = live.engine

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _error(400, f"The request is not valid: {faults(error)[0]}.")

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, str(error.detail))

    def submit(
        body: ChatBody | CompletionBody, prompt_tokens: int | None, output_tokens: int | None
    ) -> tuple[Live, int]:
        """Put a request in line, or refuse it as vLLM does; its live part and its prompt's tokens."""
        if live.failed:
            raise HTTPException(503, "The simulated engine has failed; its log has the cause.")
        if body.model not in (None, model):
            raise HTTPException(404, f"The model `{body.model}` does not exist; there is `{model}`.")
        prompt, drawn = body.prompt(), lengths.draw()
        if prompt_tokens is None:
            prompt_tokens = text_tokens(prompt) if isinstance(prompt, str) else len(prompt)
        wanted, room = body.limit(), max_model_tokens - prompt_tokens
        if room < (wanted or 1):
            raise HTTPException(
                400,
                f"This model's maximum context length is {max_model_tokens} tokens; {prompt_tokens} in the "
                f"prompt and {wanted or 'at least 1'} in the output are over it. Shorten one of them.",
            )
        output_tokens, reason = _end(body, wanted or room, drawn, output_tokens)
        prefix = prefix_keys(prompt, live.engine.profile.block_tokens)
        try:
            begun = live.submit(
                prompt_tokens=prompt_tokens, output_tokens=output_tokens, prefix=prefix, reason=reason
            )
        except Busy as error:
            raise HTTPException(503, f"The engine is overloaded: {error}") from error
        return begun, prompt_tokens

    async def answer(
        request: Request,
        body: ChatBody | CompletionBody,
        prompt_tokens: int | None,
        output_tokens: int | None,
    ) -> Response:
        begun, prompt_tokens = submit(body, prompt_tokens, output_tokens)
        identity = request.headers.get("x-request-id") or uuid.uuid4().hex
        envelope = Envelope("chat" if isinstance(body, ChatBody) else "text", identity, model)
        if body.stream:
            return _Stream(_events(begun, prompt_tokens, body, envelope), lambda: live.abort(begun))
        try:
            await _ended_or_gone(begun, request)
        finally:
            live.abort(begun)
        if begun.request.state != "finished":  # gone: no one reads this
            return _error(500, "The request was aborted.")
        told = usage(prompt_tokens, begun.tokens, begun.request.cached_tokens)
        return JSONResponse(envelope.whole(words(0, begun.tokens), begun.reason, told))

    @app.post("/v1/chat/completions")
    async def chat(
        request: Request,
        body: ChatBody,
        x_sim_prompt_tokens: Tokens = None,
        x_sim_output_tokens: Tokens = None,
    ) -> Response:
        """A chat completion, whole or as server-sent events."""
        return await answer(request, body, x_sim_prompt_tokens, x_sim_output_tokens)

    @app.post("/v1/completions")
    async def complete(
        request: Request,
        body: CompletionBody,
        x_sim_prompt_tokens: Tokens = None,
        x_sim_output_tokens: Tokens = None,
    ) -> Response:
        """A completion of one prompt, whole or as server-sent events."""
        return await answer(request, body, x_sim_prompt_tokens, x_sim_output_tokens)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that there is."""
        card = {"id": model, "object": "model", "owned_by": "tidegate", "max_model_len": max_model_tokens}
        return {"object": "list", "data": [card]}

    @app.get("/health")
    async def health() -> Response:
        """Answers 200 while the engine runs."""
        return Response(status_code=503 if live.failed else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        """What the engine tells of itself, under vLLM's names."""
        return Response(generate_latest(live.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


class _Stream(StreamingResponse):
    """A stream of events that calls ``at_end`` when it ends: also when its client goes before it began."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], at_end: Callable[[], None]) -> None:
        super().__init__(events)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


def _end(body: Body, limit: int, drawn: int, fixed: int | None) -> tuple[int, str]:
    """Output tokens and why they end: the limit cuts what the client fixed, or else what was drawn."""
    wanted = fixed or (limit if body.ignore_eos else max(drawn, body.min_tokens))
    return (limit, "length") if wanted >= limit else (wanted, "stop")


async def _events(begun: Live, prompt_tokens: int, body: Body, envelope: Envelope) -> AsyncIterator[str]:
    """The events of a stream; one that was cut off lacks the last of them."""
    asked = body.stream_options
    each = asked is not None and asked.include_usage and asked.continuous_usage_stats
    last = asked is not None and asked.include_usage
    sent = 0
    async for tokens in begun.growth():
        told: Told = {"usage": None} if last else {}
        if each:
            told = usage(prompt_tokens, tokens, begun.request.cached_tokens)
        ended = tokens == begun.request.output_tokens
        reason = begun.reason if ended else None
        yield _event(envelope.chunk(words(sent, tokens), reason, told, first=not sent))
        sent = tokens
    if begun.request.state != "finished":
        return
    if last:
        yield _event(envelope.end(usage(prompt_tokens, sent, begun.request.cached_tokens)))
    yield "data: [DONE]\n\n"


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"


async def _ended_or_gone(begun: Live, request: Request) -> None:
    """Wait until a request has ended or its client has gone."""

    async def ended() -> None:
        async for _ in begun.growth():
            pass

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(ended()), asyncio.create_task(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _error(status: int, message: str) -> JSONResponse:
    kind = TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return JSONResponse(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status_code=status
    )
