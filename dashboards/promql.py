"""Expressions over what the sidecar exports, read as its documentation says.

Several sidecars may show one ledger: of series that differ in nothing but their target the highest counts, once, before
anything is added up. The labels of a metric are those of `parked_exporter.metrics`.
"""

from __future__ import annotations

from typing import Final

from parked_exporter.metrics import METRICS, OWN_METRICS, Type

WINDOW: Final = "$__rate_interval"
EACH: Final = "$__interval"  # windows side by side, where counts are drawn
A_MINUTE: Final = "60000 / $__interval_ms"

# How long before a window a counter is still looked for: a sidecar that ends with its job shows nothing in between.
BRIDGED: Final = {EACH: "1h", "24h": "1d"}

_LEDGERS: Final = {spec.name: spec for spec in METRICS}
_OWN: Final = {spec.name for spec in OWN_METRICS}


def now(metric: str, by: str = "", **only: str) -> str:
    """A gauge, added up by these labels (comma separated; empty: to one number)."""
    return f"sum{_by(by)} ({_once(metric, metric + _select(metric, only))})"


def any_or_none(metric: str, by: str, **none: str) -> str:
    """1 where one of these gauges of 0 and 1 is 1; one series of 0 if there was none in all the time that is shown."""
    ever = f"last_over_time({metric}{_select(metric, {})}[$__range] @ end())"
    return f"{or_zero(f'max{_by(by)} ({metric}{_select(metric, {})})', **none)} unless on () {ever}"


def moved(metric: str, by: str = "", *, over: str = EACH, **only: str) -> str:
    """By how much a counter has grown, added up by these labels, in whole numbers.

    Not `increase()`: the counters live in the ledger, so no restart resets them, and it sees nothing of what came
    before a series' first sample or in a gap, guesses beyond the samples, and takes a restored backup for new failures.
    A series that is new in a ledger that isn't began at 0. Of a ledger that is new here counts what is seen to be
    added; of a whole day also what it says was parked in it.
    """
    series = metric + _select(metric, only)
    last = _once(metric, f"last_over_time({series}[{over}])")
    before = _once(metric, f"last_over_time({series}[{BRIDGED[over]}] offset {over})")
    # By its size, which an empty ledger has too.
    known = f"last_over_time(parked_ledger_bytes{_select('parked_ledger_bytes', {})}[{BRIDGED[over]}] offset {over})"
    first = f"min{_by(_labels(metric))} (min_over_time({series}[{over}]))"
    ways = [f"clamp_min({last} - {before}, 0)", f"{last} and on (ledger) {known}", f"{last} - {first}"]
    if metric == "parked_jobs_parked_total" and over == "24h":
        young = _parked_since_a_day(only)
        ways[2:] = [f"({ways[2]}) > ({young})", young, ways[2]]
    return f"sum{_by(by)} ({' or '.join(ways)})"


def _parked_since_a_day(only: dict[str, str]) -> str:
    """The most jobs that were seen to be parked at once, of the classes that had none from before the day."""
    oldest = "parked_oldest_parked_timestamp_seconds"
    jobs = _once("parked_jobs", f"max_over_time(parked_jobs{_select('parked_jobs', only)}[24h])")
    since = f"min{_by(_labels(oldest))} (min_over_time({oldest}[24h])) > time() - 86400"
    return f"{jobs} and on ({_labels(oldest)}) {since}"


def per_minute(metric: str, by: str = "", **only: str) -> str:
    return f"{moved(metric, by, **only)} * {A_MINUTE}"


def quantile(share: float, metric: str, by: str = "", **only: str) -> str:
    """A quantile of a histogram, in its unit."""
    buckets = f"{metric}_bucket"
    labels = ", ".join(each for each in (by, "le") if each)
    inner = f"rate({buckets}{_select(metric, only)}[{WINDOW}])"
    return f"histogram_quantile({share}, sum by ({labels}) ({_once(metric, inner, 'le')}))"


def age_s(metric: str, by: str = "", **only: str) -> str:
    """How long ago the earliest of these times was, in seconds."""
    return f"time() - min{_by(by)} ({metric}{_select(metric, only)})"


def since_s(metric: str, by: str = "", **only: str) -> str:
    """How long ago the latest of these times was, in seconds."""
    return f"time() - max{_by(by)} ({metric}{_select(metric, only)})"


def own(metric: str, by: str) -> str:
    """A metric of the sidecars themselves, which no ledger names: the lowest of each target."""
    assert metric in _OWN, metric
    return f"min{_by(by)} ({metric})"


def or_zero(expression: str, **labels: str) -> str:
    """The same, or one series of 0 with these labels where there is none: an empty ledger is calm, not without data."""
    zero = "vector(0)"
    for name, value in labels.items():
        zero = f'label_replace({zero}, "{name}", "{value}", "", "")'
    return f"{expression} or on () {zero}"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _once(metric: str, inner: str, *more: str) -> str:
    return f"max by ({', '.join((_labels(metric), *more))}) ({inner})"


def _labels(metric: str) -> str:
    return ", ".join(("ledger", *_LEDGERS[metric].labels))


def _select(metric: str, only: dict[str, str]) -> str:
    """`only` are regular expressions by label; one that begins with `!` is what must not match."""
    spec = _LEDGERS[metric]
    chosen = {"ledger": "$ledger"} | ({"pipeline": "$pipeline"} if "pipeline" in spec.labels else {}) | only
    assert chosen.keys() <= {"ledger", *spec.labels}, (metric, chosen)
    assert spec.type is not Type.HISTOGRAM or "le" not in chosen
    parts = [
        f'{name}!~"{value[1:]}"' if value.startswith("!") else f'{name}=~"{value}"' for name, value in chosen.items()
    ]
    return "{" + ", ".join(parts) + "}"
