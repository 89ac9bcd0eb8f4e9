"""Secrets don't get into a stored message."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parked.scrub import scrubbed, unquoted

WORD = string.ascii_letters + string.digits + "_-"
SECRET = st.text(WORD, min_size=35, max_size=35)
PLACES = (
    "AIza{}",
    "key=AIza{}",
    "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent?key={}&alt=sse",
    "Authorization: Bearer {}",
    "{{'Authorization': 'Bearer {}'}}",
    '{{"authorization": "Basic {}"}}',
    "bearer {}",
    "x-goog-api-key: {}",
    "{{'x-goog-api-key': '{}', 'a': 1}}",
    "ya29.{}",
    "1//0{}",
    '{{"refresh_token": "{}"}}',
    '{{"private_key": "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----\\n"}}',
    "-----BEGIN RSA PRIVATE KEY-----\n{}\nand so on",
    "client_secret={}",
    "https://storage.googleapis.com/b/o?X-Goog-Credential={0}&X-Goog-Signature={0}",
    "https://storage.googleapis.com/b/o?GoogleAccessId=a&Expires=1&Signature={}",
    "https://user:{}@proxy.example:3128",
    "Permission denied: Consumer 'api_key:{}' has been suspended.",
    "password: {}",
    "eyJ{0}.{0}.{0}",
    "sk-{}",
    "Set-Cookie: {}",
)


@settings(max_examples=40, deadline=None)
@given(
    SECRET,
    st.sampled_from(["", "The call failed: ", "a" * 1_990 + " ", "b" * 7_990 + " "]),
    st.sampled_from(["", " end", "\nend"]),
)
@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_taken_out_wherever_it_stands(place, secret, before, after):
    kept = scrubbed(before + place.format(secret) + after)

    for start in range(0, len(secret) - 12, 4):
        assert secret[start : start + 12] not in kept


def test_what_is_no_secret_stays():
    message = (
        "API key not valid. Please pass a valid API key. KeyError: 'parts'; the input token count (12) exceeds 10."
        " See https://ai.google.dev/gemini-api/docs/rate-limits. quotaId: GenerateRequestsPerDay, ratio 1:2"
    )

    assert scrubbed(message) == message


def test_a_message_is_cut_and_says_so():
    kept = scrubbed("word " * 10_000)

    assert len(kept) == 2_000
    assert kept.endswith("…")
    assert scrubbed("a" * 2_000) == "a" * 2_000


def test_characters_that_a_database_refuses_are_made_safe():
    assert scrubbed("a\x00b\ud83d") == "a b\\ud83d"
    assert scrubbed("zwei\nZeilen\tGrüße 🎉") == "zwei\nZeilen\tGrüße 🎉"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('Unknown name "a "b" c": no field', "Unknown name  : no field"),
        ("the request's files aren't here", "the request's files aren't here"),
        ("Permission 'x' denied on 'y'.", "Permission  ."),
        ('never closed "and so on', "never closed  "),
        ("Model `m` was not found", "Model   was not found"),
    ],
)
def test_quotes_are_left_out_from_the_first_to_the_last(text, left):
    assert unquoted(text).split() == left.split()
