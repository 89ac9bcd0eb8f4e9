"""The stage of torture runs: the simulator, the nursery, and a database of one's own for each run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import servers
from torture.api import Api
from torture.arena import Arena
from torture.nursery import Nursery


class Tortured(AssertionError):
    """A law was broken; says where to look and how to see it again."""


@dataclass
class Stage:
    folder: Path
    database: str
    server: servers.Postgres | None

    def run(self, seed: int, kills: int) -> Arena:
        """Play one run on a ledger of its own, which is removed unless a law was broken.

        Raises:
            Tortured: names the seed, the ledger and all who were killed.
        """
        folder = self.folder / f"seed-{seed}"
        url = f"sqlite:///{folder}/parked.db"
        if self.server is not None:
            self.server.run(f"CREATE DATABASE torture_{seed}")
            url = self.server.url(f"torture_{seed}")
        folder.mkdir(parents=True)
        with ExitStack() as stack:
            api, nursery = Api(), Nursery(folder)
            stack.callback(api.close)
            stack.callback(nursery.close)
            arena = Arena(folder, url, seed, nursery, api, self.server)
            try:
                arena.run(kills)
            except Exception as exc:
                killed = "\n  ".join(f"{death.who} {death.when}, with {death.held} jobs" for death in arena.deaths)
                raise Tortured(
                    f"{exc}\nseed {seed}, {kills} kills on {self.database}; the ledger: {url}; logs: {folder}\n"
                    f"  {killed}"
                ) from exc
        if self.server is not None:
            self.server.run(f"DROP DATABASE torture_{seed} WITH (FORCE)")
        shutil.rmtree(folder)
        return arena


@contextmanager
def stage(folder: Path, database: str) -> Iterator[Stage]:
    """A stage whose server, if there is one, syncs to disk: it is to be killed."""
    if database == "sqlite":
        yield Stage(folder, database, None)
        return
    with servers.running(is_durable=True) as server:
        yield Stage(folder, database, server)


def shares(kills: int, each: int) -> list[int]:
    """So many kills in runs of `each`."""
    return [min(each, kills - done) for done in range(0, kills, each)]
