"""Failures with one cause share a fingerprint; others don't."""

from __future__ import annotations

import pytest

from parked.fingerprint import fingerprint
from parked.judge import classify, classify_http_error

FACTS = {"rule": "http.400", "reason": "invalid_request", "status": 400, "quota_id": None, "finish_reason": None}


def of(message: str) -> str:
    return fingerprint(**FACTS, message=message)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The input token count (3475108) exceeds 1048576.", "The input token count (9) exceeds 32768."),
        ("File abc123def456 is missing", "File zz9y8x7w6v5u is missing"),
        ('Unknown name "temprature": no field', 'Unknown name "the "top" k": no field'),
        ("Please retry in 51.606482386s.", "Please retry in 1h2m3.5s."),
        ("See https://a.example/x?y=1 now", "See https://b.example/ now"),
        ("at 2026-03-02T02:07:11.5Z", "at 2026-11-30T23:59:59Z"),
        ("request 6f9619ff-8b86-d011-b42d-00c04fc964ff failed", "request 01234567-89ab-cdef-0123-456789abcdef failed"),
        ("commit da39a3ee5e6b4b0d3255bfef95601890afd80709", "commit 0beec7b5ea3f0fdbc95d0dd47f3c5bc275da8a33"),
        ("on resource projects/a/locations/b/x", "on resource projects/other/locations/c/y"),
        ("API KEY is wrong", "api key is  wrong"),
    ],
)
def test_what_differs_from_job_to_job_does_not_matter(one, other):
    assert of(one) == of(other)


def test_different_words_are_different_causes():
    assert of("temperature is out of range") != of("schema is too complex")


@pytest.mark.parametrize(
    "changed",
    [{"rule": "http.401"}, {"reason": "timeout"}, {"status": 403}, {"quota_id": "PerDay"}, {"finish_reason": "SAFETY"}],
    ids=lambda changed: next(iter(changed)),
)
def test_status_reason_quota_finish_reason_and_rule_matter(changed):
    assert fingerprint(**{**FACTS, **changed}, message="m") != of("m")


def test_a_fingerprint_is_the_same_in_every_process_and_release():
    # Fingerprints are kept in ledgers: if this number changes, parked jobs of one cause fall into two.
    assert of("The input token count (3475108) exceeds 1048576.") == "d1548366b11b"


def test_jobs_that_meet_one_cause_share_it():
    def blocked(words: str) -> str | None:
        body = {"error": {"code": 400, "message": f"Invalid value at 'contents[0]' (TYPE), \"{words}\""}}
        return classify_http_error(400, body).fingerprint

    assert blocked("first prompt") == blocked('second "prompt" 17')
    assert classify(KeyError("parts")).fingerprint == classify(KeyError("content")).fingerprint
