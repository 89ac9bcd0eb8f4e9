"""What holds for the repository as a whole: its frame, its pages, and lists that must agree across files."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from parked.cli.frame import COMMANDS
from parked.settings import SETTINGS, SidecarSettings, check_unknown, variable
from parked.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("dashboards/**/*.md")],
    key=lambda page: page.as_posix(),
)


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in paths]


def normalized(requirement: str) -> str:
    """Return the name that a requirement is for, as registries compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~ ;]", requirement)[0]).lower()


def code_of(page: Path) -> str:
    """Return what a page shows as code: blocks, fenced or indented, and what stands in backticks."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}(.*)$", text, re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", text)
    return "\n".join([*fenced, *indented, *inline])


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- the frame ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "pyproject.toml",
        "runner",
        "exporter",
        "dashboards",
        "tests",
        "Dockerfile",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
    ],
)
def test_the_top_level_has_what_a_newcomer_looks_for(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("folder", ["runner", "exporter", "tests"])
def test_a_folder_that_is_no_package_cannot_be_imported_as_one(folder):
    assert not (ROOT / folder / "__init__.py").exists()


def test_both_packages_are_in_the_wheel_and_say_that_they_are_typed():
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    assert packages == ["runner/parked", "exporter/parked_exporter"]
    for package in packages:
        assert (ROOT / package / "py.typed").exists()


def test_the_version_is_written_in_one_place():
    place = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]

    assert PROJECT["project"]["dynamic"] == ["version"]
    assert f'"{__version__}"' in place.read_text(encoding="utf-8")
    elsewhere = [*ROOT.glob("runner/**/*.py"), *ROOT.glob("exporter/**/*.py")]
    assert [
        file for file in elsewhere if file != place and f'"{__version__}"' in file.read_text(encoding="utf-8")
    ] == []


def test_the_changelog_tells_of_the_version_that_this_is():
    headings = re.findall(
        r"^## \[(\d.+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )

    assert headings[0] == __version__


def test_the_license_is_the_one_that_the_package_names():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")

    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_ci_runs_what_developers_run():
    script = ROOT / ".ci/run"

    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-2:] == ["make lint", "make test"]


# --- versions ----------------------------------------------------------------------------------------------------


def test_every_constraint_is_a_name_and_an_exact_version_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()

    odd = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)]

    assert odd == []


def test_everything_that_is_asked_for_by_name_has_an_exact_version():
    project = PROJECT["project"]
    asked = [
        *project["dependencies"],
        *(requirement for extra in project["optional-dependencies"].values() for requirement in extra),
        *PROJECT["dependency-groups"]["dev"],
        *PROJECT["build-system"]["requires"],
    ]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normalized(line) for line in lines if not line.startswith("#")}

    assert {normalized(requirement) for requirement in asked} - pinned == set()


@pytest.mark.parametrize("name", ["Dockerfile", "Makefile"])
def test_whoever_installs_all_of_it_asks_for_every_extra(name):
    lists = re.findall(r"'\.\[([a-z,]+)\]'", (ROOT / name).read_text(encoding="utf-8"))

    assert lists
    assert set(lists) == {",".join(sorted(PROJECT["project"]["optional-dependencies"]))}


def test_the_image_has_a_base_with_a_version_and_does_not_run_as_root():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()

    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases
    for base in bases:
        assert re.fullmatch(r"python:3\.\d+(\.\d+)?-slim-[a-z]+", base)
    assert not any(line.startswith("# syntax=") for line in lines)  # it would be fetched before anything is built
    assert re.fullmatch(r"USER [1-9]\d*:[1-9]\d*", next(line for line in reversed(lines) if line.startswith("USER ")))


# --- pages -------------------------------------------------------------------------------------------------------


def test_the_changelog_is_kept_for_users():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] == "[Unreleased]"
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    entries = re.findall(r"^- (.+(?:\n  .+)*)", text, re.MULTILINE)
    assert entries
    assert [entry for entry in entries if not entry.endswith(".")] == []


@pytest.mark.parametrize("page", named(PAGES))
def test_every_link_of_a_page_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))

    dead = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors_of(target))):
            dead.append(link)

    assert dead == []


@pytest.mark.parametrize("page", named(PAGES))
def test_every_command_on_a_page_exists(page):
    shown = set(re.findall(r"^(?:\$ )?parked ([a-z]+)\b", code_of(page), re.MULTILINE))

    assert shown - set(COMMANDS) == set()


@pytest.mark.parametrize("page", named(PAGES))
def test_every_make_target_on_a_page_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    shown = set(re.findall(r"^(?:\$ )?make ([a-z-]+)\b", code_of(page), re.MULTILINE))

    assert shown - targets == set()


@pytest.mark.parametrize("page", named(PAGES))
def test_every_variable_on_a_page_is_a_setting(page):
    shown = re.findall(r"\bPARKED_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8"))

    assert check_unknown(dict.fromkeys(shown, "")) == []


def test_every_page_of_the_documentation_is_in_its_index():
    for folder in (ROOT / "docs", ROOT / "docs/decisions"):
        index = (folder / "README.md").read_text(encoding="utf-8")
        pages = [page.name for page in folder.glob("*.md") if page.name != "README.md"]
        assert [page for page in pages if f"({page})" not in index] == []


def test_prometheus_is_told_to_scrape_where_the_sidecar_listens():
    config = (ROOT / "dashboards/prometheus.yml").read_text(encoding="utf-8")

    assert f'targets: ["{SidecarSettings().listen}"]' in config


def test_only_the_settings_read_variables_of_parked():
    readers = r"environ(\.get\(|\[)|getenv\("
    names = "|".join(variable(name) for name in SETTINGS)

    offenders = [
        file.relative_to(ROOT).as_posix()
        for file in [*ROOT.glob("runner/**/*.py"), *ROOT.glob("exporter/**/*.py")]
        if re.search(rf"({readers})\W*({names})", file.read_text(encoding="utf-8"))
    ]

    assert offenders == []
