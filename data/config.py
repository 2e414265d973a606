"""The configuration of telemetry: section `telemetry` of the configuration file, every key checked.

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

from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
URL = r"^https?://"
Name = Annotated[str, Field(pattern=NAME)]
"""Letters, digits, dots, dashes and underscores: it becomes a label, a file name and a source."""


class Section(BaseModel):
    """Keys and values that belong together; no key is taken that isn't known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing(cls, told: Any) -> Any:
        """With everything under a key commented out YAML has null there: that is an empty section or list."""
        if not isinstance(told, dict):
            return {} if told is None else told
        many = {
            name for name, field in cls.model_fields.items() if get_origin(field.annotation) in (tuple, dict)
        }
        return {name: value for name, value in told.items() if value is not None or name not in many}


class Mapping(Section):
    """How the columns of a trace of one's own become those of the request schema."""

    columns: dict[str, str] = Field(description="Schema column: column of the file.")
    time_unit: Literal["s", "ms", "us"] = Field("s", description="Unit of times that are numbers.")
    time_zone: str = Field("UTC", description="Zone of times that name none, such as Europe/Berlin.")
    constants: dict[str, str] = Field(default={}, description="Schema column: value of every row.")


class Target(Section):
    """An engine's metrics endpoint."""

    name: Name = Field(description="Name of the engine in metrics and in the lake.")
    url: str = Field(pattern=URL, description="Where it shows its Prometheus metrics.")
    interval_s: float = Field(5.0, gt=0, le=3600, description="Time from one scrape to the next.")
    timeout_s: float = Field(2.0, gt=0, le=60, description="A scrape that takes longer is a missed one.")


class LogFile(Section):
    """A gateway's access log, followed as it grows and rotates."""

    source: Name = Field(description="Name of the gateway's rows in the lake.")
    path: Path = Field(description="The log; it is followed through rotation.")
    form: Literal["envoy", "litellm"] = Field(description="Who writes it.")


class Telemetry(Section):
    """Where telemetry comes from and where it lives."""

    lake: str = Field(
        default="var/lake", description="Folder, or postgresql://user@host/database?data=/folder."
    )
    mappings: dict[Name, Mapping] = Field(default={}, description="How to read files of one's own, by name.")
    scrape: tuple[Target, ...] = Field(default=(), description="Engines whose metrics are read.")
    logs: tuple[LogFile, ...] = Field(default=(), description="Access logs of gateways that are followed.")
