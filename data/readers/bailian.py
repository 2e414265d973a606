"""Qwen-Bailian traces (ATC'25): JSONL with chat_id, parent_chat_id, type, turn and hash_ids.

Timestamps are seconds from the start; hash_ids name the prompt's 16-token blocks. A request continues its
parent; the chat at the root of that chain is the session. Ids start again in every file.
https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon
"""

import polars as pl

from data.readers.fields import integers, seconds, text, tokens
from data.readers.format import Format, Prepare

BLOCK_TOKENS = 16
ROOT = "root_chat_id"
NO_PARENT = "-1"


def _roots() -> Prepare:
    """Adds the chat at the root of each row's chain.

    Rows come in order of time, so a parent stands before its children. One that does not, or is not in the
    file at all, is taken for the root itself: its children still share a session.
    """
    known: dict[str, str] = {}

    def root(chat: str | None, parent: str | None) -> str | None:
        found = chat
        if parent is not None and parent not in (NO_PARENT, chat):
            found = known.get(parent, parent)
        if chat is not None and found is not None:
            known[chat] = found
        return found

    def prepare(values: pl.DataFrame) -> pl.DataFrame:
        chats = values.select("chat_id", "parent_chat_id").iter_rows()
        return values.with_columns(pl.Series(ROOT, [root(*chat) for chat in chats], pl.String))

    return prepare


FORMAT = Format(
    name="bailian",
    title="Qwen-Bailian JSONL",
    kinds=("jsonl",),
    required=(
        "chat_id",
        "parent_chat_id",
        "timestamp",
        "input_length",
        "output_length",
        "type",
        "turn",
        "hash_ids",
    ),
    fields=(
        seconds("arrived_at", "timestamp"),
        text("session", ROOT, required=False),
        text("log_type", "type", required=False),
        tokens("prompt_tokens", "input_length"),
        tokens("output_tokens", "output_length"),
        integers("block_hashes", "hash_ids"),
    ),
    derived={"outcome": pl.lit("served"), "block_tokens": pl.lit(BLOCK_TOKENS, dtype=pl.Int32)},
    scoped=("session",),
    prepare=_roots,
)
