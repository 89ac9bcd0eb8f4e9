"""`parked rekey`: what the ledger holds is encrypted with the first key, so that older ones can be thrown away."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from parked.cli.exits import Exit
from parked.cli.ledgers import existing_ledger
from parked.cli.output import command_line, counted, hint, put, put_json, table
from parked.cli.progress import progress
from parked.cli.scrubbing import scrub
from parked.errors import SettingsError
from parked.ledger.codec import SEALED, why_unreadable
from parked.settings import Settings, StoredBodies

if TYPE_CHECKING:
    from parked.cli.frame import Subparsers
    from parked.ledger import Ledger

PLAIN: Final = "plain"

DESCRIPTION: Final = """\
Encrypt what the ledger holds with the first of PARKED_STORE_KEYS: texts under older keys, and those that are plain.
With PARKED_STORE=plain it decrypts them instead. Without --apply it only says how many texts go by which key. First
give the new key to all programs of the ledger, before the old one; what they write meanwhile under another key is left.
At the end the ledger's file is rewritten, so that no copy is left in it; others wait to write meanwhile, some 10 s for
each GB. Killed in between, it goes on where it was when the command is given again.

example:
  parked rekey
  parked rekey --apply
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("rekey", help="encrypt what is stored with the newest key", description=DESCRIPTION)
    parser.add_argument("--apply", action="store_true", help="do it; without, only say what would be done")


def run(args: argparse.Namespace, settings: Settings) -> int:
    if settings.store is StoredBodies.NONE:
        raise SettingsError(
            "parked rekey keeps texts under another key, and PARKED_STORE=none keeps none; parked erase removes texts"
        )

    from parked.ledger.rekeying import rekey

    with existing_ledger(settings) as ledger:
        use = _Use(ledger)
        if not args.apply:
            use.tell(args, {"would_rekey": use.readable})
            use.tell_missing()
            if use.readable:
                again = command_line(args, "rekey", "--apply")
                hint(f"would rekey {counted(use.readable, 'text')}; nothing was changed. To do it: {again}")
            else:
                hint(f"nothing to rekey in {ledger.where}")
            return Exit.OK
        with progress(use.readable, unit="text") as shown:
            rekeyed = rekey(ledger, told=lambda texts: shown.advance(parked=0, by=texts))
        # Also after an earlier one that was broken off before this.
        copies = scrub(ledger, f"{counted(rekeyed, 'text')} rekeyed")
        use = _Use(ledger)
    use.tell(args, {"rekeyed": rekeyed, "scrubbed": not copies})
    use.tell_missing()
    use.tell_left()
    hint(f"{counted(rekeyed, 'text')} rekeyed")
    if copies:
        hint(f"copies are left in the ledger's files: {copies}")
        return Exit.SURROUNDINGS
    return Exit.PENDING if use.is_left else Exit.OK


class _Use:
    """By which keys the texts of a ledger go; the key None: they are plain."""

    def __init__(self, ledger: Ledger) -> None:
        from parked.ledger.codec import TextKind

        self._where, self._new, self._there = ledger.where, ledger.vault.sealing_key_id, ledger.vault.key_ids
        self._by_key: dict[str | None, dict[str, int]] = {}
        with ledger.ask() as reader:
            for what, key, number in reader.keys_used():
                if what in list(TextKind):
                    self._by_key.setdefault(key, dict.fromkeys(TextKind, 0))[what] = number
            identities = reader.identity_keys()
        self._texts = {key: sum(numbers.values()) for key, numbers in self._by_key.items()}
        self._identities = {
            key: jobs for key, jobs in identities.items() if key != self._new and not self._texts.get(key)
        }

    @property
    def readable(self) -> int:
        """How many texts go by another key than new ones, and can be read."""
        return sum(texts for key, texts in self._others() if key is None or key in self._there)

    @property
    def is_left(self) -> bool:
        """Whether anything goes by another key than what is new."""
        return bool(self._others() or self._identities)

    def tell(self, args: argparse.Namespace, told: dict[str, Any]) -> None:
        keys = sorted(self._by_key.items(), key=lambda each: each[0] or "")
        if args.json:
            by_key = [{"key_id": key, **numbers} for key, numbers in keys]
            put_json(
                {"ledger": self._where, "key_id": self._new, **told, "keys": by_key, "identities": self._identities}
            )
            return
        put(f"ledger {self._where}")
        for line in table(
            ("KEY", "PAYLOADS", "ANSWERS", "MESSAGES", ""),
            [
                (key or PLAIN, *map(str, numbers.values()), "what is new goes by it" if key == self._new else "")
                for key, numbers in keys
            ],
        ):
            put(line)

    def tell_missing(self) -> None:
        for key, texts in self._others():
            if key is not None and key not in self._there:
                hint(f"left {counted(texts, 'text')}: {why_unreadable(SEALED, key)}")

    def tell_left(self) -> None:
        for key, texts in self._others():
            if key is None or key in self._there:
                how = PLAIN if key is None else f"still under the key {key}"
                hint(
                    f"left {counted(texts, 'text')} {how}: damaged (parked audit --bodies names their jobs), or written"
                    " meanwhile by a program that isn't set as this one is; give the command again"
                )
        for key, jobs in self._identities.items():
            hint(
                f"{counted(jobs, 'job')} whose payload isn't stored can be known again by the key {key} alone; keep it"
                " as long as their lines may come again"
            )
        for key in sorted(self._there - {self._new} - self._texts.keys() - self._identities.keys()):
            hint(f"nothing in the ledger goes by the key {key} any more; backups made before may")

    def _others(self) -> list[tuple[str | None, int]]:
        return [(key, texts) for key, texts in self._texts.items() if key != self._new]
