"""Who may ask the sidecar for what."""

import gzip
import json
import time

import pytest

from parked.version import __version__
from parked_exporter.collector import Lookout, look
from parked_exporter.web import Access, App
from wsgi import Answered

TOKEN = "correct-horse-battery"
GUARDED = ["/", "/api/parked", "/api/causes", "/api/summary"]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def make_app(url):
    def make(*, host="127.0.0.1", external_url=None, token=TOKEN):
        access = Access.at(host, external_url=external_url, token=token)
        return App(url, Lookout(lambda: look(url)), None, access)

    return make


@pytest.fixture
def app(make_app):
    return make_app()


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/-/ready"])
def test_metrics_and_probes_need_no_token(app, ledger, path):
    assert Answered(app, path).status == 200


@pytest.mark.parametrize("path", [*GUARDED, "/api/anything"])
def test_every_other_page_needs_the_token(app, ledger, path):
    without = Answered(app, path)
    wrong = Answered(app, path, authorization="Bearer wrong-horse-battery")

    assert (without.status, wrong.status) == (401, 401)
    assert without.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", GUARDED)
def test_without_a_token_set_the_guarded_pages_answer_nobody_and_say_why(make_app, ledger, path):
    answered = Answered(make_app(token=None), path, authorization="Bearer anything")

    assert answered.status == 403
    assert b"PARKED_TOKEN" in answered.body


def test_a_token_that_is_not_ascii_is_wrong_and_no_error(app):
    assert Answered(app, "/", authorization="Bearer gr\xfcn").status == 401


def test_with_the_token_the_landing_page_links_to_the_others(app):
    answered = Answered(app, "/", authorization=f"Bearer {TOKEN}")

    assert answered.status == 200
    for path in ["/metrics", "/-/healthy", "/-/ready", *GUARDED[1:]]:
        assert f'href="{path}"'.encode() in answered.body


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/favicon.ico", ""])
def test_pages_that_are_not_there_are_404(app, path):
    assert Answered(app, path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_whoever_wants_to_change_something_is_told_that_this_only_shows(app, method):
    answered = Answered(app, "/metrics", method=method)

    assert answered.status == 405
    assert answered.headers["Allow"] == "GET, HEAD"


def test_head_gives_the_headers_without_the_body(app):
    answered = Answered(app, "/-/healthy", method="HEAD")

    assert (answered.status, answered.body) == (200, b"")
    assert int(answered.headers["Content-Length"]) > 0


@pytest.mark.parametrize("host", ["127.0.0.1:9465", "localhost", "LOCALHOST:1", "parked.example.com"])
def test_the_server_goes_by_its_listen_address_localhost_and_its_external_url(make_app, host):
    app = make_app(external_url="https://parked.example.com/sidecar")

    assert Answered(app, "/-/healthy", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com", "127.0.0.1.evil.example.com", "10.0.0.9", "", "[", "user@evil", "evil@localhost",
        "localhost/evil", "localhost#evil", "localhost?evil",
    ],
)  # fmt: skip
def test_a_request_under_another_name_is_misdirected(app, host):
    assert Answered(app, "/metrics", host=host).status == 421


@pytest.mark.parametrize(
    ("host", "status"), [("10.0.0.9:9465", 200), ("[fe80::1]:9465", 200), ("evil.example.com", 421)]
)
def test_a_server_on_every_address_goes_by_every_address_but_by_no_other_name(make_app, host, status):
    assert Answered(make_app(host="0.0.0.0"), "/-/healthy", host=host).status == status


def test_the_accept_header_chooses_between_openmetrics_and_text(app, ledger):
    text, openmetrics = Answered(app, "/metrics"), Answered(app, "/metrics", accept=OPENMETRICS)

    assert text.headers["Content-Type"].startswith("text/plain")
    assert b"# EOF" not in text.body
    assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_whoever_accepts_gzip_gets_it(app, ledger):
    zipped = Answered(app, "/metrics", accept_encoding="deflate, gzip")

    assert zipped.headers["Content-Encoding"] == "gzip"
    assert b"parked_ledger_up 1.0" in gzip.decompress(zipped.body)


def test_ready_says_which_ledger_it_reads(app, ledger):
    state = json.loads(Answered(app, "/-/ready").body)

    assert state == {
        "ready": True,
        "reasons": [],
        "ledger": ledger.name,
        "read_only": True,
        "version": __version__,
        "leases": {},
    }


def test_without_a_ledger_the_sidecar_is_alive_but_not_ready_and_says_why(app, url):
    answered = Answered(app, "/-/ready")

    assert Answered(app, "/-/healthy").status == 200
    assert answered.status == 503
    assert url.removeprefix("sqlite:///") in json.loads(answered.body)["reasons"][0]


def until_up(app):
    """Scrape until the ledger is there, and return that answer."""
    deadline = time.monotonic() + 20
    while b"parked_ledger_up 1.0" not in (up := Answered(app, "/metrics")).body:
        assert time.monotonic() < deadline
    return up


@pytest.mark.parametrize(
    ("said", "deadline"),
    [("0.25", "0.2"), ("10", "0.3"), ("-1", "0.3"), ("nan", "0.3"), ("soon", "0.3"), ("1e-9", "0.3")],
)
def test_prometheus_is_answered_before_its_own_patience_ends(url, ledger, locked, caplog, said, deadline):
    lookout = Lookout(lambda: look(url), deadline_s=0.3)
    app = App(url, lookout, None, Access.at("127.0.0.1", external_url=None, token=None))

    answered = Answered(app, "/metrics", x_prometheus_scrape_timeout_seconds=said)
    (record,) = [record for record in caplog.records if record.getMessage() == "ledger_unreadable"]
    locked.close()
    until_up(app)

    assert b"parked_ledger_up 0.0" in answered.body
    assert record.parked_fields == {"why": f"the ledger gave no answer within {deadline} s"}


def test_a_locked_ledger_is_down_at_the_deadline_and_up_again_once_it_is_free(url, ledger, locked):
    lookout = Lookout(lambda: look(url), deadline_s=0.1)
    app = App(url, lookout, None, Access.at("127.0.0.1", external_url=None, token=None))

    down = Answered(app, "/metrics")
    locked.close()
    up = until_up(app)

    assert (down.status, up.status) == (200, 200)
    assert b"parked_ledger_up 0.0" in down.body
