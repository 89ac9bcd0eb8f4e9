"""The server of a PostgreSQL ledger: what its URL says, how it is connected, and what its errors mean.

Nothing is kept in a session, so that a pooler may give each transaction another one (PgBouncer in transaction mode):
SET LOCAL only, no LISTEN, no lock that outlives its transaction; prepared statements only where none is in between.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, unquote

from parked.errors import LedgerMissing, LedgerUnavailable, ParkedError, SettingsError
from parked.extras import install
from parked.ledger.sqlite_file import CREATORS
from parked.ledger.store import ConnectionLost, Contended, Denied

if TYPE_CHECKING:
    import psycopg

OLDEST_SERVER: Final = 13  # the oldest that its makers still mended when this was written
PATIENCE_S: Final = 30  # for a lock that others hold
SILENCE_S: Final = 60.0  # without an answer while something is written; longer than a lock is waited for

TLS_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

# What a URL may say otherwise: a server that is gone is noticed in half a minute, whatever the system's own patience.
DEFAULTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "parked",
}

# Durable before the call, whatever the server's or the role's default is; what is stricter than `on` stays. All that is
# asked in it is looked up by key: where statistics are old or absent, as in a ledger that was just filled, the planner
# may read whole tables instead (measured: 1,235 µs instead of 320 for 16 jobs of 6,000).
BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
# How a transaction that writes is set up: one statement, so that it travels with the one after it.
SET_UP: Final = (
    b"SELECT extract(epoch FROM clock_timestamp())::float8, pg_current_xact_id()::text,"
    b" set_config('lock_timeout', '30s', true), set_config('jit', 'off', true),"
    b" set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),"
    b" set_config('enable_mergejoin', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),"
    # A session whose client the network has cut off would hold its locks until the system's keepalive, two hours.
    b" set_config('idle_in_transaction_session_timeout', '15s', true),"
    b" CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')"
    b" THEN set_config('synchronous_commit', 'on', true) END"
)
BEGIN_READING: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL jit = off"

# What of a URL's parameters leads to the database, beside `dbname`; and what else may stand in a command that is shown.
# Any other one may be a secret, lead to one, or be newer than this code.
ADDRESS: Final = ("host", "hostaddr", "port", "service")
HARMLESS: Final = (*ADDRESS, "sslmode", "sslrootcert", "target_session_attrs", "connect_timeout")
LOGIN: Final = frozenset({"user", "password"})
# Where somebody is to put what isn't shown: until then, libpq refuses the one, and the server the other.
OTHER_USER: Final = "USER"
OTHER_PARAMETERS: Final = "PARAMETERS"

LOGS: Final = "see that the server runs, and look into its log, or that of the pooler before it"
GRANTS: Final = "docs/postgres.md has the rights of each role"

MAY_NOT_FILL: Final = (
    "may not fill the ledger in {where} with a copy; parked copy takes the role that owns its schema, or may create it"
)

# What libpq says when it can't connect, in its words: it gives no codes. The rest of the sentence, and the next step.
REFUSALS: Final = (
    (
        r"invalid response to (SSL|GSSAPI) negotiation|expected authentication request from server",
        "can't be reached: what answers there isn't PostgreSQL; check host and port in the URL",
    ),
    (r"resolve host|translate host name", "can't be reached: there is no such host; check the host in the URL"),
    (
        r"[Cc]onnection refused|No such file or directory\n",
        "can't be reached: nothing listens there; check host and port, and that the server runs",
    ),
    (
        r"timeout expired|timed out|No route to host|[Nn]etwork is unreachable",
        "can't be reached: the server doesn't answer; check host, port and firewall",
    ),
    (
        r"no password supplied",
        "refuses the login: it asks for a password, and none was given; put one in PGPASSWORD or ~/.pgpass, or the URL",
    ),
    (
        r"certificate authentication failed|requires a valid client certificate",
        "refuses the login: it asks for a certificate of this user's; set sslcert and sslkey in the URL",
    ),
    (
        r"password authentication failed|SASL authentication failed|SCRAM",
        "refuses the login: user or password is wrong; check both in the URL, or PGPASSWORD or ~/.pgpass",
    ),
    (r"role \".*\" does not exist|no such user", "refuses the login: there is no such user; check the user in the URL"),
    (
        r"database \".*\" does not exist|no such database",
        "isn't there: the server has no such database; create it, or check the name in the URL",
    ),
    (
        r"no pg_hba.conf entry|pg_hba.conf rejects",
        "refuses the login: pg_hba.conf lets this user, address or TLS mode not in; add an entry for it",
    ),
    (
        r"server does not support SSL",
        "has no TLS, which sslmode in its URL asks for; switch it on in the server, or set another sslmode",
    ),
    (
        r"certificate|SSL|sslrootcert|root.crt",
        "can't be reached over TLS as its URL asks for; check sslmode, sslrootcert and the server's certificate",
    ),
    (
        r"too many connections|too many clients|remaining connection slots|no more connections allowed",
        "has no connection left; raise max_connections, or put PgBouncer before it",
    ),
    (
        r"session is read-only|server is in hot standby|server is not in hot standby",
        "can't be written: none of the servers in its URL is the primary now; try again when one was promoted",
    ),
    (
        r"starting up|shutting down|recovery mode|not yet accepting",
        "isn't ready: the server is starting or stopping; try again in a moment",
    ),
    (r"permission denied for database", f"refuses this user its database (CONNECT); {GRANTS}"),
)

BROKEN_OFF_EARLY: Final = (
    r"closed the connection|connection has been closed|Connection reset|Broken pipe|terminating connection"
)

# SQLSTATE codes, or their first two characters (https://www.postgresql.org/docs/current/errcodes-appendix.html).
MEANINGS: Final = {
    "08": f"lost the connection; {LOGS}",
    # BEGIN READ WRITE on a standby is refused as a feature that it doesn't have
    "0A": "can't be written: the server is a standby, or lacks what parked needs; name the primary in the URL",
    "25006": "can't be written: the server is a standby, or read-only; name the primary in the URL",
    "25P03": "ended the connection: a transaction stood still (idle_in_transaction_session_timeout)",
    "25P04": "ended the connection: a transaction took longer than the server allows (transaction_timeout)",
    "28": "refuses the login; check user and password in the URL",
    "42501": "refuses this role a right",
    "53100": "can't be written: the server's disk is full",
    "53300": "has no connection left; raise max_connections, or put PgBouncer before it",
    "53": "can't be used: the server lacks memory, disk or other resources",
    "54": "can't take this: it is beyond a limit of the server",
    "55P03": f"was held locked by another process for {PATIENCE_S} s",
    "57014": "broke a statement off: it took longer than the server or the role allows (statement_timeout)",
    "57": "ended the connection: the server is being stopped or restarted",
    "58": "can't be read or written: the server reports an I/O error",
    "XX": "is damaged, or the server has a fault; look into its log",
}
# How a session ends that the server or the network breaks off: nothing of its transaction has happened.
ENDED: Final = ("08", "25P03", "25P04", "57P01", "57P02", "57P05")
# No ledger where there was one: the schema or a table is gone.
GONE: Final = frozenset({"3F000", "42P01"})
# Broken off for another transaction's sake: deadlock, serialization.
BROKEN_OFF: Final = frozenset({"40P01", "40001"})
# A statement isn't prepared in this session, or is already: there is a pooler between after all.
ANOTHER_SESSION: Final = frozenset({"26000", "42P05"})


@dataclass(frozen=True, slots=True)
class Server:
    """A server and database as a URL names them."""

    where: str  # for people: what leads to the database, and neither user nor password
    shown: str  # the URL as it may stand in a command: with places for what isn't shown
    url: str = field(repr=False)
    parameters: frozenset[str] = field(repr=False, default=frozenset())  # names of those that the URL sets
    hosts: str = field(repr=False, default="")  # as the URL names them, with their ports

    @classmethod
    def of(cls, url: str) -> Self:
        """Read `postgresql://user:password@host:port/database?sslmode=verify-full`; libpq knows `PG…` variables, too.

        Raises:
            SettingsError: it can't be read, or asks for a TLS mode that there isn't; nothing of it is quoted that may
                be part of a password.
        """
        rest, _, query = url.partition("://")[2].partition("?")
        authority, _, database = rest.partition("/")
        hosts = authority.rpartition("@")[2]
        ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
        if (
            "@" in database
            or "@" in query.partition("&")[0].partition("=")[0]
            or not all(port == "" or port.isdecimal() for port in ports)
        ):
            raise SettingsError(
                "the ledger's URL can't be read: it must be like postgresql://user@host:5432/database, with special"
                " characters of user and password percent-encoded ('/' as %2F, '@' as %40, '?' as %3F)"
            )
        # Not by `parse_qsl`: to libpq, a plus sign is one.
        pairs = (pair.partition("=") for pair in query.split("&") if pair)
        parameters = {unquote(name): unquote(value) for name, _, value in pairs}
        mode = parameters.get("sslmode")
        if mode is not None and mode not in TLS_MODES:
            raise SettingsError(f"sslmode in the ledger's URL must be one of {', '.join(TLS_MODES)}, got {mode!r}")
        place = f"{hosts}/{quote(parameters.get('dbname', unquote(database)))}"
        login = f"{OTHER_USER}@" if "@" in authority or parameters.keys() & LOGIN else ""
        others = (OTHER_PARAMETERS,) if parameters.keys() - {*HARMLESS, *LOGIN, "dbname"} else ()
        return cls(
            where=_written(place, parameters, ADDRESS),
            shown=_written(f"{login}{place}", parameters, HARMLESS, *others),
            url=url,
            parameters=frozenset(parameters),
            hosts=parameters.get("host", hosts),
        )

    def connect(self, *, silence_s: float | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect; each statement is a transaction of its own until one is begun.

        For an answer it is waited `silence_s`; None: as long as it takes.

        Raises:
            SettingsError: the URL has a parameter that libpq doesn't know.
            LedgerUnavailable: the server can't be reached, refuses the login, or is too old.
        """
        import psycopg

        from parked.ledger.postgres_connection import Connection

        defaults: dict[str, Any] = DEFAULTS | self._default_attributes()
        for name in self.parameters & defaults.keys():
            del defaults[name]
        try:
            connection = Connection.connect(
                self.url, autocommit=True, prepare_threshold=None, client_encoding="utf-8", **defaults
            )
        except psycopg.ProgrammingError:  # libpq quotes the part that it can't read, maybe of a password
            raise SettingsError(
                "the ledger's URL can't be read by libpq: percent-encode special characters, and check the parameters"
                " behind the '?' (https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS)"
            ) from None
        except psycopg.OperationalError as exc:
            raise self.refused(str(exc)) from None  # the message may name the user
        try:
            check_server(
                connection.info.server_version, connection.info.parameter_status("server_encoding"), where=self.where
            )
        except BaseException:
            connection.close()
            raise
        connection.silence_s = silence_s
        return connection

    def connect_to_write(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The same for a writer: a server that falls silent is left after `SILENCE_S`.

        Statements are prepared where that is safe: it takes half of the server's work a job away. A pooler tells its
        clients another process id than the server's own; then each transaction may get another session.
        """
        connection = self.connect(silence_s=SILENCE_S)
        try:
            row = connection.execute(b"SELECT pg_backend_pid()").fetchone()
        except BaseException as exc:
            connection.close()
            if isinstance(exc, Exception):
                raise self.explain(exc) from exc
            raise
        if row == (connection.info.backend_pid,):
            connection.prepare_threshold = 0
        return connection

    def _default_attributes(self) -> dict[str, str]:
        """Of several hosts the one that can be written; libpq alone would be content with a standby."""
        several = "," in (self.hosts or os.environ.get("PGHOST", ""))
        return {"target_session_attrs": "read-write"} if several and "PGTARGETSESSIONATTRS" not in os.environ else {}

    def refused(self, said: str) -> ParkedError:
        """Return what libpq's text for a connection that it couldn't make means to parked, in one sentence."""
        if "invalid sslmode" in said:  # from PGSSLMODE: that of the URL was checked
            return SettingsError(f"PGSSLMODE must be one of {', '.join(TLS_MODES)}")
        if re.search(BROKEN_OFF_EARLY, said):
            return ConnectionLost(f"the ledger {self.where} broke the connection off while it was being made; {LOGS}")
        for pattern, meaning in REFUSALS:
            if re.search(pattern, said):
                return LedgerUnavailable(f"the ledger {self.where} {meaning}")
        return LedgerUnavailable(f"the ledger {self.where} can't be reached; try `psql` with the same URL to see why")

    def explain(self, exc: Exception) -> Exception:
        """Return what an error of PostgreSQL means to parked, in one sentence; any other exception as it is."""
        import psycopg

        from parked.ledger.postgres_connection import Silent

        if isinstance(exc, ParkedError) or not isinstance(exc, psycopg.Error):
            return exc
        if isinstance(exc, Silent):
            return LedgerUnavailable(f"the ledger {self.where} has not answered for too long; its disk may hang")
        code = exc.sqlstate
        if code in BROKEN_OFF:
            return Contended(f"the ledger {self.where} broke a transaction off, because another one stood in its way")
        if code in GONE:
            return LedgerMissing(f"there is no ledger in {self.where} any more; {CREATORS}")
        if code == "42501":
            # `permission denied for table jobs`: names of parked's own tables
            said = exc.diag.message_primary or "permission denied"
            return Denied(f"the ledger {self.where} refuses this role a right ({said}); {GRANTS}")
        if code is None and isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)):
            code = "08"
        code = code or ""
        meaning = MEANINGS.get(code, MEANINGS.get(code[:2]))
        if meaning is None:
            if not isinstance(exc, (psycopg.OperationalError, psycopg.InternalError, psycopg.NotSupportedError)):
                return exc  # of what was to be written, or a bug
            meaning = f"can't be used: the server says {code} ({type(exc).__name__})"
        kind = ConnectionLost if code.startswith(ENDED) else LedgerUnavailable
        return kind(f"the ledger {self.where} {meaning}")


def _written(place: str, parameters: Mapping[str, str], names: tuple[str, ...], *more: str) -> str:
    """The URL of a place, with those of these parameters that there are."""
    query = [f"{name}={quote(parameters[name], safe='/:,')}" for name in names if name in parameters]
    return "?".join(filter(None, (f"postgresql://{place}", "&".join([*query, *more]))))


def require_psycopg() -> None:
    """See that the driver is there.

    Raises:
        LedgerUnavailable: the extra isn't installed.
    """
    try:
        import psycopg  # noqa: F401 - whether it can be imported is the question
    except ImportError as exc:
        raise LedgerUnavailable(
            f"a ledger on PostgreSQL needs the extra `postgres`; install it with: {install('postgres')}"
        ) from exc


def check_server(version: int, encoding: str | None, *, where: str) -> None:
    """See that a server can hold a ledger. `version` is like 150018 for 15.18.

    Raises:
        LedgerUnavailable: it is too old, or its texts aren't Unicode.
    """
    if version < OLDEST_SERVER * 10_000:
        raise LedgerUnavailable(
            f"the server of the ledger {where} is PostgreSQL {version // 10_000}; parked needs {OLDEST_SERVER} or newer"
        )
    if encoding != "UTF8":
        raise LedgerUnavailable(
            f"the database of the ledger {where} has the encoding {encoding}; create one with ENCODING 'UTF8'"
        )
