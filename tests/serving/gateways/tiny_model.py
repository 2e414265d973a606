"""A model folder that real engines load, with no weights: two layers, and a token for each byte."""

import json
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 16_384
BEGIN, END = 256, 257
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_tiny_model(folder: Path) -> Path:
    """Write configuration and tokenizer of a Llama; what it answers is whatever its random weights say."""
    folder.mkdir()
    files: dict[str, dict[str, Any]] = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": 258,
            "max_position_embeddings": CONTEXT_TOKENS,
            "bos_token_id": BEGIN,
            "eos_token_id": END,
            "dtype": "bfloat16",
        },
        "generation_config.json": {"bos_token_id": BEGIN, "eos_token_id": END},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "model_max_length": CONTEXT_TOKENS,
            "chat_template": TEMPLATE,
        },
        "tokenizer.json": _tokenizer(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def token(character: str) -> int:
    """Its token: a printable ASCII character is one byte."""
    return _letters().index(character)


def _tokenizer() -> dict[str, Any]:
    vocabulary = {letter: number for number, letter in enumerate(_letters())}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": BEGIN, "content": "<s>", **special},
            {"id": END, "content": "</s>", **special},
        ],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary | {"<s>": BEGIN, "</s>": END}, "merges": []},
    }


def _letters() -> list[str]:
    """A printable letter for each byte, as byte-level tokenizers write them: others than these move up."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*map(chr, kept), *(chr(0x100 + n) for n in range(0x100 - len(kept)))]
