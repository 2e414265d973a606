"""Envoy's JSON access log: the format to configure, and how its lines become finished requests.

JSON_FORMAT goes into the listener's `access_log` as `log_format.json_format`:

    - name: envoy.access_loggers.file
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
        path: /var/log/envoy/access.log
        log_format: {json_format: {start_time: "%START_TIME(%Y-%m-%dT%H:%M:%S.%6fZ)%", ...}}

Envoy itself counts no tokens. They come from the first of: Envoy AI Gateway's metadata (`llmRequestCosts`
with the keys llm_input_token, llm_output_token and llm_cached_input_token), metadata of the namespace
`tidegate` that a filter sets, response headers, and request headers that an admission check sets. A line
without prompt tokens can't be a request.

https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage
"""

from collections.abc import Mapping
from datetime import timedelta

from data.live.intake import RecordError, Row, count, moment, text, whole

JSON_FORMAT: Mapping[str, str] = {
    "start_time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%6fZ)%",
    "duration_ms": "%DURATION%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",  # without the query, where some clients put their key
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "cluster": "%UPSTREAM_CLUSTER%",
    "tenant": "%REQ(X-TIDEGATE-TENANT?X-LLM-D-INFERENCE-FAIRNESS-ID)%",
    "tenant_old": "%REQ(X-GATEWAY-INFERENCE-FAIRNESS-ID)%",
    "lane": "%REQ(X-TIDEGATE-LANE)%",
    "session": "%REQ(X-TIDEGATE-SESSION)%",
    "model": "%REQ(X-TIDEGATE-MODEL?X-AI-EG-MODEL)%",
    "max_tokens": "%REQ(X-TIDEGATE-MAX-TOKENS)%",
    "prompt_tokens": "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_input_token)%",
    "prompt_tokens_metadata": "%DYNAMIC_METADATA(tidegate:prompt_tokens)%",
    "prompt_tokens_response": "%RESP(X-TIDEGATE-PROMPT-TOKENS)%",
    "prompt_tokens_request": "%REQ(X-TIDEGATE-PROMPT-TOKENS)%",
    "output_tokens": "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_output_token)%",
    "output_tokens_metadata": "%DYNAMIC_METADATA(tidegate:output_tokens)%",
    "output_tokens_response": "%RESP(X-TIDEGATE-OUTPUT-TOKENS)%",
    "cached_tokens": "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_cached_input_token)%",
    "cached_tokens_metadata": "%DYNAMIC_METADATA(tidegate:cached_tokens)%",
    "cached_tokens_response": "%RESP(X-TIDEGATE-CACHED-TOKENS)%",
    "refused_by_tidegate": "%RESP(X-TIDEGATE-REASON)%",
    "dropped_by_llm_d": "%RESP(X-LLM-D-REQUEST-DROPPED-REASON)%",
}
"""Key of a log line: Envoy's operator for it. A line may have more keys; they are not looked at."""

CALLS = (
    "/completions",
    "/completions/batch",
    "/invocations",
    "/chat",
    "/embeddings",
    "/embed",
    "/classify",
    "/responses",
    "/messages",
    "/score",
    "/rerank",
    "/pooling",
    "/generate",
    "/generative_scoring",
    "/systemone",
    "/transcriptions",
    "/translations",
    "/speech",
)
"""Ends of the paths that call a model: OpenAI's, Anthropic's, Cohere's, SageMaker's and vLLM's own."""

LEFT_BY_CLIENT = frozenset({"DC", "DR"})
"""Flags: the client closed the connection or reset its stream."""

REFUSED_BY_ENVOY = frozenset({"RL", "UO", "OM", "UAEX"})
"""Flags: rate limited, circuit breaker open, overload manager, denied by an external check."""

BROKEN_OFF = frozenset({"UC", "UR", "UT", "UPE", "LR", "SI", "DT", "UMSDR"})
"""Flags: the engine's answer ended early, possibly after its status 200 was sent."""

LONGEST_MS = 7 * 24 * 3_600_000


def envoy_request(line: Row) -> Row | None:
    """The request of a log line; None for lines that call no model. Raises RecordError for faulty ones."""
    method, path = line.get("method"), line.get("path")
    if method not in (None, "POST") or (isinstance(path, str) and not path.rstrip("/").endswith(CALLS)):
        return None
    arrived_at = moment("start_time", line.get("start_time"))
    duration_ms = whole(line.get("duration_ms"))
    if arrived_at is None or duration_ms is None or not 0 <= duration_ms <= LONGEST_MS:
        raise RecordError(f"start_time and duration_ms must be a time and whole ms up to {LONGEST_MS}")
    outcome, mark = _end(line)
    return {
        "request_id": _said(line, "request_id"),
        "arrived_at": arrived_at,
        "finished_at": arrived_at + timedelta(milliseconds=duration_ms),
        "tenant": _said(line, "tenant", "tenant_old"),
        **{name: _said(line, name) for name in ("lane", "session", "model")},
        "log_type": mark,
        "max_tokens": count("max_tokens", _known(line, "max_tokens")),
        **{name: _tokens(line, name) for name in ("prompt_tokens", "output_tokens", "cached_tokens")},
        "outcome": outcome,
    }


def _end(line: Row) -> tuple[str, str | None]:
    """Outcome, and who else than the engine brought it about: 'tidegate:backpressure', 'envoy:UAEX'."""
    if ours := _said(line, "refused_by_tidegate"):
        return "shed", f"tidegate:{ours}"
    if dropped := _said(line, "dropped_by_llm_d"):
        if dropped == "rejected-context-cancelled":
            return "aborted", f"llm-d:{dropped}"
        # Evicted requests had reached the engine and lost their place there.
        return "shed" if dropped.startswith("rejected-") else "failed", f"llm-d:{dropped}"
    status = whole(line.get("status"))
    if status is None:
        raise RecordError("status must be an HTTP status; the line has none")
    flags = set((_said(line, "flags") or "").split(","))
    if status == 499 or flags & LEFT_BY_CLIENT:
        return "aborted", None
    if refused := flags & REFUSED_BY_ENVOY:
        return "shed", f"envoy:{min(refused)}"
    if status == 429:
        return "shed", None
    return "served" if 100 <= status < 400 and not flags & BROKEN_OFF else "failed", None


def _tokens(line: Row, name: str) -> int | None:
    return count(name, _known(line, name, *(f"{name}_{way}" for way in ("metadata", "response", "request"))))


def _said(line: Row, *keys: str) -> str | None:
    return text(keys[0], _known(line, *keys))


def _known(line: Row, *keys: str) -> object:
    """The first value that is there; text formats of Envoy write a dash for none."""
    return next((line[key] for key in keys if line.get(key) not in (None, "", "-")), None)
