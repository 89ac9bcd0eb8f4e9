"""`parked rekey`: after it an old key can be thrown away, and nobody finds a text by it any more."""

from __future__ import annotations

import json

import pytest

from parked.job import State
from parked.ledger import open_ledger, rekeying
from parked.ledger import operations as op
from parked.ledger.codec import TextKind, encode, identity
from parked.ledger.vault import Vault, key_id
from parked.ledger.writer import BATCH_OPERATIONS
from parked.verdict import Kind, Reason, Scope

KEY = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE="
NEW_KEY = "bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcgbmV3IG5ldyE="
OTHER_KEY = "b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIgb28="
SECRET = "the patient Brzechwa"

OLD, NEW = Vault([KEY], seals=True), Vault([NEW_KEY], seals=True)


@pytest.fixture
def tell(telling):
    """Tells a story with the secret in every kind of text, however they are kept now: 8 texts."""

    def tell(prefix="a"):
        with telling() as story:
            story.answered(f"{prefix}-answered", {"text": SECRET}, payload={"contents": SECRET})
            parked = story.parked(f"{prefix}-parked", message=SECRET, payload={"contents": SECRET})
            story.ledger.record(op.Mend(parked.id, encode({"contents": f"rather {SECRET}"}), note="mended"))
            story.pending(f"{prefix}-pending", payload=SECRET)
            erased = story.parked(f"{prefix}-discarded", message=SECRET, payload={"contents": SECRET})
            story.ledger.record(op.Discard(erased.id, "no"))

    return tell


TEXTS = 8


def sealed_with(url, key):
    """Every encrypted text of a ledger, as bytes; they begin with when they were encrypted, so none is as another."""
    with open_ledger(url) as ledger, ledger.ask() as reader:
        return [
            text.body.data
            for kind in TextKind
            for text in reader.kept_otherwise(kind, None, after=(0, -1), limit=100)
            if text.body.key_id == key_id(key)
        ]


# --- what it is for ----------------------------------------------------------------------------------------------


def test_after_it_nothing_goes_by_the_old_key_and_everything_is_as_it_was(parked, keep, tell, url, files):
    keep("encrypted", KEY)
    tell()
    before = sealed_with(url, KEY)
    assert len(before) == TEXTS
    assert all(text in files() for text in before)
    keep("encrypted", NEW_KEY, KEY)

    said = parked("rekey", "--apply")

    assert said.status == 0, said.err
    assert f"{TEXTS} texts rekeyed" in said.err
    assert f"nothing in the ledger goes by the key {key_id(KEY)} any more; backups made before may" in said.err
    held = files()
    assert not [text for text in before if text in held]
    keep("encrypted", NEW_KEY)
    audit = parked("audit", "--bodies")
    assert audit.status == 0, audit.out
    shown = json.loads(parked("show", "a-parked", "--payload", "--json").out)
    assert shown["payload"] == {"contents": f"rather {SECRET}"}
    assert [attempt["message"] for attempt in shown["attempts"]] == [SECRET]
    assert json.loads(parked("answers").out)["answer"] == {"text": SECRET}


def test_jobs_are_known_again_by_the_new_key(parked, keep, url, story):
    def accepted(vault, payload=SECRET):
        with open_ledger(url, vault=vault) as ledger:
            operation = op.Accept("nightly", "", "a-1", "m", encode(payload), identity(payload))
            return ledger.record(operation).created

    assert accepted(OLD)
    keep("encrypted", NEW_KEY, KEY)
    assert parked("rekey", "--apply").status == 0

    assert not accepted(NEW)


def test_what_was_stored_before_encryption_was_switched_on_is_encrypted_and_leaves_no_byte(parked, keep, tell, files):
    keep("plain")
    tell()
    assert SECRET.encode() in files()
    keep("encrypted", NEW_KEY)

    said = parked("rekey", "--apply")

    assert said.status == 0, said.err
    assert SECRET.encode() not in files()
    assert parked("audit", "--bodies").status == 0


def test_switched_off_everything_is_decrypted_and_no_key_is_needed_any_more(parked, keep, tell):
    keep("encrypted", KEY)
    tell()
    keep("plain", KEY)

    said = parked("rekey", "--apply")

    assert said.status == 0, said.err
    keep("plain")
    assert parked("audit", "--bodies").status == 0
    assert json.loads(parked("answers").out)["answer"] == {"text": SECRET}
    assert "the patient Brzechwa" in parked("causes").out


def test_more_than_a_page_is_rekeyed_and_pages_are_bounded_by_bytes_too(parked, keep, url, monkeypatch):
    with open_ledger(url, vault=OLD) as ledger:
        accepts = [
            op.Accept("nightly", "", f"a-{n}", "m", encode(n), identity(n)) for n in range(BATCH_OPERATIONS + 40)
        ]
        for ticket in ledger.submit_many(accepts):
            ticket.wait()
    keep("encrypted", NEW_KEY, KEY)
    monkeypatch.setattr(rekeying, "PAGE_BYTES", 20_000)

    said = parked("rekey", "--apply", "--json")

    assert json.loads(said.out)["rekeyed"] == BATCH_OPERATIONS + 40
    assert sealed_with(url, KEY) == []


# --- without --apply ----------------------------------------------------------------------------------------------


def test_without_apply_it_only_says_what_goes_by_which_key(parked, keep, tell, url):
    keep("encrypted", KEY)
    tell()
    keep("encrypted", NEW_KEY, KEY)
    tell("b")

    said = parked("rekey")

    assert said.status == 0
    lines = [line.split() for line in said.out.splitlines()[1:]]
    assert lines == [
        ["KEY", "PAYLOADS", "ANSWERS", "MESSAGES"],
        *sorted(
            [[key_id(KEY), "5", "1", "2"], [key_id(NEW_KEY), "5", "1", "2", "what", "is", "new", "goes", "by", "it"]]
        ),
    ]
    assert f"would rekey {TEXTS} texts; nothing was changed. To do it: parked rekey --apply" in said.err
    assert len(sealed_with(url, KEY)) == TEXTS


def test_where_all_is_as_it_should_be_there_is_nothing_to_do(parked, keep, tell):
    keep("encrypted", KEY)
    tell()

    said = parked("rekey", "--json")
    done = parked("rekey", "--apply", "--json")

    assert json.loads(said.out) == {
        "ledger": json.loads(said.out)["ledger"],
        "key_id": key_id(KEY),
        "would_rekey": 0,
        "keys": [{"key_id": key_id(KEY), "payloads": 5, "answers": 1, "messages": 2}],
        "identities": {},
    }
    assert said.err.startswith("nothing to rekey in ")
    assert json.loads(done.out).items() >= {"rekeyed": 0, "scrubbed": True}.items()


def test_where_nothing_is_kept_it_is_refused(parked, keep, tell):
    keep("plain")
    tell()
    keep("none")

    said = parked("rekey", "--apply")

    assert said.status == 2
    assert "PARKED_STORE=none keeps none" in said.err
    keep("plain")
    assert parked("audit", "--bodies").status == 0


# --- what is left ---------------------------------------------------------------------------------------------------


def test_texts_whose_key_is_missing_are_left_and_said_and_lose_nothing(parked, keep, tell, url):
    keep("encrypted", KEY)
    tell()
    keep("encrypted", OTHER_KEY)
    tell("b")
    keep("encrypted", NEW_KEY, OTHER_KEY)

    said = parked("rekey", "--apply")

    assert said.status == 4
    assert f"left {TEXTS} texts: encrypted with the key {key_id(KEY)}, which is none of PARKED_STORE_KEYS" in said.err
    assert f"nothing in the ledger goes by the key {key_id(OTHER_KEY)} any more" in said.err
    keep("encrypted", NEW_KEY, KEY)
    assert parked("rekey", "--apply").status == 0
    keep("encrypted", NEW_KEY)
    assert parked("audit", "--bodies").status == 0


@pytest.mark.parametrize("what", ["payload", "answer"])
def test_a_damaged_text_is_left_as_it_is_for_the_audit_to_name(parked, keep, url, what):
    """Of a payload, that it isn't the one that was accepted is damage, too."""
    with open_ledger(url, vault=OLD) as ledger:
        accept = op.Accept("nightly", "", "a-1", "m", encode("p"), identity("another" if what == "payload" else "p"))
        owner = ledger.owner_id
        row = ledger.record(accept._replace(start_for=owner)).row
        answer = encode("42")
        ledger.record(op.Answer(row.id, owner, 1, answer, op.Closing()))
        if what == "answer":
            was = OLD.sealed(answer)._replace(data=b"")
            ledger.record(op.Rekey(TextKind.ANSWERS, row.id, 0, was, was._replace(data=b"no token"), None, None))
    keep("encrypted", NEW_KEY, KEY)

    said = parked("rekey", "--apply")

    assert said.status == 4
    assert (
        f"left 1 text still under the key {key_id(KEY)}: damaged (parked audit --bodies names their jobs)" in said.err
    )
    audit = parked("audit", "--bodies")
    assert audit.status == 1
    assert f"nightly: {what}s that can't be read" in audit.out


def test_jobs_that_are_known_by_the_old_key_alone_are_said(parked, keep, tell, url):
    keep("encrypted", KEY)
    tell()
    with open_ledger(url) as ledger:
        for row in (row for row in jobs_of(ledger) if row.state is State.SUCCEEDED):
            ledger.record(op.Erase(row.id, "asked for"))
    keep("encrypted", NEW_KEY, KEY)

    said = parked("rekey", "--apply")

    assert said.status == 4
    assert f"1 job whose payload isn't stored can be known again by the key {key_id(KEY)} alone" in said.err
    assert "any more; backups" not in said.err


def jobs_of(ledger):
    from parked.ledger.store import Filters

    with ledger.ask() as reader:
        return list(reader.jobs(Filters(), states=list(State)))


def test_a_text_that_was_erased_since_it_was_read_stays_erased(url):
    """Between a page's reading and its writing there is time."""
    with open_ledger(url, vault=OLD) as ledger:
        accept = op.Accept("nightly", "", "a-1", "m", encode(SECRET), identity(SECRET), start_for=ledger.owner_id)
        row = ledger.record(accept).row
        said = op.Closing(Kind.UNKNOWN, Reason.UNCLASSIFIED, Scope.JOB, message=SECRET)
        ledger.record(op.Park(row.id, ledger.owner_id, 1, said, "exhausted:unclassified"))
        with ledger.ask() as reader:
            read = [text for kind in TextKind for text in reader.kept_otherwise(kind, None, after=(0, -1), limit=9)]
        ledger.record(op.Erase(row.id, "asked for"))

        for text in read:
            change = rekeying.rekeyed(Vault([NEW_KEY, KEY], seals=True), text)
            assert change is not None
            ledger.record(change)

        with ledger.ask() as reader:
            assert len(read) == 2
            assert reader.keys_used() == []
            assert reader.imbalances(thorough=True) == []
