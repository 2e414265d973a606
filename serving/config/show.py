"""The effective configuration as YAML: every key with its value, defaults marked, secrets hidden."""

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from serving.config.file import File
from serving.config.scrub import scrubbed

_DEFAULT = "  # default"
_HIDDEN = "  # a secret is hidden here"


def shown(file: File) -> str:
    """The file with all that it leaves out; read again it says the same, but for hidden secrets.

    >>> shown(File()).splitlines()[:2]
    ['telemetry:  # default', '  lake: var/lake  # default']
    """
    return "\n".join(_section(file, "")) + "\n"


def _section(section: BaseModel, indent: str) -> Iterator[str]:
    for name in type(section).model_fields:
        mark = "" if name in section.model_fields_set else _DEFAULT
        yield from _entry(f"{indent}{name}:", getattr(section, name), indent, mark)


def _entry(head: str, value: Any, indent: str, mark: str) -> Iterator[str]:
    inner = f"{indent}  "
    if isinstance(value, BaseModel):
        yield f"{head}{mark}"
        yield from _section(value, inner)
    elif isinstance(value, dict) and value:
        yield f"{head}{mark}"
        for name, each in value.items():
            yield from _entry(f"{inner}{_scalar(name)}:", each, inner, mark)
    elif isinstance(value, tuple) and value:
        yield f"{head}{mark}"
        for each in value:
            first, *rest = _section(each, f"{inner}  ")
            yield f"{inner}- {first.lstrip()}"
            yield from rest
    else:
        hidden = _HIDDEN if isinstance(value, str) and scrubbed(value) != value else ""
        yield f"{head} {_scalar(value)}{mark}{hidden}"


def _scalar(value: Any) -> str:
    if isinstance(value, (dict, tuple)):
        return "{}" if isinstance(value, dict) else "[]"
    if not isinstance(value, (int, float, type(None))):
        value = scrubbed(str(value))
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    told: str = yaml.safe_dump(value, default_style=style, width=10**9, allow_unicode=True)
    return told.partition("\n")[0]
