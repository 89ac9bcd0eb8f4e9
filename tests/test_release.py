"""What is handed out: wheel and sdist, on each Python that is promised, with and without extras."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from parked.version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = Path(sys.prefix) / "release/bin"  # where `make test` has put the tools of the group `release`

# Eight jobs through the real SDK, by threads and by asyncio, of which one is refused once.
SMOKE = """
import asyncio
import parked
from google import genai
from parked.simulator import Simulator, replies

def rule(request):
    return replies.rate_limited(retry_delay_s=0.05) if request.text == "2" and request.call == 1 else None

def jobs(batch):
    return [parked.Job(f"{batch}-{n}", "gemini-3.5-flash", {"contents": str(n)}) for n in range(4)]

async def again(ledger, client):
    runner = parked.AsyncRunner(ledger, parked.Gemini(client))
    states = [outcome.state async for outcome in runner.run_many(jobs("async"), concurrency=4)]
    await client.aio.aclose()
    return states

with Simulator() as api, parked.open_ledger("sqlite:///smoke.db") as ledger:
    api.answers(rule)
    client = genai.Client(api_key="k", http_options={"base_url": api.url})
    states = [outcome.state for outcome in parked.Runner(ledger, parked.Gemini(client)).run_many(jobs("sync"))]
    states += asyncio.run(again(ledger, client))
    client.close()
print(*sorted(set(states)), len(states), len(api.requests))
"""


@pytest.fixture(scope="module")
def tools() -> Path:
    if not TOOLS.exists():
        assert "CI" not in os.environ, f"no tools in {TOOLS}"
        pytest.skip("the tools of the group `release` are not installed (make test does it)")
    return TOOLS


@pytest.fixture(scope="module")
def built(tools, tmp_path_factory) -> dict[str, Path]:
    """`wheel`, `sdist`, and `again`: the wheel that is built of the sdist. Nothing is downloaded for it."""
    folder = tmp_path_factory.mktemp("dist")
    build = [tools / "python", "-m", "build", "--no-isolation"]
    run([*build, "--wheel", "--sdist", "--outdir", folder, ROOT])
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run([*build, "--wheel", "--outdir", folder / "again", unpacked])
    (wheel,), (again,) = folder.glob("*.whl"), (folder / "again").glob("*.whl")
    return {"wheel": wheel, "sdist": sdist, "again": again}


# `make` names the file as it is called from the root; pip is run from anywhere.
CONSTRAINTS = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(ROOT / "constraints.txt"))


def run(command, **options) -> subprocess.CompletedProcess[str]:
    env = os.environ | CONSTRAINTS
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def brought_by(*requirements: str) -> set[str]:
    """All that these bring, as the page of licences counts it."""
    brought: set[str] = runpy.run_path(str(ROOT / "docs/site/licences.py"))["installed_with"](list(requirements))
    return brought


def environment(folder: Path, wheel: Path, requirements: list[str]) -> Path:
    """Make an environment with the wheel and what these bring, linked from the one that runs this; return its bin."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in brought_by(*requirements):
        for file in distribution(name).files or ():
            there = Path(str(file.locate()))
            if ".." not in file.parts and "__pycache__" not in file.parts and there.exists():
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                os.link(there, packages / file) if _same_disk(there, packages) else shutil.copy(there, packages / file)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python"]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel])
    return folder / "bin"


def _same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


@pytest.fixture(scope="module")
def plain(built, tmp_path_factory) -> Path:
    """The commands of an environment that has parked without extras."""
    return environment(tmp_path_factory.mktemp("plain"), built["wheel"], PROJECT["dependencies"])


def without(bin_folder: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"GEMINI_API_KEY": "k"}
    program = [str(bin_folder / command[0]), *command[1:]]
    return subprocess.run(program, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_wheel_holds_the_two_packages_and_the_licence_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()

    info = f"parked-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"parked", "parked_exporter", info}
    assert {f"{info}/licenses/LICENSE", "parked/py.typed", "parked_exporter/py.typed"} <= set(names)
    source = {
        path.relative_to(folder).as_posix()
        for folder in (ROOT / "runner", ROOT / "exporter")
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(info)} == source


def test_the_sdist_builds_the_same_wheel(built):
    def content(file: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(file) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}

    assert content(built["again"]) == content(built["wheel"])


def test_the_sdist_holds_what_tests_and_documentation_need(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    needed = ["tests/conftest.py", "docs/README.md", "dashboards/alerts.yml", "constraints.txt", "Makefile", ".ci/run"]
    assert set(needed) <= names
    assert not [name for name in names if re.search(r"__pycache__|\.db$|^\.(venv|git)/|^build/", name)]


def test_the_metadata_say_what_the_package_is(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        metadata = wheel.read(f"parked-{__version__}.dist-info/METADATA").decode()

    head = metadata.partition("\n\n")[0]
    said = {"Name: parked", f"Version: {__version__}", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"}
    assert said <= set(head.splitlines())
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in head
    assert "Classifier: Typing :: Typed" in head


def test_without_extras_the_library_and_the_command_work(plain, tmp_path):
    done = without(plain, "python", "-c", SMOKE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "succeeded 8 9\n"), done.stderr

    for command in ("--help", "demo --help", "run --help", "simulate --help"):
        assert without(plain, "parked", *command.split(), cwd=tmp_path).returncode == 0
    assert without(plain, "parked", "--version", cwd=tmp_path).stdout == f"parked {__version__}\n"
    assert without(plain, "parked", "summary", "--ledger", "sqlite:///smoke.db", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("parked-exporter", "exporter"),
        ("parked-exporter --check --ledger postgresql://localhost/x", "postgres"),
        ("parked summary --ledger postgresql://localhost/x", "postgres"),
        ("parked run jobs.jsonl --ledger postgresql://localhost/x", "postgres"),
    ],
)
def test_what_needs_an_extra_says_so_in_one_sentence(plain, tmp_path, command, extra):
    (tmp_path / "jobs.jsonl").write_text('{"job_id": "a", "model": "m", "payload": {"contents": "x"}}\n')

    done = without(plain, *command.split(), cwd=tmp_path)

    assert done.returncode == 3, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install '.[{extra}]' in a checkout" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_list_of_components_is_complete_and_valid(built, tools, tmp_path):
    """As `make sbom` makes it; the tool itself holds it against CycloneDX's schema, and so does this."""
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]
    bin_folder = environment(tmp_path / "all", built["wheel"], asked)

    list_them = [tools / "cyclonedx-py", "environment", "--validate", "--output-file", tmp_path / "sbom.json"]
    run([*list_them, bin_folder / "python"])

    listed = json.loads((tmp_path / "sbom.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    found = {canonicalize_name(each["name"]): each["version"] for each in listed["components"]}
    lines = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pins: dict[str, str] = {canonicalize_name(name): version for name, version in lines}
    assert found == {"parked": __version__, **{name: pins[name] for name in brought_by(*asked)}}


def pythons() -> list[object]:
    """Each Python that the classifiers promise, but for the one that runs this."""
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    mine = f"3.{sys.version_info.minor}"
    return [pytest.param(version, id=version) for version in promised if version != mine]


def found(version: str) -> str | None:
    """The command of a Python: one of the path that starts, else the newest of pyenv."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    for place in [shutil.which(f"python{version}"), *of_pyenv]:
        if place is not None and _starts(place):
            return str(place)
    return None


def _starts(python: str | Path) -> bool:
    """Whether it is one: pyenv's command of a version that isn't chosen ends with an error."""
    return subprocess.run([python, "-c", "import sqlite3, venv"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("version", pythons())
def test_the_wheel_works_on_each_python_that_is_promised(built, tmp_path, version):
    """Without a deprecation. What it needs is downloaded, or cached; a Python that isn't there is left."""
    python = found(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    run([python, "-m", "venv", "--without-pip", tmp_path / "env"])
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "env/bin/python"]
    constraints = ["--constraint", ROOT / "constraints.txt", "--only-binary", ":all:"]
    run([*pip, "install", "--quiet", "--no-compile", *constraints, f"{built['wheel']}[exporter]"])

    warnings = ["-W", "error::DeprecationWarning", "-W", "ignore:Inheritance class AiohttpClientSession"]
    done = without(tmp_path / "env/bin", "python", *warnings, "-c", SMOKE, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, "succeeded 8 9\n"), done.stderr
    assert "Traceback" not in done.stderr
    for program in ("parked", "parked-exporter"):
        assert without(tmp_path / "env/bin", program, "--version", cwd=tmp_path).stdout == f"{program} {__version__}\n"
