from collections.abc import Iterator

import pytest

from tests.data.live.metrics_server import Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as listening:
        yield listening
