"""What programs hand to the library: whatever is of the wrong kind is named with its rule, and nothing is begun."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import types

import parked

JOB = parked.Job("a-1", model="m", payload={})


def call(payload, model):
    raise AssertionError("nothing is to be called")


@pytest.fixture
def client(simulator):
    with genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url)) as client:
        yield client


async def run_many(ledger, jobs, **options):
    async for _ in parked.AsyncRunner(ledger, call).run_many(jobs, **options):
        pass


A_POLICY = "policy must be a parked.Policy(max_attempts=…, …), or None for the PARKED_ variables, got"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": 5}, f"{A_POLICY} 5"),
        ({"policy": 0}, f"{A_POLICY} 0"),
        ({"policy": {"max_attempts": 2}}, f"{A_POLICY} dict"),
        (
            {"ledger": "sqlite:///parked.db"},
            "ledger must be what parked.open_ledger returns, got 'sqlite:///parked.db'",
        ),
        ({"ledger": ""}, "ledger must be what parked.open_ledger returns, got ''"),
        ({"allow_truncated": "no"}, "allow_truncated must be True or False, got 'no'"),
    ],
)
def test_runners_and_wrapped_clients_name_what_is_wrong(ledger, client, options, said):
    given = {"ledger": ledger, **options}
    doors = (
        lambda: parked.wrap(client, **given),
        lambda: parked.Runner(call_model=call, **given),
        lambda: parked.AsyncRunner(call_model=call, **given),
    )

    for door in doors:
        with pytest.raises(parked.SettingsError, match=f"^{re.escape(said)}$"):
            door()


@pytest.mark.parametrize("concurrency", ["8", 2.5, None, 0])
def test_a_concurrency_is_a_whole_number(ledger, concurrency):
    said = f"^concurrency must be a whole number from 1, got {concurrency!r}$"

    with pytest.raises(parked.SettingsError, match=said):
        list(parked.Runner(ledger, call).run_many([JOB], concurrency=concurrency))
    with pytest.raises(parked.SettingsError, match=said):
        asyncio.run(run_many(ledger, [JOB], concurrency=concurrency))

    with ledger.ask() as reader:
        assert reader.states() == {}


@pytest.mark.parametrize("jobs", [None, 5, JOB], ids=lambda jobs: type(jobs).__name__)
def test_jobs_are_several(ledger, jobs):
    said = f"^jobs must be a list or another iterable of parked.Job, got {type(jobs).__name__}$"

    with pytest.raises(parked.SettingsError, match=said):
        list(parked.Runner(ledger, call).run_many(jobs))
    with pytest.raises(parked.SettingsError, match=said):
        asyncio.run(run_many(ledger, jobs))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": 5}, "a ledger's URL must be text like sqlite:///parked.db or postgresql://host/database, got 5"),
        ({"url": Path("parked.db")}, "a ledger's URL must be text like .*, got PosixPath"),
        ({"mode": "0600"}, "mode must be a whole number from 0, got '0600'"),
        ({"write_patience_s": "900"}, "write_patience_s must be a number of seconds from 0 to .*, got '900'"),
    ],
)
def test_a_ledger_is_opened_by_what_the_rules_say(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(parked.SettingsError, match=f"^{said}$"):
        parked.open_ledger(**arguments)

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("run_with_dead_letter", ("a", {}, "m", 5), "call_model must be a function payload -> answer, got 5"),
        ("replay", (5, 20, False), "call_model must be a function payload -> answer, got 5"),
        ("replay", (call, -1), "limit must be a whole number from 0, got -1"),
        ("park", ("a", {}, "m", "exhausted:503", None, 4), "error_message must be text, got None"),
    ],
)
def test_the_functions_of_the_article_name_what_is_wrong(capsys, name, arguments, said):
    with pytest.raises(parked.SettingsError, match=f"^{re.escape(said)}$"):
        getattr(parked, name)(*arguments)

    parked.dlq_summary()
    assert capsys.readouterr().out == "dead-letter: clean (0 parked)\n"


def test_a_message_of_an_api_error_may_be_of_any_kind():
    message: Any = {"status": "UNAVAILABLE"}

    assert parked.classify_failure(None, message) == "retryable"
