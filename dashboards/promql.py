"""Expressions over what the sidecar exports, read as its documentation says.

Several sidecars may show one ledger: of series that differ in nothing but their target the highest counts, once, before
anything is added up. The labels of a metric are those of `parked_exporter.metrics`.
"""

from __future__ import annotations

from typing import Final

from parked_exporter.metrics import METRICS, OWN_METRICS, Type

WINDOW: Final = "$__rate_interval"
EACH: Final = "$__interval"  # windows side by side, where counts are drawn as bars

_LEDGERS: Final = {spec.name: spec for spec in METRICS}
_OWN: Final = {spec.name for spec in OWN_METRICS}


def now(metric: str, by: str = "", **only: str) -> str:
    """A gauge, added up by these labels (comma separated; empty: to one number)."""
    return f"sum{_by(by)} ({_once(metric, metric + _select(metric, only))})"


def any_of(metric: str, by: str = "", **only: str) -> str:
    """1 where one of these gauges of 0 and 1 is 1."""
    return f"max{_by(by)} ({metric}{_select(metric, only)})"


def moved(metric: str, by: str = "", *, over: str = WINDOW, **only: str) -> str:
    """By how much a counter has grown, added up by these labels."""
    return f"sum{_by(by)} ({_once(metric, f'increase({metric}{_select(metric, only)}[{over}])')})"


def per_minute(metric: str, by: str = "", **only: str) -> str:
    return f"60 * sum{_by(by)} ({_once(metric, f'rate({metric}{_select(metric, only)}[{WINDOW}])')})"


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
    return f"max by ({', '.join(('ledger', *_LEDGERS[metric].labels, *more))}) ({inner})"


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
