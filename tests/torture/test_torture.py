"""A short torture run on each database. `make torture N=1000` is the long one."""

from __future__ import annotations

import os
import random

import pytest

from torture.play import stage

KILLS = 30


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_nothing_is_lost_whoever_is_killed(database, tmp_path):
    seed = int(os.environ.get("TORTURE_SEED", random.SystemRandom().randrange(10**6)))
    print(f"TORTURE_SEED={seed}")  # shown if it fails

    with stage(tmp_path, database) as here:
        arena = here.run(seed, KILLS)

    assert len(arena.deaths) >= KILLS
