"""What a ledger holds, kept as new texts are: under the first key, or plain. So an old key can be thrown away.

A page a transaction, beside programs that use the ledger. Whoever is killed in between has done a part of it; the next
one finds what is left by the keys that stand in the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from parked.errors import LedgerUnavailable
from parked.ledger import operations as op
from parked.ledger.codec import TextKind, decode, identity
from parked.ledger.store import KeptText

if TYPE_CHECKING:
    from parked.ledger import Ledger
    from parked.ledger.vault import Vault

PAGE_TEXTS: Final = 256
PAGE_BYTES: Final = 8_000_000


def rekey(ledger: Ledger, *, told: Callable[[int], None] = lambda texts: None) -> int:
    """Keep every text as a new one would be kept, and return how many were changed. What can't be read is left.

    Not for a ledger that keeps no texts. `told` is called with the number of texts of each page, once it is committed.
    """
    assert not ledger.vault.omits
    done = 0
    for kind in TextKind:
        job, number = 0, -1
        while page := _page(ledger, kind, after=(job, number)):
            changes = [change for text in page if (change := rekeyed(ledger.vault, text)) is not None]
            for ticket in ledger.submit_many(changes):
                ticket.wait()
            done += len(changes)
            told(len(changes))
            job, number = page[-1].job, page[-1].number
    return done


def rekeyed(vault: Vault, text: KeptText) -> op.Rekey | None:
    """How a text is to be kept from now on; None if it can't be read here, or isn't what was accepted."""
    body = vault.opened(text.body)
    if body.key_id is not None or not body.data:  # its key isn't there, or it is damaged: no text is empty
        return None
    hashed = None
    if text.payload_hash is not None:
        try:
            plain = identity(decode(body))
            if not vault.is_same(text.payload_hash, plain):
                return None
        except (LedgerUnavailable, ValueError):
            return None
        hashed = vault.identities(plain)[0]
    return op.Rekey(text.kind, text.job, text.number, text.body, vault.sealed(body), text.payload_hash, hashed)


def _page(ledger: Ledger, kind: TextKind, *, after: tuple[int, int]) -> list[KeptText]:
    """The next texts that are not kept as new ones are: at least one, if there is one, and no more than fit in a page.

    Read anew for each page: a long snapshot would hold up the database's own cleaning.
    """
    page: list[KeptText] = []
    bytes = 0
    with ledger.ask() as reader:
        for text in reader.kept_otherwise(kind, ledger.vault.sealing_key_id, after=after, limit=PAGE_TEXTS):
            page.append(text)
            bytes += len(text.body.data)
            if bytes > PAGE_BYTES:
                break
    return page
