"""A ledger that encrypts texts, or keeps none: nobody reads them without a key, and nothing is lost with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parked.errors import JobConflict, LedgerUnavailable, SettingsError, TextMissing
from parked.job import State
from parked.ledger import codec, open_ledger
from parked.ledger import operations as op
from parked.ledger.copying import copy
from parked.ledger.operations import Closing
from parked.ledger.store import Filters
from parked.ledger.vault import MAKE_ONE, Vault, key_id, vault_of
from parked.settings import Settings
from parked.verdict import Kind, Reason, Scope

KEY = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE="
NEW_KEY = "bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcgbmV3IG5ldyE="
SECRET = "the patient's name is Brzechwa"
PAYLOAD = {"contents": SECRET}
SAID = Closing(
    kind=Kind.UNKNOWN, reason=Reason.UNCLASSIFIED, scope=Scope.JOB, message=f"can't do: {SECRET} \N{SNOWMAN}"
)

SEALING = Vault([KEY], seals=True)
OMITTING = Vault(omits=True)


@pytest.fixture
def worked(at_desk):
    """Returns a function that lives through a job of each kind, with the secret in all that a ledger can hold."""

    def work(ledger):
        desk = at_desk(ledger)
        owner = desk.owner()
        answered = desk.answer(desk.accept("answered", PAYLOAD, start_for=owner).row, owner, value={"text": SECRET})
        row = desk.accept("parked", PAYLOAD, start_for=owner).row
        ledger.record(op.Retried(row.id, owner, row.calls, SAID, strike=True))
        row = desk.start_again(row, owner).row
        parked = ledger.record(op.Park(row.id, owner, row.calls, SAID, "exhausted:unclassified"))
        ledger.record(op.Mend(parked.id, codec.encode({"contents": f"rather: {SECRET}"}), note="mended"))
        ledger.record(
            op.TakeOver(
                "captions",
                "",
                "elsewhere",
                "m",
                codec.encode(PAYLOAD),
                codec.identity(PAYLOAD),
                "permanent:400",
                SAID,
                1,
            )
        )
        return answered, parked

    return work


@pytest.mark.parametrize("vault", [SEALING, OMITTING], ids=["encrypted", "none"])
def test_no_byte_of_a_text_is_in_the_database(url, files, worked, vault):
    with open_ledger(url, vault=vault) as ledger:
        worked(ledger)
        held = files()

    assert b"job" in held
    assert b"Brzechwa" not in held
    assert KEY.encode() not in held


def test_with_the_key_everything_is_read_as_it_was(url, worked, at_desk):
    with open_ledger(url, vault=SEALING) as ledger:
        answered, parked = worked(ledger)
        with ledger.ask() as reader:
            assert codec.decode(reader.payload(answered.id)) == PAYLOAD
            assert codec.decode(reader.answer(answered.id).body) == {"text": SECRET}
            assert [codec.decode(row.body) for row in reader.answers(Filters())] == [{"text": SECRET}]
            assert codec.decode(reader.payload(parked.id)) == {"contents": f"rather: {SECRET}"}
            assert [a.message for a in reader.attempts(parked.id)] == [SAID.message] * 2
            assert reader.read_bodies().broken == reader.read_bodies().locked == []
            assert reader.imbalances(thorough=True) == []


def test_what_json_can_not_hold_comes_back_as_its_text(url, at_desk):
    with open_ledger(url, vault=SEALING) as ledger:
        desk = at_desk(ledger)
        owner = desk.owner()
        row = desk.answer(desk.running(owner), owner, value={1})

        assert desk.answer_of(row) == "{1}"


def test_a_claim_brings_a_payload_that_can_be_opened(url, at_desk):
    with open_ledger(url, vault=SEALING) as ledger:
        desk = at_desk(ledger)
        desk.accept("job", PAYLOAD)

        claimed = ledger.record(op.Claim(None, desk.owner(), limit=1))

        assert codec.decode(ledger.vault.opened(claimed.started[0].payload)) == PAYLOAD


def test_without_the_key_texts_say_which_one_is_missing_and_all_else_goes_on(url, worked):
    with open_ledger(url, vault=SEALING) as ledger:
        answered, parked = worked(ledger)
    why = f"encrypted with the key {key_id(KEY)}, which is none of PARKED_STORE_KEYS; add it there, behind the first"

    with open_ledger(url, vault=Vault([NEW_KEY], seals=True)) as ledger, ledger.ask() as reader:
        with pytest.raises(TextMissing, match=f"^a text of the ledger was {why}$"):
            codec.decode(reader.payload(answered.id))
        with pytest.raises(TextMissing):
            codec.decode(reader.answer(answered.id).body)
        assert {a.message for a in reader.attempts(parked.id)} == {f"({why})"}
        elsewhere = reader.jobs_by_key("elsewhere", pipeline=None, batch=None)[0]
        assert reader.unreadable(State.PARKED) == {parked.id: why, elsewhere.id: why}
        assert reader.unreadable(State.PARKED, pipeline="other") == {}
        bodies = reader.read_bodies()
        assert bodies.broken == []
        assert [(found.what, sorted(found.job_ids)) for found in bodies.locked] == [
            (f"payloads {why}", ["answered", "elsewhere", "parked", "parked"]),
            (f"answers {why}", ["answered"]),
        ]
        assert reader.imbalances(thorough=True) == []


def test_a_damaged_body_is_damaged_and_not_without_a_key(url, at_desk):
    vault = Vault([KEY], seals=True)

    opened = vault.opened(codec.Body("fernet:json", key_id(KEY), b"no token"))

    with pytest.raises(LedgerUnavailable, match="is damaged"):
        codec.decode(opened)


KEYS = {
    "plain": Vault(),
    "encrypted": SEALING,
    "rotated": Vault([NEW_KEY, KEY], seals=True),
    "switched off": Vault([KEY]),
    "none": Vault(omits=True),
    "none, with a key": Vault([KEY], omits=True),
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plain", "encrypted"),
        ("encrypted", "rotated"),
        ("encrypted", "switched off"),
        ("plain", "none"),
        ("plain", "none, with a key"),
        ("none", "encrypted"),
        ("none, with a key", "rotated"),
    ],
)
def test_a_job_is_known_again_however_it_was_kept(sqlite_url, at_desk, before, after):
    with open_ledger(sqlite_url, vault=KEYS[before]) as ledger:
        at_desk(ledger).accept("job", PAYLOAD)

    with open_ledger(sqlite_url, vault=KEYS[after]) as ledger:
        again = at_desk(ledger).accept("job", PAYLOAD, model="another")
        assert not again.created
        assert again.was_model == "m"
        with pytest.raises(JobConflict):
            at_desk(ledger).accept("job", {"contents": "something else"})


def test_who_lacks_the_key_is_told_so_instead_of_a_conflict(url, at_desk):
    with open_ledger(url, vault=SEALING) as ledger:
        at_desk(ledger).accept("job", PAYLOAD)

    with open_ledger(url, vault=Vault()) as ledger, pytest.raises(TextMissing, match=key_id(KEY)):
        at_desk(ledger).accept("job", PAYLOAD)


def test_two_ledgers_with_different_keys_share_no_identity(sqlite_url, at_desk):
    with open_ledger(sqlite_url, vault=SEALING) as ledger:
        row = at_desk(ledger).accept("job", PAYLOAD).row

    assert codec.identity(PAYLOAD) not in row.payload_hash
    assert Vault([NEW_KEY], seals=True).identities(codec.identity(PAYLOAD))[0] != row.payload_hash


def test_an_erased_job_of_an_encrypted_ledger_has_no_text_left(url, worked):
    with open_ledger(url, vault=SEALING) as ledger:
        answered, parked = worked(ledger)
        for row in (answered, parked):
            ledger.record(op.Erase(row.id, "asked for"))

        with ledger.ask() as reader:
            assert reader.answer(answered.id) is None
            assert {a.message for a in reader.attempts(parked.id)} == {""}
            assert reader.imbalances(thorough=True) == []


def test_a_copy_stays_encrypted_with_its_keys(url, tmp_path, worked):
    with open_ledger(url, vault=SEALING) as ledger:
        answered, parked = worked(ledger)
    target = f"sqlite:///{tmp_path}/copy.db"

    copy(url, target)

    assert b"Brzechwa" not in (tmp_path / "copy.db").read_bytes()
    with open_ledger(target, vault=SEALING) as ledger, ledger.ask() as reader:
        assert codec.decode(reader.answer(answered.id).body) == {"text": SECRET}
        assert {a.message for a in reader.attempts(parked.id)} == {SAID.message}


def test_an_outcome_without_its_texts_needs_no_key_either():
    sealed: Any = SEALING.kept(op.Retried(1, 1, 1, SAID, strike=True))

    bare: Any = op.without_texts(sealed)

    assert (bare.closing.message, bare.closing.message_key_id) == ("", None)


def test_what_is_not_kept_is_not_there_and_says_so(url, worked):
    with open_ledger(url, vault=OMITTING) as ledger:
        answered, parked = worked(ledger)
        with ledger.ask() as reader:
            with pytest.raises(TextMissing, match="not stored, since PARKED_STORE=none"):
                codec.decode(reader.payload(answered.id))
            assert set(reader.unreadable(State.PARKED)) > {parked.id}
            assert {a.message for a in reader.attempts(parked.id)} == {""}
            assert reader.undelivered(since=0, now=1e10, limit=10) == []
            assert reader.read_bodies() == (0, [], [])
            assert reader.imbalances(thorough=True) == []


def test_encryption_without_a_key_is_refused_with_how_to_make_one():
    with pytest.raises(SettingsError, match=r"needs a key in PARKED_STORE_KEYS .* make one with `openssl rand"):
        vault_of(Settings.load(env={"PARKED_STORE": "encrypted"}))


def test_keys_come_from_a_file_a_line_each(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"{NEW_KEY}\n{KEY}\n")

    vault = vault_of(Settings.load(env={"PARKED_STORE": "encrypted", "PARKED_STORE_KEYS_FILE": str(file)}))

    assert vault.sealed(codec.encode(1)).key_id == key_id(NEW_KEY)
    assert vault.opened(SEALING.sealed(codec.encode(1))) == codec.encode(1)


def test_the_key_that_the_documentation_makes_is_one(tmp_path):
    page = (Path(__file__).parents[3] / "docs/security.md").read_text()
    (line,) = [line.strip() for line in page.splitlines() if "openssl" in line]

    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)

    file = tmp_path / "store.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert Settings.load(env={"PARKED_STORE_KEYS_FILE": str(file)}).store_keys == (file.read_text().strip(),)
    assert MAKE_ONE.partition("`")[2].rstrip("`") in line


def test_a_plain_ledger_imports_no_cryptography(tmp_path):
    program = "import sys, parked; parked.open_ledger('sqlite:///x.db').close(); print('cryptography' in sys.modules)"

    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert ran.stdout == "False\n"
