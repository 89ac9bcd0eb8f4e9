"""What `import parked` gives, and what it does not pull in."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import parked


def test_every_public_name_is_there():
    for name in parked.__all__:
        assert getattr(parked, name) is not None


def test_a_name_that_is_not_there_says_so():
    with pytest.raises(AttributeError, match="unpark"):
        _ = parked.unpark


def test_type_checkers_and_the_interpreter_see_the_same_names():
    tree = ast.parse(Path(parked.__file__).read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: statement.module
        for statement in checked.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    assert seen == parked._HOME_OF
    assert sorted(seen) == sorted(parked.__all__)


def test_no_module_has_the_name_of_a_public_function():
    modules = {path.stem for path in Path(parked.__file__).parent.iterdir()}

    assert not modules & {name for name in parked.__all__ if callable(getattr(parked, name))}


HEAVY = "asyncio google.genai opentelemetry.sdk prometheus_client apscheduler waitress aiohttp httpx2 tqdm pydantic"


def test_importing_parked_and_its_runner_pulls_in_nothing_heavy():
    script = f"import sys, parked; parked.Runner, parked.open_ledger; print(*{set(HEAVY.split())!r} & {{*sys.modules}})"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
