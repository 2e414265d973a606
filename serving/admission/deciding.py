"""How a request is decided on that came over a connection: at once, or after it has waited for its turn."""

from collections.abc import Awaitable, Callable

from serving.admission.stalls import gone
from serving.controller.decision import Decision
from serving.http.messages import AdmitRequest
from serving.service import Service

WAITING_SHARE = 0.5
"""Those who wait take up to this part of the requests that are answered at one time."""


async def decide(
    service: Service, request: AdmitRequest, left: Callable[[], Awaitable[None]]
) -> Decision | None:
    """Decide on a request, within its ``max_wait_ms`` if it has one; None when its client left meanwhile.

    So many may wait that there is room to answer others: a check that got no answer would be let in. Beyond,
    whoever can't be let in is refused at once.

    After a stall of this process its client may have given up long ago: nothing would settle what it gets.

    Args:
        service: what decides.
        request: as in POST /v1/admit.
        left: returns when the client is gone; called where the request waits, and after a stall.

    """
    if service.stalls.lately() and await gone(left):
        return None
    await service.make_room(request)
    most = WAITING_SHARE * service.settings.max_requests
    if request.max_wait_ms is not None and len(service.waiting) < most:
        return await service.admit_or_wait(request, left)
    with service.metrics.decision_s.time():
        return service.admit(request)
