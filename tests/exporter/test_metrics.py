"""What the ledger holds, as series."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from parked.job import State
from parked.ledger import operations as op
from parked.ledger.counters import Metric
from parked.ledger.labels import MAX_PIPELINES
from parked.ledger.store import CounterRow
from parked.verdict import Reason
from parked_exporter import metrics
from parked_exporter.collector import Collector, Found, OwnFacts, cut, look
from parked_exporter.metrics import METRICS, OWN_METRICS, AuditFound, Readings
from servers import sqlite_only

MODEL = "gemini-3.5-flash"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

# CONTRACT, section 4: the rows that this version shows, and what came to them.
CONTRACT = {
    "parked_jobs": ("gauge", "pipeline model error_class reason"),
    "parked_oldest_parked_timestamp_seconds": ("gauge", "pipeline error_class"),
    "parked_oldest_pending_timestamp_seconds": ("gauge", "pipeline"),
    "parked_oldest_running_timestamp_seconds": ("gauge", "pipeline"),
    "parked_ledger_jobs": ("gauge", "pipeline state"),
    "parked_unaccounted_jobs": ("gauge", "pipeline"),
    "parked_audit_timestamp_seconds": ("gauge", ""),
    "parked_jobs_accepted_total": ("counter", "pipeline model"),
    "parked_jobs_succeeded_total": ("counter", "pipeline model"),
    "parked_jobs_parked_total": ("counter", "pipeline model error_class reason"),
    "parked_last_parked_timestamp_seconds": ("gauge", "pipeline error_class"),
    "parked_jobs_recovered_total": ("counter", "pipeline model error_class reason"),
    "parked_jobs_discarded_total": ("counter", "pipeline model error_class reason"),
    "parked_replayed_jobs_total": ("counter", "pipeline model error_class trigger result"),
    "parked_attempts_total": ("counter", "pipeline model kind reason"),
    "parked_attempt_duration_seconds": ("histogram", "pipeline model kind"),
    "parked_tokens_total": ("counter", "pipeline model direction kind"),
    "parked_answer_deliveries_total": ("counter", "pipeline model result"),
    "parked_last_accepted_timestamp_seconds": ("gauge", "pipeline"),
    "parked_last_success_timestamp_seconds": ("gauge", "pipeline"),
    "parked_pipeline_paused": ("gauge", "pipeline model reason"),
    "parked_gate_closed": ("gauge", "model reason"),
    "parked_owners": ("gauge", "state"),
    "parked_task_last_success_timestamp_seconds": ("gauge", "task"),
    "parked_ledger_bytes": ("gauge", ""),
    "parked_ledger_up": ("gauge", ""),
    "parked_ledger_writable": ("gauge", ""),
    "parked_scrape_duration_seconds": ("gauge", ""),
    "parked_task_failures_total": ("counter", "task"),
    "parked_build_info": ("gauge", "version"),
}


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


def counter(metric, a="", b="", value=1.0, *, pipeline="captions", model=MODEL, trace_id=None, example=None):
    span_id = "00f067aa0ba902b7" if trace_id else None
    at = 1_772_000_000.5 if trace_id else None
    return CounterRow(metric, pipeline, model, a, b, value, 0.0, trace_id, span_id, example, at)


def readings(*rows, **given):
    counters = {metric: tuple(row for row in rows if row.metric == metric) for metric in Metric}
    found = {"oldest": {}, "owners": {}, "audit": None, "task_successes": {}, "leases": {}} | given
    return Readings(ledger="amber-otter", counters=counters, **found)


def exposition(found, *, accept=""):
    own = OwnFacts(version="1.2.3", writable=None, task_failures={"audit": 2})
    encode, _ = choose_encoder(accept)
    return encode(Collector(Found(found, "", 0.01), own)).decode()


def samples_of(name, found):
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label != "ledger"): sample.value
        for family in text_string_to_metric_families(exposition(found))
        for sample in family.samples
        if sample.name == name
    }


def test_names_types_and_labels_are_those_of_the_contract():
    table = {spec.name: (str(spec.type), " ".join(spec.labels)) for spec in (*METRICS, *OWN_METRICS)}

    assert table == CONTRACT


def test_every_metric_has_a_help_sentence():
    for spec in (*METRICS, *OWN_METRICS):
        assert spec.help[0].isupper(), spec.name
        assert spec.help.endswith("."), spec.name


def test_the_page_of_metrics_is_the_table():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"

    assert page.read_text(encoding="utf-8") == metrics.as_markdown()


@pytest.mark.parametrize("found", [None, readings()], ids=["ledger away", "empty ledger"])
def test_help_and_type_lines_are_there_whatever_the_ledger_holds(found):
    text = exposition(found)

    for name, (type, _) in CONTRACT.items():
        assert f"# HELP {name} " in text
        assert f"# TYPE {name} {type}\n" in text


def test_a_ledger_that_is_away_has_no_series_but_the_sidecar_has():
    lines = [line for line in exposition(None).splitlines() if not line.startswith("#")]

    assert lines == [
        "parked_ledger_up 0.0",
        "parked_scrape_duration_seconds 0.01",
        'parked_task_failures_total{task="audit"} 2.0',
        'parked_build_info{version="1.2.3"} 1.0',
    ]


def test_every_series_of_a_ledger_names_it_and_those_of_the_sidecar_do_not():
    found = readings(counter(Metric.JOBS_ACCEPTED), counter(Metric.LEDGER_JOBS, State.PENDING, model=""))
    own = {spec.name for spec in OWN_METRICS}

    for family in text_string_to_metric_families(exposition(found)):
        for sample in family.samples:
            assert (sample.labels.get("ledger") == "amber-otter") is (sample.name not in own)


def test_a_pipeline_that_accepted_a_job_has_a_zero_for_one_class_of_every_reason():
    series = samples_of("parked_jobs_parked_total", readings(counter(Metric.JOBS_ACCEPTED)))

    reasons = sorted(reason for _, _, _, reason in series)
    assert reasons == sorted([*Reason, "maybe_sent", "not_sent"])
    assert set(series.values()) == {0.0}
    assert ("exhausted:503", MODEL, "captions", "overloaded") in series
    assert ("permanent:prompt_blocked", MODEL, "captions", "prompt_blocked") in series
    assert ("orphaned:maybe_sent", MODEL, "captions", "maybe_sent") in series


def test_the_zero_gives_way_to_the_count_and_stays_beside_another_class_of_its_reason():
    series = samples_of(
        "parked_jobs_parked_total",
        readings(
            counter(Metric.JOBS_ACCEPTED, value=9.0),
            counter(Metric.JOBS_PARKED, "exhausted:503", "overloaded", 4.0),
            counter(Metric.JOBS_PARKED, "exhausted:502", "server_error", 2.0),
        ),
    )

    assert series["exhausted:503", MODEL, "captions", "overloaded"] == 4.0
    assert series["exhausted:502", MODEL, "captions", "server_error"] == 2.0
    assert series["exhausted:500", MODEL, "captions", "server_error"] == 0.0


def test_trigger_and_result_of_a_replay_are_labels_of_their_own():
    found = readings(counter(Metric.JOBS_REPLAYED, "exhausted:503", "manual/parked_again", 3.0))

    # In the order of the names: error_class, model, pipeline, result, trigger.
    assert samples_of("parked_replayed_jobs_total", found) == {
        ("exhausted:503", MODEL, "captions", "parked_again", "manual"): 3.0
    }


def test_durations_counted_once_are_shown_cumulative():
    found = readings(
        counter(Metric.ATTEMPT_DURATION, "ok", "0.5", 2.0),
        counter(Metric.ATTEMPT_DURATION, "ok", "5", 3.0),
        counter(Metric.ATTEMPT_DURATION, "ok", "inf", 1.0),
        counter(Metric.ATTEMPT_DURATION, "ok", "sum", 712.5),
    )

    buckets = {
        bound: count for (_, bound, *_), count in samples_of("parked_attempt_duration_seconds_bucket", found).items()
    }
    assert (buckets["0.25"], buckets["0.5"], buckets["2.5"], buckets["5.0"]) == (0.0, 2.0, 2.0, 5.0)
    assert (buckets["640.0"], buckets["+Inf"]) == (5.0, 6.0)
    assert samples_of("parked_attempt_duration_seconds_count", found) == {("ok", MODEL, "captions"): 6.0}
    assert samples_of("parked_attempt_duration_seconds_sum", found) == {("ok", MODEL, "captions"): 712.5}


def test_a_job_in_no_state_is_unaccounted():
    found = readings(
        counter(Metric.JOBS_ACCEPTED, value=3.0),
        counter(Metric.JOBS_ACCEPTED, value=4.0, model="gemini-3.5-pro"),
        counter(Metric.LEDGER_JOBS, State.SUCCEEDED, value=4.0, model=""),
        counter(Metric.LEDGER_JOBS, State.PARKED, value=2.0, model=""),
    )

    assert samples_of("parked_unaccounted_jobs", found) == {("captions",): 1.0}


def test_the_larger_of_what_counters_and_audit_say_is_unaccounted():
    rows = [counter(Metric.JOBS_ACCEPTED, value=5.0), counter(Metric.LEDGER_JOBS, State.PENDING, value=3.0, model="")]
    found = readings(*rows, audit=AuditFound(1_772_000_000.0, {"captions": 1.0, "titles": 4.0}))

    assert samples_of("parked_unaccounted_jobs", found) == {("captions",): 2.0, ("titles",): 4.0}
    assert samples_of("parked_audit_timestamp_seconds", found) == {(): 1_772_000_000.0}


def test_times_owners_and_tasks_are_shown_as_they_were_read():
    found = readings(
        oldest={State.PARKED: {("captions", "exhausted:503"): 1.0}, State.PENDING: {("captions", ""): 2.0}},
        owners={"alive": 2, "lost": 1},
        task_successes={"audit": 3.0},
    )

    assert samples_of("parked_oldest_parked_timestamp_seconds", found) == {("exhausted:503", "captions"): 1.0}
    assert samples_of("parked_oldest_pending_timestamp_seconds", found) == {("captions",): 2.0}
    assert samples_of("parked_owners", found) == {("alive",): 2.0, ("lost",): 1.0}
    assert samples_of("parked_task_last_success_timestamp_seconds", found) == {("audit",): 3.0}


def test_counters_and_buckets_carry_the_sampled_trace_in_openmetrics_alone():
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    found = readings(
        counter(Metric.JOBS_SUCCEEDED, value=7.0, trace_id=trace),
        counter(Metric.ATTEMPT_DURATION, "ok", "0.5", 2.0, trace_id=trace, example=0.31),
        counter(Metric.ATTEMPT_DURATION, "ok", "sum", 0.62),
    )

    exemplars = {
        sample.name: sample.exemplar
        for family in openmetrics_families(exposition(found, accept=OPENMETRICS))
        for sample in family.samples
        if sample.exemplar
    }
    assert exemplars["parked_jobs_succeeded_total"].labels == {"trace_id": trace, "span_id": "00f067aa0ba902b7"}
    assert float(exemplars["parked_jobs_succeeded_total"].timestamp) == 1_772_000_000.5
    assert exemplars["parked_attempt_duration_seconds_bucket"].value == 0.31
    assert trace not in exposition(found)


def test_label_values_come_through_whatever_characters_they_hold():
    name = 'says "hi" \\ ünï {x="y"}'
    found = readings(counter(Metric.JOBS_SUCCEEDED, pipeline=name, value=2.0))

    assert samples_of("parked_jobs_succeeded_total", found) == {(MODEL, name): 2.0}


def test_two_long_names_that_begin_alike_are_cut_and_stay_two():
    long, longer = "x" * 512, "x" * 511 + "y"

    assert len(cut(long)) == len(cut(longer)) == 128
    assert cut(long) != cut(longer)
    assert cut("x" * 128) == "x" * 128


@pytest.mark.parametrize(
    ("error_class", "label"),
    [
        ("permanent:400", "permanent:400"),
        ("exhausted:529", "exhausted:529"),
        ("exhausted:empty_answer", "exhausted:empty_answer"),
        ("orphaned:maybe_sent", "orphaned:maybe_sent"),
        ("", ""),
        ("permanent:418", "other"),
        ("exhausted:999", "other"),
        ("RateLimit", "other"),
        ("RateLimit:429", "other"),
    ],
)
def test_a_class_that_the_rules_do_not_list_is_other(error_class, label):
    found = readings(counter("parked_now", error_class, "unclassified"))

    assert samples_of("parked_jobs", found) == {(label, MODEL, "captions", "unclassified"): 1.0}


def test_classes_that_share_a_label_are_added_up_and_of_times_the_latest_is_shown():
    found = readings(
        counter("parked_now", "permanent:418", "unclassified", 2),
        counter("parked_now", "RateLimit", "unclassified", 3),
        counter("jobs_parked", "permanent:418", "unclassified", 4),
        counter("jobs_parked", "RateLimit", "unclassified", 5),
        counter("last_parked", "permanent:418", value=70.0, model=""),
        counter("last_parked", "RateLimit", value=60.0, model=""),
        oldest={State.PARKED: {("captions", "permanent:418"): 20.0, ("captions", "RateLimit"): 10.0}},
    )

    both = ("other", MODEL, "captions", "unclassified")
    assert samples_of("parked_jobs", found)[both] == 5.0
    assert samples_of("parked_jobs_parked_total", found)[both] == 9.0
    assert samples_of("parked_last_parked_timestamp_seconds", found) == {("other", "captions"): 70.0}
    assert samples_of("parked_oldest_parked_timestamp_seconds", found) == {("other", "captions"): 10.0}


def test_pipelines_past_the_bound_are_shown_together_and_none_is_unaccounted(pipeline, url):
    for number in range(MAX_PIPELINES + 3):
        replace(pipeline, name=f"p{number}").park("a")
    replace(pipeline, name="p101").succeed("b")

    found = look(url)

    parked = samples_of("parked_jobs", found)
    assert len(parked) == MAX_PIPELINES + 1
    assert parked["exhausted:503", MODEL, "other", "overloaded"] == 3.0
    assert len(samples_of("parked_oldest_parked_timestamp_seconds", found)) == MAX_PIPELINES + 1
    assert set(samples_of("parked_unaccounted_jobs", found).values()) == {0.0}


# --- a whole ledger ----------------------------------------------------------------------------------------------


def labels_by_sample(found):
    """Each sample's name with its label names, `le` left out."""
    return {
        (sample.name, frozenset(sample.labels) - {"le"})
        for family in text_string_to_metric_families(exposition(found))
        for sample in family.samples
    }


def test_once_all_has_happened_each_row_of_the_contract_has_series_with_its_labels(pipeline, url):
    pipeline.live_through_everything()

    found = labels_by_sample(look(url))

    wanted = {
        (f"{name}{part}", frozenset({"ledger", *labels.split()}))
        for name, (type, labels) in CONTRACT.items()
        for part in (("_bucket", "_count", "_sum") if type == "histogram" else ("",))
    }
    own = {spec.name for spec in OWN_METRICS}
    assert {of for of in found if of[0] not in own} == {of for of in wanted if of[0] not in own}


def test_where_nothing_has_happened_nothing_is_told_but_of_the_ledger_itself(ledger, url):
    found = labels_by_sample(look(url))

    own = {spec.name for spec in OWN_METRICS}
    assert {name for name, _ in found} - own == {"parked_ledger_bytes", "parked_owners"}


@sqlite_only
def test_the_bytes_of_a_ledger_are_those_of_its_file_and_its_wal(pipeline, url, tmp_path):
    pipeline.succeed("a-1")

    (size,) = samples_of("parked_ledger_bytes", look(url)).values()

    assert size == sum((tmp_path / name).stat().st_size for name in ("parked.db", "parked.db-wal"))


def test_what_retention_removes_stays_counted(ledger, pipeline, url):
    job = pipeline.succeed("a-1")
    before = samples_of("parked_jobs_succeeded_total", look(url))
    ledger.record(op.HandOut((job.id,)))
    assert ledger.record(op.Forget((job.id,))) == 1

    found = look(url)

    assert samples_of("parked_jobs_succeeded_total", found) == before == {(MODEL, "captions"): 1.0}
    assert samples_of("parked_ledger_jobs", found)["captions", "forgotten"] == 1.0
    assert samples_of("parked_unaccounted_jobs", found) == {("captions",): 0.0}


def test_every_sidecar_shows_the_tasks_of_all(ledger, url):
    ledger.record(op.SetMark(metrics.task_mark("a_task_of_another_sidecar"), 7.0))

    assert samples_of("parked_task_last_success_timestamp_seconds", look(url)) == {("a_task_of_another_sidecar",): 7.0}
