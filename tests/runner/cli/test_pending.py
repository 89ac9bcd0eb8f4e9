"""What is said of jobs that nobody runs any more."""

from __future__ import annotations

import pytest

from parked.cli.pending import tell_orphans
from parked.ledger import operations as op


@pytest.fixture
def url_on_each_database(tmp_path):
    """On one is enough: what is tested here are words."""
    return f"sqlite:///{tmp_path}/parked.db"


@pytest.mark.parametrize(
    ("calling", "between", "said"),
    [
        (0, 0, ""),
        (1, 0, "1 job of a process that died parked as orphaned: its call may have been made\n"),
        (0, 1, "1 job of a process that died parked as orphaned: its call was not made\n"),
        (2, 0, "2 jobs of a process that died parked as orphaned: their calls may have been made\n"),
        (0, 2, "2 jobs of a process that died parked as orphaned: their calls were not made\n"),
        (1, 2, "3 jobs of a process that died parked as orphaned: the calls of 1 may have been made\n"),
    ],
)
def test_orphans_are_said_with_whether_their_calls_may_have_been_made(story, capsys, calling, between, said):
    owner = story.ledger.owner_id
    for n in range(calling + between):
        row = story.running(f"a-{n}")
        if n >= calling:
            story.ledger.record(op.Retried(row.id, owner, row.calls, op.Closing(), strike=True))

    tell_orphans(story.ledger.record(op.Leave(owner)))

    assert capsys.readouterr().err == said
