"""A real sidecar process, asked over HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parked.ledger import open_ledger
from servers import IN_A_SECOND_S

pytestmark = pytest.mark.slow

MODEL = "gemini-3.5-flash"
PATIENCE_S = 20.0


def run(*flags, env=None, code=None):
    """Run the command to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARKED_")}
    return subprocess.run(
        [sys.executable, *(["-c", code] if code else ["-m", "parked_exporter.cli"]), *flags],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def labels(**given):
    return tuple(sorted(given.items()))


def test_what_runs_did_is_on_the_metrics(start_sidecar, pipeline):
    pipeline.succeed("a-1", duration_s=0.3)
    pipeline.park("a-2")

    samples = start_sidecar().scrape()

    job = labels(pipeline="captions", model=MODEL)
    parked = labels(pipeline="captions", model=MODEL, error_class="exhausted:503", reason="overloaded")
    assert samples["parked_ledger_up"] == {(): 1.0}
    assert samples["parked_jobs_accepted_total"] == {job: 2.0}
    assert samples["parked_jobs_succeeded_total"] == {job: 1.0}
    assert samples["parked_jobs_parked_total"][parked] == 1.0
    assert samples["parked_jobs"] == {parked: 1.0}
    assert samples["parked_ledger_jobs"][labels(pipeline="captions", state="parked")] == 1.0
    assert samples["parked_unaccounted_jobs"] == {labels(pipeline="captions"): 0.0}
    assert samples["parked_attempts_total"] == {
        labels(pipeline="captions", model=MODEL, kind="ok", reason="ok"): 1.0,
        labels(pipeline="captions", model=MODEL, kind="retryable", reason="overloaded"): 1.0,
    }
    assert samples["parked_attempt_duration_seconds_sum"][labels(pipeline="captions", model=MODEL, kind="ok")] == 0.3
    assert sum(samples["parked_tokens_total"].values()) == 30.0


def test_each_scrape_is_fresh(start_sidecar, pipeline):
    sidecar = start_sidecar()
    job = labels(pipeline="captions", model=MODEL)

    for count in (1.0, 2.0, 3.0):
        pipeline.succeed(f"a-{count}")
        assert sidecar.scrape()["parked_jobs_succeeded_total"] == {job: count}


def test_counters_never_fall_when_runner_and_sidecar_are_restarted(start_sidecar, url, pipeline):
    pipeline.succeed("a-1")
    pipeline.park("a-2")
    first = start_sidecar()
    before = first.scrape()
    first.stop()
    pipeline.ledger.close()
    with open_ledger(url) as ledger:
        type(pipeline)(ledger).succeed("a-3")
    after = start_sidecar().scrape()

    counters = [name for name in before if name.endswith(("_total", "_bucket", "_count", "_sum"))]
    assert len(counters) >= 6
    for name in counters:
        if name != "parked_task_failures_total":  # the sidecar's own
            assert all(after[name][series] >= value for series, value in before[name].items()), name


def test_the_tasks_run_by_themselves_and_say_so(start_sidecar, pipeline):
    pipeline.park("a-1")
    sidecar = start_sidecar()

    def all_ran(samples):
        return {dict(series)["task"] for series in samples.get("parked_task_last_success_timestamp_seconds", {})} == {
            "orphan_sweep",
            "audit",
            "peers",
        }

    sidecar.until(all_ran)
    samples = sidecar.scrape()
    assert samples["parked_ledger_writable"] == {(): 1.0}
    assert samples["parked_audit_timestamp_seconds"][()] == pytest.approx(time.time(), abs=60)
    status, _, body = sidecar.get("/-/ready")
    assert status == 200
    assert {lease["pid"] for lease in json.loads(body)["leases"].values()} == {sidecar.process.pid}


def test_sigterm_ends_it_within_a_second_while_its_tasks_wait_for_a_lock(start_sidecar, ledger, locked):
    sidecar = start_sidecar()
    sidecar.get("/-/healthy")
    began = time.monotonic()

    assert sidecar.stop() == 0
    assert time.monotonic() - began < IN_A_SECOND_S  # the lock is waited for 30 s


def test_sigterm_ends_it_within_a_second_with_status_0(start_sidecar, ledger):
    sidecar = start_sidecar()
    sidecar.scrape()
    began = time.monotonic()

    assert sidecar.stop() == 0
    assert time.monotonic() - began < IN_A_SECOND_S


def test_the_sidecar_leaves_as_an_owner_when_it_ends(start_sidecar, ledger):
    sidecar = start_sidecar()
    sidecar.until(lambda samples: "parked_task_last_success_timestamp_seconds" in samples)
    sidecar.stop()

    with ledger.ask() as reader:
        (owner,) = [owner for owner in reader.owners() if owner.facts.role == "sidecar"]
    assert owner.ended_at is not None


def test_ctrl_c_ends_it_with_status_130(start_sidecar, ledger):
    assert start_sidecar().stop(signal.SIGINT) == 130


def test_ctrl_c_ends_it_without_a_word_while_it_is_still_starting():
    ended = run(
        "--listen=127.0.0.1:0",
        code="""
import signal, sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "waitress":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
from parked_exporter.cli import main
sys.exit(main())
""",
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_sidecar_that_lingers_goes_on_answering_until_a_second_signal(start_sidecar, pipeline):
    sidecar = start_sidecar("--linger", "60s")
    sidecar.process.send_signal(signal.SIGTERM)
    sidecar.event("sidecar_lingers")
    pipeline.succeed("a-1")

    assert sidecar.scrape()["parked_jobs_succeeded_total"]
    status, _, body = sidecar.get("/-/ready")
    assert (status, json.loads(body)["ready"]) == (503, False)
    assert "was told to end" in json.loads(body)["reasons"][0]
    assert sidecar.stop() == 0
    assert sidecar.event("sidecar_stopped")["signal"] == "SIGTERM"


def test_head_and_gzip_work_over_the_wire(start_sidecar, ledger):
    sidecar = start_sidecar()

    head_status, head, body = sidecar.get("/metrics", method="HEAD")
    zipped = sidecar.get("/metrics", headers={"Accept-Encoding": "gzip"})

    assert (head_status, body) == (200, b"")
    assert int(head["content-length"]) > 1000
    assert zipped[1]["content-encoding"] == "gzip"
    assert "server" not in head


def test_a_foreign_host_is_turned_away_over_the_wire(start_sidecar, ledger):
    assert start_sidecar().get("/metrics", headers={"Host": "evil.example.com"})[0] == 421


def test_the_sidecar_is_small_and_does_not_load_the_sdk(start_sidecar, pipeline):
    pipeline.succeed("a-1")
    sidecar = start_sidecar()
    for _ in range(20):
        sidecar.scrape()

    proc = Path(f"/proc/{sidecar.process.pid}")
    rss_kib = next(int(line.split()[1]) for line in proc.joinpath("status").read_text().splitlines() if "VmRSS" in line)
    loaded = proc.joinpath("maps").read_text()
    assert rss_kib < 50 * 1024
    assert "pydantic" not in loaded  # comes with google-genai


# --- what ends before it starts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [
        (["--listen", "9465"], {}, "--listen must be host:port"),
        ([], {"PARKED_SUMMARY_CRON": "0 9 * * 8"}, "PARKED_SUMMARY_CRON must be five cron fields"),
        ([], {"PARKED_TIMEZONE": "Mars/Olympus"}, "PARKED_TIMEZONE must be a time zone"),
        ([], {"PARKED_TOKEN": "short"}, "PARKED_TOKEN must be at least 16"),
        ([], {"PARKED_LISTENS": "127.0.0.1:1"}, "did you mean PARKED_LISTEN?"),
        (["--ledger", "mysql://db"], {}, "a ledger is named by a URL"),
        ([], {"PARKED_AUTO_REPLAY": "captions"}, "PARKED_AUTO_REPLAY must be pipelines with an interval each"),
        ([], {"PARKED_AUTO_REPLAY": "*=0s"}, "PARKED_AUTO_REPLAY must be pipelines with an interval each"),
        ([], {"PARKED_AUTO_REPLAY_CLASSES": "503"}, "PARKED_AUTO_REPLAY_CLASSES must be error classes such as"),
        ([], {"PARKED_AUTO_REPLAY_LIMIT": "0"}, "PARKED_AUTO_REPLAY_LIMIT must be a whole number from 1"),
        ([], {"PARKED_AUTO_REPLAY_MAX": "often"}, "PARKED_AUTO_REPLAY_MAX must be a whole number from 1"),
        ([], {"PARKED_CALL": "calls"}, "PARKED_CALL must be module:function"),
        ([], {"PARKED_CALL": "nowhere:call"}, "PARKED_CALL: can't import nowhere:call (ModuleNotFoundError"),
        (
            [],
            {"PARKED_CALL": "os:getpid"},
            "PARKED_CALL=os:getpid must be a function that can be called as getpid(p",
        ),
        ([], {"PARKED_CALL": "heapq:merge"}, "PARKED_CALL yields, so that calling it runs nothing; heapq:merge must"),
        ([], {"PARKED_ON_ANSWER": "json:nothing"}, "PARKED_ON_ANSWER: can't import json:nothing (AttributeError"),
        ([], {"PARKED_ON_ANSWER": "os:sep"}, "PARKED_ON_ANSWER: os:sep is no function but str"),
        ([], {"PARKED_ON_ANSWER": "textwrap:indent"}, "that can be called as indent(answer)"),
        ([], {"PARKED_ON_ANSWER": "ends:take"}, "PARKED_ON_ANSWER: can't import ends:take (SystemExit: 3)"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_status_2(flags, env, said, tmp_path):
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")

    ended = run("--check", *flags, env=env)

    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_all_that_is_wrong_with_the_settings_is_named_at_once():
    env = {
        "PARKED_AUTO_REPLY": "*=30m",
        "PARKED_MAX_ATTEMPTS": "few",
        "PARKED_SUMMARY_CRON": "never",
        "PARKED_STORE": "encrypted",
        "PARKED_STORE_KEYS": "short",  # the one cause is named, and not that there is no key then
        "PARKED_CALL": "nowhere:call",
        "PARKED_ON_ANSWER": "nowhere:take",
        "OTEL_TRACES_EXPORTER": "jaeger",
    }

    ended = run("--check", "--ledger", "parked.db", env=env)

    assert ended.returncode == 2
    for said in (
        "PARKED_AUTO_REPLY is no setting of parked (did you mean PARKED_AUTO_REPLAY?); ",
        "; --ledger must be a URL",
        "; PARKED_STORE_KEYS must be ",
        "; PARKED_MAX_ATTEMPTS must be ",
        "; PARKED_SUMMARY_CRON must be ",
        "; OTEL_TRACES_EXPORTER must be ",
        "; PARKED_CALL: can't import ",
        "; PARKED_ON_ANSWER: can't import ",
    ):
        assert said in ended.stderr
    assert "needs a key" not in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("flags", [["--linger", "soon"], ["--lingr", "45s"]])
def test_a_wrong_flag_is_status_2(flags):
    assert run(*flags).returncode == 2


@pytest.mark.parametrize(("flag", "says"), [("--help", "usage: parked-exporter"), ("--version", "parked-exporter 0.")])
def test_help_and_version_are_shown_and_nothing_else(flag, says):
    ended = run(flag)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(says)


def test_functions_that_can_be_imported_are_fine(tmp_path):
    (tmp_path / "mine.py").write_text("def call(payload, model):\n    pass\n\ndef take(answer):\n    pass\n")
    told = {"PARKED_AUTO_REPLAY": "*=30m", "PARKED_CALL": "mine:call", "PARKED_ON_ANSWER": "mine:take"}

    assert run("--check", env=told).returncode == 0


@pytest.mark.parametrize(
    ("env", "adds"),
    [
        ({"PARKED_AUTO_REPLAY": "*=30m"}, "; but PARKED_AUTO_REPLAY can't replay jobs of the Gemini API here: no cred"),
        ({"PARKED_AUTO_REPLAY": "*=30m", "GEMINI_API_KEY": "k"}, "\n"),
        ({}, "\n"),
    ],
    ids=["a replay and no key", "a replay and a key", "no replay"],
)
def test_check_says_where_a_replay_has_no_key(env, adds):
    ended = run("--check", env={"GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", **env})

    assert ended.returncode == 0
    assert ended.stderr.startswith(f"parked-exporter: the settings are fine{adds}")
    assert ended.stderr.count("\n") == 1


def test_an_exporter_of_spans_that_is_not_known_is_one_sentence_and_status_2():
    ended = run("--listen", "127.0.0.1:0", env={"OTEL_TRACES_EXPORTER": "jaeger"})

    assert ended.returncode == 2
    assert "OTEL_TRACES_EXPORTER must be otlp, console or none, got 'jaeger'" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_check_ends_with_0_where_all_is_fine_and_starts_nothing(tmp_path):
    ended = run("--check", "--ledger", f"sqlite:///{tmp_path / 'none.db'}")

    assert ended.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_one_sentence_and_status_3():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("--listen", f"127.0.0.1:{taken.getsockname()[1]}")

    assert ended.returncode == 3
    assert "can't listen on 127.0.0.1:" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("lacks", "words", "extra"),
    [
        ("apscheduler", [], "exporter"),
        ("psycopg", ["--ledger", "postgresql://localhost/x"], "postgres"),
        ("psycopg", ["--check", "--ledger", "postgresql://localhost/x"], "postgres"),
    ],
)
def test_without_the_extra_the_command_says_what_to_install(lacks, words, extra):
    code = f"import sys; sys.modules['{lacks}'] = None; from parked_exporter.cli import main; sys.exit(main({words}))"

    ended = run(code=code)

    assert ended.returncode == 3
    assert f"pip install '.[{extra}]' in a checkout of parked" in ended.stderr
    assert ended.stderr.count("\n") == 1
