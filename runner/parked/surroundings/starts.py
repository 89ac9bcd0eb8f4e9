"""Whether the programs would start: what they refuse of settings that keep their rules, each for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from parked import tracing
from parked.errors import ParkedError, SettingsError
from parked.settings import SidecarSettings

# Those that only a sidecar goes by. Which of them go together, and whether what they name is there, it says itself.
OF_A_SIDECAR: Final = ("auto_replay", "call", "notify", "on_answer")
SIDECAR: Final = (sys.executable, "-m", "parked_exporter.cli", "--check")


def look(settings: SidecarSettings, *, patience_s: float) -> list[str]:
    """Return what a start would be refused with, one sentence for each program.

    The sidecar is asked in a process of its own: it imports functions of users, who may print, hang or end it.

    Raises:
        ParkedError: the sidecar didn't answer in time.
    """
    found = []
    try:
        tracing.check()
    except SettingsError as exc:
        found.append(str(exc))
    if any(getattr(settings, name) for name in OF_A_SIDECAR):
        env = {**os.environ, "PARKED_LEDGER": settings.ledger}
        try:
            asked = subprocess.run(
                SIDECAR, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=patience_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ParkedError(f"`parked-exporter --check` didn't end within {patience_s:.0f} s") from None
        if asked.returncode:
            said = asked.stderr.strip().rpartition("\n")[2].removeprefix("parked-exporter: ")
            found.append(f"parked-exporter would not start: {said or f'status {asked.returncode}'}")
    return found
