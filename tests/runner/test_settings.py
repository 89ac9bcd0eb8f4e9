import logging
from pathlib import Path

import pytest

from parked import settings
from parked.errors import SettingsError
from parked.policy import Policy
from parked.settings import LogFormat, LogLevel, Settings, SidecarSettings, StoredBodies, variable
from parked.values import Address, parse_duration_s

ROOT = Path(__file__).parents[2]
FERNET_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
TOKEN = "a-token-that-nobody-guesses"


def refusal(env: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> str:
    """Return the sentence with which the sidecar's settings refuse these, which read all variables."""
    with pytest.raises(SettingsError) as caught:
        SidecarSettings.load(flags=flags, env=env or {})
    return str(caught.value)


# --- who wins ----------------------------------------------------------------------------------------------------


def test_without_flags_and_variables_the_defaults_hold():
    loaded = Settings.load(env={})

    assert loaded == Settings()
    assert (loaded.ledger, loaded.ledger_mode) == ("sqlite:///parked.db", 0o600)
    assert (loaded.log_level, loaded.log_format) == (LogLevel.INFO, LogFormat.TEXT)
    assert (loaded.max_attempts, loaded.max_wait_s, loaded.attempt_timeout_s) == (4, 120.0, 600.0)
    assert (loaded.max_outage_s, loaded.stop_after_alike) == (900.0, 20)
    assert (loaded.drain_s, loaded.write_patience_s) == (20.0, 900.0)
    assert (loaded.export_messages, loaded.store, loaded.store_keys) == (False, StoredBodies.PLAIN, None)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default():
    env = {"PARKED_MAX_ATTEMPTS": "6", "PARKED_DRAIN_S": "5"}

    loaded = Settings.load(flags={"max_attempts": 2, "drain_s": None}, env=env)

    assert (loaded.max_attempts, loaded.drain_s, loaded.max_wait_s) == (2, 5.0, 120.0)


@pytest.mark.parametrize("empty", ["", " \n"], ids=repr)
def test_a_variable_that_is_empty_is_not_set(empty):
    """As Compose and shells make them: `PARKED_TOKEN: ${PARKED_TOKEN:-}`."""
    names = [variable(name) for name in settings.SETTINGS]
    files = [f"{variable(name)}_FILE" for name, setting in settings.SETTINGS.items() if setting.secret]

    assert SidecarSettings.load(env=dict.fromkeys([*names, *files], empty)) == SidecarSettings()
    assert SidecarSettings.load(env={"PARKED_TOKEN": TOKEN, "PARKED_TOKEN_FILE": empty}).token == TOKEN


def test_all_that_break_their_rules_are_named_at_once():
    said = refusal({"PARKED_MAX_ATTEMPTS": "few", "PARKED_DRAIN_S": "long"})

    assert said == (
        "PARKED_MAX_ATTEMPTS must be a whole number from 1, got 'few';"
        " PARKED_DRAIN_S must be a number of seconds from 0 to 1,000,000,000, got 'long'"
    )


def test_a_flag_that_is_empty_is_refused():
    with pytest.raises(SettingsError, match="--ledger must be a URL"):
        Settings.load({"ledger": ""}, env={})


def test_the_environment_of_the_process_is_read_unless_another_is_given(monkeypatch):
    monkeypatch.setenv("PARKED_MAX_ATTEMPTS", "7")

    assert Settings.load().max_attempts == 7
    assert Settings.load(env={}).max_attempts == 4


def test_the_sidecar_reads_its_own_variables_and_those_of_all():
    loaded = SidecarSettings.load(env={"PARKED_LISTEN": "[::1]:9000", "PARKED_LEDGER": "sqlite:////data/parked.db"})

    assert loaded.listen == Address("::1", 9000)
    assert loaded.ledger == "sqlite:////data/parked.db"
    assert loaded.auto_replay_classes == ("exhausted:*", "orphaned:not_sent")
    assert (loaded.summary_cron, loaded.timezone) == ("0 9 * * *", "UTC")


def test_the_runner_does_not_mind_what_the_sidecar_alone_reads():
    assert Settings.load(env={"PARKED_LISTEN": "nonsense", "PARKED_RETENTION": "90d"}) == Settings()


def test_a_flag_that_is_no_setting_is_refused_with_the_nearest_name():
    assert refusal(flags={"max_atempts": 3}) == "'max_atempts' is no setting (did you mean max_attempts?)"


def test_the_policy_and_the_settings_have_the_same_defaults():
    defaults = Settings()

    for name in Policy.__dataclass_fields__:
        assert getattr(Policy(), name) == getattr(defaults, name), name


# --- how values are written --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ledger", " sqlite:///night.db\n", "sqlite:///night.db"),
        ("ledger_mode", "0660", 0o660),
        ("ledger_mode", "600", 0o600),
        ("log_level", "WARNING", LogLevel.WARNING),
        ("log_format", "json", LogFormat.JSON),
        ("export_messages", "yes", True),
        ("store", "plain", StoredBodies.PLAIN),
        ("max_attempts", "1", 1),
        ("max_wait_s", "0.5", 0.5),
        ("max_outage_s", "0", 0.0),
        ("stop_after_alike", "0", 0),
        ("listen", "0.0.0.0:0", Address("0.0.0.0", 0)),
        ("external_url", "https://parked.example.com/", "https://parked.example.com"),
        ("token", TOKEN, TOKEN),
        ("summary_cron", "*/15 0-6/2,22 1 JAN-mar mon,7", "*/15 0-6/2,22 1 JAN-mar mon,7"),
        ("timezone", "Europe/Berlin", "Europe/Berlin"),
        ("retention", "off", None),
    ],
)
def test_a_value_is_read_as_its_variable_is_written(name, text, value):
    assert getattr(SidecarSettings.load(env={variable(name): text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("store_keys", f"{FERNET_KEY},{FERNET_KEY}", (FERNET_KEY, FERNET_KEY)),
        ("notify", "slack://a/b/c mailto://ops@example.com", ("slack://a/b/c", "mailto://ops@example.com")),
        ("auto_replay", "captions=30m, *=2h", {"captions": 1800.0, "*": 7200.0}),
        ("auto_replay_classes", "exhausted:429, orphaned:*", ("exhausted:429", "orphaned:*")),
        ("call", "captions.calls:ask", "captions.calls:ask"),
        ("retention", "90d", 7_776_000.0),
    ],
)
def test_the_form_of_a_setting_is_known_before_its_feature_is(name, text, value):
    assert settings.SETTINGS[name].form.read(text) == value


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("ledger_mode", "0644", "0600 (one user) or 0660 (one user and one group)"),
        ("log_level", "loud", "one of debug, info, warning, error"),
        ("log_format", "xml", "one of text, json"),
        ("export_messages", "perhaps", "true or false"),
        ("store", "rot13", "one of plain, encrypted, none"),
        ("max_attempts", "five", "a whole number from 1"),
        ("max_attempts", "0", "a whole number from 1"),
        ("max_attempts", "2.5", "a whole number from 1"),
        ("stop_after_alike", "-1", "a whole number from 0"),
        ("max_wait_s", "-1", "a number of seconds from 0 to 1,000,000,000"),
        ("max_wait_s", "1e10", "a number of seconds from 0 to 1,000,000,000"),
        ("attempt_timeout_s", "0", "a number of seconds above 0 to 1,000,000,000"),
        ("drain_s", "nan", "a number of seconds from 0 to 1,000,000,000"),
        ("drain_s", "inf", "a number of seconds from 0 to 1,000,000,000"),
        ("listen", ":9465", "host:port, such as 127.0.0.1:9465 or [::1]:9465"),
        ("listen", "::1:9465", "host:port, such as 127.0.0.1:9465 or [::1]:9465"),
        ("listen", "localhost:65536", "host:port, such as 127.0.0.1:9465 or [::1]:9465"),
        ("external_url", "parked.example.com", "a web address such as https://parked.example.com"),
        ("timezone", "Europe/Berlim", "a time zone such as UTC or Europe/Berlin"),
        ("timezone", "Europe", "a time zone such as UTC or Europe/Berlin"),
        ("auto_replay", "captions=30", settings.SETTINGS["auto_replay"].form.rule),
        ("auto_replay", "captions=30m,captions=2h", settings.SETTINGS["auto_replay"].form.rule),
        ("auto_replay_classes", "exhausted", settings.SETTINGS["auto_replay_classes"].form.rule),
        ("call", "captions.calls", "module:function, such as captions.calls:ask"),
        ("retention", "90", "a length of time such as 45s, 30m, 2h or 3d, or off"),
    ],
)
def test_a_bad_value_is_named_with_its_rule(name, text, rule):
    assert refusal({variable(name): text}) == f"{variable(name)} must be {rule}, got {text!r}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("61 9 * * *", "minute is 0 to 59, got '61'"),
        ("0 9 * * fry", "day of week is 0 to 7 or sun to sat, got 'fry'"),
        ("@daily", "cron text has five fields"),
        ("0 9 31 2 *", "that date never comes"),
    ],
)
def test_a_cron_that_is_none_is_told_which_field_breaks_which_rule(text, why):
    assert f"got {text!r}: {why}" in refusal({"PARKED_SUMMARY_CRON": text})


def test_a_bad_ledger_is_not_shown_since_it_may_hold_a_password():
    assert refusal({"PARKED_LEDGER": "parked:hunter2"}) == "PARKED_LEDGER must be a URL such as sqlite:///parked.db"


def test_a_bad_flag_is_called_by_the_name_of_the_flag():
    assert refusal(flags={"max_attempts": "five"}) == "--max-attempts must be a whole number from 1, got 'five'"


def test_a_long_value_is_cut_in_the_message():
    assert len(refusal({"PARKED_MAX_ATTEMPTS": "9" * 10_000 + "x"})) < 200


@pytest.mark.parametrize(("text", "length_s"), [("45s", 45), ("30m", 1800), ("1.5h", 5400), ("3d", 259_200)])
def test_a_length_of_time_is_a_number_with_a_unit(text, length_s):
    assert parse_duration_s(text) == length_s


@pytest.mark.parametrize("text", ["", "30", "m", "-3d", "0s", "3 d", "3D", "2h30m", "1e9d"])
def test_anything_else_is_no_length_of_time(text):
    with pytest.raises(ValueError, match="is not a length of time such as 45s, 30m, 2h or 3d"):
        parse_duration_s(text)


# --- secrets -----------------------------------------------------------------------------------------------------


def test_a_secret_may_come_from_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")

    assert SidecarSettings.load(env={"PARKED_TOKEN_FILE": str(file)}).token == TOKEN


def test_a_secret_given_twice_is_refused(tmp_path):
    env = {"PARKED_TOKEN": TOKEN, "PARKED_TOKEN_FILE": str(tmp_path / "token")}

    assert refusal(env) == "PARKED_TOKEN and PARKED_TOKEN_FILE are both set; keep one of them"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "can't be read: No such file or directory"),
        (b" \n", "is empty; write the secret into that file"),
        (b"\xff\xfe\x00", "can't be read: not a text file"),
        (b"hunter2", "must be at least 16 visible ASCII characters without a space"),
    ],
)
def test_a_bad_file_of_a_secret_is_named_without_its_content(tmp_path, content, complaint):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    assert refusal({"PARKED_TOKEN_FILE": str(file)}) == f"PARKED_TOKEN_FILE ({str(file)!r}) {complaint}"


def test_a_secret_that_stands_where_its_file_should_be_named_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert refusal({"PARKED_TOKEN_FILE": TOKEN}) == (
        "PARKED_TOKEN_FILE can't be read: No such file or directory; it has to be the path of a file, and isn't shown,"
        " since it may be the secret itself"
    )
    assert "File name too long" in refusal({"PARKED_TOKEN_FILE": TOKEN * 20})
    (tmp_path / "token").write_bytes(b"\xff")
    assert refusal({"PARKED_TOKEN_FILE": "token"}) == "PARKED_TOKEN_FILE ('token') can't be read: not a text file"


def test_a_bad_secret_is_not_in_the_message_nor_in_its_cause():
    with pytest.raises(SettingsError) as caught:
        SidecarSettings.load(env={"PARKED_TOKEN": "hunter2"})

    assert str(caught.value) == "PARKED_TOKEN must be at least 16 visible ASCII characters without a space"
    assert caught.value.__context__ is None
    assert "hunter2" not in str(caught.value.__context__)


def test_neither_secrets_nor_a_ledger_with_a_password_are_in_the_repr():
    loaded = SidecarSettings.load(env={"PARKED_TOKEN": TOKEN, "PARKED_LEDGER": "postgresql://parked:hunter2@db/parked"})

    assert TOKEN not in repr(loaded)
    assert "hunter2" not in repr(loaded)


# --- variables that nobody knows ---------------------------------------------------------------------------------


def test_an_unknown_variable_is_refused_with_the_nearest_name_and_without_its_value():
    with pytest.raises(SettingsError) as caught:
        settings.refuse_unknown({"PARKED_TOKN": TOKEN, "PARKED_LEDGER_FILE": "x", "PARKED_ZZZ": "x", "PATH": "/bin"})

    assert str(caught.value) == (
        "PARKED_LEDGER_FILE is no setting of parked (did you mean PARKED_LEDGER?);"
        " PARKED_TOKN is no setting of parked (did you mean PARKED_TOKEN?);"
        " PARKED_ZZZ is no setting of parked (see docs/settings.md)"
    )


def test_every_setting_of_both_programs_and_every_file_of_a_secret_is_known():
    names = {variable(name) for name in settings.SETTINGS} | {
        "PARKED_TOKEN_FILE",
        "PARKED_STORE_KEYS_FILE",
        "PARKED_NOTIFY_FILE",
    }

    assert settings.check_unknown(dict.fromkeys(names, "x")) == []


@pytest.mark.parametrize(
    "name",
    [
        "PARKED_SERVICE_HOST",
        "PARKED_SERVICE_PORT",
        "PARKED_SERVICE_PORT_METRICS",
        "PARKED_PORT",
        "PARKED_PORT_9465_TCP",
        "PARKED_PORT_9465_TCP_ADDR",
        "PARKED_EXPORTER_SERVICE_HOST",
        "PARKED_EXPORTER_PORT_9465_TCP_PROTO",
    ],
)
def test_what_kubernetes_makes_from_a_service_is_ignored(name):
    assert settings.check_unknown({name: "tcp://10.0.0.1:9465"}) == []


def test_the_library_warns_of_an_unknown_variable_once(caplog):
    caplog.set_level(logging.WARNING, logger="parked")
    env = {"PARKED_WARNED_OF_ONCE": "hunter2"}

    settings.warn_unknown(env)
    settings.warn_unknown(env)

    assert [record.getMessage() for record in caplog.records] == [
        "unknown_setting: PARKED_WARNED_OF_ONCE is no setting of parked (see docs/settings.md)"
    ]


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_page_of_settings_is_what_the_table_says():
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == settings.page(), (
        "make it anew: python -m parked.settings > docs/settings.md"
    )


def test_every_setting_says_what_it_does_and_why_its_default_is_what_it_is():
    for name, setting in settings.SETTINGS.items():
        assert setting.help.endswith("."), name
        assert setting.why, name
        assert "|" not in setting.help + setting.why + setting.form.rule, name
