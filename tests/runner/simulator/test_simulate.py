"""`parked simulate` as a user runs it: another process, a signal, an exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from parked.cli import main
from parked.simulator import Simulator
from servers import IN_A_SECOND_S

pytestmark = pytest.mark.slow


def parked_simulate(*words):
    command = [sys.executable, "-m", "parked.cli", "simulate", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_as_its_script_says_until_a_signal_ends_it_in_order(tmp_path, number):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"rules": [{"reply": "overloaded"}]}))
    record = tmp_path / "record.jsonl"
    with parked_simulate("--port", "0", "--script", str(script), "--record", str(record)) as process:
        words = process.stdout.readline().split()
        url = words[1].partition("=")[2]
        with pytest.raises(HTTPError) as caught:
            urlopen(Request(f"{url}/v1beta/models/m:generateContent", b"{}", method="POST"), timeout=10)
        caught.value.close()

        signalled = time.monotonic()
        process.send_signal(number)
        status = process.wait(10)

    assert words[0] == "export"
    assert words[2] == "GEMINI_API_KEY=simulated"
    assert caught.value.code == 503
    assert [json.loads(line)["status"] for line in record.read_text().splitlines()] == [503]
    assert status == 0
    assert time.monotonic() - signalled < IN_A_SECOND_S


def test_a_port_in_use_is_one_sentence_and_status_3(capsys):
    with Simulator() as running:
        port = running.url.rpartition(":")[2]

        status = main(["simulate", "--port", port])

    assert status == 3
    error = capsys.readouterr().err
    assert error.startswith(f"parked: can't listen on 127.0.0.1:{port} ")
    assert error.count("\n") == 1


def test_a_malformed_script_is_one_sentence_and_status_2(tmp_path, capsys):
    script = tmp_path / "script.json"
    script.write_text('{"rules": [{"reply": "overload"}]}')

    status = main(["simulate", "--port", "0", "--script", str(script)])

    assert status == 2
    assert capsys.readouterr().err == (
        f"parked: the script {script}: rule 1: there is no reply 'overload'; did you mean 'overloaded'?\n"
    )


def test_a_port_that_is_none_is_refused(capsys):
    assert main(["simulate", "--port", "70000"]) == 2
    assert "--port must be a number from 0 to 65535, got 70000" in capsys.readouterr().err


def test_a_record_that_can_not_be_written_is_one_sentence_and_status_3(tmp_path, capsys):
    status = main(["simulate", "--port", "0", "--record", str(tmp_path)])

    assert status == 3
    assert capsys.readouterr().err == f"parked: can't write the record {tmp_path}: Is a directory\n"


def test_a_disk_that_is_full_ends_it_with_a_sentence_and_status_3():
    with parked_simulate("--port", "0", "--record", "/dev/full") as process:
        url = process.stdout.readline().split()[1].partition("=")[2]
        urlopen(Request(f"{url}/v1beta/models/m:generateContent", b"{}", method="POST"), timeout=10).close()

        status = process.wait(10)
        error = process.stderr.read()

    assert status == 3
    assert error.splitlines()[-1] == "parked: can't write the record /dev/full: No space left on device"
