"""Requests that were offered elsewhere and are told here: each counted once, and stored once."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from polars.datatypes import DataType

from data.schema import TABLES
from serving.forecast.offered import AHEAD_S, BEHIND_S, REFUSED, US, Offer, OfferedLoad
from serving.http.messages import Arrived, Finished
from serving.telemetry.recent import Recent
from serving.telemetry.rows import Fault

MAX_HISTORY_S = 15 * 86_400
"""History that may be replayed: two weeks show every period that is learned."""
_TYPES: Mapping[str, Mapping[str, DataType]] = {table.name: table.polars for table in TABLES}


@dataclass(slots=True)
class Batch:
    """What became of the rows of one body.

    Attributes:
        accepted: rows that were new.
        duplicates: rows that were known already.
        faults: place of a row in the body, and why it was refused.
        frames, rows: what the lake is to keep, by table.
        arrivals: names of requests whose row is among it.
        ends: names of requests whose end is among it, on its own.
        others: names of everything else among it that is told apart from what comes again.

    """

    accepted: int = 0
    duplicates: int = 0
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    rows: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    arrivals: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def keep(self, table: str, frame: pl.DataFrame) -> None:
        """Put rows aside for a table of the lake."""
        self.frames.setdefault(table, []).append(frame)

    def keep_row(self, table: str, **row: Any) -> None:
        """Put one row aside; its times are microseconds since the Unix epoch."""
        self.rows.setdefault(table, []).append(row)

    def tables(self) -> dict[str, pl.DataFrame]:
        """All that was put aside."""
        frames = {table: list(parts) for table, parts in self.frames.items()}
        for table, rows in self.rows.items():
            frames.setdefault(table, []).append(pl.DataFrame(rows, schema=_TYPES[table]))
        return {table: pl.concat(parts, how="diagonal") for table, parts in frames.items()}


class Elsewhere:
    """Requests told by others: open ones by name, at most ``most`` of them.

    A request is named by its source and its id. What was told before is counted no second time; what was
    counted and could not be stored is stored when it is told again: senders may always repeat themselves. The
    latest ``recent`` names are remembered at least. Without ``stores`` nothing is put aside for the lake.
    """

    def __init__(
        self, offered: OfferedLoad, most: int, recent: int = 500_000, *, stores: bool = False
    ) -> None:
        self.offered = offered
        self.most = most
        self.stores = stores
        self.forgotten = 0
        self._counted = Recent(recent)
        self._stored = Recent(recent)
        self._open: OrderedDict[str, Offer] = OrderedDict()
        self._endless = Recent(most)  # not open here: their end may be stored, and is not counted
        self._ended = Recent(recent)  # told in two parts, and the lake has the second

    def remember(self, source: str, request_id: str, *, ended: bool) -> None:
        """Note a request that the lake holds from an earlier life of this process."""
        self._stored.add(_name(source, request_id))
        (self._ended if ended else self._endless).add(_name(source, request_id))

    def unstored(self, batch: Batch) -> None:
        """The rows of a batch could not be stored: they are new to the lake when they are told again."""
        self._stored.forget(batch.arrivals)
        self._ended.forget(batch.ends)
        for name in batch.ends:
            self._endless.add(name)

    def arrived(
        self, event: Arrived, at_us: int, place: int, batch: Batch, source: str, now_us: int, now_s: float
    ) -> None:
        """Take in the arrival of a request that came to ``source`` at ``at_us``."""
        name = _name(source, event.request_id)
        counted, stored = name in self._counted, not self.stores or name in self._stored
        known = counted or (self.stores and stored)
        fault = None if counted else self._untimely(at_us, None, now_us)
        if fault and not known:
            batch.faults.append((place, fault))
            return
        if not counted and not fault:
            self._counted.add(name)
            self._open[name] = self.offered.arrive(
                at_us,
                now_s,
                event.prompt_tokens,
                tenant=event.tenant,
                lane=event.lane,
                model=event.model,
                log_type=event.log_type,
                session=event.session,
            )
            self._forget()
        if stored and known:
            batch.duplicates += 1
            return
        batch.accepted += 1
        if self.stores:
            self._stored.add(name)
            batch.arrivals.append(name)
            row = event.model_dump(exclude={"event", "at", "source"})
            batch.keep_row("requests", **row, source=source, arrived_at=at_us)

    def finished(
        self, event: Finished, at_us: int, place: int, batch: Batch, source: str, now_us: int
    ) -> None:
        """Take in how a request ended that had arrived; an end is news whenever it comes."""
        name = _name(source, event.request_id)
        offer = self._open.get(name)
        if fault := self._ahead(at_us, now_us):
            batch.faults.append((place, fault))
            return
        if offer is not None:
            if event.cached_tokens is not None and event.cached_tokens > offer.prompt_tokens:
                reason = (
                    f"cached_tokens: {event.cached_tokens} is over the prompt's {offer.prompt_tokens} tokens"
                )
                batch.faults.append((place, Fault("invalid", reason)))
                return
            del self._open[name]
            refused = event.outcome in REFUSED
            self.offered.finish(offer, at_us, event.output_tokens, event.cached_tokens, refused=refused)
        elif name in self._endless:
            self._endless.forget([name])
        elif name in self._counted or name in self._stored:
            batch.duplicates += 1
            return
        else:
            reason = f"request_id {event.request_id!r} is not open: report its arrival first"
            batch.faults.append((place, Fault("unknown_request", reason)))
            return
        if self.stores and name in self._ended:
            batch.duplicates += 1
            return
        batch.accepted += 1
        if self.stores:
            self._ended.add(name)
            batch.ends.append(name)
            row = event.model_dump(exclude={"event", "at", "source"})
            batch.keep_row("outcomes", **row, source=source, finished_at=at_us)

    def completed(self, frame: pl.DataFrame, batch: Batch, now_us: int, now_s: float) -> None:
        """Take in whole requests.

        Args:
            frame: the place in the body as ``row``, and columns of the lake's requests; times of our clock.
            batch: what became of them is added to it.
            now_us: wall time, microseconds since the Unix epoch.
            now_s: monotonic time in seconds.

        """
        counted, stored, stores = self._counted, self._stored, self.stores
        counts, keeps = [], []
        checks = frame.select(_named(), self._doubtful(now_us)).iter_rows()
        for number, (name, doubtful) in enumerate(checks):
            is_counted, is_stored = name in counted, stores and name in stored
            fault = self._fault(frame, number, now_us) if doubtful and not is_counted else None
            if name in self._open:
                reason = "the request has arrived already and is open: report its end as finished"
                fault = Fault("invalid", reason)
            if fault and not is_stored:
                batch.faults.append((frame["row"][number], fault))
                continue
            if not (is_counted or fault):
                counts.append(number)
                counted.add(name)
            if is_stored or (is_counted and not stores):
                batch.duplicates += 1
                continue
            batch.accepted += 1
            if stores:
                stored.add(name)
                batch.arrivals.append(name)
                keeps.append(number)
        self.offered.completed(frame if len(counts) == len(frame) else frame[counts], now_s)
        if keeps:
            batch.keep("requests", frame[keeps].drop("row"))

    def _forget(self) -> None:
        if len(self._open) > self.most:
            name, _ = self._open.popitem(last=False)
            self._endless.add(name)
            self.forgotten += 1

    def _ahead(self, at_us: int, now_us: int) -> Fault | None:
        if at_us <= now_us + AHEAD_S * US:
            return None
        ahead_s = (at_us - now_us) / US
        return Fault(
            "ahead",
            f"at: lies {ahead_s:.1f} s ahead of this service's clock, {AHEAD_S} s are let pass; "
            "set the source's clock right",
        )

    def _doubtful(self, now_us: int) -> pl.Expr:
        """True for whole requests that may be untimely: `_untimely` has the last word, and the reason."""
        at_us, end_us = (pl.col(name).to_physical() for name in ("arrived_at", "finished_at"))
        closed_us = (self.offered.origin_us or 0) + (self.offered.ticked_s - BEHIND_S) * US
        ahead = pl.max_horizontal(at_us, end_us) > now_us + AHEAD_S * US
        return ahead | (end_us < closed_us) | (at_us < now_us - MAX_HISTORY_S * US)

    def _fault(self, frame: pl.DataFrame, number: int, now_us: int) -> Fault | None:
        at_us, end_us = frame[number].select(pl.col("arrived_at", "finished_at").to_physical()).row(0)
        return self._untimely(at_us, end_us, now_us)

    def _untimely(self, at_us: int, end_us: int | None, now_us: int) -> Fault | None:
        """Why a request can't be counted that arrived at one time and, told as a whole, ended at another.

        A long request told in time is counted, though its arrival lies far behind: labels still hear of it.
        """
        if fault := self._ahead(at_us if end_us is None else max(at_us, end_us), now_us):
            return fault
        if now_us - at_us > MAX_HISTORY_S * US:
            return Fault("late", f"at: is over {MAX_HISTORY_S // 86_400} days old; replay less history")
        told, last_us, remedy = (
            ("at", at_us, "report arrivals sooner")
            if end_us is None
            else ("finished_at", end_us, "report requests when they end")
        )
        if self.offered.refusal(last_us, now_us) is None:
            return None
        behind_s = (now_us - last_us) / US
        return Fault("late", f"{told}: is {behind_s:.1f} s old, {BEHIND_S} s are let pass; {remedy}")


def _name(source: str, request_id: str) -> str:
    """One name for both, which no other pair has."""
    return f"{len(source)}:{source}{request_id}"


def _named() -> pl.Expr:
    """`_name` of every row of a frame."""
    source = pl.col("source")
    return pl.format("{}:{}{}", source.str.len_chars(), source, pl.col("request_id"))
