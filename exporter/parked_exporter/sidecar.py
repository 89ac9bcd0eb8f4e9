"""The sidecar's parts put together, and its end: the socket, the web server's threads, the schedule, the signals."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import threading
from functools import partial
from types import FrameType
from typing import Final
from zoneinfo import ZoneInfo

from parked import cron, tracing
from parked.cli.exits import Exit
from parked.ledger import Ledger, full_name, open_ledger
from parked.ledger.vault import vault_of
from parked.logs import fields
from parked.settings import Address, SidecarSettings, variable
from parked.surroundings.clocks import warn_at_start
from parked.version import __version__
from parked_exporter import peers
from parked_exporter.auto_replay import ROLE, AutoReplay
from parked_exporter.collector import Lookout, look
from parked_exporter.schedule import Context, Schedule, tasks_for
from parked_exporter.server import make_server
from parked_exporter.web import Access, App

# SIGTERM ends the process within a second; what a task that hangs still holds is left to the sweep of another.
STOP_PATIENCE_S: Final = 0.5
FLUSH_S: Final = 0.2
# What is set for tasks, which a sidecar that only reads doesn't run.
NEEDS_TASKS: Final = ("retention", "auto_replay", "on_answer", "notify")

log = logging.getLogger(__name__)


class CannotListen(Exception):
    """The address is taken, or is none of this machine's; the message says which and what to do."""


def serve(settings: SidecarSettings, *, read_only: bool, linger_s: float) -> Exit:
    """Serve until SIGTERM or Ctrl-C, and for `linger_s` after the first of them; a second one ends it at once.

    Raises:
        CannotListen: the port is in use, say.
    """
    signals = Signals()
    shut_down = tracing.set_up("parked-exporter")
    with _listen(settings.listen) as listening:
        bound = Address(*listening.getsockname()[:2])
        context = context_of(settings)
        schedule = None if read_only else _schedule(settings, context)
        app = _app(settings, schedule, bound)
        server = make_server(app, listening)
        threading.Thread(target=server.run, name="parked-web", daemon=True).start()
        if schedule is not None:
            schedule.start()
        ledger = full_name(settings.ledger)
        log.info("sidecar_started", extra=fields(url=f"http://{bound}", ledger=ledger, version=__version__))
        not_done = [variable(name) for name in NEEDS_TASKS if getattr(settings, name)]
        if read_only and not_done:
            log.warning("not_done_here", extra=fields(settings=", ".join(not_done), why="--read-only runs no tasks"))
        received = signals.wait()
        app.ending.set()
        if linger_s:
            log.info("sidecar_lingers", extra=fields(for_s=linger_s))
            signals.wait(linger_s)
        if schedule is not None:
            schedule.stop(patience_s=STOP_PATIENCE_S)
        ending = threading.Thread(target=shut_down, name="parked-tracing", daemon=True)
        ending.start()
        ending.join(FLUSH_S)  # a collector that hangs doesn't hold up the end
        log.info("sidecar_stopped", extra=fields(signal=received.name if received is not None else None))
        gc.freeze()  # with google-genai loaded, looking for garbage at the exit takes a quarter of a second
        return Exit.INTERRUPTED if received is signal.SIGINT else Exit.OK


def context_of(settings: SidecarSettings) -> Context:
    """What the tasks go by, as the settings say."""
    auto_replay = None
    if settings.auto_replay is not None:
        auto_replay = AutoReplay(
            settings.auto_replay,
            classes=settings.auto_replay_classes,
            limit=settings.auto_replay_limit,
            most=settings.auto_replay_max,
            policy=settings.policy(),
            call=settings.call,
        )
    return Context(
        retention_s=settings.retention,
        notify=settings.notify or (),
        messages=settings.export_messages,
        auto_replay=auto_replay,
        on_answer=settings.on_answer,
        settings=peers.digests(settings),
    )


def _schedule(settings: SidecarSettings, context: Context) -> Schedule:
    return Schedule(
        partial(_open, settings.ledger),
        cron=cron.parse(settings.summary_cron),
        zone=ZoneInfo(settings.timezone),
        tasks=tasks_for(context),
        context=context,
    )


def _open(url: str) -> Ledger:
    ledger = open_ledger(url, create=False, migrate=False, role=ROLE)
    try:
        warn_at_start(ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _app(settings: SidecarSettings, schedule: Schedule | None, bound: Address) -> App:
    hosts = (settings.listen.host, bound.host)
    return App(
        ledger_url=settings.ledger,
        lookout=Lookout(partial(look, settings.ledger)),
        tasks=schedule,
        access=Access.at(*hosts, external_url=settings.external_url, token=settings.token),
        vault=vault_of(settings),
        messages=settings.export_messages,
    )


def _listen(address: Address) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as exc:
        raise CannotListen(
            f"can't listen on {address}: {exc.strerror or exc}; set --listen or PARKED_LISTEN to another address"
        ) from exc


class Signals:
    """SIGTERM and Ctrl-C, to be waited for. From the moment this exists, neither ends the process by itself.

    A signal comes as a byte of a socket pair: what a handler may safely do to a lock or an event is not much.
    """

    def __init__(self) -> None:
        self._arrivals, self._sink = socket.socketpair()
        self._sink.setblocking(False)
        signal.set_wakeup_fd(self._sink.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _nothing)

    def wait(self, timeout_s: float | None = None) -> signal.Signals | None:
        """Return the next signal; None if none came in that time."""
        self._arrivals.settimeout(timeout_s)
        try:
            return signal.Signals(self._arrivals.recv(1)[0])
        except TimeoutError:
            return None


def _nothing(number: int, frame: FrameType | None) -> None:
    """Python writes the byte only for a signal that has a handler."""
