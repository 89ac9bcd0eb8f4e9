"""The licences of everything that is installed with parked: prints docs/licences.md from what the packages say.

python docs/site/licences.py > docs/licences.md
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT: Final[dict[str, Any]] = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]

# What packages write who don't write SPDX's names yet.
SPDX: Final = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Zope Public License": "ZPL-2.1",
    "3-Clause BSD License": "BSD-3-Clause",
}

PERMISSIVE: Final = frozenset(
    "0BSD Apache-2.0 BSD BSD-2-Clause BSD-3-Clause ISC MIT MIT-0 PSF-2.0 ZPL-2.1".split()  # noqa: SIM905 - one line
)

# Licences that ask for something when a changed or linked work is passed on, and what that is here.
TERMS: Final = {
    "LGPL-3.0-only": "may be used from any program; who passes it on passes on its source, and lets it be replaced",
    "MPL-2.0": "may be used from any program; changes to its own files are passed on under the same licence",
}

HEAD: Final = """\
# Licences

<!-- Made by `python docs/site/licences.py`; a test compares. -->

parked is under the Apache License 2.0. These packages are installed with it, directly or by others, on Python 3.11;
`constraints.txt` has the versions. None of their code is part of parked itself.
"""


def installed_with(requirements: list[str]) -> set[str]:
    """The names of all packages that these bring, by what the installed ones ask for."""
    waiting = [Requirement(each) for each in requirements]
    seen = set()
    while waiting:
        each = waiting.pop()
        entry = (canonicalize_name(each.name), frozenset(each.extras))
        if entry not in seen:
            seen.add(entry)
            waiting.extend(_asked_for(distribution(each.name), entry[1]))
    return {name for name, _ in seen}


def _asked_for(package: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in package.requires or ():
        requirement = Requirement(text)
        surroundings = ({"extra": extra, "python_version": "3.11"} for extra in extras or {""})
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in surroundings):
            yield requirement


def licence_of(package: Distribution) -> str:
    """By SPDX's names: the expression that a package gives, else its classifiers, else its own words."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier", []) if line.startswith("License")]
    named = [each for each in classifiers if each != "OSI Approved"] or [str(metadata.get("License", "?")).strip()]
    return " AND ".join(sorted(SPDX.get(each, each) for each in named))


def parts(licence: str) -> set[str]:
    """The licences that an expression names."""
    return set(re.split(r"\s+(?:AND|OR)\s+", licence.strip("()")))


def page() -> str:
    core = installed_with(PROJECT["dependencies"])
    lines = [HEAD, "| package | licence | comes with |", "|---|---|---|"]
    rows: dict[str, tuple[str, str]] = {name: (licence_of(distribution(name)), "parked") for name in core}
    for extra, requirements in sorted(EXTRAS.items()):
        for name in installed_with(requirements) - core:
            known = rows.get(name)
            brought = f"`parked[{extra}]`" if known is None else f"{known[1]}, `parked[{extra}]`"
            rows[name] = (licence_of(distribution(name)), brought)
    lines += [f"| {distribution(name).name} | {licence} | {by} |" for name, (licence, by) in sorted(rows.items())]
    others = {name: licence for name, (licence, _) in sorted(rows.items()) if not parts(licence) <= PERMISSIVE}
    lines += ["", "## Not merely permissive", "", "| package | licence | in short |", "|---|---|---|"]
    for name, licence in others.items():
        terms = "; ".join(sorted(TERMS[part] for part in parts(licence) - PERMISSIVE))
        lines.append(f"| {distribution(name).name} | {licence} | {terms} |")
    lines += ["", "All others ask for no more than that their notice is kept.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
