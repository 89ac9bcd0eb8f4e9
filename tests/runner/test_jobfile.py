"""Job files: both line forms, what is refused and how it is named, and memory that doesn't grow with the file."""

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from parked import jobfile
from parked.errors import InvalidJob
from parked.job import Job
from parked.jobfile import InvalidJobFile, scan


@pytest.fixture
def jobs_file(tmp_path):
    """Returns a function that writes a job file of these lines (values as JSON, text and bytes as they are)."""

    def write(*lines: object, name: str = "jobs.jsonl") -> str:
        raw = [
            line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
            for line in lines
        ]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in raw))
        return str(path)

    return write


def job(job_id: object, payload: object = "p", **more: object) -> dict[str, object]:
    return {"job_id": job_id, "model": "m", "payload": payload, **more}


def all_jobs(scanned: jobfile.Scan) -> list[Job]:
    with scanned:
        return [one for chunk in scanned.chunks(100) for one in chunk]


def complaint(source: str, **how: object) -> str:
    with pytest.raises(InvalidJobFile) as caught:
        scan(source, **how)  # type: ignore[arg-type]
    return str(caught.value)


def test_both_line_forms_may_be_mixed(jobs_file):
    source = jobs_file(job("a", {"contents": "hi"}), {"key": "b", "request": {"contents": []}, "model": "n"})

    assert all_jobs(scan(source)) == [Job("a", "m", {"contents": "hi"}), Job("b", "n", {"contents": []})]


def test_a_line_without_a_model_gets_the_default_one(jobs_file):
    source = jobs_file({"key": "a", "request": 1}, {"key": "b", "request": 2, "model": "own"})

    assert [one.model for one in all_jobs(scan(source, default_model="default"))] == ["default", "own"]


@pytest.mark.parametrize("name", ["modle", "modell", "mdel", "Model", "models"])
def test_a_line_whose_model_is_misspelt_does_not_go_to_the_default_one(jobs_file, name):
    said = complaint(jobs_file(job("good"), {"job_id": "a", name: "own", "payload": 1}), default_model="default")

    assert f'line 2: it has no "model"; did you mean "model" by "{name}"?' in said


def test_other_fields_of_a_line_are_its_users_own(jobs_file):
    own = {"mode": "m", "code": 1, "module": 1, "modified": 1, "node": 1, "label": 1, "key": "k", "m" * 10_000: 1}
    source = jobs_file(
        {"job_id": "a", "payload": 1, **own},
        {"job_id": "b", "payload": 1, "model": "own", "mode": "m", "models": 1},
        {"key": "c", "request": {"model": "models/own"}, "mode": "m"},
    )

    assert [one.model for one in all_jobs(scan(source, default_model="default"))] == ["default", "own", "own"]


def test_a_byte_order_mark_windows_line_ends_blank_lines_and_a_missing_last_newline_are_fine(tmp_path):
    path = tmp_path / "jobs.jsonl"
    lines = [json.dumps(job(name)).encode() for name in "abc"]
    path.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n\r\n  \n" + lines[1] + b"\n" + lines[2])

    scanned = scan(str(path))

    assert scanned.lines == 3
    assert [one.job_id for one in all_jobs(scanned)] == ["a", "b", "c"]


def test_a_file_without_jobs_is_no_error(jobs_file):
    assert all_jobs(scan(jobs_file())) == []


def test_a_line_of_ten_megabytes_is_read_whole(jobs_file):
    text = "x" * 10_000_000

    assert all_jobs(scan(jobs_file(job("a", text))))[0].payload == text


def test_big_integers_and_lone_surrogates_come_through(jobs_file):
    payload = {"n": 2**200, "s": "\ud800\u0000"}

    assert all_jobs(scan(jobs_file(job("a", payload))))[0].payload == payload


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        (b'{"job_id": "\xff"}', "byte 13 of it is not UTF-8"),
        ({"model": "m", "payload": 1}, "it has no id"),
        ({"job_id": "a", "model": "m"}, 'no "payload"'),
        ({"key": "a", "model": "m"}, 'no "request"'),
        (job(7), "job_id must be text, got int"),
        (job(""), "job_id must not be empty"),
        (job("a\nb"), "U+000A"),
        (job("a" * 513), "513 characters"),
        ({"job_id": "a", "payload": 1}, "--model"),
        ({"jobid": "a", "model": "m", "payload": 1}, '"key" and "request"; did you mean "job_id" by "jobid"'),
        ({"job_id": "a", "model": "m", "paylod": 1}, 'no "payload"; did you mean "payload" by "paylod"'),
        ('{"job_id": "a", "model": "m", "payload": NaN}', "NaN"),
        ('{"job_id": "a", "model": "m", "payload": 1e999}', "not a JSON value"),
        ('{"job_id": "a", "model": "m", "payload": ' + "9" * 5000 + "}", "can't be read as JSON"),
        ('{"job_id": "a", "model": "m", "payload": ' + "[" * 100_000 + "}", "can't be read as JSON"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, dict) else "line",
)
def test_a_bad_line_is_named_with_its_number_and_reason(jobs_file, line, why):
    said = complaint(jobs_file(job("good"), "", line))

    assert "1 of 2 lines" in said
    assert "line 3: " in said
    assert why in said


def test_what_the_adapter_cannot_send_is_a_bad_line(jobs_file):
    def no_options(payload):
        if "http_options" in payload:
            raise InvalidJob("http_options is refused")

    said = complaint(jobs_file(job("a", {}), job("b", {"http_options": 1})), check_payload=no_options)

    assert "line 2: http_options is refused" in said


def test_the_same_id_with_the_same_payload_is_one_job(jobs_file):
    source = jobs_file(job("a", {"x": 1, "y": 2}), job("b"), job("a", {"y": 2, "x": 1}))

    scanned = scan(source)

    assert (scanned.lines, scanned.jobs, scanned.repeated) == (3, 2, 1)
    assert [one.job_id for one in all_jobs(scanned)] == ["a", "b"]


def test_the_same_id_with_another_payload_is_refused_with_both_lines(jobs_file):
    said = complaint(jobs_file(job("a", 1), job("b"), job("a", 2)))

    assert "line 3: the job_id 'a' stands on line 1 with another payload" in said


def test_the_same_id_with_another_model_is_refused(jobs_file):
    said = complaint(jobs_file(job("a"), {**job("a"), "model": "n"}))

    assert "line 2: the job_id 'a' stands on line 1 with another model" in said


def test_lines_with_the_same_complaint_are_told_together(jobs_file):
    said = complaint(jobs_file(*["{"] * 25, "[]"))

    assert said.startswith("26 of 26 lines")
    alike, other = [line for line in said.splitlines() if line.startswith("  line")]
    assert alike.startswith("  lines 1, 2, 3, 4, 5 and 20 more: ")
    assert other.startswith("  line 26: ")


def test_of_complaints_that_differ_twenty_are_shown_and_all_lines_counted(jobs_file):
    said = complaint(jobs_file(*[job(f"a-{n // 2}", n) for n in range(50)]))

    assert said.startswith("25 of 50 lines")
    assert said.count("  line ") == 20
    assert "  and 5 more lines" in said


def test_bad_lines_can_be_set_aside_unchanged_and_the_rest_runs(jobs_file):
    source = jobs_file(job("a"), b'{"torn\xff\r', job("a", "other"), job("b"))

    scanned = scan(source, skip_bad_lines=True)

    assert scanned.rejected == 2
    assert scanned.rejected_to == Path(source + ".rejected.jsonl")
    assert scanned.rejected_to.read_bytes() == b'{"torn\xff\r\n' + json.dumps(job("a", "other")).encode() + b"\n"
    assert stat.S_IMODE(scanned.rejected_to.stat().st_mode) == 0o600
    assert [one.job_id for one in all_jobs(scanned)] == ["a", "b"]


def test_no_file_of_bad_lines_is_made_when_there_are_none(jobs_file, tmp_path):
    source = jobs_file(job("a"))

    scan(source, skip_bad_lines=True).close()

    assert list(tmp_path.iterdir()) == [Path(source)]


def test_standard_input_is_spooled_and_can_be_read_twice():
    stdin = io.BytesIO(json.dumps(job("a")).encode())

    scanned = scan("-", stdin=stdin)

    assert scanned.name == "standard input"
    assert [one.job_id for one in all_jobs(scanned)] == ["a"]


def test_a_pipe_given_as_a_path_is_spooled(tmp_path):
    read_end, write_end = os.pipe()
    os.write(write_end, json.dumps(job("a")).encode())
    os.close(write_end)

    scanned = scan(f"/dev/fd/{read_end}")
    os.close(read_end)

    assert [one.job_id for one in all_jobs(scanned)] == ["a"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes("{}\n".encode("utf-16")), "is UTF-16"),
    ],
    ids=["missing", "folder", "utf-16"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, make, why):
    path = tmp_path / "jobs.jsonl"
    make(path)

    said = complaint(str(path))

    assert str(path) in said
    assert why in said
    assert "\n" not in said


def test_a_line_without_end_is_refused_instead_of_read_into_memory(jobs_file, monkeypatch):
    monkeypatch.setattr(jobfile, "MAX_LINE_BYTES", 100)

    assert "line 2" in complaint(jobs_file(job("a"), job("b", "x" * 200)))


def test_a_file_that_changes_while_it_runs_is_noticed_before_its_next_jobs_run(jobs_file):
    source = jobs_file(*[job(f"j{i}") for i in range(10)])

    with scan(source) as scanned:
        chunks = scanned.chunks(4)
        next(chunks)
        with Path(source).open("a") as stream:
            stream.write(json.dumps(job("late")))

        with pytest.raises(InvalidJobFile, match="was changed"):
            next(chunks)


def test_a_file_that_is_replaced_while_it_runs_is_read_to_its_end(jobs_file, tmp_path):
    source = jobs_file(job("a"), job("b"))

    with scan(source) as scanned:
        Path(jobs_file(job("other"), name="new.jsonl")).replace(source)

        assert [one.job_id for chunk in scanned.chunks(1) for one in chunk] == ["a", "b"]


def test_chunks_hold_as_many_jobs_as_asked_for(jobs_file):
    with scan(jobs_file(*[job(f"j{i}") for i in range(7)])) as scanned:
        assert [len(chunk) for chunk in scanned.chunks(3)] == [3, 3, 1]
        assert [len(chunk) for chunk in scanned.chunks(7)] == [7]


def test_chunks_of_long_lines_end_before_they_fill_the_memory(jobs_file, monkeypatch):
    monkeypatch.setattr(jobfile, "MAX_CHUNK_BYTES", 1000)

    with scan(jobs_file(*[job(f"j{i}", "x" * 600) for i in range(4)])) as scanned:
        assert [len(chunk) for chunk in scanned.chunks(100)] == [2, 2]


def test_the_line_of_a_job_is_known(jobs_file):
    with scan(jobs_file("", job("a"))) as scanned:
        assert scanned.line_of("a") == 2
        assert scanned.line_of("b") is None


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_lines(tmp_path):
    """The peak of a process that reads 60,000 lines is near that of one that reads 2,000."""
    peaks_kib = [_peak_kib(tmp_path / f"{lines}.jsonl", lines) for lines in (2_000, 60_000)]

    assert peaks_kib[1] - peaks_kib[0] < 16 * 1024


def _peak_kib(path: Path, lines: int) -> int:
    with path.open("w") as stream:
        for number in range(lines):
            stream.write(json.dumps(job(f"image-{number:09}", {"contents": "describe " * 20})) + "\n")
    script = (
        "import resource, sys; from parked.jobfile import scan\n"
        "with scan(sys.argv[1]) as scanned: print(sum(len(c) for c in scanned.chunks(256)))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    count, peak_kib = map(int, done.stdout.split())
    assert count == lines
    return peak_kib
