"""What systemd and cron are given: units that systemd understands, and command lines that parked does."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import RawConfigParser
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from parked.cli.frame import build_parser
from parked.delay import next_pacific_midnight
from parked.settings import SETTINGS, Settings, refuse_unknown
from parked.simulator import Simulator
from parked_exporter.command import parser as exporter_parser
from servers import missing

ROOT = Path(__file__).parents[1]
SYSTEMD = ROOT / "deploy/systemd"
PAGE = (ROOT / "docs/scheduling.md").read_text()
UNITS = sorted(path.name for path in SYSTEMD.glob("parked-*.*") if path.is_file())
SERVICES = [name for name in UNITS if name.endswith(".service")]
MOST_EXPOSED = 15  # tenths; 0 is nothing, 100 all


class Unit(RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit(name: str) -> Unit:
    parser = Unit(strict=False, interpolation=None, delimiters=("=",))
    parser.read_string((SYSTEMD / name).read_text())
    return parser


def env_of(name: str) -> dict[str, str]:
    lines = (SYSTEMD / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of parked in a line of shell."""
    words = shlex.split(text)
    if words[:2] == ["/bin/sh", "-c"]:
        words = shlex.split(words[2])
    for at, word in enumerate(words):
        if word.endswith(("/bin/parked", "/bin/parked-exporter")):
            rest = words[at + 1 :]
            yield [Path(word).name, *rest[: next((n for n, w in enumerate(rest) if w in SHELL_WORDS), len(rest))]]


SHELL_WORDS = (">", ">>", "||", "&&", ";", "|")


def understood(words: list[str]) -> bool:
    program, *flags = words
    if program == "parked":
        build_parser([flags[0]]).parse_args(flags)  # raises for what it doesn't know
    else:
        exporter_parser().parse_args(flags)
    return True


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        missing("systemd-analyze")
    return str(found)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with programs that are there; the folder that holds them."""
    for source in SYSTEMD.rglob("parked-*"):
        target = tmp_path / source.relative_to(SYSTEMD)
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.parent == SYSTEMD:
            target.write_text(source.read_text().replace("/opt/parked/bin/", f"{Path(sys.executable).parent}/"))
    return tmp_path


def asked(*words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "TZ": "UTC", "LC_ALL": "C"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=env)


# --- systemd -------------------------------------------------------------------------------------------------------


def test_systemd_understands_every_unit(analyze, units):
    done = asked(analyze, "verify", "--man=no", *(str(units / name) for name in UNITS))

    assert (done.returncode, done.stderr) == (0, "")


def test_a_word_that_systemd_does_not_know_would_be_seen(analyze, units):
    for file, section in (("parked-work.timer", "[Timer]"), ("parked-.service.d/10-parked.conf", "[Service]")):
        path = units / file
        path.write_text(path.read_text().replace(section, f"{section}\nNoSuchSetting=1"))

    done = asked(analyze, "verify", "--man=no", *(str(units / name) for name in UNITS))

    assert done.stderr.count("NoSuchSetting") >= 2


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_little_besides_its_work(analyze, units, name):
    done = asked(analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", str(units / name))

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".timer")])
def test_every_timer_names_a_time_and_its_service_is_there(analyze, name):
    timer = unit(name)

    assert asked(analyze, "calendar", timer["Timer"]["OnCalendar"]).returncode == 0
    assert (SYSTEMD / name).with_suffix(".service").is_file()
    assert timer["Timer"]["Persistent"] == "true"


@pytest.mark.parametrize("day", ["2026-01-15", "2026-03-08", "2026-03-09", "2026-07-01", "2026-11-01", "2026-11-02"])
def test_work_begins_shortly_after_the_quotas_are_new_summer_and_winter(analyze, day):
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=UTC)

    when = unit("parked-work.timer")["Timer"]["OnCalendar"]
    done = asked(analyze, "calendar", f"--base-time={noon:%Y-%m-%d %H:%M:%S} UTC", when)

    found = re.search(r"Next elapse: \w+ (\S+ \S+) UTC", done.stdout)
    assert found is not None, done.stdout
    begins = datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    assert begins - next_pacific_midnight(noon.timestamp()) == 5 * 60


@pytest.mark.parametrize("name", SERVICES)
def test_every_command_of_a_unit_is_one_that_parked_knows(name):
    service = unit(name)["Service"]
    found = list(commands(service["ExecStart"].replace("$$", "$")))

    assert len(found) == 1
    assert understood(found[0])


def test_every_setting_is_known_and_its_value_is_one():
    env = env_of("parked.env")

    refuse_unknown(env)
    Settings.load(env=env)
    assert not [name for name in env if SETTINGS[name.removeprefix("PARKED_").lower()].secret]
    assert env_of("secrets.env") == {"GEMINI_API_KEY": ""}


def test_services_are_given_the_time_that_a_drain_takes():
    common = unit("parked-.service.d/10-parked.conf")["Service"]

    assert common["KillSignal"] == "SIGTERM"
    assert float(common["TimeoutStopSec"]) >= Settings.load(env=env_of("parked.env")).drain_s + 60


def test_what_systemd_takes_for_a_success_is_no_failure_that_somebody_has_to_see():
    for_night, for_work = (unit(f"parked-{name}.service")["Service"]["SuccessExitStatus"] for name in ("night", "work"))

    assert for_night.split() == ["4", "143"]
    assert for_work.split() == ["143"]
    assert unit("parked-exporter.service")["Service"]["RestartPreventExitStatus"] == "2"


# --- cron ----------------------------------------------------------------------------------------------------------


def cron_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"(@reboot|[\d*])", line)]


def test_every_command_of_the_crontab_is_one_that_parked_knows():
    lines = cron_lines((SYSTEMD / "crontab").read_text())

    found = [words for line in lines for words in commands(line)]

    assert [words[:2] for words in found] == [["parked", "run"], ["parked", "work"], ["parked-exporter"]]
    assert all(understood(words) for words in found)
    assert not re.search(r"(?<!\\)%", "".join(lines)), "cron makes a line break of it"


def test_every_line_of_cron_has_the_key():
    assert all("set -a && . ./secrets.env && " in line for line in cron_lines((SYSTEMD / "crontab").read_text()))


def test_without_systemd_the_page_makes_the_user_and_the_folder_before_it_needs_them():
    steps = PAGE.partition("## With cron")[2].partition("```crontab")[0]

    made = [steps.index(step) for step in ("useradd", "install -d -o parked", "install -o parked", "crontab -u parked")]
    assert made == sorted(made)
    home = env_of("crontab")["PARKED_LEDGER"].removeprefix("sqlite:///").removesuffix("/parked.db")
    assert f"--home-dir {home} " in steps
    assert f"{home}/secrets.env" in steps


def test_cron_meets_the_hour_after_the_reset_all_year():
    (line,) = (line for line in cron_lines((SYSTEMD / "crontab").read_text()) if "parked work" in line)
    minute, hours, *_ = line.split()

    resets = [datetime(2026, month, 15, tzinfo=ZoneInfo("America/Los_Angeles")).astimezone(UTC) for month in (1, 7)]

    assert {reset.hour for reset in resets} == {int(hour) for hour in hours.split(",")}
    assert minute == "5"


# --- both, as they are run -----------------------------------------------------------------------------------------


@pytest.fixture
def at_night(tmp_path: Path, simulator: Simulator) -> Callable[[list[str]], tuple[int, str]]:
    """Returns a function that runs a command as a scheduler does; returns its status and what it wrote."""
    (tmp_path / "jobs.jsonl").write_text(
        '{"job_id": "a", "model": "m", "payload": {"contents": "Describe the sea."}}\n'
    )
    (tmp_path / "secrets.env").write_text(f"GEMINI_API_KEY=k\nGOOGLE_GEMINI_BASE_URL={simulator.url}\n")
    bin_folder = str(Path(sys.executable).parent)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PARKED_LEDGER": f"sqlite:///{tmp_path}/parked.db"}
    env |= {name: os.environ[name] for name in ("PYTHONPATH", "SSL_CERT_FILE") if name in os.environ}

    def run(words: list[str], **more: str) -> tuple[int, str]:
        here = [word.replace("/opt/parked/bin", bin_folder).replace("/var/lib/parked", str(tmp_path)) for word in words]
        done = subprocess.run(
            here, cwd=tmp_path, env=env | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.slow
def test_a_night_that_went_well_sends_no_mail_but_for_the_first(at_night, simulator):
    night, work, _ = (line.split(maxsplit=5)[-1] for line in cron_lines((SYSTEMD / "crontab").read_text()))

    status, mail = at_night(["/bin/bash", "-c", night])
    assert (status, mail.count("\n")) == (0, 1)
    assert mail.startswith("made the ledger sqlite:///")
    assert at_night(["/bin/bash", "-c", night]) == (0, "")
    assert at_night(["/bin/bash", "-c", work]) == (0, "")
    assert len(simulator.requests) == 1


@pytest.mark.slow
def test_the_night_of_systemd_runs_through_its_shell(at_night, simulator, tmp_path):
    words = shlex.split(unit("parked-night.service")["Service"]["ExecStart"].replace("$$", "$"))

    status, _ = at_night(words, GEMINI_API_KEY="k", GOOGLE_GEMINI_BASE_URL=simulator.url)

    assert status == 0
    assert re.search(r'"batch": "\d{4}-\d\d-\d\d"', (tmp_path / "answers.jsonl").read_text())


# --- the page ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["crontab", "parked-night.service", "parked-work.timer"])
def test_the_page_shows_the_files_as_they_are(name):
    shown = [block.strip() for block in re.findall(r"^```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
    text = (SYSTEMD / name).read_text()
    bare = re.sub(r"\n{2,}", "\n\n", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).strip()

    assert bare in shown


@pytest.mark.parametrize("path", sorted(SYSTEMD.rglob("*")), ids=lambda path: path.name)
def test_every_file_is_named_on_the_page(path):
    assert f"{path.name}" in PAGE
