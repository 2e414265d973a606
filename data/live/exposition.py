"""Prometheus text, as engines export it: the series that are asked for, by whole name."""

import re
from collections.abc import Container
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

LONGEST_LABEL = 1024
LONGEST_LINE = 16_384
"""The parser's time grows with the square of a line's length."""
MOST_SERIES = 20_000
_EXEMPLAR = re.compile(r" # \{.*$")


class ScrapeError(Exception):
    """Why a scrape tells nothing: a clause for the row's reason."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: name, labels, value (NaN and infinities as they came) and its own time, Unix seconds."""

    name: str
    labels: dict[str, str]
    value: float
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Exposition:
    """The wanted series of a scrape, and those lines of theirs that can't be read."""

    series: tuple[Series, ...]
    malformed: tuple[str, ...] = ()


def parse(body: bytes, content_type: str, wanted: Container[str]) -> Exposition:
    r"""Series of a body whose names are wanted; others are passed over unread.

    A line that can't be read, or repeats a series, is left out and named. Types are not asked for: names tell
    what a series is, and `_total` proves nothing. OpenMetrics, which the content type announces, differs in
    that times are seconds and exemplars may follow.

    Raises:
        ScrapeError: when the body was cut off, so that its last number may lack digits; when it has too many
            series.

    >>> text = b'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_waiting_by_reason{reason="x"} 3\n'
    >>> parse(text, "text/plain", {"vllm:num_requests_waiting"}).series
    (Series(name='vllm:num_requests_waiting', labels={'engine': '0'}, value=3.0, at_s=None),)

    """
    openmetrics = "openmetrics" in content_type
    text = body.decode("utf-8", "replace").replace("\x00", "\ufffd")  # not every catalog can hold a NUL
    if text and not text.endswith("\n"):
        raise ScrapeError("the answer was cut off: its last line has no end")
    if openmetrics and not text.endswith("# EOF\n"):
        raise ScrapeError("the answer was cut off: OpenMetrics must end with '# EOF'")
    series: dict[tuple[str, frozenset[tuple[str, str]]], Series] = {}
    malformed = []
    for line in text.split("\n"):
        name = re.split(r"[{\s]", line[:LONGEST_LABEL].lstrip(), maxsplit=1)[0]
        if name not in wanted:
            continue
        try:
            read = _read(_EXEMPLAR.sub("", line) if openmetrics else line, 1e3 if openmetrics else 1.0)
        except (ValueError, IndexError, OverflowError):  # what the parser answers to garbage
            malformed.append(f"{name}: its line can't be read")
            continue
        key = (name, frozenset(read.labels.items()))
        if key in series:
            malformed.append(f"{name}: exported twice with the same labels")
        elif len(series) == MOST_SERIES:
            raise ScrapeError(f"it exports over {MOST_SERIES} series of an engine's metrics")
        else:
            series[key] = read
    return Exposition(tuple(series.values()), tuple(malformed))


def _read(line: str, time_scale: float) -> Series:
    """One line; the parser takes its time for milliseconds."""
    if len(line) > LONGEST_LINE:
        raise ValueError("the line is too long")
    (family,) = text_string_to_metric_families(line)
    (sample,) = family.samples
    if any(len(value) > LONGEST_LABEL for value in sample.labels.values()):
        raise ValueError("a label is too long")
    at_s = None if sample.timestamp is None else float(sample.timestamp) * time_scale
    return Series(sample.name, sample.labels, float(sample.value), at_s)
