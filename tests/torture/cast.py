"""Who plays in a torture run: what each process is given to do, and when it is to die.

All of it follows from the seed: the nth process of a role is killed at the nth moment of that role.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from torture.api import FATES

MODEL: Final = "gemini-3.5-flash"
# Mostly what works: five jobs in a row that fail alike would be taken for an outage, and waited for.
WEIGHTS: Final = {"plain": 30, "slow": 6, "empty": 2, "silent": 1}


class Kind(StrEnum):
    CPU = "of its CPU seconds"
    CALLS = "of its calls"
    WALL = "seconds after its start"


class Moment(NamedTuple):
    """When a process is killed: after so much of that."""

    kind: Kind
    amount: float

    def __str__(self) -> str:
        return f"after {self.amount:g} {self.kind}"


@dataclass(frozen=True)
class Habits:
    """How long processes of a role live, by what is counted: from and to; and how many jobs one is given."""

    cpu_s: tuple[float, float]
    calls: tuple[int, int] | None = None
    wall_s: tuple[float, float] | None = None
    jobs: int = 0


HABITS: Final = {
    "run-a": Habits(cpu_s=(0.03, 0.8), calls=(1, 30), jobs=24),
    "run-b": Habits(cpu_s=(0.03, 0.8), calls=(1, 30), jobs=24),
    "submit": Habits(cpu_s=(0.005, 0.1), jobs=16),
    "work": Habits(cpu_s=(0.02, 0.5), calls=(1, 20), wall_s=(0.1, 2.0)),
    "replay": Habits(cpu_s=(0.02, 0.6), calls=(1, 15)),
    "import": Habits(cpu_s=(0.005, 0.1), jobs=12),
    "sidecar": Habits(cpu_s=(0.005, 0.15), wall_s=(0.05, 2.0)),
}
SERVER: Final = "server"
SERVER_CALLS: Final = (10, 80)  # calls of anybody between two kills of the server


def moments(seed: int, role: str) -> Iterator[Moment]:
    """For ever. Short lives are as frequent as long ones, tenfold for tenfold."""
    dice = random.Random(f"{seed}/{role}")
    habits = HABITS[role]
    kinds = [Kind.CPU, Kind.CPU, *([Kind.CALLS] * 2 if habits.calls else []), *([Kind.WALL] if habits.wall_s else [])]
    while True:
        kind = dice.choice(kinds)
        if kind is Kind.CALLS and habits.calls:
            yield Moment(kind, dice.randint(*habits.calls))
        elif kind is Kind.WALL and habits.wall_s:
            yield Moment(kind, round(_spread(dice, *habits.wall_s), 2))
        else:
            yield Moment(Kind.CPU, round(_spread(dice, *habits.cpu_s), 4))


def server_moments(seed: int) -> Iterator[int]:
    dice = random.Random(f"{seed}/{SERVER}")
    while True:
        yield dice.randint(*SERVER_CALLS)


def _spread(dice: random.Random, least: float, most: float) -> float:
    return float(least * (most / least) ** dice.random())


@dataclass
class Task:
    """A file of jobs that a role works off, as often as it takes."""

    role: str
    number: int
    file: Path
    prompts: dict[str, str]  # by job id
    pipeline: str
    batch: str = ""
    out: Path | None = None
    done: bool = False


@dataclass
class Writer:
    """Makes the tasks of a role, one after the other."""

    role: str
    folder: Path
    dice: random.Random
    tasks: list[Task] = field(default_factory=list)

    def next(self) -> Task:
        """The task that isn't done yet, or a new one."""
        if not self.tasks or self.tasks[-1].done:
            self.tasks.append(self._make(len(self.tasks)))
        return self.tasks[-1]

    def _make(self, number: int) -> Task:
        fates = list(FATES)
        drawn = self.dice.choices(fates, weights=[WEIGHTS.get(fate, 3) for fate in fates], k=HABITS[self.role].jobs)
        prompts = {f"{self.role}-{number}-{n}": f"{fate} {self.role}-{number}-{n}" for n, fate in enumerate(drawn)}
        stem = self.folder / f"{self.role}-{number}"
        if self.role == "import":
            return self._table(stem.with_suffix(".db"), number, prompts)
        file = stem.with_suffix(".jsonl")
        lines = [{"job_id": id, "model": MODEL, "payload": {"contents": prompt}} for id, prompt in prompts.items()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        if self.role == "submit":
            return Task(self.role, number, file, prompts, "steady")
        return Task(self.role, number, file, prompts, "nightly", str(number), stem.with_suffix(".out"))

    def _table(self, file: Path, number: int, prompts: dict[str, str]) -> Task:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(
                "CREATE TABLE dead_letter (job_id TEXT NOT NULL, payload TEXT NOT NULL, model TEXT NOT NULL,"
                " error_class TEXT NOT NULL, error_message TEXT, attempts INTEGER NOT NULL, parked_at TEXT NOT NULL)"
            )
            for id, prompt in prompts.items():
                row = (
                    id,
                    json.dumps({"contents": prompt}),
                    MODEL,
                    "exhausted:503",
                    "Overloaded.",
                    4,
                    "2026-03-02 02:07",
                )
                connection.execute("INSERT INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return Task(self.role, number, file, prompts, "imported")


def words_of(role: str, task: Task | None) -> list[str]:
    """The command line of a role."""
    if task is not None and role.startswith("run"):
        words = ["parked", "run", str(task.file), "--pipeline", task.pipeline, "--batch", task.batch]
        return [*words, "--out", str(task.out)]
    if task is not None and role == "submit":
        return ["parked", "submit", str(task.file), "--pipeline", task.pipeline]
    if task is not None:
        return ["parked", "import", str(task.file), "--pipeline", task.pipeline]
    return {
        "work": ["parked", "work", "--pipeline", "steady"],
        "replay": ["parked", "replay", "--all", "--canary", "0", "--limit", "30", "--apply"],
        "sidecar": ["parked-exporter", "--listen", "127.0.0.1:0"],
    }[role]
