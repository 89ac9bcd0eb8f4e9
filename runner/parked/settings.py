"""Every PARKED_ variable of both programs, once: its form, its default with the reason, and what it does.

The fields of the two dataclasses are the table. `load` decides for each: flag, then variable, then default; no other
code reads a PARKED_ variable. `python -m parked.settings` prints docs/settings.md from it.
"""

# ruff: noqa: RUF009 - the calls in the dataclasses make their fields

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from parked import values
from parked.errors import SettingsError
from parked.policy import Policy
from parked.values import Address, Broken, Form, parse_duration_s

__all__ = [
    "SETTINGS",
    "Address",
    "LogFormat",
    "LogLevel",
    "Setting",
    "Settings",
    "SidecarSettings",
    "StoredBodies",
    "check_unknown",
    "page",
    "parse_duration_s",
    "refuse_unknown",
    "secret_in_file",
    "variable",
    "warn_unknown",
]

PREFIX: Final = "PARKED_"
_FILE: Final = "_FILE"
_MAX_SHOWN_CHARS: Final = 80

# What Kubernetes puts into every container of a namespace with a Service named `parked` or `parked-…`.
_MADE_BY_KUBERNETES: Final = (
    r"PARKED_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)

_log = logging.getLogger(__name__)
_warned: set[str] = set()


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class StoredBodies(StrEnum):
    """How payloads, answers and messages are kept."""

    PLAIN = "plain"
    ENCRYPTED = "encrypted"
    NONE = "none"


class Setting(NamedTuple):
    """What is known of one setting besides its name and type, which its field has."""

    form: Form
    default: str | None  # as it would be written; None: not set
    help: str
    why: str  # the reason for the default
    secret: bool = False  # has a `…_FILE` form, and is never shown
    hidden: bool = False  # may hold a password: never shown

    @property
    def default_value(self) -> Any:
        return None if self.default is None else self.form.read(self.default)

    @property
    def shown(self) -> bool:
        return not (self.secret or self.hidden)


def _setting(default: str | None, form: Form, help: str, *, why: str, **marks: bool) -> Any:
    setting = Setting(form, default, help, why, **marks)
    # Read when it is needed: nobody but the sidecar pays for reading cron text and time zones.
    return field(default_factory=lambda: setting.default_value, repr=setting.shown, metadata={"setting": setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the library and the `parked` command go by. Names that end in `_s` are seconds; None means not set."""

    ledger: str = _setting(
        "sqlite:///parked.db",
        values.LEDGER,
        "Where the ledger is; a relative path starts in the working folder.",
        why="a file beside the pipeline needs no server",
        hidden=True,
    )
    ledger_mode: int = _setting(
        "0600",
        values.FILE_MODE,
        "The file mode of a SQLite ledger; with 0660 its folder is setgid and belongs to the group.",
        why="the ledger holds prompts and answers, which are one user's business unless said otherwise",
    )
    log_level: LogLevel = _setting(
        "info",
        values.one_of(LogLevel),
        "How much is logged; single attempts only at debug.",
        why="shows what a person has to know, and not a line per attempt",
    )
    log_format: LogFormat = _setting(
        "text",
        values.one_of(LogFormat),
        "How log lines are written: for people, or one JSON object a line.",
        why="whoever starts parked for the first time reads it on a terminal",
    )
    export_messages: bool = _setting(
        "false",
        values.YES_OR_NO,
        "Whether failure messages, scrubbed of keys, may leave the ledger: in spans, summaries (chat, mail, JSON log).",
        why="messages quote what users wrote",
    )
    store: StoredBodies = _setting(
        "plain",
        values.one_of(StoredBodies),
        "How payloads, answers and messages are kept in the ledger.",
        why="a replay needs the payload, and there is no key to lose",
    )
    store_keys: tuple[str, ...] | None = _setting(
        None,
        values.FERNET_KEYS,
        "The keys for `PARKED_STORE=encrypted` (`parked[encrypted]`): the first encrypts, all decrypt.",
        why="what is kept plain needs none",
        secret=True,
    )
    max_attempts: int = _setting(
        "4",
        values.whole_number(at_least=1),
        "Strikes after which a job is parked.",
        why="with waits of about 2, 4 and 8 s it outlasts a hiccup; what lasts longer isn't mended by trying",
    )
    max_wait_s: float = _setting(
        "120",
        values.seconds(zero=True),
        "The longest wait that a job which runs alone sleeps through; a longer one parks it until its time has come.",
        why="covers the windows of per-minute quotas, and a caller isn't kept for hours",
    )
    max_outage_s: float = _setting(
        "900",
        values.seconds(zero=True),
        "How long failures may be explained by an outage of the service instead of counting against jobs; 0: never.",
        why="a short outage costs no job an attempt, and a long one isn't waited for all night",
    )
    attempt_timeout_s: float = _setting(
        "600",
        values.seconds(zero=False),
        "The deadline of one attempt.",
        why="long answers with much thinking take minutes, and a call that hangs ends in the same night",
    )
    stop_after_alike: int = _setting(
        "20",
        values.whole_number(at_least=0),
        "Stop to look once so many different jobs in a row have failed alike; 0: never.",
        why="twenty alike are a cause and no chance, and a bad configuration costs no more than twenty calls",
    )
    drain_s: float = _setting(
        "20",
        values.seconds(zero=True),
        "How long running calls are waited for after SIGTERM or Ctrl-C.",
        why="ends within the 30 s that Kubernetes gives a container",
    )
    write_patience_s: float = _setting(
        "900",
        values.seconds(zero=True),
        "How long outcomes that can't be written are kept and tried again before the process ends.",
        why="a full disk or a database's restart is mended in that time, and no paid answer is dropped sooner",
    )

    @classmethod
    def load(cls, flags: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None) -> Self:
        """Build the settings from flags, then PARKED_ variables, then defaults.

        `flags` has the names of the fields; None as a value means that the flag wasn't given. `env` is `os.environ`
        unless given.

        Raises:
            SettingsError: values break their rules, or secrets' files can't be read, and all of them are named; or a
                flag is no setting.
        """
        flags = flags or {}
        table = _table(cls)
        for name in flags:
            if name not in table:
                raise SettingsError(f"{name!r} is no setting {_did_you_mean(name, table)}")
        settings, wrong = cls.load_what_can_be(flags, env)
        if wrong:
            raise SettingsError("; ".join(wrong.values()))
        return settings

    @classmethod
    def load_what_can_be(
        cls, flags: Mapping[str, object], env: Mapping[str, str] | None = None
    ) -> tuple[Self, dict[str, str]]:
        """The same for who looks for what is wrong: those settings are left at their defaults, {name: sentence}."""
        env = os.environ if env is None else env
        found: dict[str, Any] = {}
        wrong: dict[str, str] = {}
        for name, setting in _table(cls).items():
            try:
                found[name] = _decide(name, setting, flags.get(name), env)
            except SettingsError as exc:
                found[name], wrong[name] = setting.default_value, str(exc)
        return cls(**found), wrong

    def policy(self) -> Policy:
        """The numbers by which a runner retries."""
        return Policy(**{each.name: getattr(self, each.name) for each in fields(Policy)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings(Settings):
    """What the sidecar goes by, besides what all go by."""

    listen: Address = _setting(
        "127.0.0.1:9465",
        values.ADDRESS,
        "Where the sidecar serves HTTP; port 0 takes any that is free.",
        why="nobody else reaches it until somebody decides so",
    )
    external_url: str | None = _setting(
        None,
        values.WEB_ADDRESS,
        "The address under which people reach the sidecar; its host is accepted in requests.",
        why="without a proxy there is none",
    )
    token: str | None = _setting(
        None,
        values.TOKEN,
        "The bearer token for every page that shows job data.",
        why="without a token those pages answer nobody",
        secret=True,
    )
    summary_cron: str = _setting(
        "0 9 * * *",
        values.CRON,
        "When the summary is made.",
        why="in the morning, when somebody can act on it",
    )
    timezone: str = _setting(
        "UTC",
        values.TIME_ZONE,
        "The time zone of the schedule.",
        why="the same moment on every machine, and no hour that comes twice",
    )
    notify: tuple[str, ...] | None = _setting(
        None,
        values.NOTIFICATION_URLS,
        "Where the summary goes besides the log, by Apprise (`parked[notify]`): chat, mail, a webhook.",
        why="the log is the one place that is always there",
        secret=True,
    )
    auto_replay: Mapping[str, float] | None = _setting(
        "off",
        values.or_off(values.INTERVALS),
        "How often which pipeline's parked jobs are replayed by themselves; * is every pipeline.",
        why="it spends money, and that is decided by a person",
    )
    auto_replay_classes: tuple[str, ...] = _setting(
        "exhausted:*,orphaned:not_sent",
        values.ERROR_CLASSES,
        "Which error classes are replayed by themselves.",
        why="the rest needs a change first (permanent), or may have been answered and paid for (maybe sent)",
    )
    auto_replay_limit: int = _setting(
        "100",
        values.whole_number(at_least=1),
        "How many jobs one automatic replay takes at most.",
        why="bounds what a replay spends before somebody has seen its result",
    )
    auto_replay_max: int = _setting(
        "3",
        values.whole_number(at_least=1),
        "How often one job is replayed by itself; a replay that was broken off doesn't count.",
        why="what has failed in three replays waits for a person",
    )
    call: str | None = _setting(
        None,
        values.FUNCTION,
        "The function that calls in automatic replays, (payload, model) -> answer, instead of the Gemini adapter and"
        " of callers that can be imported nowhere, being part of a script.",
        why="jobs are called by the function that they were run with, or by the Gemini adapter",
    )
    on_answer: str | None = _setting(
        None,
        values.FUNCTION,
        "The function that is called with the answer of each job that a replay recovers, automatic or not.",
        why="the answers are in the ledger anyway",
    )
    retention: float | None = _setting(
        "off",
        values.or_off(values.DURATION),
        "How long finished jobs stay in the ledger.",
        why="nothing is deleted that nobody asked to delete",
    )


def variable(name: str) -> str:
    """Return the variable of a setting: `PARKED_MAX_ATTEMPTS` for `max_attempts`."""
    return PREFIX + name.upper()


def check_unknown(env: Mapping[str, str] | None = None) -> list[str]:
    """Return one sentence for each PARKED_ variable that is no setting. Values are not in it: they may be secrets."""
    env = os.environ if env is None else env
    variables = [variable(name) for name in SETTINGS]
    files = [variable(name) + _FILE for name, setting in SETTINGS.items() if setting.secret]
    return [
        f"{name} is no setting of parked {_did_you_mean(name, variables)}"
        for name in sorted(name for name in env if name.startswith(PREFIX))
        if name not in variables and name not in files and not re.fullmatch(_MADE_BY_KUBERNETES, name)
    ]


def refuse_unknown(env: Mapping[str, str] | None = None) -> None:
    """For the commands, which act for somebody who meant something by a variable.

    Raises:
        SettingsError: a PARKED_ variable is no setting; all of them are named.
    """
    if unknown := check_unknown(env):
        raise SettingsError("; ".join(unknown))


def warn_unknown(env: Mapping[str, str] | None = None) -> None:
    """For the library, which must not stop a program of somebody else's: log each unknown variable, once a process."""
    for sentence in check_unknown(env):
        if sentence not in _warned:
            _warned.add(sentence)
            # The sentence is part of the message: the log handlers of other programs don't show our fields.
            _log.warning("unknown_setting: %s", sentence)


def page() -> str:
    """Return docs/settings.md."""
    return "\n".join(_page()) + "\n"


def _table(program: type[Settings]) -> dict[str, Setting]:
    return {item.name: item.metadata["setting"] for item in fields(program)}


SETTINGS: Final[Mapping[str, Setting]] = _table(SidecarSettings)  # by field name; the sidecar reads them all


def _decide(name: str, setting: Setting, flag: object, env: Mapping[str, str]) -> Any:
    source, text = ("--" + name.replace("_", "-"), str(flag)) if flag is not None else _read(name, setting, env)
    if text is None:
        return setting.default_value
    text = text.strip()
    try:
        value = setting.form.read(text)
    except ValueError as exc:
        got = f", got {_cut(text)!r}" if setting.shown else ""
        part = f": {_cut(str(exc))}" if isinstance(exc, Broken) else ""
        # From None, since the cause may quote a secret.
        raise SettingsError(f"{source} must be {setting.form.rule}{got}{part}") from None
    return value


def _read(name: str, setting: Setting, env: Mapping[str, str]) -> tuple[str, str | None]:
    """Return what to call the source in a message, and the text found there; None if there is none.

    A variable without a text is one that isn't set: Compose makes such of `${X:-}`.
    """
    source = variable(name)
    text = _given(env, source)
    path = _given(env, source + _FILE) if setting.secret else None
    if path is None:
        return source, text
    if text is not None:
        raise SettingsError(f"{source} and {source}{_FILE} are both set; keep one of them")
    return f"{source}{_FILE} ({path!r})", secret_in_file(source, path)


def _given(env: Mapping[str, str], name: str) -> str | None:
    return text if (text := env.get(name)) and not text.isspace() else None


def secret_in_file(variable: str, path: str) -> str:
    """Return what the file holds that `variable`_FILE names, without white space around it.

    Raises:
        SettingsError: it can't be read, or is empty.
    """
    source = f"{variable}{_FILE} ({path!r})"
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:  # ValueError: not UTF-8, or a path that no file can have
        why = exc.strerror if isinstance(exc, OSError) else "not a text file"
        if _is_there(exc) or path.startswith(("/", "./", "../")):
            raise SettingsError(f"{source} can't be read: {why}") from None
        raise SettingsError(  # many write the secret where its file should be named
            f"{variable}{_FILE} can't be read: {why}; it has to be the path of a file, and isn't shown, since it may be"
            " the secret itself"
        ) from None
    if not text:
        raise SettingsError(f"{source} is empty; write the secret into that file")
    return text


def _is_there(exc: OSError | ValueError) -> bool:
    """Whether what can't be read exists."""
    return not isinstance(exc, OSError) or exc.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only for a mistake

    # Without what many variables share, which would make any two of them look alike.
    by_stem = {other.removeprefix(PREFIX): other for other in known}
    near = get_close_matches(name.removeprefix(PREFIX).removesuffix(_FILE), by_stem, n=1)
    return f"(did you mean {by_stem[near[0]]}?)" if near else "(see docs/settings.md)"


def _page() -> Iterator[str]:
    for_all = _table(Settings)
    yield "# Settings"
    yield ""
    yield "<!-- Made by `python -m parked.settings`; a test compares. Change runner/parked/settings.py instead. -->"
    yield ""
    yield "A flag wins over the environment variable, which wins over the default. A variable that starts with"
    yield "`PARKED_` and is not on this page is refused by `parked` and `parked-exporter`, with the nearest name; when"
    yield "parked is used as a library, it is only warned of. The variables that Kubernetes makes from a Service named"
    yield "`parked…` are ignored. A variable that is empty counts as not set."
    yield ""
    yield "A secret may be put into a file instead: `PARKED_TOKEN_FILE=/run/secrets/token` reads it from there. Secrets"
    yield "are never shown, not in messages and logs either."
    yield ""
    yield "The API key and the address of the API are read by google-genai (`GEMINI_API_KEY` or `GOOGLE_API_KEY`,"
    yield "`GOOGLE_GEMINI_BASE_URL`, and the variables of Vertex AI), where telemetry goes by OpenTelemetry (`OTEL_*`)."
    yield "`GEMINI_API_KEY_FILE` names a file that holds the key; each program reads it once, when it first calls."
    yield ""
    yield "## Read by all programs"
    yield ""
    yield from _rows(for_all)
    yield ""
    yield "## Read by the sidecar alone"
    yield ""
    yield from _rows({name: setting for name, setting in SETTINGS.items() if name not in for_all})


def _rows(table: Mapping[str, Setting]) -> Iterator[str]:
    yield "| variable | must be | default, and why | what it does |"
    yield "|---|---|---|---|"
    for name, setting in table.items():
        names = f"`{variable(name)}`" + (f", or `{variable(name)}{_FILE}`" if setting.secret else "")
        default = "not set" if setting.default is None else f"`{setting.default}`"
        yield f"| {names} | {setting.form.rule} | {default}: {setting.why} | {setting.help} |"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - this module as a command makes a page of the documentation
