"""What the image asks itself: whether a sidecar runs there, and if so, whether it answers."""

from __future__ import annotations

import socket

import pytest

from parked.settings import Address
from parked_exporter.healthcheck import listens_at, why_unwell

AT_ITS_PLACE = Address("127.0.0.1", 9465)


@pytest.mark.parametrize(
    ("command_line", "env", "where"),
    [
        ("parked-exporter", {}, AT_ITS_PLACE),
        ("/opt/parked/bin/python /opt/parked/bin/parked-exporter", {}, AT_ITS_PLACE),
        ("/sbin/docker-init -- parked-exporter --read-only", {}, AT_ITS_PLACE),
        ("parked-exporter", {"PARKED_LISTEN": "127.0.0.1:7"}, Address("127.0.0.1", 7)),
        ("parked-exporter --listen=127.0.0.1:8", {"PARKED_LISTEN": "127.0.0.1:7"}, Address("127.0.0.1", 8)),
        ("parked-exporter", {"PARKED_LISTEN": "0.0.0.0:9"}, Address("127.0.0.1", 9)),
        ("parked-exporter --listen [::]:9", {}, Address("::1", 9)),
        ("parked-exporter", {"PARKED_TOKEN_FILE": "/is/gone"}, AT_ITS_PLACE),
        ("/opt/parked/bin/python /opt/parked/bin/parked run jobs.jsonl", {}, None),
        ("/bin/sh -c", {}, None),
    ],
)
def test_where_a_sidecar_listens_is_known_by_how_the_container_was_started(command_line, env, where):
    assert listens_at(command_line.split(), env) == where


def test_a_port_where_nobody_listens_is_not_well():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))

        assert "refused" in str(why_unwell(Address(*closed.getsockname())))
