"""How a ledger keeps the texts of users, models and servers: as they are, encrypted, or not at all.

The writer has every operation go through `kept` before its transaction begins, and a reader every body through
`opened`. So nobody else knows of keys: what a ledger gives out is plain, but for what was encrypted with a key that
isn't at hand, and that says so when it is decoded.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from parked.errors import LedgerUnavailable, SettingsError, TextMissing
from parked.extras import install
from parked.ledger import operations as op
from parked.ledger.codec import MESSAGE, NOT_KEPT, SEALED, Body, why_unreadable

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from parked.settings import Settings

KEY_ID_CHARS: Final = 8
_PURPOSE: Final = b"parked: identity of a payload"  # of what is derived from a key
_PLAIN_IDENTITY_BYTES: Final = 32

MAKE_ONE: Final = "make one with `openssl rand -base64 32 | tr +/ -_`"


class Vault:
    """What is done with texts on their way into a ledger and out of it. With no keys: nothing."""

    def __init__(self, keys: Sequence[str] = (), *, seals: bool = False, omits: bool = False) -> None:
        """All keys decrypt. With `seals` the first encrypts; with `omits` nothing is stored.

        Raises:
            LedgerUnavailable: the extra for it isn't installed.
        """
        self.seals = seals
        self.omits = omits
        self._keys = {key_id(key): key for key in keys}
        self._fernets: dict[str, Fernet] = {}
        self._first = key_id(keys[0]) if seals else ""
        if seals:
            self._fernet(self._first)

    @property
    def changes_operations(self) -> bool:
        """Whether operations have to go through `kept`."""
        return bool(self._keys) or self.omits

    @property
    def sealing_key_id(self) -> str | None:
        """With which key new texts are encrypted; None: they aren't."""
        return self._first or None

    @property
    def key_ids(self) -> frozenset[str]:
        """The keys that are there."""
        return frozenset(self._keys)

    # --- on the way in ---

    def kept(self, operation: op.Operation) -> op.Operation:
        """The operation as it is written. Not to be asked twice about the same one."""
        if isinstance(operation, op.Accept | op.TakeOver):
            first, *others = self.identities(operation.payload_hash)
            operation = operation._replace(
                payload=self.sealed(operation.payload), payload_hash=first, other_hashes=tuple(others)
            )
        elif isinstance(operation, op.Answer):
            operation = operation._replace(answer=self.sealed(operation.answer))
        elif isinstance(operation, op.Mend) and operation.payload is not None:
            operation = operation._replace(payload=self.sealed(operation.payload))
        if isinstance(operation, op.TakeOver | op.Answer | op.Retried | op.Park | op.Release) and operation.closing:
            operation = operation._replace(closing=self._closing(operation.closing))
        return operation

    def sealed(self, body: Body) -> Body:
        if self.omits:
            return NOT_KEPT
        if not self.seals:
            return body
        return Body(SEALED + body.codec, self._first, self._fernet(self._first).encrypt(body.data))

    def sealed_text(self, text: str) -> tuple[str, str | None]:
        """A text as it is stored, and the key's id."""
        if self.omits:
            return "", None
        if not self.seals or not text:
            return text, None
        data = text.encode("utf-8", "surrogatepass")
        return self._fernet(self._first).encrypt(data).decode("ascii"), self._first

    def _closing(self, closing: op.Closing) -> op.Closing:
        message, key = self.sealed_text(closing.message)
        return closing._replace(message=message, message_key_id=key)

    # --- on the way out ---

    def opened(self, body: Body) -> Body:
        """The body as it was before it was encrypted; as it is if its key isn't there."""
        if not body.codec.startswith(SEALED) or body.key_id not in self._keys:
            return body
        # No JSON: who decodes it is told that it is damaged.
        return Body(body.codec.removeprefix(SEALED), None, self._decrypted(body.key_id, body.data) or b"")

    def opened_text(self, text: str, key: str | None) -> str:
        if key is None or not text:
            return text
        if (why := why_unreadable(SEALED, key, known_keys=self._keys)) is not None:
            return f"({why})"
        data = self._decrypted(key, text.encode("ascii", "replace"))
        return "(damaged)" if data is None else data.decode("utf-8", "surrogatepass")

    def why_unreadable(self, codec: str, key_id: str | None) -> str | None:
        """Why a body stored so can't be opened here; None if it can."""
        return why_unreadable(codec, key_id, known_keys=self._keys)

    def _decrypted(self, key: str, data: bytes) -> bytes | None:
        fernet = self._fernet(key)
        from cryptography.fernet import InvalidToken

        try:
            return fernet.decrypt(data)
        except InvalidToken:
            return None

    # --- identity ---

    def identities(self, identity: bytes) -> list[bytes]:
        """All by which a payload may be known, given its plain identity; new jobs get the first.

        A keyed one begins with the id of its key. It depends on nothing but that key and the payload, so that it goes
        on matching when other keys come before it.
        """
        keyed = [self._keyed(id, identity) for id in self._keys]
        return [*keyed, identity] if self.seals or self.omits else [identity, *keyed]

    def is_same(self, known: bytes, identity: bytes) -> bool:
        """Whether a job that was accepted with `known` has the payload of this plain identity.

        Raises:
            TextMissing: only a key that isn't there could tell.
        """
        return is_same(known, self.identities(identity))

    def _keyed(self, id: str, identity: bytes) -> bytes:
        key = hmac.digest(urlsafe_b64decode(self._keys[id]), _PURPOSE, "sha256")
        return bytes.fromhex(id) + hmac.digest(key, identity, "sha256")

    # --- parts ---

    def _fernet(self, id: str) -> Fernet:
        if id not in self._fernets:
            try:
                from cryptography.fernet import Fernet
            except ImportError:
                raise LedgerUnavailable(
                    f"encrypted texts need the package cryptography; install it with: {install('encrypted')}"
                ) from None
            self._fernets[id] = Fernet(self._keys[id])
        return self._fernets[id]


def message_body(text: str, key: str | None) -> Body:
    """The message of an attempt, as it is kept, as a body."""
    if key is None:
        return Body(MESSAGE, None, text.encode("utf-8", "surrogatepass"))
    return Body(SEALED + MESSAGE, key, text.encode("ascii", "replace"))


def message_text(body: Body) -> str:
    """The reverse of `message_body`."""
    return body.data.decode("utf-8", "surrogatepass")


PLAIN_VAULT: Final = Vault()


def vault_of(settings: Settings) -> Vault:
    """The vault that the settings ask for.

    Raises:
        SettingsError: texts are to be encrypted, and there is no key.
        LedgerUnavailable: the extra for it isn't installed.
    """
    from parked.settings import StoredBodies

    keys = settings.store_keys or ()
    seals = settings.store is StoredBodies.ENCRYPTED
    if seals and not keys:
        raise SettingsError(
            f"PARKED_STORE=encrypted needs a key in PARKED_STORE_KEYS or PARKED_STORE_KEYS_FILE; {MAKE_ONE}"
        )
    return Vault(keys, seals=seals, omits=settings.store is StoredBodies.NONE)


def key_id(key: str) -> str:
    """By which a key is named: eight hex digits of its hash, which tell nothing of it."""
    return hashlib.sha256(urlsafe_b64decode(key)).hexdigest()[:KEY_ID_CHARS]


def is_same(known: bytes, wanted: Sequence[bytes]) -> bool:
    """Whether a known identity is among those of a payload.

    Raises:
        TextMissing: it was made with a key that none of them was made with.
    """
    if known in wanted:
        return True
    if len(known) > _PLAIN_IDENTITY_BYTES:
        made_with = known[: KEY_ID_CHARS // 2]
        if all(len(each) <= _PLAIN_IDENTITY_BYTES or not each.startswith(made_with) for each in wanted):
            raise TextMissing(why_unreadable(SEALED, made_with.hex()) or "")
    return False
