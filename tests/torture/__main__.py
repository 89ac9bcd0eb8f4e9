"""`make torture`: random kills of random processes on one ledger after the other, as many as are asked for."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from torture import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--each", type=int, default=40, help="kills on one ledger, before the next one is made")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so end all that was started
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    print(f"torture: {args.kills} kills on {args.database}, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="parked-torture-"))
    began, deaths, held = time.monotonic(), Counter[str](), 0
    with play.stage(folder, args.database) as stage:
        for number, kills in enumerate(play.shares(args.kills, args.each)):
            arena = stage.run(seed + number, kills)
            deaths.update(death.who.partition(".")[0] for death in arena.deaths)
            held += sum(death.held for death in arena.deaths)
            took_s = time.monotonic() - began
            print(
                f"seed {seed + number}: {deaths.total()} kills, {held} jobs in their hands, {took_s:.0f} s", flush=True
            )
    print("nothing lost: " + ", ".join(f"{role} {kills}" for role, kills in deaths.most_common()), flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
