"""Admission for the LiteLLM proxy: copy this one file beside its configuration.

    litellm_settings:
      callbacks: litellm_hook.tidegate

    TIDEGATE_URL          where Tidegate listens; http://127.0.0.1:8311 by default
    TIDEGATE_KEY          sent as a bearer token, where Tidegate or what is in front of it asks for one
    TIDEGATE_KEY_FILE     a file with that key, such as a mounted secret
    TIDEGATE_TIMEOUT_S    longest wait for a decision; 0.2 by default
    TIDEGATE_MAX_WAIT_MS  longest that a call may wait for room, beside that; by default it is refused at once

Each call of a model is an admit before the proxy chooses a deployment: a refusal is Tidegate's 429 with its
headers, and no deployment is blamed for it. What was reserved is settled when the call has succeeded, or has
failed after the proxy's own retries and fallbacks. Of a stream that its client left, LiteLLM 1.110 logs as
much as had come, as a success; what a release tells nothing of, the lease frees.

An overloaded engine asks for shorter answers: the call's limits are lowered, and the client gets the header
`x-tidegate-continuation`. It sends that back, with the prompt and the answer so far, to be given the rest.
Models and pools stay the proxy's to choose.

Tidegate can fail no call: where it is away, late or broken, the call goes on, counted in
``tidegate.failed_open`` and logged, once a minute at most. What a decision reserves that comes within a
second after its time is settled like any other. The tenant is the alias of the key's team, else its id, the
key's alias, or its user, as in the log that `tidegate ingest` reads. The lane is `tidegate_lane` in the
metadata of the key or, failing that, of its team: a client can't choose it. It needs httpx and what the proxy
has anyway.

https://docs.litellm.ai/docs/proxy/call_hooks
"""

import asyncio
import logging
import os
import re
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
PROMPT_KEYS = frozenset(
    ("messages", "prompt", "input", "system", "instructions", "tools", "query", "documents", "contents")
)
NOT_TEXT = frozenset({"role", "type", "id", "data", "url", "image_url", "file_data", "media_type", "detail"})
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
LIMIT_OF = dict.fromkeys(
    ("completion", "acompletion", "text_completion", "atext_completion", "anthropic_messages"), "max_tokens"
) | dict.fromkeys(("responses", "aresponses"), "max_output_tokens")
"""Calls whose answer a limit shortens, and its name where a call has none."""
LANES = ("premium", "standard", "batch")
BYTES_PER_TOKEN = 4
MOST_TOKENS = 10_000_000
MOST_ANSWERS = 128
MOST_RETRIES = 1_000
RETRIES = re.compile("[0-9]{1,9}")
MOST_OPEN = 100_000
"""Calls whose end is awaited; what the oldest hold is left to its lease."""
MOST_NAMESAKES = 128
LATE_S = 1.0
"""A decision that comes so long after its time still tells what it reserved."""
SETTLE_TIMEOUT_S = 5.0
LIMITLESS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
"""Calls that wait for room may not keep others from being decided on."""
LOG_EVERY_S = 60.0
CONTINUATION = "x-tidegate-continuation"
REASON = "x-tidegate-reason"
FAILURES = (httpx.HTTPError, TimeoutError, ValueError, KeyError, AttributeError, TypeError)
"""What may come of asking a Tidegate that is away, late or something else."""
SHED = (429, 503, 529)
"""Statuses with which an engine says that it has no room."""
NOT_OURS = frozenset({"content-length", "content-type", "date", "server", "connection", "transfer-encoding"})

log = logging.getLogger("tidegate")


class _Admitted(NamedTuple):
    reservation_id: str
    most_tokens: int | None
    continuation: str | None


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
        self.timeout_s = _number(environment, "TIDEGATE_TIMEOUT_S", 60.0, "seconds") or 0.2
        self.max_wait_ms = _number(environment, "TIDEGATE_MAX_WAIT_MS", 600_000.0, "milliseconds")
        key = _key(environment)
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self.failed_open = 0
        self.unsettled = 0
        # By the proxy's name for the call. A client may choose that name, and so give it to several.
        self.open: OrderedDict[str, deque[str]] = OrderedDict()
        self._continuations: OrderedDict[str, str] = OrderedDict()
        self._late: dict[str, asyncio.Task[_Admitted]] = {}
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
        call_id = data.setdefault("litellm_call_id", str(uuid.uuid4()))
        client = self._client()  # making the first one takes longer than a decision may
        asking = asyncio.create_task(_ask(client, user_api_key_dict, data, self.max_wait_ms))
        wait_s = self.timeout_s + (self.max_wait_ms or 0.0) / 1_000
        try:
            await asyncio.wait({asking}, timeout=wait_s)
        except asyncio.CancelledError:
            asking.cancel()  # Tidegate forgets whoever hangs up
            raise
        if not asking.done():
            self._await_late(call_id, asking)
            self._fail_open(TimeoutError(f"no answer in {wait_s:g} s"))
            return data
        try:
            admitted = asking.result()
        except FAILURES as error:
            self._fail_open(error)
            return data
        self._opened(call_id, admitted.reservation_id)
        if admitted.continuation is not None:
            _keep(self._continuations, call_id, admitted.continuation)
        return clamped(data, admitted.most_tokens, LIMIT_OF.get(call_type))

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], user_api_key_dict: Any, response: Any, *_: Any, **__: Any
    ) -> dict[str, str] | None:
        """Hand the continuation of a clamped answer to the client."""
        handle = self._continuations.pop(data.get("litellm_call_id", ""), None)
        return None if handle is None else {CONTINUATION: handle}

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
        """Free what a call held that has failed for good; a refusal of ours held nothing."""
        if REASON in (getattr(original_exception, "headers", None) or ()):
            return
        status = getattr(original_exception, "status_code", None)
        outcome = "shed" if str(status) in map(str, SHED) else "failed"
        call_id = request_data.get("litellm_call_id")
        self._continuations.pop(call_id or "", None)
        settling = asyncio.create_task(self._settle(call_id, outcome, None, None))
        self._settling.add(settling)  # the client's answer need not wait for it
        settling.add_done_callback(self._settling.discard)

    async def aclose(self) -> None:
        """Wait for settlements under way and close the connections."""
        await asyncio.gather(*self._settling)
        late = list(self._late.values())
        for asking in late:
            asking.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _settle(
        self, call_id: str | None, outcome: str, output_tokens: int | None, cached_tokens: int | None
    ) -> None:
        if call_id is None:
            return
        if (asking := self._late.get(call_id)) is not None:
            await asyncio.wait({asking}, timeout=LATE_S)
        reservations = self.open.get(call_id)
        if not reservations:
            return
        settlement = {
            "reservation_id": reservations.pop(),  # of several, the newest: the others' calls may have left
            "outcome": outcome,
            "output_tokens": output_tokens,
            "cached_tokens": cached_tokens,
        }
        if not reservations:
            del self.open[call_id]
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                (await self._client().post("/v1/settle", json=settlement)).raise_for_status()
        except (httpx.HTTPError, TimeoutError) as error:
            self.unsettled += 1
            self._complain("was not told how a call ended; the lease frees what it held", error)

    def _opened(self, call_id: str, reservation_id: str) -> None:
        namesakes = self.open.get(call_id) or deque(maxlen=MOST_NAMESAKES)
        namesakes.append(reservation_id)
        _keep(self.open, call_id, namesakes)

    def _await_late(self, call_id: str, asking: "asyncio.Task[_Admitted]") -> None:
        """Take over what a late decision reserves, so that the end of its call settles it."""

        def answered(asked: "asyncio.Task[_Admitted]") -> None:
            giving_up.cancel()
            if self._late.get(call_id) is asked:
                del self._late[call_id]
            if not asked.cancelled() and asked.exception() is None:
                self._opened(call_id, asked.result().reservation_id)

        giving_up = asyncio.get_running_loop().call_later(LATE_S, asking.cancel)
        self._late[call_id] = asking
        asking.add_done_callback(answered)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:  # connections belong to the loop that made them
            self._loop = loop
            self._http = httpx.AsyncClient(
                base_url=self.url, headers=self.headers, timeout=None, limits=LIMITLESS
            )
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


async def _ask(
    client: httpx.AsyncClient, auth: Any, data: Mapping[str, Any], max_wait_ms: float | None
) -> _Admitted:
    question = admit_request(auth, data, max_wait_ms)
    answer = await client.post("/v1/admit", json=question)
    told = answer.json()
    if answer.status_code == 429 and REASON in answer.headers:
        raise refusal(told, answer.headers)
    answer.raise_for_status()
    degraded = told.get("degraded") or {}
    most_tokens = _whole(degraded.get("clamp_output_tokens"), 1)
    return _Admitted(told["reservation_id"], most_tokens, _name(degraded.get("continuation")))


def admit_request(auth: Any, data: Mapping[str, Any], max_wait_ms: float | None = None) -> dict[str, Any]:
    """Body of POST /v1/admit for a call; what is not known is left out.

    >>> admit_request(None, {"model": "m", "messages": [{"role": "user", "content": "Hello, sea!"}]})
    {'prompt_tokens': 3, 'model': 'm'}
    """
    bodies = (data, _extra(data))
    prompts = [body[key] for body in bodies for key in PROMPT_KEYS if body.get(key) is not None]
    limits = [value for body in bodies for key in LIMITS if (value := _whole(body.get(key), 1))]
    n = max(_whole(body.get("n"), 1) or 1 for body in bodies) * max(map(_prompts, bodies))
    headers = _field(data.get("proxy_server_request"), "headers") or {}
    retries = str(headers.get("x-stainless-retry-count"))
    facts = {
        "prompt_tokens": min(-(-_text_bytes(prompts) // BYTES_PER_TOKEN), MOST_TOKENS),
        "tenant": _tenant(auth),
        "lane": _lane(auth),
        "model": _name(data.get("model")),
        "session": _name(data.get("litellm_session_id")),
        "max_tokens": min(max(limits), MOST_TOKENS) if limits else None,
        "n": min(n, MOST_ANSWERS) if n > 1 else None,
        "continuation": _name(headers.get(CONTINUATION)),
        "max_wait_ms": max_wait_ms,
        "request_id": _name(data.get("litellm_call_id")),
        "retry_count": min(int(retries), MOST_RETRIES) if RETRIES.fullmatch(retries) else None,
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


def clamped(
    data: dict[str, Any], most_tokens: int | None, limit: str | None = "max_tokens"
) -> dict[str, Any]:
    """The call with its output limit lowered, as an overloaded engine asks; no limit is ever raised.

    A call that has none gets ``limit``; one whose kind knows none stays as it is.

    >>> clamped({"max_tokens": 4096}, 1024), clamped({"max_completion_tokens": 10}, 1024), clamped({}, 1024)
    ({'max_tokens': 1024}, {'max_completion_tokens': 10}, {'max_tokens': 1024})
    >>> clamped({"max_tokens": 4096, "min_tokens": 2048}, 1024)  # vLLM refuses a least over the most
    {'max_tokens': 1024, 'min_tokens': 1024}
    """
    if most_tokens is None or limit is None:
        return data
    bodies = (data, _extra(data))
    lower, lower_extra = (
        {key: min(body[key], most_tokens) for key in (*LIMITS, "min_tokens") if _whole(body.get(key), 1)}
        for body in bodies
    )
    if not any(key in LIMITS for key in (*lower, *lower_extra)):
        lower[limit] = most_tokens
    extra = {"extra_body": data["extra_body"] | lower_extra} if lower_extra else {}
    return data | lower | extra


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


def _extra(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters that go to the engine as they are; LiteLLM sets them over the call's own."""
    extra = data.get("extra_body")
    return extra if isinstance(extra, Mapping) else {}


def _whole(value: Any, least: int) -> int | None:
    return value if type(value) is int and value >= least else None


def _prompts(data: Mapping[str, Any]) -> int:
    """Prompts that are answered each by itself: a list of texts or of token lists."""
    prompt = data.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1


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


def _number(environment: Mapping[str, str], name: str, most: float, unit: str) -> float | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number <= most:
        raise ValueError(f"{name} must be a number of {unit} over 0 and up to {most:g}; got '{text}'.")
    return number


def _keep(latest: "OrderedDict[str, Any]", name: str, value: Any) -> None:
    latest[name] = value
    if len(latest) > MOST_OPEN:
        latest.popitem(last=False)


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
