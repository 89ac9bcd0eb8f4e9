"""The image, built for real and run with no right that it can do without; its base is a stand-in (`containers.py`)."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from containers import BASE, HARDENED, IMAGE, REVISION, ROOT, Container, Engine
from parked.version import __version__
from servers import wait_until

pytestmark = pytest.mark.slow

MEGABYTE: Final = 1_000_000
ADDS_AT_MOST: Final = 125 * MEGABYTE
ENDS_WITHIN_S: Final = 10.0  # the second or so that the programs promise, on a machine that has much else to do
CHECKED_OFTEN: Final = ("--health-interval=500ms", "--health-retries=1")
SIDECAR: Final = "http://127.0.0.1:9465"
API: Final = ("--env=GEMINI_API_KEY=k", "--env=GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9466")
JOBS: Final = "".join(
    json.dumps({"job_id": f"j-{n}", "model": "m", "payload": {"contents": f"Describe star {n}."}}) + "\n"
    for n in range(3)
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder that containers may read, with jobs in it."""
    (tmp_path / "jobs.jsonl").write_text(JOBS)
    (tmp_path / "silent.json").write_text('{"rules": [{"reply": "hang"}]}')
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def volume(engine: Engine) -> Iterator[str]:
    with engine.volume() as name:
        yield name


@pytest.fixture
def simulating(engine, files):
    """Returns a function that runs the simulator in a container; others join its network to reach it."""

    @contextmanager
    def run(*words: str) -> Iterator[str]:
        options = ("--network=none", f"--volume={files}:/files:ro", *HARDENED)
        with engine.running(*options, IMAGE, "parked", "simulate", *words) as container:
            wait_until(lambda: "simulating" in container.logs())
            yield f"--network=container:{container.number}"

    return run


def is_running(container: Container, jobs: int) -> bool:
    """Whether so many jobs are in the air."""
    done = container.engine.attempt("exec", container.number, "parked", "list", "--state", "running", "--json")
    return done.returncode == 0 and len(json.loads(done.stdout)["jobs"]) == jobs


# --- what is in it -----------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = Path(sys.executable).parent / "hadolint"

    done = subprocess.run([hadolint, "--failure-threshold=style", ROOT / "Dockerfile"], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_builder_is_sent_what_it_builds_from_and_nothing_else(engine: Engine, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY . .\n")

    engine("build", f"--file={tmp_path}/Dockerfile", f"--output=type=tar,dest={tmp_path}/sent.tar", str(ROOT))

    with tarfile.open(fileobj=io.BytesIO((tmp_path / "sent.tar").read_bytes())) as sent:
        names = [name.removeprefix("./") for name in sent.getnames()]
    asked_for = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "runner", "exporter"}
    assert {name.partition("/")[0] for name in names if name} == asked_for
    assert not [name for name in names if re.search(r"__pycache__|\.db$", name)]


def test_it_adds_two_folders_to_its_base_and_no_pip_compiler_cache_or_test_is_in_them(engine: Engine):
    def paths(image: str) -> set[str]:
        find = "find / -xdev -not -path '/proc*' -not -path '/sys*' -not -path '/dev*'"
        return set(engine("run", "--rm", "--network=none", "--user=0", image, "sh", "-c", find).splitlines())

    base, ours = paths(BASE), paths(IMAGE)

    assert {path for path in ours - base if not path.startswith("/opt/parked")} == {"/data"}
    assert {path for path in base - ours if "pip" not in path} == set()
    unwanted = re.compile(r"/(tests|pip|setuptools|wheel|\.cache)$|/(gcc|cc|cc1|clang|make|curl|pip[\d.]*)$")
    assert [path for path in ours - base if unwanted.search(path)] == []
    assert [path for path in ours if re.search(r"/bin/(gcc|cc|clang|make|pip[\d.]*)$", path)] == []
    done = engine.attempt("run", "--rm", "--network=none", IMAGE, "python", "-m", "pip", "--version")
    assert "No module named pip" in done.stderr


def test_what_it_adds_is_small(engine: Engine):
    sizes = [int(engine("inspect", "--format={{.Size}}", image)) for image in (IMAGE, BASE)]

    assert sizes[0] - sizes[1] < ADDS_AT_MOST


def test_its_labels_say_what_it_is_and_it_runs_as_a_user_with_a_number(engine: Engine):
    config = json.loads(engine("inspect", "--format={{json .Config}}", IMAGE))

    kind = "org.opencontainers.image"
    assert config["User"] == "10001:10001"
    assert config["Labels"][f"{kind}.title"] == "parked"
    assert config["Labels"][f"{kind}.licenses"] == "Apache-2.0"
    assert config["Labels"][f"{kind}.version"] == __version__
    assert config["Labels"][f"{kind}.revision"] == REVISION
    assert config["Labels"][f"{kind}.description"]


def test_a_label_with_another_version_than_what_is_in_it_is_not_built(engine: Engine):
    done = engine.attempt("build", "--network=host", "--build-arg=VERSION=0.0.0", str(ROOT))

    assert done.returncode != 0
    assert 'test "$VERSION" = unreleased' in done.stderr


# --- how it runs -------------------------------------------------------------------------------------------------


def test_the_sidecar_is_healthy_and_scraped_without_any_right_and_ends_at_once(engine: Engine, volume: str):
    options = ("--network=none", f"--volume={volume}:/data", *CHECKED_OFTEN, *HARDENED)
    with engine.running(*options, IMAGE, "parked-exporter") as sidecar:
        wait_until(sidecar.is_healthy)
        scraped = sidecar.get(f"{SIDECAR}/metrics")
        written = engine.attempt("exec", sidecar.number, "touch", "/opt/parked/here")
        who = sidecar.execute("id", "-u")
        rights = sidecar.execute("grep", "CapBnd", "/proc/1/status").split()[1]
        first_process = sidecar.execute("cat", "/proc/1/cmdline")
        status, took_s = sidecar.stop()

        assert f'parked_build_info{{version="{__version__}"}} 1.0' in scraped
        assert "Read-only file system" in written.stderr
        assert (who, int(rights, 16)) == ("10001", 0)
        assert "parked-exporter" in first_process
        assert (status, sidecar.state()["OOMKilled"]) == (0, False), sidecar.logs()
        assert took_s < ENDS_WITHIN_S


def test_a_sidecar_that_hangs_is_not_healthy(engine: Engine):
    listen = "--listen=0.0.0.0:9999"
    with engine.running("--network=none", *CHECKED_OFTEN, *HARDENED, IMAGE, "parked-exporter", listen) as sidecar:
        wait_until(sidecar.is_healthy)
        engine("kill", "--signal=STOP", sidecar.number)

        wait_until(lambda: sidecar.state()["Health"]["Status"] == "unhealthy")

        said = sidecar.state()["Health"]["Log"][-1]["Output"]
        assert said == "the sidecar at 127.0.0.1:9999 doesn't answer as it should: timed out\n"


def test_a_run_and_its_sidecar_share_a_volume_as_one_user(engine: Engine, volume: str, files: Path, simulating):
    data = (f"--volume={volume}:/data", f"--volume={files}:/files:ro")
    command = ("parked", "run", "/files/jobs.jsonl", "--out", "answers.jsonl", "--pipeline", "nightly")
    with engine.running("--network=none", *data, *HARDENED, IMAGE, "parked-exporter") as sidecar:
        with simulating() as network, engine.running(network, *data, *API, *HARDENED, IMAGE, *command) as run:
            status = run.wait()
            assert (status, run.state()["OOMKilled"]) == (0, False), run.logs()
            assert "3 lines: 3 answered" in run.logs()

        wait_until(lambda: "ledger_back" in sidecar.logs() or "parked_ledger_up 1" in sidecar.get(f"{SIDECAR}/metrics"))
        scraped = sidecar.get(f"{SIDECAR}/metrics")
        assert re.search(r'^parked_ledger_jobs\{.*pipeline="nightly",state="succeeded"\} 3\.0$', scraped, re.MULTILINE)
        assert len(sidecar.execute("cat", "/data/answers.jsonl").splitlines()) == 3
        assert sidecar.execute("stat", "-c", "%u %a", "/data/parked.db") == "10001 600"


@pytest.mark.parametrize("init", [(), ("--init",)], ids=["as process 1", "below an init"])
def test_a_run_that_calls_is_healthy_and_ends_drained_at_sigterm(engine, volume, files, simulating, init):
    options = (f"--volume={volume}:/data", f"--volume={files}:/files:ro", "--env=PARKED_DRAIN_S=0.5", *CHECKED_OFTEN)
    command = ("parked", "run", "/files/jobs.jsonl", "--out", "answers.jsonl")
    with (
        simulating("--script", "/files/silent.json") as network,
        engine.running(network, *options, *init, *API, *HARDENED, IMAGE, *command) as run,
    ):
        wait_until(lambda: is_running(run, 3))
        wait_until(run.is_healthy)

        status, took_s = run.stop()

        assert status == 143, run.logs()
        assert took_s < ENDS_WITHIN_S
        assert "Traceback" not in run.logs()


def test_the_simulator_ends_at_sigterm_too(engine: Engine):
    with engine.running("--network=none", *HARDENED, IMAGE, "parked", "simulate") as simulator:
        wait_until(lambda: "simulating" in simulator.logs())

        status, took_s = simulator.stop()

        assert status == 0
        assert took_s < ENDS_WITHIN_S


def test_without_a_command_it_says_what_there_is_as_any_user(engine: Engine):
    said = engine("run", "--rm", "--network=none", "--user=4711:4711", *HARDENED, IMAGE)

    assert said.startswith("usage: parked")


def shown(language: str) -> list[str]:
    page = (ROOT / "docs/containers.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_run_and_stay_in_the_folder(engine: Engine, files: Path, simulating):
    jobs, sidecar = [block for block in shown("sh") if block.startswith("docker run")]
    with simulating() as network:
        # The engine of the tests has no network of its own, and so none to publish a port of.
        here = f"docker run {network} --env GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9466"
        script = re.sub(r"--publish \S+", "", f"{jobs}\n{sidecar}").replace("docker run", here)
        env = {**engine.env, "GEMINI_API_KEY": "k", "PATH": f"{Path(engine.client).parent}:{engine.env['PATH']}"}

        done = subprocess.run(["bash", "-ec", script], cwd=files, env=env, capture_output=True, text=True)

        assert done.returncode == 0, done.stderr
        assert "3 lines: 3 answered" in done.stderr
        assert "dead-letter: clean (0 parked)" in done.stdout
        assert len((files / "answers.jsonl").read_text().splitlines()) == 3
        beside = Container(engine, "sidecar")
        wait_until(lambda: "sidecar_started" in beside.logs())
        wait_until(lambda: 'state="succeeded"} 3.0' in beside.get(f"{SIDECAR}/metrics"))
        engine("rm", "--force", "sidecar")


def test_a_function_of_ones_own_is_found_where_the_page_puts_it(engine: Engine, files: Path, volume: str):
    (dockerfile,) = shown("dockerfile")
    (files / "Dockerfile").write_text(dockerfile)
    (files / "calls.py").write_text("def ask(payload, model):\n    return 'an answer'\n")
    engine("build", "--tag=mine", str(files))

    data = (f"--volume={volume}:/data", f"--volume={files}:/files:ro")
    command = ("parked", "run", "/files/jobs.jsonl", "--out", "answers.jsonl", "--call", "calls:ask")
    done = engine.attempt("run", "--rm", "--network=none", *data, *HARDENED, "mine", *command)

    assert done.returncode == 0, done.stderr
    assert "3 lines: 3 answered" in done.stderr


def test_where_no_more_threads_can_be_started_calls_wait_for_those_that_are_there(engine, files):
    os.chown(files, 10001, 10001)
    calls = "import time\n\n\ndef ask(payload, model):\n    time.sleep(0.3)\n    return 'an answer'\n"
    (files / "calls.py").write_text(calls)
    lines = [{"job_id": f"a-{n}", "model": "m", "payload": {"contents": f"{n}?"}} for n in range(60)]
    (files / "many.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    data = (f"--volume={files}:/data", "--env=PYTHONPATH=/data")
    command = ("parked", "run", "many.jsonl", "--out", "many.out", "--call", "calls:ask", "--concurrency", "40")
    done = engine.attempt("run", "--rm", "--network=none", *data, *HARDENED, "--pids-limit=9", IMAGE, *command)

    assert done.returncode == 0, done.stderr
    assert "60 lines: 60 answered" in done.stderr
    assert done.stderr.count("no_more_threads started=") == 1
    assert len((files / "many.out").read_text().splitlines()) == 60


# --- what users get wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param((), "Read-only file system; mount a volume there that can be written, or", id="no volume"),
        pytest.param(("--volume={}/closed:/data",), "let user 10001 write its folder", id="another's volume"),
    ],
)
def test_a_volume_that_cannot_be_written_is_said_with_what_to_do(engine, files, options, said):
    (files / "closed").mkdir()
    words = [each.format(files) for each in options]
    command = ("parked", "run", "/files/jobs.jsonl", "--out", "/dev/null")

    done = engine.attempt(
        "run", "--rm", "--network=none", f"--volume={files}:/files:ro", *words, *API, *HARDENED, IMAGE, *command
    )

    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("parked: the ledger /data/parked.db can't be created: ")
    assert said in line
