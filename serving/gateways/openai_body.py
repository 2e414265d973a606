"""What a request body in OpenAI's or Anthropic's shape asks for, and about how long its prompt is.

Nobody tokenises here. The estimate is one token for each four bytes of UTF-8: near the truth for English
(about 4 characters a token) and for Chinese, Japanese and Korean (3 bytes a character, 0.6-1 tokens), low
for code.
"""

import json
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from serving.http.messages import MAX_TOKENS, Name

BYTES_PER_TOKEN = 4
MAX_ANSWERS = 128
PROMPT_KEYS = ("messages", "prompt", "input", "system", "instructions", "tools", "query", "documents")
"""Keys of the body whose text goes into the prompt."""
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
GENERATING = (
    "/completions",
    "/completions/batch",
    "/responses",
    "/messages",
    "/generate",
    "/invocations",
    "/chat",
)
"""Ends of paths whose answer is text that a limit shortens."""
NOT_TEXT = frozenset({"role", "type", "id", "data", "url", "image_url", "file_data", "media_type", "detail"})

_NAME: TypeAdapter[str] = TypeAdapter(Name)


class Asked(NamedTuple):
    """What a whole body asks for; None where it does not say, or says what no engine would take."""

    prompt_tokens: int | None
    model: str | None
    max_tokens: int | None
    max_completion_tokens: int | None
    n: int


def estimated_tokens(size_bytes: int) -> int:
    """Tokens that so many bytes of text are taken for, rounded up.

    >>> estimated_tokens(8_001)
    2001
    """
    return min(-(-size_bytes // BYTES_PER_TOKEN), MAX_TOKENS)


def read(body: bytes) -> Asked | None:
    """Read a whole body; None when it is not a JSON object.

    >>> read(b'{"model": "m", "prompt": "Once upon a time", "max_tokens": 32}')
    Asked(prompt_tokens=4, model='m', max_tokens=32, max_completion_tokens=None, n=1)
    >>> read(b'{"prompt": ["Once", "upon"], "n": 2}').n  # two answers to each
    4
    >>> read(b'{"prompt": "Once')
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict):
        return None
    prompts = [asked[key] for key in PROMPT_KEYS if key in asked]
    newer = _limit(asked.get("max_completion_tokens"))
    return Asked(
        prompt_tokens=estimated_tokens(_text_bytes(prompts)) if prompts else None,
        model=name(asked.get("model")),
        max_tokens=_limit(asked.get("max_tokens")),
        max_completion_tokens=_limit(asked.get("max_output_tokens")) if newer is None else newer,
        n=min((_limit(asked.get("n")) or 1) * _prompts(asked), MAX_ANSWERS),
    )


def degraded(body: bytes, path: str, most_tokens: int | None, model: str | None) -> bytes | None:
    """A whole body with its limits lowered and its model swapped, as an overloaded engine asks.

    No limit is ever raised; a body without one gets it where the path is one that generates text. None when
    it is not a JSON object: then it can't be changed.

    >>> degraded(b'{"prompt": "Once", "max_tokens": 4096}', "/v1/completions", 1_024, "small")
    b'{"prompt":"Once","max_tokens":1024,"model":"small"}'
    >>> degraded(b'{"max_tokens": 9}', "/v1/completions", 1_024, None)
    b'{"max_tokens":9}'
    >>> degraded(b'{"input": "Once"}', "/v1/responses", 1_024, None)
    b'{"input":"Once","max_output_tokens":1024}'
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict):
        return None
    if most_tokens is not None and path.rstrip("/").endswith(GENERATING):
        named = [key for key in LIMITS if _limit(asked.get(key)) is not None]
        for key in named or [
            "max_output_tokens" if path.rstrip("/").endswith("/responses") else "max_tokens"
        ]:
            asked[key] = min(_limit(asked.get(key)) or most_tokens, most_tokens)
        if (least := _limit(asked.get("min_tokens"))) is not None:  # else the engine refuses the pair
            asked["min_tokens"] = min(least, most_tokens)
    if model is not None:
        asked["model"] = model
    return json.dumps(asked, separators=(",", ":")).encode()


def name(value: Any) -> str | None:
    """A name that a message may carry, or None.

    >>> name("acme"), name(""), name("a" * 1_000)
    ('acme', None, None)
    """
    try:
        return _NAME.validate_python(value)
    except ValidationError:
        return None


def _prompts(asked: dict[str, Any]) -> int:
    """Prompts that are answered each by itself: a list of texts or of token lists, or of whole chats."""
    prompt, chats = asked.get("prompt"), asked.get("messages")
    many = 1
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        many = len(prompt)
    elif isinstance(chats, list) and chats and isinstance(chats[0], list):
        many = len(chats)
    return many


def _text_bytes(values: list[Any]) -> int:
    """Bytes of text inside; a number is a token of a prompt that came tokenised."""
    total = 0
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            total += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(part for key, part in value.items() if key not in NOT_TEXT)
        elif type(value) is int:
            total += BYTES_PER_TOKEN
    return total


def _limit(value: Any, most: int = MAX_TOKENS) -> int | None:
    return min(value, most) if type(value) is int and value >= 1 else None
