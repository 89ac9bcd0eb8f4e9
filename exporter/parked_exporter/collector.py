"""What a scrape shows: one look into the ledger, and its findings as families of prometheus-client.

The ledger is opened anew for each scrape, on a connection that only asks, so that one that was away, locked, renamed
or restored is found again by itself. A ledger that can't be read costs its own series, never the scrape.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as FamilyOfSamples
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from parked.errors import LedgerUnavailable
from parked.gate import STALE_S, Why
from parked.job import State
from parked.ledger import look_into
from parked.ledger.counters import DURATION_BOUNDS_S, FAMILIES, Metric
from parked.ledger.labels import OTHER, Labels
from parked.ledger.operations import OwnerRow
from parked.ledger.store import CounterRow, Reader
from parked.logs import fields
from parked_exporter import metrics
from parked_exporter.metrics import EVERY, METRICS, AuditFound, OwnSpec, Readings, Series, Spec, Type

# Below Prometheus's usual scrape timeout of 10 s, so that it gets `parked_ledger_up 0` and not a failed scrape.
DEADLINE_S: Final = 8.0
# What a look found in vain after an eighth of its deadline also counts for those who come so soon after it: they stood
# in line for a thread meanwhile, and each would begin the next look.
SHARED_S: Final = 1.0
MAX_LABEL_CHARS: Final = 128
LOST_WINDOW_S: Final = 24 * 3600.0  # owners that were lost longer ago are history

log = logging.getLogger(__name__)


# --- one look into the ledger ------------------------------------------------------------------------------------


def look(url: str, *, patience_s: float = DEADLINE_S) -> Readings:
    """Read all that a scrape shows, in one snapshot. Neither creates a ledger nor migrates one.

    A server is waited for so long for each answer, and left then: nothing piles up on one that hangs.

    Raises:
        LedgerUnavailable: it can't be read now.
    """
    with look_into(url, patience_s=patience_s) as reader:
        return _read(reader, now=time.time())


def _read(reader: Reader, *, now: float) -> Readings:
    counters: dict[Metric, list[CounterRow]] = defaultdict(list)
    for row in reader.counters(*FAMILIES):
        counters[Metric(row.metric)].append(row)
    alive, lost = reader.owners_counted(since=now - LOST_WINDOW_S)
    labels = Labels((row.pipeline, row.model) for row in counters[Metric.JOBS_ACCEPTED])
    return Readings(
        ledger=reader.name,
        counters={metric: tuple(rows) for metric, rows in counters.items()},
        oldest={
            state: _by_label(reader.oldest(state), labels) for state in (State.PARKED, State.PENDING, State.RUNNING)
        },
        owners={"alive": alive, "lost": lost},
        audit=AuditFound.from_mark(reader.mark(metrics.AUDIT_MARK)),
        # Of all tasks, also of those that only other sidecars have switched on: each sidecar shows the same.
        task_successes={
            name.removeprefix(metrics.TASK_MARKS): at for name, at in reader.marks(metrics.TASK_MARKS).items()
        },
        leases={task: _holder(owner) for task, owner in reader.leases().items()},
        pauses=[(*_pair(labels, row.pipeline, row.model), metrics.reason_label(row.reason)) for row in reader.pauses()],
        size_bytes=reader.size_bytes(),
        gates=list(_gates(reader, {row.model for row in counters[Metric.JOBS_ACCEPTED]}, now)),
    )


def _pair(labels: Labels, pipeline: str, model: str) -> tuple[str, str]:
    return labels.pair(pipeline, model) if model else (labels.pipeline(pipeline), EVERY)


def _gates(reader: Reader, models: Set[str], now: float) -> Iterator[tuple[str, str, bool]]:
    """Each gate with each reason that closes one, and whether it is closed for it: models go by their labels."""
    for model, why, closed_until in reader.gates():
        label = EVERY if not model else model if model in models else OTHER
        # Of an outage it is when the next probe is due; one that nobody has probed for so long is nobody's any more.
        until = (closed_until or 0.0) + (STALE_S if why == Why.OUTAGE else 0.0)
        for reason in Why:
            yield label, str(reason), why == reason and until > now


def _by_label(oldest: Mapping[tuple[str, str], float], labels: Labels) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for (pipeline, error_class), since in oldest.items():
        key = (labels.pipeline(pipeline), error_class)
        found[key] = min(since, found.get(key, since))
    return found


def _holder(owner: OwnerRow) -> dict[str, Any]:
    return {"owner": owner.id, "host": owner.facts.host, "pid": owner.facts.pid}


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a look: readings, or why there are none."""

    readings: Readings | None
    why: str  # empty if there are readings
    took_s: float


class Lookout:
    """Lets one look at the ledger run at a time; whoever comes meanwhile waits for what that one finds.

    The look has a thread of its own and the waiting a deadline, so that a ledger that hangs hangs nobody: while it
    does, one thread waits for it, and every scrape is answered. The deadline is that of the look: of many scrapes that
    stand in line for a thread of the web server none waits for a time of its own.
    """

    def __init__(self, look: Callable[[], Readings], *, deadline_s: float = DEADLINE_S) -> None:
        self._look = look
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._running: _Look | None = None
        self._in_vain: tuple[float, Found] | None = None  # when a look that took long ended without readings
        self._was_up: bool | None = None

    def find(self, *, within_s: float = float("inf")) -> Found:
        """Return what the ledger holds now, within the deadline; `within_s` may bring that nearer."""
        began = time.monotonic()
        with self._lock:
            if self._in_vain is not None and began - self._in_vain[0] < SHARED_S:
                return self._in_vain[1]
            running = self._running
            if running is None:
                running = self._running = _Look(began)
                threading.Thread(target=self._run, args=(running,), name="parked-look", daemon=True).start()
        left_s = max(0.0, running.began + self._deadline_s - began)
        if running.done.wait(min(left_s, within_s)) and running.found is not None:
            return running.found
        waited_s = self._deadline_s if left_s <= within_s else within_s
        found = Found(None, f"the ledger gave no answer within {waited_s:g} s", time.monotonic() - running.began)
        self._note(found)
        return found

    def _run(self, running: _Look) -> None:
        began = time.monotonic()
        try:
            running.found = Found(self._look(), "", time.monotonic() - began)
        except LedgerUnavailable as exc:
            running.found = Found(None, str(exc), time.monotonic() - began)
        except Exception as exc:  # a damaged ledger may break any reading, and must not break the scrape
            running.found = Found(None, f"unexpected {type(exc).__name__}", time.monotonic() - began)
            log.debug("ledger_unreadable", exc_info=True)
        ended = time.monotonic()
        with self._lock:
            self._running = None
            took_long = running.found.readings is None and running.found.took_s >= self._deadline_s / 8
            self._in_vain = (ended, running.found) if took_long else None
        self._note(running.found)
        running.done.set()

    def _note(self, found: Found) -> None:
        """Log a change, not every scrape."""
        is_up = found.readings is not None
        with self._lock:
            changed, self._was_up = is_up is not self._was_up, is_up
        if changed and found.readings is not None:
            log.info("ledger_readable", extra=fields(ledger=found.readings.ledger))
        elif changed:
            log.warning("ledger_unreadable", extra=fields(why=found.why))


@dataclass(slots=True)
class _Look:
    began: float
    done: threading.Event = field(default_factory=threading.Event)
    found: Found | None = None


# --- findings as families ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnFacts:
    """What the sidecar says of itself at a scrape."""

    version: str
    writable: bool | None  # None: it runs no task that writes
    task_failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector of prometheus-client for one scrape; the registry only asks it to `collect`."""

    found: Found
    own: OwnFacts

    def collect(self) -> Iterator[FamilyOfSamples]:
        for spec in METRICS:
            yield _family(spec, self.found.readings)
        readable = self.found.readings is not None
        yield _own_family(metrics.LEDGER_UP, [((), float(readable))])
        writable = self.own.writable
        yield _own_family(metrics.LEDGER_WRITABLE, [] if writable is None else [((), float(writable))])
        yield _own_family(metrics.SCRAPE_DURATION, [((), self.found.took_s)])
        yield _own_family(
            metrics.TASK_FAILURES, [((task,), float(count)) for task, count in self.own.task_failures.items()]
        )
        yield _own_family(metrics.BUILD_INFO, [((self.own.version,), 1.0)])


def _family(spec: Spec, readings: Readings | None) -> FamilyOfSamples:
    labels = ("ledger", *spec.labels)
    if spec.type is Type.HISTOGRAM:
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=labels)
        for values, buckets, total in _histograms(spec, readings) if readings is not None else ():
            histogram.add_metric(values, buckets, total)
        return histogram
    family = _empty(spec, labels)
    for series in spec.series(readings) if readings is not None else ():
        assert readings is not None
        values = _values(readings, spec, series)
        if isinstance(family, CounterMetricFamily):
            family.add_metric(values, series.value, exemplar=_exemplar(series.row))
        else:
            family.add_metric(values, series.value)
    return family


def _own_family(spec: OwnSpec, samples: Iterable[tuple[tuple[str, ...], float]]) -> FamilyOfSamples:
    family = _empty(spec, spec.labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _empty(spec: Spec | OwnSpec, labels: Sequence[str]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if spec.type is Type.COUNTER else GaugeMetricFamily
    return kind(spec.name, spec.help, labels=labels)


def _values(readings: Readings, spec: Spec, series: Series) -> list[str]:
    return [readings.ledger, *(cut(series.labels[label]) for label in spec.labels)]


def _histograms(
    spec: Spec, readings: Readings
) -> Iterator[tuple[list[str], list[tuple[str, float] | tuple[str, float, Exemplar]], float]]:
    """Each histogram's labels, cumulative buckets and sum. The ledger counts a duration in one bucket only."""
    parts: dict[tuple[str, ...], dict[str, Series]] = defaultdict(dict)
    for series in spec.series(readings):
        row = series.row
        assert row is not None
        parts[tuple(_values(readings, spec, series))][row.b] = series
    for values, by_bound in parts.items():
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        count = 0.0
        for bound in (*DURATION_BOUNDS_S, float("inf")):
            part = by_bound.get(f"{bound:g}")
            count += part.value if part is not None else 0.0
            exemplar = _exemplar(part.row) if part is not None else None
            name = floatToGoString(bound)  # type: ignore[no-untyped-call]  # prometheus-client's one untyped name here
            buckets.append((name, count) if exemplar is None else (name, count, exemplar))
        total = by_bound.get("sum")
        yield list(values), buckets, total.value if total is not None else 0.0


def _exemplar(row: CounterRow | None) -> Exemplar | None:
    if row is None or row.trace_id is None:
        return None
    labels = {"trace_id": row.trace_id} | ({"span_id": row.span_id} if row.span_id is not None else {})
    return Exemplar(labels, row.example_value if row.example_value is not None else 1.0, row.example_at)


def cut(value: str) -> str:
    """Bound the length of a label value; two long ones that begin alike stay two."""
    if len(value) <= MAX_LABEL_CHARS:
        return value
    tail = hashlib.sha256(value.encode()).hexdigest()[:8]
    return f"{value[: MAX_LABEL_CHARS - len(tail) - 1]}…{tail}"
