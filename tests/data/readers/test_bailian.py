import json
from pathlib import Path

import pytest

from data.readers import load_trace


def sessions(tmp_path: Path, *chats: tuple[int, int]) -> list[str]:
    path = tmp_path / "chat.jsonl"
    rows = [
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": n * 0.5,
            "input_length": 33,
            "output_length": 5,
            "type": "search",
            "turn": 1,
            "hash_ids": [1, 2, 3],
        }
        for n, (chat, parent) in enumerate(chats)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    requests = load_trace(path).requests
    assert requests.select("log_type", "block_tokens", "outcome").unique().row(0) == ("search", 16, "served")
    assert requests["block_hashes"].to_list() == [[1, 2, 3]] * len(chats)
    return requests["session"].to_list()


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_a_session_is_the_chat_at_the_root_of_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr("data.readers.BLOCK_BYTES", block_bytes)  # the chain goes on over blocks
    found = sessions(tmp_path, (55, -1), (60, -1), (159, 55), (161, 159), (162, 60), (170, 161))
    assert found == [f"chat:{root}" for root in (55, 60, 55, 55, 60, 55)]


def test_a_parent_that_is_not_in_the_file_is_the_root(tmp_path: Path) -> None:
    assert sessions(tmp_path, (2, 1), (3, 2), (4, 1), (5, 5)) == ["chat:1", "chat:1", "chat:1", "chat:5"]
