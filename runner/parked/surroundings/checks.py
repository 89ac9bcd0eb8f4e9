"""What `parked doctor` checks: a table of pure functions, each from what was seen to one finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from parked.extras import install
from parked.ledger.labels import MAX_PAIRS, MAX_PIPELINES, OTHER
from parked.reasons import explain
from parked.settings import StoredBodies
from parked.surroundings import certificates, clocks, key, machines, proxies, rights
from parked.surroundings.finding import Finding, Level, attention, broken, ok, skipped, worst
from parked.surroundings.seeing import PACKAGES, Api, Ledger, NoLedger, NotAsked, NoVault, Place, Seen, Trouble
from parked.surroundings.volumes import REACHED_BY_OTHERS, Kind
from parked.verdict import Kind as FailureKind
from parked.verdict import Reason
from parked.version import __version__

OLDEST_SQLITE: Final = (3, 35, 0)  # RETURNING
WHOLE_SQLITE: Final = (3, 51, 3)  # https://www.sqlite.org/wal.html#walresetbug
NEARLY_FULL: Final = 0.8
SCANTY_BYTES: Final = 100 << 20
NO_ROOM_BYTES: Final = 10 << 20
CERTIFICATE_RULES: Final = "exception.certificate"
# What is to be done about these in a run, to split a job say, doesn't help who only asked whether somebody is there.
UNREACHED: Final = frozenset({Reason.TIMEOUT, Reason.NETWORK})
REACH_IT: Final = "see what keeps this machine from reaching it: network, name server, firewall, proxy"

LOOK_AGAIN: Final = "mend that, then look again"


class Check(NamedTuple):
    name: str
    judge: Callable[[Seen], Finding]
    only_sqlite: bool = False


# --- what is set and installed -----------------------------------------------------------------------------------


def _settings(seen: Seen) -> Finding:
    wrong = [*seen.wrong_settings.values(), *seen.unknown_settings]
    if wrong:
        return broken("; ".join(wrong), "mend or remove them; docs/settings.md has all of them with their rules")
    if isinstance(seen.starts, Trouble):
        return broken(f"whether the programs would start is not known: {seen.starts.why}", LOOK_AGAIN)
    if isinstance(seen.starts, list) and seen.starts:
        return broken("; ".join(seen.starts), "mend or remove that; docs/settings.md has all settings with their rules")
    return ok("every PARKED_ variable is known and keeps its rule")


def _python(seen: Seen) -> Finding:
    packages = seen.python.packages
    there = [f"{name} {version}" for name, version in packages.items() if version is not None]
    extras = {extra for name, extra in PACKAGES.items() if packages[name] is None}
    if "" in extras:
        return broken("google-genai isn't installed", f"install parked with its dependencies: {install()}")
    needed = {"notify": seen.settings.notify is not None, "postgres": seen.settings.ledger.startswith("postgres")}
    needed["encrypted"] = seen.settings.store is StoredBodies.ENCRYPTED
    for extra, is_needed in needed.items():
        if is_needed and extra in extras:
            return broken(f"the extra `{extra}` isn't installed, which the settings need", install(extra))
    lacks = f"; without the extra {', '.join(sorted(extras))}" if extras else ""
    return ok(f"parked {__version__}, Python {seen.python.python}, {', '.join(there)}{lacks}")


def _sqlite(seen: Seen) -> Finding:
    version = ".".join(map(str, seen.python.sqlite))
    if seen.python.sqlite < OLDEST_SQLITE:
        return broken(f"SQLite {version} is too old", "use a Python with SQLite 3.35 or newer, or PostgreSQL")
    if seen.python.sqlite < WHOLE_SQLITE:
        return ok(
            f"SQLite {version} has the WAL-reset defect (before 3.51.3), which parked works around; let no other"
            " program write the ledger or checkpoint it"
        )
    return ok(f"SQLite {version}")


# --- the ledger ----------------------------------------------------------------------------------------------------


def _ledger(seen: Seen) -> Finding:
    match seen.ledger:
        case Ledger(is_locked=True):
            return broken(
                "it can be read, but another process holds it locked, so that nothing can be written",
                "let a large parked erase end; else end the process: a shell of sqlite3 in a transaction, a tool that"
                " copies the file",
            )
        case Ledger() as ledger:
            users = ", ".join(f"{one.facts.role} on {one.facts.host} pid {one.facts.pid}" for one in ledger.alive)
            return ok(f"its name in metrics is {ledger.name}; used by {users or 'nobody now'}")
        case NoLedger(why, missing):
            return attention(*_parted(why)) if missing else broken(*_parted(why))
        case Trouble(why):
            return broken(why, "see whether its disk or its server hangs, then look again")
        case NotAsked(why):
            return skipped(why)


def _volume(seen: Seen) -> Finding:
    match seen.place:
        case Place() as place:
            return worst([_file_system(place), *_room(place, seen)])
        case Trouble(why):
            return broken(f"the volume of the ledger can't be looked at: {why}", LOOK_AGAIN)
        case NotAsked(why):
            return skipped(why)


def _file_system(place: Place) -> Finding:
    if place.volume is None:
        return skipped("the system doesn't tell on which file system the ledger is")
    kind, where = place.volume.kind, f"{place.volume.type} at {place.volume.mount_point}"
    if place.volume.read_only:
        return broken(f"the ledger is on {where}, which is mounted read-only", "mount it to be written")
    if kind in REACHED_BY_OTHERS:
        return attention(f"the ledger is on {machines.ON_A_NETWORK[kind]} ({where})", machines.MOVE)
    if kind is Kind.LAYER:
        gone = machines.GONE_WITH_IT.format(**place.volume._asdict())
        return attention(f"the ledger is {gone}", machines.VOLUME)
    if kind is Kind.MEMORY:
        return attention(f"the ledger is kept in memory ({where}), and goes with the machine", "put it on a disk")
    return ok(f"{where}, a local disk")


def _room(place: Place, seen: Seen) -> list[Finding]:
    size = seen.ledger.size_bytes if isinstance(seen.ledger, Ledger) else 0
    free = place.free_bytes
    if place.free_files is not None and place.free_files < 4:
        return [broken("the volume of the ledger has no room for another file (inodes)", "remove files there")]
    if free is None or free >= max(SCANTY_BYTES, size):
        return []
    level = Level.BROKEN if free < NO_ROOM_BYTES else Level.ATTENTION
    return [
        Finding(
            level,
            f"{free >> 20} MB are free on the volume of the ledger, which takes {size >> 20} MB; to erase from it takes"
            " a second copy",
            "make room, or move it: docs/operating.md, Moving a ledger",
        )
    ]


def _rights(seen: Seen) -> Finding:
    match seen.rights:
        case Trouble(why):
            return broken(
                f"the rights of the ledger can't be looked at: {why}",
                "give this user the rights of its folder, or run the doctor as the user of the ledger's programs",
            )
        case NotAsked(why):
            return skipped(why)
        case found:
            return rights.judge(found)


def _machines(seen: Seen) -> Finding:
    """The beats were not watched here: who opens the ledger does that."""
    if not isinstance(seen.ledger, Ledger):
        return skipped("not known without a ledger that can be read")
    others = machines.elsewhere(seen.ledger.alive, boot_id=seen.ledger.boot_id)
    if not others:
        return ok("all processes that use the ledger run on this machine")
    names = ", ".join(f"{one.facts.host} pid {one.facts.pid}" for one in others)
    volume = seen.place.volume if isinstance(seen.place, Place) else None
    if volume is not None and volume.kind in REACHED_BY_OTHERS:
        return broken(f"another machine uses this SQLite file, or was killed while it did: {names}", machines.MOVE)
    return ok(f"not ended, from before this machine or container was started: {names}; the next run parks their jobs")


def _server(seen: Seen) -> Finding:
    if not isinstance(seen.ledger, Ledger):
        return skipped("not known without a ledger that can be read")
    lacking = seen.ledger.lacking_rights
    if lacking:
        return attention(
            f"PostgreSQL {seen.ledger.version}; this role may only look: it lacks {', '.join(lacking[:3])}"
            f"{' and more' if len(lacking) > 3 else ''}",
            "right for the role of a sidecar with --read-only; for any other, docs/postgres.md has the rights",
        )
    return ok(f"PostgreSQL {seen.ledger.version}; this role has the rights of a program that runs jobs")


def _clock(seen: Seen) -> Finding:
    found: list[str] = []
    asked: list[str] = []
    if isinstance(seen.ledger, Ledger):
        asked += ["the ledger's newest entry"] if _is_sqlite(seen) else ["the ledger's server and its newest entry"]
        found += clocks.against_ledger(seen.ledger.ours, seen.ledger.theirs, seen.ledger.newest)
    if isinstance(seen.api, Api) and seen.api.theirs is not None:
        asked.append("the API")
        if off := clocks.off_by(seen.api.ours, seen.api.theirs):
            found.append(f"this machine's clock is {off} that of the API")
    if isinstance(seen.place, Place) and seen.place.changed_at is not None:
        asked.append("the ledger's file")
        if by := clocks.from_the_future(seen.place.ours, seen.place.changed_at):
            found.append(f"the ledger's file was written in the future, by {by}")
    if found:
        return attention("; ".join(found), clocks.SET_IT)
    return ok(f"agrees with {', '.join(asked)}") if asked else skipped("there is nothing to compare it with")


def _labels(seen: Seen) -> Finding:
    if not isinstance(seen.ledger, Ledger):
        return skipped("not known without a ledger that can be read")
    pairs = seen.ledger.labels
    pipelines = len({pipeline for pipeline, _ in pairs} - {OTHER})
    counted = f"{pipelines} of {MAX_PIPELINES} pipelines and {len(pairs)} of {MAX_PAIRS} pairs of pipeline and model"
    if pipelines < NEARLY_FULL * MAX_PIPELINES and len(pairs) < NEARLY_FULL * MAX_PAIRS:
        return ok(f"{counted} have names of their own in metrics")
    return attention(
        f"{counted} are taken; what comes after them is counted as `{OTHER}` for good",
        "use fewer names: a date belongs into --batch, not into the pipeline",
    )


def _texts(seen: Seen) -> Finding:
    match seen.texts:
        case NoVault(why):
            return broken(*_parted(why))
        case Trouble(why):
            return skipped(f"those that are encrypted can't be counted: {why}")
        case NotAsked(why):
            return skipped(why)
        case found:
            pass
    if not found.locked:
        return ok(
            f"{found.encrypted} are encrypted, and the keys are there" if found.encrypted else "none is encrypted"
        )
    said = "; ".join(
        f"{number} are encrypted with the key {id}, which is none of PARKED_STORE_KEYS"
        for id, number in sorted(found.locked.items())
    )
    remedy = "add that key there, behind the first; docs/security.md says what can be done if it is lost"
    if found.pending:
        return broken(f"{said}; pending jobs can't be run without: {found.pending}", remedy)
    return attention(said, remedy)


# --- the way to the API ----------------------------------------------------------------------------------------


def _certificates(seen: Seen) -> Finding:
    if isinstance(seen.certificates, Trouble):
        return broken(f"the authorities can't be looked at: {seen.certificates.why}", LOOK_AGAIN)
    found = seen.certificates
    if found.faults:
        # With a file, a folder that is missing takes nothing away from the API's calls.
        is_fatal = any(
            fault.variable != certificates.FOLDER or certificates.FILE not in found.named for fault in found.faults
        )
        said = "; ".join(map(str, found.faults))
        remedies = "; ".join(map(certificates.remedy, found.faults))
        return broken(said, remedies) if is_fatal else attention(said, remedies)
    if found.named:
        return ok(f"the authorities are those of {' and '.join(found.named)}")
    if not found.system_has_some:
        return attention(
            "the system has no authorities, so that plain functions can't check the API's certificate",
            f"install ca-certificates, or name a file of authorities by {certificates.FILE}",
        )
    return ok("the authorities are those of the system")


def _proxy(seen: Seen) -> Finding:
    if isinstance(seen.proxy, Trouble):
        return broken(*_parted(seen.proxy.why))
    found = seen.proxy
    if found.proxy is not None and found.why_not:
        said = f"calls to {found.api} go through the proxy {found.proxy}, which can't be reached ({found.why_not})"
        return broken(said, proxies.remedy(found.api))
    if found.loopback_behind:
        return attention(
            f"HTTP_PROXY is set, and requests to {found.loopback_behind} (the sidecar) would go through it",
            "add 127.0.0.1,localhost to NO_PROXY",
        )
    if found.proxy is not None:
        return ok(f"calls to {found.api} go through the proxy {found.proxy}")
    return ok(f"none is between this machine and {found.api}")


def _key(seen: Seen) -> Finding:
    found = seen.key
    if found.credentials_missing:
        return broken(
            f"GOOGLE_APPLICATION_CREDENTIALS ({found.credentials_missing!r}) names no file",
            "name the file of the service account, or leave it out",
        )
    if found.variable is None:
        if found.vertex:
            return ok("Vertex AI with the credentials of this machine or account")
        return attention(
            "no key is set; who runs jobs with the Gemini adapter needs one, a sidecar without auto-replay doesn't",
            "set GEMINI_API_KEY",
        )
    if found.beside_file:
        return broken(f"{found.beside_file} and {key.IN_A_FILE} are both set, and runs refuse that", "keep one of them")
    if found.fault:
        return broken(f"{found.variable} {found.fault}", key.remedy(found.variable))
    if found.differs:
        return attention(
            "GOOGLE_API_KEY and GEMINI_API_KEY are set to different keys, and google-genai takes the first",
            "unset the one that isn't meant",
        )
    return ok(f"{found.variable} is set")


def _api(seen: Seen) -> Finding:
    match seen.api:
        case NotAsked(why):
            return skipped(why)
        case Trouble(why):
            return broken(*_parted(why))
        case Api(verdict=None):
            return ok("answers, and takes the key")
        case Api(verdict, status):
            assert verdict is not None
            if verdict.rule.startswith(CERTIFICATE_RULES):
                return broken(
                    "its certificate isn't accepted: no authority is known here that vouches for it, as where a proxy"
                    " opens TLS, or the clock is wrong",
                    f"name a file that holds that authority by {certificates.FILE} and {certificates.BUNDLE}",
                )
            known = explain(verdict.reason or Reason.UNCLASSIFIED)
            if status is None and verdict.reason in UNREACHED:
                return broken(f"doesn't answer: {known.meaning}", REACH_IT)
            said = (
                f"answers {status} ({verdict.reason}): {known.meaning}"
                if status
                else f"can't be asked: {known.meaning}"
            )
            if status == 404:
                return attention(
                    "answers, but doesn't list its models, as some gateways don't, so that the key was not tried",
                    "try it with one job; if GOOGLE_GEMINI_BASE_URL is set, check it",
                )
            if status is not None and verdict.kind is FailureKind.RETRYABLE:
                return attention(said, "nothing, if it is over in a while: parked waits for it")
            return broken(said, known.remedy.partition(", then replay")[0])


def _sidecar(seen: Seen) -> Finding:
    match seen.sidecar:
        case NotAsked(why):
            return skipped(why)
        case Trouble(why):
            return attention(f"the sidecar can't be asked: {why}", LOOK_AGAIN)
        case found:
            pass
    if found.why_not:
        return attention(
            f"none answers at {found.address} ({found.why_not}), so that nobody watches for lost programs between runs",
            "start parked-exporter, or set PARKED_LISTEN to where it listens",
        )
    if not found.is_one:
        return attention(f"what answers at {found.address} is no sidecar", "set PARKED_LISTEN to where it listens")
    if isinstance(seen.ledger, Ledger) and found.ledger not in (None, seen.ledger.name):
        return broken(
            f"the sidecar at {found.address} reads another ledger ({found.ledger}) than this one ({seen.ledger.name})",
            "give both the same PARKED_LEDGER, with an absolute path",
        )
    if not found.ready:
        return attention(f"the sidecar at {found.address} isn't ready: {'; '.join(found.reasons)}", "see what it logs")
    if found.version != __version__:
        return attention(
            f"the sidecar at {found.address} is parked {found.version or 'of an older version'}, this is {__version__}",
            "upgrade the older of the two",
        )
    return ok(f"ready at {found.address}, with the same ledger and version")


# In the order in which they are shown. A check that needs a new look adds it to `seeing.see`.
CHECKS: Final = (
    Check("settings", _settings),
    Check("python", _python),
    Check("sqlite", _sqlite, only_sqlite=True),
    Check("ledger", _ledger),
    Check("volume", _volume, only_sqlite=True),
    Check("rights", _rights, only_sqlite=True),
    Check("machines", _machines, only_sqlite=True),
    Check("server", _server),
    Check("clock", _clock),
    Check("labels", _labels),
    Check("texts", _texts),
    Check("certificates", _certificates),
    Check("proxy", _proxy),
    Check("key", _key),
    Check("api", _api),
    Check("sidecar", _sidecar),
)


def examine(seen: Seen) -> dict[str, Finding]:
    """Return the findings of all checks that are about this ledger, by name and in order."""
    is_sqlite = _is_sqlite(seen)
    return {
        check.name: check.judge(seen)
        for check in CHECKS
        if (is_sqlite or not check.only_sqlite) and (check.name != "server" or not is_sqlite)
    }


def _is_sqlite(seen: Seen) -> bool:
    return seen.settings.ledger.startswith("sqlite:")


def _parted(sentence: str) -> tuple[str, str]:
    """An error of parked says what happened and, behind the last semicolon, what to do."""
    what, _, then = sentence.rpartition("; ")
    return (what, then) if what else (sentence, LOOK_AGAIN)
