from tests.data.conftest import real_trace

__all__ = ["real_trace"]
