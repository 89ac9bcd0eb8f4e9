"""Under which names jobs are counted: their own up to a bound, and `other` past it. Pure.

What has counted once goes on counting under its name, and a name that came when there was no room is never let in
later: its jobs stand under `other` already. The names are those that `jobs_accepted` is kept under, so that whoever
reads a ledger finds the same name for a row that its counters were moved under.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OTHER: Final = "other"
# What one Prometheus bears from one exporter: each pair has about 40 series, each pipeline 20 more.
MAX_PIPELINES: Final = 100
MAX_PAIRS: Final = 200  # of pipeline and model


class Labels:
    """The names that are let in; `pairs` are those of pipeline and model that have counted before."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = set(pairs)
        self._pipelines = {pipeline for pipeline, _ in self._pairs}

    def pipeline(self, name: str) -> str:
        return name if name in self._pipelines else OTHER

    def pair(self, pipeline: str, model: str) -> tuple[str, str]:
        pair = (self.pipeline(pipeline), model)
        return pair if pair in self._pairs else (pair[0], OTHER)

    def models_of(self, pipeline: str) -> frozenset[str]:
        """The models that its jobs count under."""
        label = self.pipeline(pipeline)
        return frozenset(model for name, model in self._pairs if name == label)

    def is_settled(self, pipeline: str, model: str) -> bool:
        """Whether it is decided what this pair counts under, whatever has counted since; no model: this pipeline."""
        if pipeline not in self._pipelines and len(self._pipelines) < MAX_PIPELINES:
            return False
        return not model or (self.pipeline(pipeline), model) in self._pairs or len(self._pairs) >= MAX_PAIRS

    def let_in(self, pipeline: str, model: str) -> tuple[str, str]:
        """Decide what a pair counts under from now on, and return it."""
        if len(self._pipelines) < MAX_PIPELINES:
            self._pipelines.add(pipeline)
        pair = (self.pipeline(pipeline), model)
        if pair not in self._pairs and len(self._pairs) >= MAX_PAIRS:
            pair = (pair[0], OTHER)
        self._pairs.add(pair)
        self._pipelines.add(pair[0])
        return pair
