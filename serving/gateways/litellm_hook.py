"""Admission for the LiteLLM proxy: copy this one file beside its configuration.

    litellm_settings:
      callbacks: litellm_hook.tidegate

    TIDEGATE_URL          where Tidegate listens; http://127.0.0.1:8311 by default
    TIDEGATE_KEY          sent as a bearer token, where Tidegate or what is in front of it asks for one
    TIDEGATE_KEY_FILE     a file with that key, such as a mounted secret
    TIDEGATE_TIMEOUT_S    longest wait for a decision; 0.2 by default

Each call of a model is an admit before the proxy chooses a deployment: a refusal is Tidegate's 429 with its
headers, and no deployment is blamed for it. What was reserved is settled when the call has succeeded, or has
failed after the proxy's own retries and fallbacks. Of a stream that its client left, LiteLLM 1.110 logs as
much as had come, as a success; what a release tells nothing of, the lease frees.

Tidegate can fail no call: where it is away, late or broken, the call goes on, counted in
``tidegate.failed_open`` and logged. The tenant is the alias of the key's team, else its id, the key's alias,
or its user, as in the log that `tidegate ingest` reads. The lane is `tidegate_lane` in the metadata of the
key or, failing that, of its team: a client can't choose it. It needs httpx and what the proxy has anyway.

https://docs.litellm.ai/docs/proxy/call_hooks
"""

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from fastapi import HTTPException

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError:  # read outside the proxy
    CustomLogger = object

CALLS = frozenset(
    f"{prefix}{call}"
    for prefix in ("", "a")
    for call in ("completion", "text_completion", "embedding", "embeddings", "responses", "rerank")
) | {"anthropic_messages", "generate_content", "agenerate_content", "generate_content_stream"}
"""Kinds of calls that run a model on a prompt; others are not looked at."""
PROMPT_KEYS = (
    "messages",
    "prompt",
    "input",
    "system",
    "instructions",
    "tools",
    "query",
    "documents",
    "contents",
)
NOT_TEXT = frozenset({"role", "type", "id", "data", "url", "image_url", "file_data", "media_type", "detail"})
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
LANES = ("premium", "standard", "batch")
BYTES_PER_TOKEN = 4
MOST_TOKENS = 10_000_000
MOST_OPEN = 100_000
"""Reservations whose end is awaited; the oldest are left to their lease."""
SETTLE_TIMEOUT_S = 5.0
LOG_EVERY_S = 10.0
SHED = (429, 503, 529)
"""Statuses with which an engine says that it has no room."""
NOT_OURS = frozenset({"content-length", "content-type", "date", "server", "connection", "transfer-encoding"})

log = logging.getLogger("tidegate")


class Tidegate(CustomLogger):  # type: ignore[misc]
    """What the proxy calls. The methods stand on the class itself: it looks for them there."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read the settings.

        Raises:
            ValueError: when one of them can't be used; the proxy does not start then.

        """
        super().__init__()
        self.url = environment.get("TIDEGATE_URL", "http://127.0.0.1:8311").rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"TIDEGATE_URL must start with http:// or https://; got '{self.url}'.")
        self.timeout_s = _seconds(environment.get("TIDEGATE_TIMEOUT_S", "0.2"))
        key = _key(environment)
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self.failed_open = 0
        self.unsettled = 0
        self.open: OrderedDict[str, str] = OrderedDict()  # reservation by the proxy's name for the call
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self._logged_s = -LOG_EVERY_S

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str, *_: Any, **__: Any
    ) -> dict[str, Any]:
        """Ask to let a call in.

        Raises:
            HTTPException: 429 with Tidegate's body and headers, when it refuses.

        """
        if call_type not in CALLS:
            return data
        client = self._client()  # making the first one takes longer than a decision may
        try:
            async with asyncio.timeout(self.timeout_s):
                answer = await client.post("/v1/admit", json=admit_request(user_api_key_dict, data))
            told = answer.json()
            if answer.status_code == 429 and "x-tidegate-reason" in answer.headers:
                raise refusal(told, answer.headers)
            answer.raise_for_status()
            reservation_id, degraded = told["reservation_id"], told.get("degraded") or {}
        except (httpx.HTTPError, TimeoutError, ValueError, KeyError, AttributeError, TypeError) as error:
            self._fail_open(error)
            return data
        self.open[data.setdefault("litellm_call_id", reservation_id)] = reservation_id
        if len(self.open) > MOST_OPEN:
            self.open.popitem(last=False)
        return clamped(data, degraded.get("clamp_output_tokens"))

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any, *_: Any, **__: Any
    ) -> None:
        """Settle with what the answer used."""
        output_tokens, cached_tokens = usage(response_obj)
        if kwargs.get("cache_hit") is True:  # the proxy's own cache answered: the engine generated nothing
            output_tokens, cached_tokens = None, None
        await self._settle(kwargs.get("litellm_call_id"), "served", output_tokens, cached_tokens)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any, *_: Any, **__: Any
    ) -> None:
        """Settle nothing: it comes for each attempt, and the proxy may yet retry or fall back."""

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: BaseException,
        user_api_key_dict: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        """Free what a call held that has failed for good; after a refusal there is nothing to free."""
        status = getattr(original_exception, "status_code", None)
        outcome = "shed" if str(status) in map(str, SHED) else "failed"
        settling = asyncio.create_task(self._settle(request_data.get("litellm_call_id"), outcome, None, None))
        self._settling.add(settling)  # the client's answer need not wait for it
        settling.add_done_callback(self._settling.discard)

    async def aclose(self) -> None:
        """Wait for settlements under way and close the connections."""
        await asyncio.gather(*self._settling)
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _settle(
        self, call_id: str | None, outcome: str, output_tokens: int | None, cached_tokens: int | None
    ) -> None:
        reservation_id = self.open.pop(call_id, None) if call_id is not None else None
        if reservation_id is None:
            return
        settlement = {
            "reservation_id": reservation_id,
            "outcome": outcome,
            "output_tokens": output_tokens,
            "cached_tokens": cached_tokens,
        }
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                (await self._client().post("/v1/settle", json=settlement)).raise_for_status()
        except (httpx.HTTPError, TimeoutError) as error:
            self.unsettled += 1
            self._complain("was not told how a call ended; the lease frees what it held", error)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:  # connections belong to the loop that made them
            self._loop = loop
            self._http = httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=SETTLE_TIMEOUT_S)
        return self._http

    def _fail_open(self, error: Exception) -> None:
        self.failed_open += 1
        self._complain("did not decide; calls go in undecided", error)

    def _complain(self, what: str, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "Tidegate at %s %s (%s; so far %d undecided, %d unsettled)",
                self.url,
                what,
                f"{type(error).__name__}: {error}".rstrip(": "),
                self.failed_open,
                self.unsettled,
            )


def admit_request(auth: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Body of POST /v1/admit for a call; what is not known is left out.

    >>> admit_request(None, {"model": "m", "messages": [{"role": "user", "content": "Hello, sea!"}]})
    {'prompt_tokens': 3, 'model': 'm'}
    """
    prompts = [data[key] for key in PROMPT_KEYS if data.get(key) is not None]
    limits = [value for key in LIMITS if type(value := data.get(key)) is int and value >= 1]
    n = data.get("n")
    facts = {
        "prompt_tokens": min(-(-_text_bytes(prompts) // BYTES_PER_TOKEN), MOST_TOKENS),
        "tenant": _tenant(auth),
        "lane": _lane(auth),
        "model": _name(data.get("model")),
        "session": _name(data.get("litellm_session_id")),
        "max_tokens": min(max(limits), MOST_TOKENS) if limits else None,
        "n": min(n, 128) if type(n) is int and n > 1 else None,
        "request_id": _name(data.get("litellm_call_id")),
    }
    return {name: value for name, value in facts.items() if value is not None}


def refusal(body: Mapping[str, Any], headers: Mapping[str, str]) -> HTTPException:
    """The 429 that the proxy hands to its client: it names Tidegate, its reason and when to come back."""
    ours = {name: value for name, value in headers.items() if name.lower() not in NOT_OURS}
    refused = HTTPException(429, dict(body), ours)
    # The proxy builds the error anew and takes these two from the exception.
    refused.type = body["error"]["type"]  # type: ignore[attr-defined]
    refused.param = None  # type: ignore[attr-defined]
    return refused


def clamped(data: dict[str, Any], most_tokens: int | None) -> dict[str, Any]:
    """The call with its output limit lowered, as an overloaded engine asks; no limit is ever raised.

    >>> clamped({"max_tokens": 4096}, 1024), clamped({"max_completion_tokens": 10}, 1024), clamped({}, 1024)
    ({'max_tokens': 1024}, {'max_completion_tokens': 10}, {'max_tokens': 1024})
    """
    if most_tokens is None:
        return data
    named = [key for key in LIMITS if type(data.get(key)) is int] or ["max_tokens"]
    return data | {key: min(data.get(key, most_tokens), most_tokens) for key in named}


def usage(response: Any) -> tuple[int | None, int | None]:
    """Output tokens and cached prompt tokens of an answer; None where it does not tell.

    >>> usage({"usage": {"completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}})
    (9, 4)
    >>> usage({"usage": {"output_tokens": 9}}), usage(None)
    ((9, None), (None, None))
    """
    told = _field(response, "usage")
    output = _count(_field(told, "completion_tokens"), _field(told, "output_tokens"))
    details = _field(told, "prompt_tokens_details") or _field(told, "input_tokens_details")
    return output, _count(_field(details, "cached_tokens"))


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _count(*values: Any) -> int | None:
    return next((min(v, MOST_TOKENS) for v in values if type(v) is int and v >= 0), None)


def _tenant(auth: Any) -> str | None:
    named = (_name(_field(auth, field)) for field in ("team_alias", "team_id", "key_alias", "user_id"))
    return next((name for name in named if name is not None), None)


def _lane(auth: Any) -> str | None:
    of = (_field(auth, "metadata"), _field(auth, "team_metadata"))
    lanes = [_field(metadata, "tidegate_lane") for metadata in of]
    return next((lane for lane in lanes if lane in LANES), None)


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 256 and "\0" not in value else None


def _text_bytes(values: list[Any]) -> int:
    """Bytes of text inside; a number is a token of a prompt that came tokenised."""
    total, waiting = 0, list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            total += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(part for key, part in value.items() if key not in NOT_TEXT)
        elif type(value) is int:
            total += BYTES_PER_TOKEN
    return total


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds <= 60.0:
        raise ValueError(f"TIDEGATE_TIMEOUT_S must be a number of seconds over 0 and up to 60; got '{text}'.")
    return seconds


def _key(environment: Mapping[str, str]) -> str | None:
    key, file = environment.get("TIDEGATE_KEY"), environment.get("TIDEGATE_KEY_FILE")
    if key and file:
        raise ValueError("TIDEGATE_KEY and TIDEGATE_KEY_FILE are both set; give one of them.")
    if file:
        try:
            key = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"TIDEGATE_KEY_FILE can't be read ({error}).") from error
    if key is not None and file and not key:
        raise ValueError(f"TIDEGATE_KEY_FILE must hold a key; '{file}' is empty.")
    return key or None


tidegate = Tidegate()
