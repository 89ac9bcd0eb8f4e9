"""Quotas, outages and faults: parked next to what pipelines do without it, each with the same jobs and the same server.

    python bench/outages.py                       # all scenarios
    python bench/outages.py --only outage --who parked,article
    python bench/outages.py --quick               # those of a few seconds, without the SDK's and tenacity's retries

Every case is real: `parked run` as a user runs it, the real SDK, HTTP on loopback, and `parked simulate` with a
script, whose `--record` is what is measured. Only seconds are not: the processes of a case, server and client alike, go
by a clock that passes faster (`fast.py`), so that an hour takes a minute. All waits, delays, windows and answer times
shrink alike, so their ratios are those of real time. What doesn't pass faster weighs more: at speed 30 the 3 ms that a
call costs of itself are 90 ms of the case's time, and a commit's 5 ms are 150. So answers come late by so much, never
early, and the others, which call as fast as they can, meet fewer refusals than they would. Each scenario's speed keeps
the calls under what two cores carry; a machine that is busy with something else shows as longer times.

The others are `private_retries.py`'s three. They remember nothing, so there is no second night for them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchlib import HERE, environment, print_machine, table

MODEL, OTHER_MODEL = "gemini-3.5-flash", "gemini-2.5-flash"
ANSWER_S: Final = 1.0
OTHERS: Final = ("article", "tenacity", "sdk")
FULL_SPEED: Final = 0.9
LOOK_S: Final = 3.0  # the span over which speed is measured
BROKEN: Final = (2, 3, 70)  # exit statuses of a run that tells nothing of its jobs
PER_DAY: Final = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"

Json = dict[str, Any]
Call = dict[str, Any]  # a line of the record


@dataclass(frozen=True)
class Night:
    """One run: what the server does meanwhile, and which jobs the file holds."""

    rules: list[Json]
    prompts: Sequence[str]
    batch: str = ""
    models: Sequence[str] = (MODEL,)  # in turn


@dataclass
class Seen:
    """What a case did, each figure by night where it has several."""

    calls: list[list[Call]] = field(default_factory=list)
    told: list[Json] = field(default_factory=list)  # what the run printed
    exits: list[int | None] = field(default_factory=list)  # None: it didn't end in time
    states: list[dict[str, str]] = field(default_factory=list)  # of parked's jobs, by batch and id, after each night

    def parked(self, night: int = 0) -> int:
        return sum(state == "parked" for state in self.states[night].values()) if self.states else 0

    def pending(self, night: int = 0) -> int:
        return sum(state == "pending" for state in self.states[night].values()) if self.states else 0

    def answered(self, night: int = 0) -> int:
        if self.states:
            return sum(state in ("succeeded", "recovered") for state in self.states[night].values())
        return int(self.told[night].get("answered", 0))

    def refused(self, night: int = 0) -> int:
        return sum(call["status"] == 429 for call in self.calls[night])

    def ends(self) -> list[float]:
        """When whole answers were given in the first night, in order."""
        return sorted(call["at_s"] + call["took_s"] for call in self.calls[0] if call["status"] == 200)

    def time_s(self) -> float:
        return max((call["at_s"] + call["took_s"] for call in self.calls[0]), default=0.0)


@dataclass(frozen=True)
class Scenario:
    name: str
    nights: Sequence[Night]
    reaches: Callable[[Seen, Seen | None], dict[str, bool]]  # what parked must reach; the second is its clean run
    workers: int = 64
    speeds: str = "0:1"
    speeds_of_others: str | None = None  # they call more often, and fewer of their seconds count
    ideal_s: float | None = None  # None: as long as the clean run
    outage: tuple[float, float] | None = None
    clean: str | None = None  # the scenario to compare with
    pods: Sequence[str] = ()  # a key for each process, where there are several
    against: Sequence[str] = OTHERS
    quick: bool = False


# --- scenarios ------------------------------------------------------------------------------------------------------


def prompts(count: int, first: int = 1) -> list[str]:
    return [f"Photo {number:05}: describe it in one sentence." for number in range(first, first + count)]


def for_all(*rules: Json) -> list[Json]:
    return [*rules, {"delay_s": ANSWER_S}]


def of(first: int, last: int) -> Json:
    """A condition: these photos."""
    numbers = "|".join(f"{number:05}" for number in range(first, last + 1))
    return {"text_matches": f"^Photo ({numbers}):"}


def quota(n: int, window: str, *, speed: int, jobs: int = 2000, quick: bool = False) -> Scenario:
    ideal_s = 60.0 * jobs / n
    most = 64 + jobs // 100
    return Scenario(
        f"quota of {n} a minute, {window}",
        [Night(for_all({"quotas": [{"requests": n, "per": "minute", "window": window}]}), prompts(jobs))],
        lambda seen, _: {
            "0 parked": seen.parked() == 0,
            f"429s at most {most}": seen.refused() <= most,
            "time at most 1.10": seen.time_s() <= 1.10 * ideal_s,
            "all answered": seen.answered() == jobs,
        },
        speeds=f"0:{speed}",
        speeds_of_others=f"0:{min(speed, 15)}",
        ideal_s=ideal_s,
        quick=quick,
    )


OUTAGE: Final = (10.0, 610.0)


def spread(workers: int, speed: int) -> Scenario:
    """1 % of the jobs permanently bad, 5 % flaky."""
    bad = "|".join(f"{number:05}" for number in range(50, 2001, 100))
    flaky = "|".join(f"{number:05}" for number in range(7, 2001, 20))
    wrong = {f"/{place:05}" for place in range(50, 2001, 100)}

    def reaches(seen: Seen, clean: Seen | None) -> dict[str, bool]:
        parked = {id_ for id_, state in seen.states[0].items() if state == "parked"}
        ends = seen.ends()
        most = 1.05 * clean.time_s() if clean is not None else 0.0
        return {
            "exactly the bad parked": parked == wrong,
            "97 % of the answers within 1.05": len(ends) >= 1921 and ends[1920] <= most,
        }

    return Scenario(
        f"1 % bad, 5 % flaky, {workers} workers",
        [
            Night(
                for_all(
                    {"when": {"text_matches": f"^Photo ({bad}):"}, "reply": "server_error"},
                    {"when": {"text_matches": f"^Photo ({flaky}):", "first": 1}, "reply": "overloaded"},
                ),
                prompts(2000),
            )
        ],
        reaches,
        workers=workers,
        speeds=f"0:{speed}",
        speeds_of_others=f"0:{64 // workers}",
        clean=f"clean, {workers} workers",
    )


def clean(workers: int, speed: int) -> Scenario:
    return Scenario(
        f"clean, {workers} workers",
        [Night(for_all(), prompts(2000))],
        lambda seen, _: {"all answered": seen.answered() == 2000},
        workers=workers,
        speeds=f"0:{speed}",
        ideal_s=2000 * ANSWER_S / workers,
        against=(),
    )


def until_mended(name: str, rules: list[Json], jobs: int, workers: int, most: int, **more: Any) -> Scenario:
    """A fault of the project, mended before the second run."""
    return Scenario(
        name,
        [Night(for_all(*rules), prompts(jobs)), Night(for_all(), prompts(jobs))],
        lambda seen, _: {
            "0 parked": seen.parked() == 0 and seen.parked(1) == 0,
            f"at most {most} calls spent": sum(call["status"] == 400 for call in seen.calls[0]) <= most,
            "exit 4": seen.exits[0] == 4,
            "resumed: all answered": seen.answered(1) == jobs and seen.exits[1] == 0,
        },
        workers=workers,
        **more,
    )


def back_at_full_speed_s(seen: Seen, scenario: Scenario) -> float | None:
    """Seconds from the outage's end to the first span at 90 % of what the workers can do; None if there is none."""
    assert scenario.outage is not None
    ends, over = seen.ends(), scenario.outage[1]
    wanted = FULL_SPEED * LOOK_S * scenario.workers / ANSWER_S
    for at in (end for end in ends if end >= over):
        if sum(at - LOOK_S < end <= at for end in ends) >= wanted:
            return at - LOOK_S - over
    return None


def outage_calls(seen: Seen, scenario: Scenario) -> int:
    assert scenario.outage is not None
    return sum(scenario.outage[0] <= call["at_s"] < scenario.outage[1] for call in seen.calls[0])


def outage() -> Scenario:
    def reaches(seen: Seen, _: Seen | None) -> dict[str, bool]:
        back_s = back_at_full_speed_s(seen, scenario)
        return {
            "0 parked": seen.parked() == 0,
            "at most 124 calls in the outage": outage_calls(seen, scenario) <= 124,
            "at 90 % within 30 s": back_s is not None and back_s <= 30,
            "all answered": seen.answered() == 2000,
        }

    scenario = Scenario(
        "ten minutes of 503",
        [Night(for_all({"when": {"from_s": OUTAGE[0], "to_s": OUTAGE[1]}, "reply": "overloaded"}), prompts(2000))],
        reaches,
        # The ends, where all workers call, at a speed that two cores carry.
        speeds="0:2,50:30,590:2",
        speeds_of_others="0:2,30:15",
        outage=OUTAGE,
        ideal_s=OUTAGE[1] - OUTAGE[0] + 2000 * ANSWER_S / 64,
    )
    return scenario


def two_nights_of_403() -> Scenario:
    bad = {"when": {"text_matches": "^Photo (00001|00002|10001|10002):"}, "reply": {"error": {
        "code": 403, "status": "PERMISSION_DENIED", "message": "The caller does not have permission",
    }}}  # fmt: skip
    bad_ids = {"one/00001", "one/00002", "two/10001", "two/10002"}

    def reaches(seen: Seen, _: Seen | None) -> dict[str, bool]:
        last = seen.states[1]
        good = {id_: state for id_, state in last.items() if id_ not in bad_ids}
        return {
            "parked in the same night or the next": all(
                last.get(id_) == "parked" for id_ in ("one/00001", "one/00002")
            ),
            "the others answered": len(good) == 396 and set(good.values()) == {"succeeded"},
            "each night": sum(state == "succeeded" for state in seen.states[0].values()) == 198,
        }

    return Scenario(
        "two jobs' own 403, first in each night's file",
        [Night(for_all(bad), prompts(200), "one"), Night(for_all(bad), prompts(200, 10001), "two")],
        reaches,
        workers=8,
        speeds="0:4",
        quick=True,
    )


def scenarios() -> list[Scenario]:
    clean_s = 2000 * ANSWER_S / 64
    return [
        clean(64, 1),
        clean(8, 4),
        *[
            quota(n, window, speed=speed)
            for n, speed in ((33, 40), (100, 12), (1000, 3))
            for window in ("fixed", "sliding")
        ],
        quota(60, "sliding", speed=20, jobs=400, quick=True),
        Scenario(
            "2 % of calls 429 without delay or quota",
            [Night(for_all({"when": {"share": 0.02}, "reply": "rate_limited_without_details"}), prompts(2000))],
            lambda seen, clean: {
                "0 parked": seen.parked() == 0,
                "time at most 1.25": clean is not None and seen.time_s() <= 1.25 * clean.time_s(),
                "all answered": seen.answered() == 2000,
            },
            clean="clean, 64 workers",
        ),
        Scenario(
            "three jobs larger than their quota",
            [Night(for_all({"when": of(100, 102), "reply": {"rate_limited": {"retry_delay_s": 40}}}), prompts(400))],
            lambda seen, _: {
                "the others answered within 4 delays": seen.answered() == 397 and seen.ends()[-1] <= 4 * 40 + 60,
                "the 3 parked": seen.parked() == 3,
            },
            workers=8,
            speeds="0:10",
            ideal_s=400 * ANSWER_S / 8,
        ),
        outage(),
        Scenario(
            "half of all calls 503 for half an hour, 4,000 jobs",
            [Night(for_all({"when": {"to_s": 1800, "share": 0.5}, "reply": "overloaded"}), prompts(4000))],
            lambda seen, _: {"at most 8 parked": seen.parked() <= 8, "the run ends": seen.exits[0] is not None},
            speeds="0:15",
            speeds_of_others="0:8",
            ideal_s=1800.0,
        ),
        Scenario(
            "20 jobs that always 500, first in the file",
            [Night(for_all({"when": of(1, 20), "reply": "server_error"}), prompts(500))],
            lambda seen, _: {
                "the others answered": seen.answered() == 480,
                "the 20 parked": seen.parked() == 20,
                "no pause": seen.exits[0] == 1,
            },
            workers=8,
            speeds="0:5",
            ideal_s=480 * ANSWER_S / 8,
            quick=True,
        ),
        until_mended(
            "the key is revoked in mid-run", [{"when": {"from_s": 10}, "reply": "bad_key"}], 2000, 64, 128,
            speeds="0:2", ideal_s=clean_s,
        ),
        until_mended(
            "the key is revoked, a file of one", [{"reply": "bad_key"}], 1, 1, 4, speeds="0:4",
            against=(), quick=True,
        ),
        Scenario(
            "one model of two is retired",
            [
                Night(
                    for_all({"when": {"from_s": 3, "model": OTHER_MODEL}, "reply": "model_not_found"}),
                    prompts(1000),
                    models=(MODEL, OTHER_MODEL),
                ),
                Night(for_all({"when": {"model": OTHER_MODEL}, "reply": "model_not_found"}), prompts(1000)),
            ],
            lambda seen, _: {
                "the other's all answered": all(
                    state == "succeeded" for id_, state in seen.states[0].items() if int(id_[-5:]) % 2
                ),
                "0 parked": seen.parked() == 0,
                "exit 4": seen.exits[0] == 4,
                "with another model: all answered": seen.answered(1) == 1000 and seen.exits[1] == 0,
            },
            speeds="0:2",
            ideal_s=1000 * ANSWER_S / 64,
        ),
        Scenario(
            "the day's quota ends in mid-run",
            [
                Night(for_all({"quotas": [{"requests": 700, "per": "day"}]}), prompts(2000)),
                Night(for_all(), prompts(2000)),
            ],
            lambda seen, _: {
                "0 parked": seen.parked() == 0 and seen.parked(1) == 0,
                "exit 4": seen.exits[0] == 4,
                "after the reset: all answered": seen.answered(1) == 2000 and seen.exits[1] == 0,
            },
            speeds="0:2,40:10",
        ),
        Scenario(
            'a "PerDay" that was a minute\'s',
            [
                Night(
                    for_all({"quotas": [{"requests": 400, "per": "minute", "quota_id": PER_DAY}]}),
                    prompts(2000),
                )
            ],
            lambda seen, _: {
                "0 parked": seen.parked() == 0,
                "no pause": seen.exits[0] == 0,
                "all answered": seen.answered() == 2000,
            },
            speeds="0:6",
            ideal_s=300.0,
        ),
        Scenario(
            "one pod of four has a stale key",
            [Night(for_all({"when": {"key": "stale"}, "reply": "bad_key"}), prompts(500))],
            lambda seen, _: {
                "the other three answer everything": seen.answered() == 500,
                "0 parked": seen.parked() == 0,
            },
            workers=8,
            pods=("good", "good", "stale", "good"),
            against=(),
            ideal_s=500 * ANSWER_S / 24,
        ),
        two_nights_of_403(),
        Scenario(
            "25 blocked prompts in a row",
            [Night(for_all({"when": of(1, 25), "reply": "blocked_prompt"}), prompts(200))],
            lambda seen, _: {
                "25 parked": seen.parked() == 25,
                "no pause, the others answered": seen.exits[0] == 1 and seen.answered() == 175,
            },
            workers=8,
            speeds="0:4",
            ideal_s=200 * ANSWER_S / 8,
            quick=True,
        ),
        Scenario(
            "empty answers for everybody",
            [Night([{"reply": "no_parts", "delay_s": ANSWER_S}], prompts(200))],
            lambda seen, _: {"a pause": seen.exits[0] == 4, "0 parked": seen.parked() == 0},
            speeds="0:3",
            quick=True,
        ),
        spread(8, 4),
        spread(64, 1),
    ]  # fmt: skip


# --- running --------------------------------------------------------------------------------------------------------


def run(scenario: Scenario, who: str, folder: Path) -> Seen:
    """Run all nights of a scenario; for the others only the first."""
    folder.mkdir(parents=True)
    seen = Seen()
    for number, night in enumerate(scenario.nights if who == "parked" else scenario.nights[:1], start=1):
        _run_night(scenario, who, night, folder / str(number), folder / "parked.db", seen)
    return seen


def _run_night(scenario: Scenario, who: str, night: Night, folder: Path, ledger: Path, seen: Seen) -> None:
    folder.mkdir()
    jobs = folder / "jobs.jsonl"
    with jobs.open("w") as lines:
        for place, prompt in enumerate(night.prompts):
            model = night.models[place % len(night.models)]
            job = {"job_id": prompt[6:11], "model": model, "payload": {"contents": prompt}}
            lines.write(json.dumps(job) + "\n")
    speeds = scenario.speeds if who == "parked" else scenario.speeds_of_others or scenario.speeds
    clock = [sys.executable, str(HERE / "fast.py"), "--since", str(time.monotonic()), "--speeds", speeds, "-m"]
    patience_s = _real_s(4 * (scenario.ideal_s or 600.0) + 300.0, speeds) + 90.0
    with simulator(clock, night.rules, folder) as url:
        at = {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "good", "PARKED_LEDGER": f"sqlite:///{ledger}"}
        if who != "parked":
            words = ["private_retries", who, str(jobs), "--workers", str(scenario.workers)]
            runs = [started([*clock, *words], at, folder)]
        elif scenario.pods:
            done = started([*clock, "parked.cli", "submit", str(jobs), "--json"], at, folder)
            done.wait(60)
            work = ["parked.cli", "work", "--until-empty", "--concurrency", str(scenario.workers), "--json"]
            runs = [started([*clock, *work], at | {"GEMINI_API_KEY": key}, folder) for key in scenario.pods]
        else:
            words = ["run", str(jobs), "--out", str(folder / "answers.jsonl"), "--json", "--batch", night.batch]
            words += ["--concurrency", str(scenario.workers)]
            runs = [started([*clock, "parked.cli", *words], at, folder)]
        ended = [_end(process, patience_s) for process in runs]
        seen.exits.append(max((status for status, _ in ended if status is not None), default=None))
        if any(status is None for status, _ in ended):
            seen.exits[-1] = None
        seen.told.append(ended[0][1])
        if seen.exits[-1] in BROKEN or (seen.exits[-1] and who != "parked"):
            errors = (folder / "stderr.txt").read_text()
            raise SystemExit(f"{scenario.name}, {who}: ended with status {seen.exits[-1]}\n{errors[-3000:]}")
    with (folder / "calls.jsonl").open() as lines:
        seen.calls.append([json.loads(line) for line in lines])
    if who == "parked":
        seen.states.append(_states(ledger))


@contextmanager
def simulator(clock: list[str], rules: list[Json], folder: Path) -> Iterator[str]:
    script = folder / "script.json"
    script.write_text(json.dumps({"rules": rules}))
    words = ["simulate", "--port", "0", "--script", str(script), "--record", str(folder / "calls.jsonl")]
    process = started([*clock, "parked.cli", *words], {}, folder)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise SystemExit(f"parked simulate ended:\n{(folder / 'stderr.txt').read_text()[-3000:]}")
        yield said.split()[1].partition("=")[2]  # export GOOGLE_GEMINI_BASE_URL=http://… …
    finally:
        process.terminate()
        process.wait()


def started(command: list[str], more: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    with (folder / "stderr.txt").open("a") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=environment() | more
        )


def _end(process: subprocess.Popen[str], patience_s: float) -> tuple[int | None, Json]:
    """Return the exit status, None if it had to be ended, and the JSON object that it printed."""
    try:
        out, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, {}
    return process.returncode, json.loads(out) if out.startswith("{") else {}


def _real_s(fast_s: float, speeds: str) -> float:
    stretches = [(float(at), float(speed)) for at, _, speed in (part.partition(":") for part in speeds.split(","))]
    ends = [at for at, _ in stretches[1:]] + [math.inf]
    return sum(max(0.0, min(fast_s, end) - at) / speed for (at, speed), end in zip(stretches, ends, strict=True))


def _states(ledger: Path) -> dict[str, str]:
    words = ["list", "--state", "all", "--limit", "100000", "--json", "--ledger", f"sqlite:///{ledger}"]
    done = subprocess.run(
        [sys.executable, "-m", "parked.cli", *words], capture_output=True, text=True, check=True, env=environment()
    )
    return {f"{job['batch']}/{job['job_id']}": job["state"] for job in json.loads(done.stdout)["jobs"]}


# --- the table ------------------------------------------------------------------------------------------------------

HEAD: Final = (
    "scenario", "who", "answered", "parked / lost", "pending", "calls", "429s", "calls in the outage", "seconds",
    "÷ ideal", "back at 90 % after", "exit", "reaches its target",
)  # fmt: skip


def row(scenario: Scenario, who: str, seen: Seen, clean: Seen | None) -> tuple[list[str], bool]:
    jobs = len(scenario.nights[0].prompts)
    last = len(seen.calls) - 1
    time_s = seen.time_s()
    ideal_s = scenario.ideal_s or (clean.time_s() if clean is not None else None)
    back_s = back_at_full_speed_s(seen, scenario) if scenario.outage else None
    reached = scenario.reaches(seen, clean) if who == "parked" else {}
    missed = [words for words, holds in reached.items() if not holds]
    verdict = ("no: " + "; ".join(f"not “{words}”" for words in missed)) if missed else "yes"
    nights = range(last + 1)
    return [
        scenario.name,
        who,
        " then ".join(f"{seen.answered(night):,}" for night in nights),
        " then ".join(str(seen.parked(night)) for night in nights)
        if who == "parked"
        else f"{jobs - seen.answered():,}",
        " then ".join(str(seen.pending(night)) for night in nights) if who == "parked" else "",
        f"{len(seen.calls[0]):,}",
        f"{seen.refused():,}",
        f"{outage_calls(seen, scenario):,}" if scenario.outage else "",
        f"{time_s:,.0f}",
        f"{time_s / ideal_s:.2f}" if ideal_s else "",
        "" if not scenario.outage else "never" if back_s is None else f"{back_s:.0f} s",
        " then ".join("killed" if status is None else str(status) for status in seen.exits) if who == "parked" else "",
        verdict if who == "parked" else "",
    ], not missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORDS", help="the scenarios in whose name these words stand")
    parser.add_argument("--quick", action="store_true", help="the short scenarios, parked and the article's loop")
    parser.add_argument("--who", metavar="NAMES", help="of parked, article, tenacity and sdk; default: all")
    parser.add_argument("--lanes", type=int, default=3, metavar="N", help="cases at a time, default 3")
    parser.add_argument("--list", action="store_true", help="print the scenarios' names")
    args = parser.parse_args()
    chosen = [
        each for each in scenarios()
        if (args.only is None or args.only in each.name) and (each.quick or not args.quick or args.only)
    ]  # fmt: skip
    if args.list or not chosen:
        print("\n".join(each.name for each in (chosen or scenarios())))
        return
    who = args.who.split(",") if args.who else ["parked", "article"] if args.quick else ["parked", *OTHERS]
    missing = {each.clean for each in chosen} - {each.name for each in chosen}
    needed = [each for each in scenarios() if each.name in missing]
    # Those that mostly wait go first, so that the others' storms don't slow them; the longest of them before the rest.
    cases = [(each, name) for name in who for each in [*needed, *chosen] if name == "parked" or name in each.against]
    cases.sort(key=lambda case: (case[1] != "parked", -_real_s(case[0].ideal_s or 60.0, case[0].speeds)))

    begun = time.monotonic()
    results: dict[tuple[str, str], Seen] = {}
    base = os.environ.get("BENCH_DIR")
    with tempfile.TemporaryDirectory(dir=base, prefix="outages-") as folder, ThreadPoolExecutor(args.lanes) as lanes:

        def case(number: int) -> None:
            scenario, name = cases[number]
            since = time.monotonic()
            results[scenario.name, name] = run(scenario, name, Path(folder) / str(number))
            print(f"{scenario.name}, {name}: {time.monotonic() - since:.0f} s", file=sys.stderr)

        for future in [lanes.submit(case, number) for number in range(len(cases))]:
            future.result()

    print_machine()
    rows, all_reached = [], True
    for scenario in chosen:
        for name in who:
            if seen := results.get((scenario.name, name)):
                cells, reached = row(scenario, name, seen, results.get((scenario.clean or "", name)))
                rows.append(cells)
                all_reached = all_reached and reached
    table(HEAD, rows)
    print(f"\n{time.monotonic() - begun:.0f} s in all")
    sys.exit(0 if all_reached else 1)


if __name__ == "__main__":
    main()
