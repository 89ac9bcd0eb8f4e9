"""What `parked doctor` says of a sidecar that runs, or of what stands in its place."""

from __future__ import annotations

import json

import pytest

from parked.cli import main
from parked.ledger import open_ledger
from parked.simulator import Simulator
from parked_exporter.cli import main as exporter_main


@pytest.fixture
def sidecar_row(capsys, monkeypatch):
    """Returns a function that lets the doctor look at a port, and returns its level and what it found."""

    def look(port: int, ledger_url: str) -> tuple[str, str]:
        monkeypatch.setenv("PARKED_LISTEN", f"0.0.0.0:{port}")  # asked on the loopback
        main(["doctor", "--json", "--ledger", ledger_url])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return next((check["level"], check["found"]) for check in checks if check["check"] == "sidecar")

    return look


@pytest.mark.slow
def test_a_sidecar_of_the_same_ledger_is_fine_and_one_of_another_is_not(
    start_sidecar, ledger, url, tmp_path, sidecar_row
):
    other = f"sqlite:///{tmp_path}/other.db"
    open_ledger(other).close()
    sidecar = start_sidecar()
    sidecar.until(lambda samples: samples.get("parked_ledger_writable") == {(): 1.0})

    same, another = sidecar_row(sidecar.address[1], url), sidecar_row(sidecar.address[1], other)

    assert same == ("ok", f"ready at 0.0.0.0:{sidecar.address[1]}, with the same ledger and version")
    assert another[0] == "broken"
    assert f"reads another ledger ({ledger.name})" in another[1]


def test_what_answers_in_its_place_is_told_apart(ledger, url, sidecar_row):
    with Simulator() as simulator:
        port = int(simulator.url.rpartition(":")[2])

        assert sidecar_row(port, url) == ("attention", f"what answers at 0.0.0.0:{port} is no sidecar")


# Each is refused by the sidecar, too: the doctor asks it.
REFUSED = {
    "nothing is kept that could be replayed": {"PARKED_STORE": "none", "PARKED_AUTO_REPLAY": "*=30m"},
    "no such module": {"PARKED_CALL": "nosuch:f", "PARKED_AUTO_REPLAY": "*=30m"},
    "other arguments": {"PARKED_ON_ANSWER": "shutil:copyfile"},
    "no such service": {"PARKED_NOTIFY": "nosuch://channel"},
    "no such exporter": {"OTEL_TRACES_EXPORTER": "nosuch"},
}


@pytest.mark.slow
@pytest.mark.parametrize("env", REFUSED.values(), ids=REFUSED)
def test_what_a_start_is_refused_with_is_broken_for_the_doctor(env, tmp_path, monkeypatch, capsys):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    ledger = f"sqlite:///{tmp_path}/parked.db"

    refused = exporter_main(["--ledger", ledger])
    why = capsys.readouterr().err.removeprefix("parked-exporter: ").strip()
    status = main(["doctor", "--offline", "--json", "--ledger", ledger])
    (settings,) = (check for check in json.loads(capsys.readouterr().out)["checks"] if check["check"] == "settings")

    assert refused == 2
    assert status == 3
    assert settings["level"] == "broken"
    assert why in settings["found"]


@pytest.mark.slow
def test_a_function_that_ends_or_hangs_at_its_import_is_said_by_the_doctor(tmp_path, monkeypatch, capsys):
    (tmp_path / "loud.py").write_text("print('{'); raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARKED_CALL", "loud:call")

    status = main(["doctor", "--offline", "--json"])

    said = json.loads(capsys.readouterr().out)
    assert status == 3
    assert "can't import loud:call" in said["checks"][0]["found"]
