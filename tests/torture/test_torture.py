"""A short torture run on each database. `make torture N=1000` is the long one."""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from torture.play import stage

pytestmark = pytest.mark.slow

KILLS = 30


@pytest.fixture
def on_disk():
    """A folder on the disk, where a commit takes its time. What a run leaves in it that broke a law is kept."""
    folder = Path(tempfile.mkdtemp(prefix="parked-torture-"))
    yield folder
    with suppress(OSError):
        folder.rmdir()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_nothing_is_lost_whoever_is_killed(database, on_disk):
    seed = int(os.environ.get("TORTURE_SEED", random.SystemRandom().randrange(10**6)))
    print(f"TORTURE_SEED={seed}")  # shown if it fails

    with stage(on_disk, database) as here:
        arena = here.run(seed, KILLS)

    assert len(arena.deaths) >= KILLS
