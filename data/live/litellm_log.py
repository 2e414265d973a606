"""LiteLLM's log: one StandardLoggingPayload as JSON a line, and how it becomes a finished request.

A callback of the proxy writes it (`litellm_settings: {callbacks: tidegate_log.log}`), both for
`async_log_success_event` and for `async_log_failure_event`:

    json.dumps({key: kwargs["standard_logging_object"].get(key) for key in KEYS}, default=str)

With KEYS alone neither prompts nor answers reach the file. A line may hold the whole payload; what is not
in KEYS is not looked at then, and of the metadata only names and the token usage: never a key or its hash.

LiteLLM writes 0 tokens for a call that failed: they are unknown, and a call whose prompt is unknown can't
be a request. The callback can put that right by `litellm.token_counter(model=..., messages=...)` in
`prompt_tokens`. A stream that the client cancels is not logged at all.

https://docs.litellm.ai/docs/proxy/logging_spec
"""

from data.live.intake import Row, count, moment, text, whole

KEYS = (
    "id",
    "session_id",
    "call_type",
    "status",
    "cache_hit",
    "startTime",
    "endTime",
    "model",
    "model_group",
    "prompt_tokens",
    "completion_tokens",
    "end_user",
    "metadata",
    "model_parameters",
    "error_information",
)
"""Keys of the payload that are read."""

CALLS = frozenset(
    {
        "completion",
        "text_completion",
        "embedding",
        "responses",
        "anthropic_messages",
        "generate_content",
        "generate_content_stream",
        "rerank",
        "transcription",
        "speech",
        "pass_through_endpoint",
    }
)
"""Values of `call_type` that call a model, without the `a` of the asynchronous ones."""

TENANTS = ("user_api_key_team_alias", "user_api_key_team_id", "user_api_key_alias", "user_api_key_user_id")
"""Keys of the metadata that name the tenant, best first; last of all comes `end_user`."""

LEFT_BY_CLIENT = frozenset({"CancelledError", "GeneratorExit", "ClientDisconnect"})


def litellm_request(line: Row) -> Row | None:
    """The request of a log line; None for what calls no model and for answers out of LiteLLM's own cache.

    Raises RecordError for faulty lines.
    """
    if "startTime" not in line and "level" in line:
        return None  # an ordinary message of LiteLLM's JSON log
    call = line.get("call_type")
    if line.get("cache_hit") is True or (isinstance(call, str) and not {call, call[1:]} & CALLS):
        return None
    metadata, parameters = _dict(line, "metadata"), _dict(line, "model_parameters")
    usage = _dict(metadata, "usage_object")
    prompt_tokens = count("prompt_tokens", line.get("prompt_tokens"))
    output_tokens = count("completion_tokens", line.get("completion_tokens"))
    outcome, mark = _end(line)
    if outcome != "served":
        prompt_tokens, output_tokens = prompt_tokens or None, output_tokens or None
    return {
        "request_id": text("id", line.get("id")),
        "arrived_at": moment("startTime", line.get("startTime")),
        "finished_at": moment("endTime", line.get("endTime")),
        "tenant": text("tenant", _tenant(line, metadata)),
        "session": text("session_id", line.get("session_id")),
        "model": text("model", line.get("model_group") or line.get("model")),
        "log_type": mark,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": count("cached_tokens", _dict(usage, "prompt_tokens_details").get("cached_tokens")),
        "max_tokens": _max_tokens(parameters),
        "outcome": outcome,
    }


def _end(line: Row) -> tuple[str | None, str | None]:
    """Outcome, and the mark of a limit: LiteLLM's own refusals are sheds, those of the engine failures."""
    status, error = line.get("status"), _dict(line, "error_information")
    if status == "success":
        return "served", None
    if status != "failure":
        return None, None
    category = text("error_rate_limit_category", error.get("error_rate_limit_category"))
    if error.get("error_class") in LEFT_BY_CLIENT or whole(error.get("error_code")) == 499:
        return "aborted", None
    if whole(error.get("error_code")) == 429 and category != "vendor_rate_limit":
        return "shed", category
    return "failed", category


def _tenant(line: Row, metadata: Row) -> object:
    return next((metadata[key] for key in TENANTS if metadata.get(key)), line.get("end_user"))


def _max_tokens(parameters: Row) -> int | None:
    """The larger of the two limits that a client may give: it is the one that counts."""
    given = [count(key, parameters.get(key)) for key in ("max_tokens", "max_completion_tokens")]
    return max((limit for limit in given if limit is not None), default=None)


def _dict(parent: Row, key: str) -> Row:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}
