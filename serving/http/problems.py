"""Errors that are not refusals, as problem details (RFC 9457), and the bound on a request's body."""

import logging
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.http.messages import Problem
from serving.http.request_ids import HEADER, request_id

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 20
SMALL_BYTES = 64 * 1024
SMALL = ("/v1/admit", "/v1/settle", "/v1/cancel", "/v1/bundle")
"""Paths whose bodies are a few fields, and so at most `SMALL_BYTES` long."""
EVENTS = ("body", "arrived", "finished", "request")
"""Parts of a fault's place that say nothing to the sender."""

MEANINGS = {
    400: "The body can't be read.",
    401: "No key, or one that is not known.",
    403: "The key is not for this.",
    404: "There is none of that name.",
    408: "The body did not come in time.",
    409: "Not possible now.",
    413: "The body is too long.",
    415: "The body is of another kind.",
    422: "The request is not valid.",
    503: "Not ready.",
}

Read = TypeVar("Read", bound=BaseModel)

log = logging.getLogger("tidegate")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problems that a route may answer with, for its OpenAPI description."""
    content = {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    return {status: {"description": MEANINGS[status], "content": content} for status in statuses}


def problem(status: int, detail: str, errors: list[str] | None = None) -> JSONResponse:
    """Answer with a problem; its title is the status in words."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors)
    return JSONResponse(body.model_dump(exclude_none=True), status, media_type=MEDIA_TYPE)


def faults(error: RequestValidationError | ValidationError) -> list[str]:
    """What is wrong, a sentence part for each field; the value itself is not repeated."""
    found = []
    for fault in error.errors()[:MOST_ERRORS]:
        place = ".".join(str(part) for part in fault["loc"] if part not in EVENTS)
        found.append(f"{place or 'the body'}: {fault['msg']}")
    return found


def read(model: type[Read], body: bytes, content_type: str) -> Read:
    """A body of JSON as what a route takes; in one step, where FastAPI takes four.

    Raises:
        RequestValidationError: as FastAPI does.

    """
    if "json" not in content_type:
        fault = {"type": "json_type", "loc": (), "msg": "Input should be JSON", "input": None}
        raise RequestValidationError([fault])
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None


def install(app: FastAPI) -> None:
    """Make every error of the app a problem."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        found = faults(error)
        detail = f"The request is not valid: {found[0]}."
        if request.method == "POST" and "json" not in request.headers.get("content-type", ""):
            detail += " Send JSON with the header content-type: application/json."
        return problem(422, detail, found)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        detail, headers = error.detail, error.headers or {}
        if detail == HTTPStatus.NOT_FOUND.phrase:  # of the router, not of a route
            detail = "There is nothing at this path; GET /docs tells what there is."
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            detail = f"This path takes {headers.get('Allow', 'another method')}; got {request.method}."
        answer = problem(error.status_code, detail)
        answer.headers.update(headers)
        return answer

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=499)  # within its body, and nobody reads it: no failure of ours

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", exc_info=error, extra={"fields": {"path": request.url.path}})
        answer = problem(500, "Tidegate failed on this request; its log has the cause.")
        answer.headers[HEADER] = request_id.get() or ""
        return answer


class BodyLimit:
    """ASGI middleware: a body over ``max_bytes`` is answered with 413 and never held in memory whole."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read, most = 0, self.max_bytes
        detail = f"The body is over {most} bytes; send it in parts."
        if scope["path"] in SMALL and most > SMALL_BYTES:
            most, detail = SMALL_BYTES, f"The body is over {SMALL_BYTES} bytes, which no such request is."
        for name, value in scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or len(value) > 18 or int(value) > most):
                await problem(413, detail)(scope, receive, send)
                return

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(413, detail)
            return message

        await self.app(scope, counted, send)
