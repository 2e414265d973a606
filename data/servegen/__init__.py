"""Traces drawn from ServeGen windows: semi-synthetic traffic after the clients of a production service.

ServeGen (Xiang et al., NSDI 2026, https://github.com/alibaba/ServeGen, Apache-2.0) does not publish requests.
It describes each client by a renewal process for every ten minutes and by the lengths that its requests
had. So a trace made from it has arrivals that nobody saw, and is marked as such wherever it goes.
"""

from data.servegen.draw import draw_requests
from data.servegen.files import read_pool
from data.servegen.pool import Client, Pool, Window
from data.servegen.write import write_trace

__all__ = ["Client", "Pool", "Window", "draw_requests", "read_pool", "write_trace"]
