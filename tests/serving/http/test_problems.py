import asyncio

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from serving.http import problems

JSON = {"content-type": "application/json"}


class Body(BaseModel):
    size: int = Field(ge=0)


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    problems.install(app)
    app.add_middleware(problems.BodyLimit, max_bytes=100)

    @app.post("/sized")
    async def sized(body: Body) -> int:
        return body.size

    @app.post("/raw")
    async def raw(request: Request) -> int:
        return len(await request.body())

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret inside")

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout", headers={"x-tea": "green"})

    return app


def call(app: FastAPI, method: str, path: str, **more: object) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **more)  # type: ignore[arg-type]

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "detail"),
    [
        ("POST", "/sized", {"json": {"size": -1}}, 422, "size: Input should be greater than or equal to 0"),
        (
            "POST",
            "/sized",
            {"content": b'{"size": 1}'},
            422,
            "with the header content-type: application/json",
        ),
        ("POST", "/sized", {"content": b"{", "headers": JSON}, 422, "JSON decode error"),
        ("GET", "/nowhere", {}, 404, "GET /docs tells what there is"),
        ("GET", "/sized", {}, 405, "takes POST; got GET"),
        ("GET", "/teapot", {}, 418, "short and stout"),
        ("GET", "/broken", {}, 500, "its log has the cause"),
        ("POST", "/raw", {"content": b"x" * 101}, 413, "over 100 bytes"),
        ("POST", "/sized", {"content": b"x" * 101}, 413, "over 100 bytes"),
    ],
)
def test_errors_are_problem_details(
    app: FastAPI, method: str, path: str, more: dict, status: int, detail: str
) -> None:
    answer = call(app, method, path, **more)
    assert answer.status_code == status
    assert answer.headers["content-type"] == problems.MEDIA_TYPE
    body = answer.json()
    assert body["status"] == status
    assert detail in body["detail"]
    assert "secret" not in answer.text
    assert body["title"]


def test_headers_of_an_http_error_are_kept(app: FastAPI) -> None:
    assert call(app, "GET", "/teapot").headers["x-tea"] == "green"
    assert call(app, "GET", "/sized").headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/raw", "/sized"])
def test_a_body_of_unknown_length_is_cut_off_at_the_limit(app: FastAPI, path: str) -> None:
    sent = 0

    async def chunks():
        nonlocal sent
        for _ in range(50):
            sent += 1
            yield b"x" * 40

    answer = call(app, "POST", path, content=chunks())
    assert answer.status_code == 413
    assert sent < 50


def test_a_body_at_the_limit_passes(app: FastAPI) -> None:
    assert call(app, "POST", "/raw", content=b"x" * 100).json() == 100
