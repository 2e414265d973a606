"""Who may call what: keys and scopes, before anything of a request is read.

A key comes as `authorization: Bearer KEY` or as `x-tidegate-key: KEY`. Gateways pass a client's own
`authorization` header on with their checks, so below `/gateways/` only `x-tidegate-key` counts, which the
gateway's configuration sets. A gateway whose key is wrong gets 503 there: to it the check has failed, so that
its clients' requests go in unchecked, as while we are away, and are not refused for a key that isn't theirs.
Without keys everything is open; then the service listens on loopback only,
unless its operator says otherwise (serving.server).
"""

from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.clock import Clock
from serving.http import keys, problems
from serving.http.key_ring import KeyRing
from serving.metrics import counter
from serving.telemetry.recording import Rarely

OPEN = ("/healthz", "/readyz")
"""Probes, which carry no key; they tell no traffic."""
NEEDS: tuple[tuple[str, tuple[keys.Scope, ...]], ...] = (
    ("/v1/admit", ("admit",)),
    ("/v1/settle", ("admit",)),
    ("/v1/cancel", ("admit",)),
    ("/gateways", ("admit",)),
    ("/v1/telemetry", ("telemetry",)),
    ("/v1/traces", ("telemetry",)),
    ("/v1/policy", ("read", "admit")),  # a gateway that asks for nothing else decides by it
)
"""Start of a path, and the scopes of which one will do; all else needs read to look at, control to change."""
DENIALS = ("missing", "unknown", "scope")
KEY_HEADER = "x-tidegate-key"
GATEWAYS = "/gateways/"


def needed(method: str, path: str) -> tuple[keys.Scope, ...]:
    """Scopes of which a call needs one; empty where it needs no key.

    >>> needed("POST", "/v1/admit"), needed("GET", "/metrics"), needed("POST", "/v1/bundle")
    (('admit',), ('read',), ('control',))
    >>> needed("GET", "/readyz"), needed("POST", "/v1/admittance")
    ((), ('control',))
    """
    if path in OPEN:
        return ()
    for start, scopes in NEEDS:
        if path == start or path.startswith(f"{start}/"):
            return scopes
    return ("read",) if method in ("GET", "HEAD", "OPTIONS") else ("control",)


class Access:
    """ASGI middleware that answers 401 without a known key and 403 where its scopes don't reach.

    Below `/gateways/` both are 503.
    """

    def __init__(self, app: ASGIApp, ring: KeyRing, clock: Clock, registry: CollectorRegistry) -> None:
        """Accept the keys of a ring; with none everything is open."""
        self.app = app
        self.ring = ring
        self._denied = counter(
            registry,
            "tidegate_denied",
            "Calls without a key, with an unknown one, or with one that is not for this.",
            reason=DENIALS,
        )
        self._complaints = Rarely("call denied", clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or answer it."""
        scopes = needed(scope["method"], scope["path"]) if scope["type"] == "http" else ()
        if not self.ring.keys or not scopes:
            await self.app(scope, receive, send)
            return
        presented = _presented(Headers(scope=scope), scope["path"])
        key = None if presented is None else keys.owner_of(self.ring.keys, presented)
        if key is not None and not key.scopes.isdisjoint(scopes):
            await self.app(scope, receive, send)
            return
        need = " or ".join(scopes)
        if key is not None:
            status, reason = 403, "scope"
            detail = f"This key is not for that; it needs the scope {need}."
        elif presented is not None:
            status, reason = 401, "unknown"
            detail = "The key is not known."
        else:
            status, reason = 401, "missing"
            detail = f"Send a key of the scope {need}: authorization: Bearer KEY, or {KEY_HEADER}: KEY."
        self._denied.labels(reason).inc()
        whose = f", key of {key.name}" if key else ""
        self._complaints.log(PermissionError(f"{reason}: {need} was needed{whose}"))
        if scope["path"].startswith(GATEWAYS):
            status = 503
        answer = problems.problem(status, detail)
        if status == 401:
            answer.headers["www-authenticate"] = "Bearer"
        await answer(scope, receive, send)


def _presented(headers: Headers, path: str) -> str | None:
    if KEY_HEADER in headers:
        return headers[KEY_HEADER]
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if path.startswith(GATEWAYS) or scheme.lower() != "bearer":
        return None
    return value.strip()
