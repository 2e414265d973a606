"""The file `tidegate.yaml` as a whole: read, and refused with everything that is wrong with it."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from data.config import Section, Telemetry
from data.errors import InputError
from data.lake.location import locate
from data.readers.mapped import mapped_format
from data.schema import LANES
from serving.config import crosschecks
from serving.config.faults import Fault, dotted, faults_of
from serving.config.overload import Breach, CacheEviction, Degradation, KvHeadroom
from serving.config.profile import find_profile
from serving.config.sections import Backpressure, Engine, Lane, Reservations, Service, Tightening
from serving.config.shared import Shared, crosscheck
from serving.config.tenants import Tenants, Waiting
from serving.config.yaml_file import Document, load

_SCALING = (
    "hpa_metrics isn't taken: Tidegate starts and stops no replicas, so a target here would do nothing. Set "
    "it in the HorizontalPodAutoscaler; what the gate sees stands at /metrics"
)
_PRICING = (
    "{} isn't taken: Tidegate counts tokens and sets no prices, so it would change no bill. Set it where "
    "requests are billed; the KV miss rate acts here through backpressure.gamma"
)
REFUSED = {
    "hpa_metrics": _SCALING,
    **{
        name: _PRICING.format(name)
        for name in ("pricing_window_seconds", "miss_rate_premium_threshold", "premium_multiplier")
    },
}
"""Keys that published checklists have and this file doesn't, and why."""


class File(Section):
    """The whole file."""

    telemetry: Telemetry = Field(
        default=Telemetry(), description="Where telemetry comes from and where it lives."
    )
    service: Service = Field(default=Service(), description="The process.")
    engine: Engine = Field(default=Engine(), description="What one replica can do.")
    priority_queues: tuple[Lane, ...] = Field(
        default=tuple(Lane(name=name) for name in LANES),  # type: ignore[arg-type]
        description="The three lanes.",
    )
    tenants: Tenants = Field(default=Tenants(), description="Limits by tenant.")
    waiting: Waiting = Field(default=Waiting(), description="Requests that wait for their turn.")
    backpressure: Backpressure = Field(default=Backpressure(), description="When the gate refuses.")
    reservations: Reservations = Field(
        default=Reservations(), description="Tokens held for admitted requests."
    )
    tightening: Tightening = Field(default=Tightening(), description="How fast a forecast moves the rules.")
    degradation: Degradation = Field(
        default=Degradation(), description="What an overloaded engine's requests lose."
    )
    kv_headroom: KvHeadroom = Field(
        default=KvHeadroom(), description="What failures for want of KV blocks do."
    )
    breach: Breach = Field(default=Breach(), description="When a lane that is late clamps its answers.")
    cache_eviction: CacheEviction = Field(default=CacheEviction(), description="Which KV blocks leave first.")
    shared: Shared | None = Field(
        default=None, description="Limits that replicas hold together. null: this process alone."
    )


def read(path: str | Path) -> File:
    """Read a configuration file and check all of it.

    Raises:
        InputError: when the file can't be read or anything in it is wrong: a sentence for each fault, with
            the line and the full path of its key.

    """
    path = Path(path)
    document = load(path)
    faults: list[Fault] = []
    try:
        file = File.model_validate(document.content)
    except ValidationError as error:
        faults = list(faults_of(error.errors(), File, REFUSED))
        file = _sound(document, {fault.place[0] for fault in faults if fault.place})
    faults += [*_between(file), *_beyond(file, path.parent)]
    refuse(path, document, faults)
    return file


def _between(file: File) -> list[Fault]:
    """What is wrong between keys that are each right."""
    return [
        *crosschecks.telemetry(file.telemetry),
        *crosschecks.lanes(file.priority_queues),
        *crosschecks.backpressure(file.backpressure),
        *crosschecks.degradation(file.degradation),
        *crosschecks.breach(file.breach),
        *crosschecks.cache_eviction(file.cache_eviction),
        *crosscheck(file.shared),
    ]


def _beyond(file: File, folder: Path) -> Iterator[Fault]:
    """What is wrong with the places, columns and zones that the file names."""
    try:
        locate(file.telemetry.lake)
    except InputError as error:
        yield Fault(("telemetry", "lake"), f"telemetry.lake: {error}")
    for name, mapping in file.telemetry.mappings.items():
        try:
            mapped_format(mapping)
        except InputError as error:
            yield Fault(("telemetry", "mappings", name), f"telemetry.mappings.{name}: {error}")
    try:
        find_profile(file.engine.profile, folder)
    except InputError as error:
        yield Fault(("engine", "profile"), f"engine.profile {error}")


def _sound(document: Document, faulty: set[int | str]) -> File:
    """The sections without faults, to look for those between keys; defaults in place of the others."""
    return File.model_validate(
        {
            name: told
            for name, told in document.content.items()
            if name not in faulty and name in File.model_fields
        }
    )


def refuse(path: Path, document: Document, faults: list[Fault]) -> None:
    """Raise what is wrong with a file, all of it, in the order of its lines; keys told twice as well.

    Raises:
        InputError: when anything is wrong.

    """
    for place, (first, again) in document.twice.items():
        faults.append(Fault(place, f"{dotted(place)} stands in line {first} and in line {again}; keep one"))
    if not faults:
        return
    told = sorted((document.line(place) or 0, sentence) for place, sentence in faults)
    sentences = [f"line {line}: {sentence}" if line else sentence for line, sentence in told]
    if len(sentences) == 1:
        raise InputError(f"{path}, {sentences[0]}" if told[0][0] else f"{path}: {sentences[0]}")
    raise InputError("\n  ".join([f"{path} has {len(sentences)} faults:", *sentences]))
