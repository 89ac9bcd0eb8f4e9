"""`parked doctor`: whatever is wrong around parked has a row of its own, and a next step."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from parked import owners
from parked.cli import main
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.vault import key_id
from parked.settings import SidecarSettings
from parked.simulator import replies as reply
from parked.surroundings import rights
from parked.surroundings.checks import CHECKS, examine
from parked.surroundings.seeing import Trouble, all_at_once, see
from servers import free_port, missing, sqlite_only

PAGE = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text("utf-8")
BAD_KEY = "AIzaSy-not-a-real-key"
STORE_KEY = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE="
NEW_STORE_KEY = "bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcgbmV3IG5ldyE="


@pytest.fixture(autouse=True)
def _no_sidecar(monkeypatch):
    """Nobody listens there, whoever runs the tests."""
    monkeypatch.setenv("PARKED_LISTEN", f"127.0.0.1:{free_port()}")


@pytest.fixture
def doctor(parked) -> Callable:
    """Returns a function that runs the command and returns its status and its findings by name."""

    def run(*words: str):
        said = parked("doctor", "--json", *words)
        assert said.err == ""
        return said.status, {check["check"]: check for check in json.loads(said.out)["checks"]}

    return run


def level(findings, name):
    return findings[name]["level"]


# --- as a whole ---------------------------------------------------------------------------------------------------


def test_where_all_is_well_nothing_is_broken(doctor, story, api):
    story.answered("a-1")

    status, findings = doctor()

    assert status == 0
    assert {name for name, finding in findings.items() if finding["level"] == "broken"} == set()
    assert level(findings, "api") == "ok"
    for name in ("settings", "python", "ledger", "clock", "labels", "certificates", "proxy", "key"):
        assert (level(findings, name), findings[name]["next"]) == ("ok", None), findings[name]


def test_people_get_a_table_and_what_to_do(parked, story, api):
    said = parked("doctor")

    lines = said.out.splitlines()
    assert lines[0] == f"ledger {story.ledger.where}"
    assert lines[1].split() == ["CHECK", "LEVEL", "FOUND"]
    assert "what to do:" in lines
    assert lines[-1].startswith("  sidecar: start parked-exporter")


def test_it_makes_no_ledger_and_says_how_one_is_made(doctor, no_ledger, api):
    status, findings = doctor()

    assert status == 0
    assert level(findings, "ledger") == "attention"
    assert "parked run" in findings["ledger"]["next"]
    assert no_ledger()


def test_offline_nobody_is_asked(doctor, story, api, url):
    status, findings = doctor("--offline")

    assert status == 0
    assert api.requests == []
    assert [level(findings, name) for name in ("api", "sidecar")] == ["skipped", "skipped"]
    assert level(findings, "ledger") == ("ok" if url.startswith("sqlite") else "skipped")


@sqlite_only
def test_it_works_where_everything_is_broken(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("PARKED_MAX_ATTEMPTS", "five")
    monkeypatch.setenv("PARKED_MAX_ATEMPTS", "5")
    monkeypatch.setenv("PARKED_LEDGER", f"sqlite:///{tmp_path}/no/such/folder/parked.db")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("GEMINI_API_KEY", "k\nk")

    status, findings = doctor()

    assert status == 3
    assert {name for name, finding in findings.items() if finding["level"] == "broken"} == {
        "settings", "rights", "certificates", "proxy", "key", "api"
    }  # fmt: skip
    assert "PARKED_MAX_ATTEMPTS must be a whole number" in findings["settings"]["found"]
    assert "did you mean PARKED_MAX_ATTEMPTS?" in findings["settings"]["found"]


def test_a_url_that_is_none_is_a_wrong_setting_and_no_other_ledger_is_looked_at(doctor, monkeypatch):
    monkeypatch.setenv("PARKED_LEDGER", "mysql://host/db")

    status, findings = doctor("--offline")

    assert status == 3
    assert (level(findings, "settings"), level(findings, "ledger")) == ("broken", "skipped")


def test_a_url_of_no_database_that_parked_knows_needs_no_extra():
    wrong = {"ledger": "no such database"}
    seen = see(SidecarSettings(ledger="mysql://host/db"), wrong, offline=True)
    packages = {**seen.python.packages, "psycopg": None}

    assert examine(seen._replace(python=seen.python._replace(packages=packages)))["python"].level == "ok"


def test_a_folder_in_which_no_file_can_be_made_is_named_by_its_whole_path():
    folder = Path("/srv/captions/data")
    seen = rights.Seen(folder, 12345, frozenset(), rights.File("data", 0o755, 10001, 10001), False, ())

    assert rights.judge(seen).found == "no file can be made in /srv/captions/data"


def test_what_hangs_costs_its_own_row_and_no_more_than_the_deadline():
    never = threading.Event()

    found = all_at_once({"hangs": never.wait, "answers": lambda: 42}, within_s=0.2)

    assert found == {"hangs": Trouble("there was no answer within 0 s"), "answers": 42}
    never.set()


def test_what_fails_does_not_show_what_it_quotes():
    def fail():
        raise ValueError("a secret")

    assert all_at_once({"fails": fail}, within_s=5) == {"fails": Trouble("it could not be looked at (ValueError)")}


@pytest.mark.slow
def test_an_api_that_takes_connections_and_says_nothing_is_not_waited_for_long(doctor, story, api):
    api.hold()

    began = time.monotonic()
    status, findings = doctor()

    assert time.monotonic() - began < 30  # it promises half of that, on a machine that does nothing else
    assert (status, level(findings, "api")) == (3, "broken")


def test_every_check_is_explained():
    rows = PAGE.partition("## What it checks\n")[2].splitlines()

    assert [row.split("`")[1] for row in rows if row.startswith("| `")] == [check.name for check in CHECKS]


@sqlite_only
def test_the_page_shows_what_the_command_prints(parked, story, api, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", BAD_KEY)
    api.answers(lambda request: reply.bad_key())
    shown = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0].splitlines()

    printed = parked("doctor").out.splitlines()

    for line in shown:
        if not line.startswith(("$ ", "ledger", "volume", "  volume")):  # those are not of this machine
            assert line in printed, line


# --- encrypted texts ------------------------------------------------------------------------------------------------


@pytest.fixture
def encrypt(monkeypatch):
    """Returns a function that has texts encrypted from now on."""

    def encrypt(*keys):
        monkeypatch.setenv("PARKED_STORE", "encrypted")
        monkeypatch.setenv("PARKED_STORE_KEYS", ",".join(keys))

    return encrypt


def test_texts_whose_key_is_missing_are_counted_by_key(doctor, encrypt, telling):
    encrypt(STORE_KEY)
    with telling() as story:
        story.answered("a-1")
        story.parked("a-2")
    encrypt(NEW_STORE_KEY)
    with telling() as story:
        story.answered("a-3")

    _, without = doctor()
    encrypt(NEW_STORE_KEY, STORE_KEY)
    _, with_it = doctor()

    assert level(without, "texts") == "attention"
    assert without["texts"]["found"] == (  # two payloads, an answer and a message
        f"4 are encrypted with the key {key_id(STORE_KEY)}, which is none of PARKED_STORE_KEYS"
    )
    assert without["texts"]["next"].startswith("add that key there, behind the first")
    assert with_it["texts"]["found"] == "6 are encrypted, and the keys are there"


def test_pending_jobs_whose_key_is_missing_are_broken(doctor, encrypt, telling, monkeypatch):
    encrypt(STORE_KEY)
    with telling() as story:
        story.pending("a-1")
    monkeypatch.setenv("PARKED_STORE", "plain")
    monkeypatch.delenv("PARKED_STORE_KEYS")

    status, findings = doctor()

    assert (status, level(findings, "texts")) == (3, "broken")
    assert findings["texts"]["found"].endswith("; pending jobs can't be run without: 1")


def test_encrypting_without_a_key_is_broken(doctor, monkeypatch):
    monkeypatch.setenv("PARKED_STORE", "encrypted")

    status, findings = doctor()

    assert (status, level(findings, "texts")) == (3, "broken")
    assert findings["texts"]["next"].startswith("make one with `openssl rand")


def test_a_plain_ledger_has_nothing_encrypted(doctor, story):
    story.answered("a-1")

    _, findings = doctor()

    assert (level(findings, "texts"), findings["texts"]["found"]) == ("ok", "none is encrypted")


# --- the key and the way to the API ---------------------------------------------------------------------------------


def test_a_key_that_the_api_refuses_is_said_and_never_shown(parked, story, api, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", BAD_KEY)
    api.answers(lambda request: reply.bad_key() if request.key == BAD_KEY else None)

    said = parked("doctor", "--json")

    findings = {check["check"]: check for check in json.loads(said.out)["checks"]}
    assert said.status == 3
    assert findings["key"]["level"] == "ok"
    assert findings["api"]["level"] == "broken"
    assert findings["api"]["found"].startswith("answers 400 (")
    assert [request.key for request in api.requests] == [BAD_KEY]  # by models.list, which costs nothing
    assert api.requests[0].path.endswith("/models?pageSize=1")
    assert BAD_KEY not in said.out + said.err


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("ab\nc", "has a line break in it"),
        ("\n", "holds nothing but white space"),
        ("ab c", "has white space in it"),
        ('"abc"', "has quotation marks around it"),
        ("abc…", "has characters in it that no key has"),
    ],
)
def test_a_key_that_can_be_none_is_broken_by_itself(doctor, monkeypatch, key, what):
    monkeypatch.setenv("GEMINI_API_KEY", key)

    status, findings = doctor("--offline")

    assert (status, findings["key"]["found"]) == (3, f"GEMINI_API_KEY {what}")


def test_white_space_around_a_key_is_fine_since_the_sdk_takes_it_off(parked, doctor, jobs, api, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", " AIza\n")

    status, findings = doctor("--offline")
    ran = parked("run", jobs("one"), "--out", "answers.jsonl")

    assert (status, findings["key"]["found"], ran.status) == (0, "GEMINI_API_KEY is set", 0)
    assert {request.key for request in api.requests} == {"AIza"}


@pytest.mark.parametrize(
    ("key", "what"), [("s3\ncret", "has a line break in it"), ("s3cret\x7f", "has characters in it that no key has")]
)
def test_a_key_that_no_request_can_carry_is_refused_at_start_and_not_shown(parked, jobs, api, monkeypatch, key, what):
    monkeypatch.setenv("GEMINI_API_KEY", key)

    ran = parked("run", jobs("one"), "--out", "answers.jsonl")

    assert (ran.status, ran.out, api.requests) == (2, "", [])
    assert ran.err == f"parked: GEMINI_API_KEY {what}; set it again, with nothing but the key\n"


@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        ("AIza\n", 0, "GEMINI_API_KEY_FILE is set"),
        ("AI za\n", 3, "GEMINI_API_KEY_FILE has white space in it"),
        (None, 3, "GEMINI_API_KEY_FILE names no file that holds a key and can be read"),
    ],
)
def test_a_key_in_a_file_is_looked_at_like_any_other(doctor, monkeypatch, tmp_path, text, status, found):
    if text is not None:
        (tmp_path / "key").write_text(text)
    monkeypatch.setenv("GEMINI_API_KEY_FILE", str(tmp_path / "key"))

    ended, findings = doctor("--offline")

    assert (ended, findings["key"]["found"]) == (status, found)
    assert not findings["key"]["next"] or findings["key"]["next"].startswith("write the key, and nothing else, into a")


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_a_key_that_is_set_besides_a_file_is_as_broken_as_a_run_finds_it(
    parked, doctor, jobs, monkeypatch, tmp_path, variable
):
    (tmp_path / "key").write_text("AIza\n")
    monkeypatch.setenv("GEMINI_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv(variable, "AIza")

    status, findings = doctor("--offline")
    ran = parked("run", jobs("one"), "--out", "answers.jsonl")

    assert (status, ran.status, level(findings, "key")) == (3, 2, "broken")
    assert findings["key"]["next"] == "keep one of them"
    for said in (findings["key"]["found"], ran.err):
        assert f"{variable} and GEMINI_API_KEY_FILE are both set" in said


def test_two_keys_that_differ_are_pointed_out(doctor, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "one")
    monkeypatch.setenv("GOOGLE_API_KEY", "two")

    status, findings = doctor("--offline")

    assert (status, level(findings, "key")) == (0, "attention")
    assert "GOOGLE_API_KEY and GEMINI_API_KEY" in findings["key"]["found"]


def test_without_a_key_the_api_is_not_asked(doctor):
    _, findings = doctor()

    assert (level(findings, "key"), level(findings, "api")) == ("attention", "skipped")


def test_credentials_that_are_not_there_are_named(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))

    status, findings = doctor("--offline")

    assert status == 3
    assert str(tmp_path / "account.json") in findings["key"]["found"]


def test_an_api_that_is_busy_is_no_reason_to_call_it_broken(doctor, story, api):
    api.answers(lambda request: reply.overloaded())

    status, findings = doctor()

    assert (status, level(findings, "api")) == (0, "attention")


def test_a_gateway_that_lists_no_models_is_told_apart_from_a_wrong_key(doctor, story, api):
    api.answers(lambda request: reply.error(404, "NOT_FOUND", "no"))

    status, findings = doctor()

    assert (status, level(findings, "api")) == (0, "attention")
    assert "GOOGLE_GEMINI_BASE_URL" in findings["api"]["next"]


def test_an_api_where_nobody_listens_is_broken(doctor, story, api, monkeypatch):
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"http://127.0.0.1:{free_port()}")

    status, findings = doctor()

    assert (status, level(findings, "api")) == (3, "broken")
    assert findings["api"]["found"].startswith("doesn't answer: ")
    assert (
        findings["api"]["next"] == "see what keeps this machine from reaching it: network, name server, firewall, proxy"
    )


def test_calls_that_go_through_a_proxy_are_said_to(doctor, story, api, monkeypatch):
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://gemini.example.com")
    monkeypatch.setenv("HTTP_PROXY", api.url.replace("://", "://somebody:s3cret@"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")

    status, findings = doctor()

    assert (status, level(findings, "api")) == (0, "ok")
    assert findings["proxy"]["found"] == f"calls to gemini.example.com go through the proxy {api.url}"
    assert api.requests[0].headers["Host"] == "gemini.example.com"


def test_a_proxy_before_the_loopback_is_pointed_out(doctor, story, api, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", api.url)

    _, findings = doctor("--offline")

    assert level(findings, "proxy") == "attention"
    assert findings["proxy"]["next"] == "add 127.0.0.1,localhost to NO_PROXY"


@pytest.mark.parametrize(
    "proxy",
    ["socks5://{}proxy:1080", "http://{}", "http://{}proxy:port", "ftp://{}x", "https://{}proxy:3128", "{}proxy:3128"],
)
def test_a_proxy_that_is_none_is_refused_at_start_without_its_password(parked, jobs, api, monkeypatch, proxy):
    monkeypatch.setenv("HTTP_PROXY", proxy.format("u:s3cret@"))

    diagnosed = parked("doctor", "--offline")
    ran = parked("run", jobs("one"), "--out", "answers.jsonl")

    assert (diagnosed.status, ran.status) == (3, 2)
    for said in (diagnosed.out, ran.err):
        assert "HTTP_PROXY names no proxy that can be used" in said
        assert "s3cret" not in said


def test_a_run_says_that_its_proxy_is_away(parked, jobs, api, monkeypatch):
    port = free_port()
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://gemini.example.com")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")

    ran = parked("run", jobs("one"), "--out", "answers.jsonl", "--max-attempts", "1")

    assert 'proxy_unreachable why="calls go through' in ran.err
    assert f"the proxy http://127.0.0.1:{port}, which can't be reached" in ran.err
    assert "name gemini.example.com in NO_PROXY" in ran.err


# --- authorities --------------------------------------------------------------------------------------------------


@pytest.fixture
def bundles(tmp_path):
    (tmp_path / "empty.pem").touch()
    (tmp_path / "text.pem").write_text("no certificate")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("variable", "name", "why"),
    [
        ("SSL_CERT_FILE", "none.pem", "can't be read: No such file or directory"),
        ("SSL_CERT_FILE", "empty.pem", "is empty"),
        ("SSL_CERT_FILE", "text.pem", "holds no certificate that can be read"),
        ("SSL_CERT_FILE", "folder", "is a folder"),
        ("SSL_CERT_DIR", "none", "can't be read: No such file or directory"),
        ("SSL_CERT_DIR", "folder", "holds no authority that OpenSSL finds"),
    ],
)
@sqlite_only
def test_authorities_that_are_missing_are_named_at_start_and_by_the_doctor(
    parked, jobs, api, monkeypatch, bundles, no_ledger, variable, name, why
):
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv(variable, str(bundles / name))

    diagnosed = parked("doctor", "--offline")
    ran = parked("run", jobs("one"), "--out", "answers.jsonl")

    assert (diagnosed.status, ran.status) == (3, 2)
    for said in (diagnosed.out, ran.err):
        assert f"{variable} ({str(bundles / name)!r}) {why}" in said
        assert f"name a file of authorities in PEM form by {variable}, or leave it out" in said


def test_with_a_file_of_authorities_a_folder_that_is_missing_breaks_nothing(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))

    status, findings = doctor("--offline")

    assert (status, level(findings, "certificates")) == (0, "attention")


class Models(BaseHTTPRequestHandler):
    """An API that lists its models."""

    def do_GET(self) -> None:
        body = b'{"models": [{"name": "models/gemini-3.5-flash"}]}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """To nobody."""


@pytest.fixture
def secure_api(tmp_path, monkeypatch) -> Iterator[Path]:
    """The API over TLS, where the SDK looks for it; yields the certificate of its authority, which is its own."""
    program = shutil.which("openssl")
    if program is None:
        missing("openssl")
    key, certificate = tmp_path / "api.key", tmp_path / "api.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += [
        "-subj",
        "/CN=api",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([str(program), *words], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"https://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    yield certificate
    server.shutdown()
    thread.join()
    server.server_close()


@sqlite_only
def test_an_api_whose_certificate_is_of_no_known_authority_is_broken(doctor, story, secure_api, monkeypatch):
    _, stranger = doctor()
    monkeypatch.setenv("SSL_CERT_FILE", str(secure_api))
    _, known = doctor()

    assert (level(stranger, "certificates"), level(stranger, "api")) == ("ok", "broken")
    assert "certificate" in stranger["api"]["found"]
    assert "SSL_CERT_FILE" in stranger["api"]["next"]
    assert (level(known, "certificates"), level(known, "api")) == ("ok", "ok")


# --- clocks, labels, roles ----------------------------------------------------------------------------------------


def test_a_ledger_from_the_future_is_said_by_the_doctor_and_at_start(parked, url, jobs, api):
    with open_ledger(url, clock=lambda: time.time() + 3 * 86_400 + 60) as ledger:
        ledger.record(op.SetMark("seen", 1))

    diagnosed = parked("doctor", "--offline" if url.startswith("sqlite") else "--json")
    ran = parked("run", jobs("one"), "--out", "answers.jsonl")

    for said in (diagnosed.out, ran.err):
        assert "the ledger's newest entry comes from the future, by 3 days" in said
        assert "timedatectl" in said
    assert (diagnosed.status, ran.status) == (0, 0)


@pytest.mark.parametrize(("hours", "where"), [(5, "behind"), (-5, "ahead of")])
def test_the_clock_is_compared_with_that_of_the_api(doctor, story, api, hours, where):
    date = formatdate(time.time() + hours * 3600 + (30 if hours > 0 else -30), usegmt=True)
    api.answers(lambda request: replace(reply.overloaded(), headers={"Date": date}))

    _, findings = doctor()

    assert findings["clock"]["level"] == "attention"
    assert findings["clock"]["found"] == f"this machine's clock is 5 h {where} that of the API"


def test_names_in_metrics_are_counted_before_they_run_out(doctor, story):
    for number in range(80):
        story.pending("a", pipeline=f"night-{number}")

    status, findings = doctor()

    assert (status, level(findings, "labels")) == (0, "attention")
    assert findings["labels"]["found"].startswith("80 of 100 pipelines and 80 of 200 pairs")


@pytest.mark.slow
@pytest.mark.parametrize("url_on_each_database", ["postgres"], indirect=True)
def test_a_role_that_may_only_look_is_told_so(parked, roles, postgres):
    assert main(["migrate", "--ledger", postgres.url("ledger", user="parked_migrate")]) == 0

    said = [
        parked("doctor", "--ledger", postgres.url("ledger", user=role)).out for role in ("parked_look", "parked_run")
    ]

    assert "this role may only look: it lacks" in said[0]
    assert "docs/postgres.md has the rights" in said[0]
    assert "this role has the rights of a program that runs jobs" in said[1]


# --- the file and its volume ----------------------------------------------------------------------------------------


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def judge_on(doctor, folder: Path, *words: str):
    return doctor("--offline", "--ledger", f"sqlite:///{folder}/parked.db", *words)


@sqlite_only
def test_a_ledger_that_is_held_locked_is_broken_though_it_can_be_read(doctor, story, url):
    story.pending("a-1")
    with closing(sqlite3.connect(file_of(url), isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        status, findings = doctor("--offline")
    _, after = doctor("--offline")

    assert (status, level(findings, "ledger")) == (3, "broken")
    assert "another process holds it locked" in findings["ledger"]["found"]
    assert level(after, "ledger") == "ok"


@sqlite_only
def test_a_ledger_in_memory_with_little_room_is_told_so(doctor, small_disk):
    with open_ledger(f"sqlite:///{small_disk.path}/parked.db"):
        pass

    status, findings = judge_on(doctor, small_disk.path)

    assert status == 3
    assert level(findings, "volume") == "broken"
    assert "MB are free on the volume of the ledger" in findings["volume"]["found"]


@sqlite_only
def test_a_ledger_in_a_containers_own_layer_goes_with_the_container(doctor, container_layer):
    with open_ledger(f"sqlite:///{container_layer}/parked.db"):
        pass

    status, findings = judge_on(doctor, container_layer)

    assert (status, level(findings, "volume")) == (0, "attention")
    assert "a container's own layer (overlay at " in findings["volume"]["found"]
    assert findings["volume"]["next"] == "put it on a volume"


@sqlite_only
def test_a_ledger_on_a_file_system_of_fuse_may_be_on_a_network(doctor, fuse_disk):
    with open_ledger(f"sqlite:///{fuse_disk}/parked.db"):
        pass

    status, findings = judge_on(doctor, fuse_disk)

    assert (status, level(findings, "volume")) == (0, "attention")
    assert "use PostgreSQL for several" in findings["volume"]["next"]


@sqlite_only
def test_a_process_of_another_machine_is_broken_on_a_file_system_that_two_can_share(doctor, fuse_disk):
    elsewhere = owners.facts("worker")._replace(boot_id="another", host="node-2", pid=7)
    with open_ledger(f"sqlite:///{fuse_disk}/parked.db") as ledger:
        ledger.record(op.Register(elsewhere))

    status, findings = judge_on(doctor, fuse_disk)

    assert (status, level(findings, "machines")) == (3, "broken")
    assert "node-2 pid 7" in findings["machines"]["found"]


@sqlite_only
def test_on_a_local_disk_it_is_one_of_before_the_machine_was_started_again(doctor, story):
    story.ledger.record(op.Register(owners.facts("worker")._replace(boot_id="another", host="node-1", pid=7)))

    status, findings = doctor("--offline")

    assert (status, level(findings, "machines")) == (0, "ok")
    assert "node-1 pid 7" in findings["machines"]["found"]


@sqlite_only
def test_a_volume_that_is_read_only_is_broken_twice(doctor, read_only_disk, tmp_path):
    with open_ledger(f"sqlite:///{tmp_path}/real/parked.db"):
        pass

    status, findings = judge_on(doctor, read_only_disk)

    assert status == 3
    assert "mounted read-only" in findings["volume"]["found"]
    assert level(findings, "ledger") == "broken"


@sqlite_only
def test_a_ledger_that_everybody_may_read_is_pointed_out(doctor, story, url):
    file_of(url).chmod(0o644)

    _, findings = doctor("--offline")

    assert level(findings, "rights") in ("attention", "broken")
    assert "may be read or written by every user" in findings["rights"]["found"]


@sqlite_only
def test_a_ledger_of_a_group_needs_a_folder_that_hands_its_group_on(doctor, story, url):
    story.pending("a-1")
    file = file_of(url)
    for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        name.chmod(0o660)

    _, before = doctor("--offline")
    file.parent.chmod(0o2770)
    _, after = doctor("--offline")

    assert (level(before, "rights"), level(after, "rights")) == ("attention", "ok")
    assert "chmod g+ws" in before["rights"]["next"]


@sqlite_only
def test_files_of_two_users_are_broken(doctor, story, url):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    story.pending("a-1")
    os.chown(f"{file_of(url)}-wal", 12345, -1)

    status, findings = doctor("--offline")

    assert (status, level(findings, "rights")) == (3, "broken")
    assert "parked.db-wal to 12345" in findings["rights"]["found"]
    assert "as one user" in findings["rights"]["next"]


@sqlite_only
@pytest.mark.parametrize("inside", ["parked.db", "no/such/parked.db"])
def test_a_folder_that_may_not_be_entered_is_broken_for_this_user(doctor, story, tmp_path, inside):
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    with open_ledger(f"sqlite:///{locked}/parked.db"):
        pass
    doctor("--offline")  # all that it imports may belong to root alone, too

    os.seteuid(12345)
    try:
        status, findings = doctor("--offline", "--ledger", f"sqlite:///{locked}/{inside}")
    finally:
        os.seteuid(0)

    assert status == 3
    assert [level(findings, name) for name in ("ledger", "rights")] == ["broken", "broken"]
    assert findings["rights"]["found"] == "the rights of the ledger can't be looked at: Permission denied"
    assert "as the user of the ledger's programs" in findings["rights"]["next"]


@sqlite_only
def test_a_program_that_runs_as_another_user_is_pointed_out(doctor, story):
    if os.geteuid() != 0:
        pytest.skip("only root starts a program as another user")
    sleeps = subprocess.Popen([str(shutil.which("sleep")), "60"], user=12345)
    try:
        story.ledger.record(op.Register(owners.facts("worker")._replace(pid=sleeps.pid)))

        status, findings = doctor("--offline")
    finally:
        sleeps.kill()
        sleeps.wait()

    assert (status, level(findings, "rights")) == (0, "attention")
    assert f"worker pid {sleeps.pid} runs as user 12345" in findings["rights"]["found"]
