"""The configuration of telemetry: one YAML file, its section `telemetry`, every key checked.

telemetry:
  lake: var/lake                       # or postgresql://user@host/database
  mappings:
    our-logs:
      columns: {arrived_at: ts, prompt_tokens: in, output_tokens: out}
  scrape:
    - {name: pool-a, url: "http://10.0.0.7:8000/metrics", interval_s: 2, timeout_s: 1}
  logs:
    - {source: edge, path: /var/log/envoy/access.log, form: envoy}
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from data.errors import InputError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""Letters, digits, dots, dashes and underscores: it becomes a label, a file name and a source."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Mapping(_Section):
    """How the columns of a trace of one's own become those of the request schema."""

    columns: dict[str, str] = Field(description="Schema column: column of the file.")
    time_unit: Literal["s", "ms", "us"] = Field("s", description="Unit of times that are numbers.")
    time_zone: str = Field("UTC", description="Zone of times that name none, such as Europe/Berlin.")
    constants: dict[str, str] = Field(default={}, description="Schema column: value of every row.")


class Target(_Section):
    """An engine's metrics endpoint."""

    name: Name
    url: str = Field(pattern=r"^https?://")
    interval_s: float = Field(5.0, gt=0, le=3600)
    timeout_s: float = Field(2.0, gt=0, le=60)


class LogFile(_Section):
    """A gateway's access log, followed as it grows and rotates."""

    source: Name
    path: Path
    form: Literal["envoy", "litellm"]


class Telemetry(_Section):
    """Where telemetry comes from and where it lives."""

    lake: str = "var/lake"
    mappings: dict[Name, Mapping] = {}
    scrape: tuple[Target, ...] = ()
    logs: tuple[LogFile, ...] = ()


class _File(_Section):
    telemetry: Telemetry = Telemetry()


def read(path: str | Path) -> Telemetry:
    """The telemetry section of a configuration file.

    Raises:
        InputError: when the file can't be read or breaks a rule; the sentence names the key.

    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; give a configuration file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold keys and values; got {type(content).__name__}")
    try:
        return _File.model_validate(content).telemetry
    except ValidationError as error:
        raise InputError(f"{path}: {'; '.join(_sentence(fault) for fault in error.errors())}") from error


def _sentence(fault: ErrorDetails) -> str:
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] != "extra_forbidden":
        return f"{place}: {fault['msg']}; got {fault['input']!r}"
    known = _keys(fault["loc"][:-1])
    nearest = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1, cutoff=0.0)
    return f"{place} is not a known key; the nearest one is '{nearest[0]}'"


def _keys(place: tuple[int | str, ...]) -> list[str]:
    """Keys that may stand at a place of the file."""
    model: Any = _File
    kinds = {"telemetry": Telemetry, "mappings": Mapping, "scrape": Target, "logs": LogFile}
    for part in place:
        model = kinds.get(str(part), model)
    return list(model.model_fields)
