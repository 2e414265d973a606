import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import SystemClock
from serving.http.api_page import fields, page
from serving.settings import Settings
from tests.serving.live_apps import running


@pytest.fixture(scope="module")
def app(bundle_folder: Callable[[float | None], Path]):
    return create_app(Bundle.load(bundle_folder(None)), Settings(), SystemClock())


class Read(HTMLParser):
    """Links, targets, tags and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links, self.ids, self.tags, self.text = set(), set(), set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        self.tags.add(tag)
        self.links.add(told.get("href"))
        self.ids.add(told.get("id"))

    def handle_data(self, data):
        self.text += data


def test_the_page_needs_nothing_from_elsewhere(app):
    with running(app) as port:
        home = httpx.get(f"http://127.0.0.1:{port}/")
        answer = httpx.get(f"http://127.0.0.1:{port}/docs")
        for link in Read(home.text).links - {None}:
            assert httpx.get(f"http://127.0.0.1:{port}/{link}").status_code == 200
    read = Read(answer.text)
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not read.tags & {"script", "img", "link", "iframe"}
    assert not re.search("https?://", answer.text)
    assert {link[1:] for link in read.links - {None} if link.startswith("#")} == read.ids - {None}


def test_the_page_names_every_call_and_every_field_that_is_sent_or_answered(app):
    spec = app.openapi()
    text = Read(page(spec)).text
    for path, methods in spec["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in text
    for name in ("max_wait_ms", "reservation_id", "lanes.*.room_tokens", "gpus_per_engine"):
        assert name in text
    assert "anything" not in text


def test_text_of_the_description_is_text_on_the_page():
    info = {"title": "<b>", "description": "a < b\n\n<script>"}
    assert "<script>" not in page({"info": info, "paths": {}})
    assert "<b>" not in page({"info": info, "paths": {}})


def test_a_schema_that_holds_itself_ends():
    node = {"type": "object", "properties": {"next": {"$ref": "#/Node"}}}
    assert len(list(fields({"Node": node}, node))) == 5
