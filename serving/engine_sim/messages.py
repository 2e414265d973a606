"""OpenAI's messages, as far as they bear on time; fields that don't are accepted and ignored."""

import time
from typing import Any, Literal

from pydantic import BaseModel, Field

Kind = Literal["chat", "text"]


class StreamOptions(BaseModel):
    """What a stream tells of usage: in a last chunk of its own, or in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(BaseModel):
    """What chat completions and completions share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1, None] = 1
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0, description="Output tokens at least, as vLLM takes it.")
    ignore_eos: bool = Field(False, description="Generate up to the limit, as vLLM takes it.")


class Part(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of a conversation."""

    role: str
    content: str | list[Part] | None = None

    def text(self) -> str:
        """Its text; empty where it has none, such as one that only calls tools."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(Body):
    """Body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    def prompt(self) -> str:
        """All messages as one text: roles and marks are not counted."""
        return "".join(message.text() for message in self.messages)

    def limit(self) -> int | None:
        """Output tokens at most, where the client says; of two limits the newer field's counts."""
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(Body):
    """Body of /v1/completions; one prompt, as text or token ids."""

    prompt_: str | list[int] = Field(alias="prompt", min_length=1)

    def prompt(self) -> str | list[int]:
        """The prompt."""
        return self.prompt_

    def limit(self) -> int:
        """Output tokens at most: 16 unless the client says."""
        return self.max_tokens or 16


Told = dict[str, Any]
"""The key `usage` with its value, None in a chunk that doesn't tell yet; empty where no one asked."""


def usage(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> Told:
    """Usage, in OpenAI's words."""
    return {
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }
    }


class Envelope:
    """Answers to one request: the whole one, or chunks of a stream; `told` is usage, where they tell it."""

    def __init__(self, kind: Kind, identity: str, model: str) -> None:
        self.kind = kind
        self._id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{identity}"
        self._model = model
        self._created = int(time.time())

    def whole(self, text: str, reason: str, told: Told) -> dict[str, Any]:
        """The answer in one piece."""
        said = {"message": {"role": "assistant", "content": text}} if self.kind == "chat" else {"text": text}
        return self._around("chat.completion", [said | {"index": 0, "finish_reason": reason}], told)

    def chunk(self, text: str, reason: str | None, told: Told, *, first: bool) -> dict[str, Any]:
        """A chunk with text of one or more tokens; the last one says why it is the last."""
        said: dict[str, Any] = {"text": text}
        if self.kind == "chat":
            said = {"delta": ({"role": "assistant"} if first else {}) | {"content": text}}
        return self._around("chat.completion.chunk", [said | {"index": 0, "finish_reason": reason}], told)

    def end(self, told: Told) -> dict[str, Any]:
        """The chunk without choices that tells usage."""
        return self._around("chat.completion.chunk", [], told)

    def _around(self, name: str, choices: list[dict[str, Any]], told: Told) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": name if self.kind == "chat" else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            **told,
        }
