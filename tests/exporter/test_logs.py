"""Log records of both programs: one line each, in two formats."""

import ast
import io
import json
import logging
import re
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import parked.telemetry  # whoever has spans has imported it
import parked_exporter
from parked.logs import JsonFormatter, TextFormatter, fields, split_message


@pytest.fixture
def log():
    logger = logging.getLogger("parked.test_logs")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()


def written(log, formatter, act):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log.addHandler(handler)
    act()
    return stream.getvalue()


def test_a_record_as_text_has_event_and_fields_on_one_line(log):
    line = written(
        log, TextFormatter(), lambda: log.warning("owners_lost", extra=fields(owners=[3], jobs=2, role="runner"))
    )

    assert line.endswith("Z WARNING owners_lost owners=[3] jobs=2 role=runner\n")


def test_fields_in_a_message_of_the_library_stay_as_they_are(log):
    line = written(log, TextFormatter(), lambda: log.warning('ledger_away why="it is full" since=%d', 3))

    assert line.endswith('Z WARNING ledger_away why="it is full" since=3\n')


def test_no_text_can_forge_a_field_or_a_second_line(log):
    line = written(
        log, TextFormatter(), lambda: log.error("task_failed", extra=fields(why="away\nERROR forged jobs=0"))
    )

    assert line.endswith(r'ERROR task_failed why="away\nERROR forged jobs=0"' + "\n")
    assert line.count("\n") == 1
    assert written(log, TextFormatter(), lambda: log.error('a why="b\nERROR forged"')).count("\n") == 1


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (
            "owner_lost owner=22 role=runner host=vm-1",
            {"event": "owner_lost", "owner": 22, "role": "runner", "host": "vm-1"},
        ),
        ('ledger_away why="it is \\"full\\"" since=3', {"event": "ledger_away", "why": 'it is "full"', "since": 3}),
        ("unknown_setting: PARKED_X is none: see", {"event": "unknown_setting", "why": "PARKED_X is none: see"}),
        ("call_not_recorded model=m: upgrade", {"event": "call_not_recorded", "model": "m", "why": "upgrade"}),
        ("ledger_back", {"event": "ledger_back"}),
        ("Three words here", {"event": "Three words here"}),
    ],
)
def test_fields_in_a_message_of_the_library_are_fields_in_json(log, message, fields):
    record = json.loads(written(log, JsonFormatter(), lambda: log.warning(message)))

    assert {name: record[name] for name in record if name not in ("time", "level", "logger")} == fields


def test_a_message_of_another_library_stays_whole():
    record = logging.LogRecord("urllib3.pool", logging.WARNING, "", 0, "retry: it failed", (), None)

    assert json.loads(JsonFormatter().format(record))["event"] == "retry: it failed"


def logged():
    """The message of every log call in both packages, with a word in the place of what is put in."""
    for root in (Path(parked.__file__).parent, Path(parked_exporter.__file__).parent):
        for file in sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name("log" | "_log"), attr=level), args=[*said]):
                        if level in LEVELS:
                            yield f"{file.name}:{node.lineno}", said[0]


LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def test_every_message_of_both_programs_is_an_event_with_fields():
    messages = dict(logged())

    assert len(messages) > 50
    for place, said in messages.items():
        assert isinstance(said, ast.Constant), f"{place}: name the event where it is logged"
        message = re.sub("%[.0-9]*[dfs]", "x", str(said.value).replace("why=%s", 'why="x"'))
        event, _ = split_message(message)
        assert re.fullmatch("[a-z_]+", event), f"{place}: {message}"


def test_a_record_as_json_is_one_object(log):
    line = written(log, JsonFormatter(), lambda: log.info("summary", extra=fields(text="clean\n", parked=0)))

    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record == {"level": "INFO", "event": "summary", "logger": "parked.test_logs", "text": "clean\n", "parked": 0}


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_traceback_stays_on_its_record_s_line(log, formatter):
    def act():
        try:
            raise ValueError("two\nlines")
        except ValueError:
            log.debug("task_failed", exc_info=True)

    line = written(log, formatter, act)

    assert "ValueError" in line
    assert line.count("\n") == 1


def test_a_record_carries_the_ids_of_the_sampled_span_that_it_is_logged_in(log):
    with TracerProvider().get_tracer("test").start_as_current_span("task") as span:
        line = written(log, JsonFormatter(), lambda: log.info("summary"))
    at = span.get_span_context()

    record = json.loads(line)
    assert (record["trace_id"], record["span_id"]) == (format(at.trace_id, "032x"), format(at.span_id, "016x"))


def test_a_record_outside_of_a_span_or_in_one_that_is_not_sampled_carries_none(log):
    outside = written(log, JsonFormatter(), lambda: log.info("summary"))
    with TracerProvider(sampler=ALWAYS_OFF).get_tracer("test").start_as_current_span("task"):
        inside = written(log, TextFormatter(), lambda: log.info("summary"))

    assert "trace_id" not in outside + inside
