"""A PostgreSQL that is spoken to over TLS, with an authority of the test's own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from parked.cli import main
from parked.errors import LedgerUnavailable
from parked.ledger import open_ledger
from parked.ledger import operations as op
from servers import Postgres, missing, running

pytestmark = pytest.mark.slow


def authority(folder: Path, name: str) -> Path:
    """Make an authority; return its certificate."""
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")  # fmt: skip
    return folder / f"{name}.pem"


def certificate(folder: Path, ca: Path, *, host: str) -> None:
    """Make `server.key` and `server.crt`, signed by that authority, for a host of that address."""
    request, names = folder / "server.csr", folder / "names"
    names.write_text(f"subjectAltName=IP:{host}", "ascii")
    _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=ledger",
             "-keyout", folder / "server.key", "-out", request)  # fmt: skip
    _openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca.with_suffix(".key"), "-days", "2",
             "-extfile", names, "-out", folder / "server.crt")  # fmt: skip


def _openssl(*words: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        missing("openssl")
    subprocess.run([str(program), *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    certificate(folder, authority(folder, "right"), host="127.0.0.1")
    authority(folder, "wrong")
    return folder


@pytest.fixture(scope="module")
def secure(authorities: Path) -> Iterator[Postgres]:
    """A server that has TLS and asks `careful` for a password."""
    with running() as server:
        server.use_tls(key=authorities / "server.key", certificate=authorities / "server.crt")
        server.run("CREATE DATABASE ledger", "CREATE ROLE careful LOGIN SUPERUSER PASSWORD 's3cret'")
        with server.asking_for_passwords("careful"):
            yield server


@pytest.mark.parametrize("mode", ["require", "verify-ca&sslrootcert={right}", "verify-full&sslrootcert={right}"])
def test_a_ledger_is_written_over_tls(secure, authorities, mode):
    mode = mode.format(right=authorities / "right.pem")
    url = f"{secure.url('ledger', user='careful:s3cret')}?sslmode={mode}"

    with open_ledger(url) as ledger:
        ledger.record(op.SetMark("seen", mode))
        with psycopg.connect(secure.url("ledger")) as connection:
            encrypted = connection.execute(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'parked'"
            ).fetchall()

    assert set(encrypted) == {(True,)}


@pytest.mark.parametrize(
    ("host", "mode"),
    [
        ("127.0.0.1", "verify-full&sslrootcert={wrong}"),
        ("127.0.0.1", "verify-ca&sslrootcert={wrong}"),
        ("127.0.0.1", "verify-full&sslrootcert={missing}"),
        ("localhost", "verify-full&sslrootcert={right}"),
    ],
    ids=["another authority", "another authority for verify-ca", "no authority", "another host"],
)
def test_a_server_that_is_not_the_one_that_was_meant_is_refused(secure, authorities, host, mode, capsys):
    files = {name: authorities / f"{name}.pem" for name in ("right", "wrong", "missing")}
    url = secure.url("ledger", user="careful:s3cret").replace("127.0.0.1", host) + f"?sslmode={mode.format(**files)}"

    with pytest.raises(LedgerUnavailable):
        open_ledger(url)
    status = main(["--ledger", url, "list"])

    said = capsys.readouterr()
    assert status == 3
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "can't be reached over TLS as its URL asks for; check sslmode, sslrootcert and the server's cert" in line
    assert "s3cret" not in line
    assert "careful" not in line
