"""The web server under clients that mean ill, or don't care."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import ExitStack

import pytest

from parked_exporter.server import make_server

PATIENCE_S = 20.0
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: lo"
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def port():
    """Of a server of an application that says `well`."""

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "4")])
        return [b"well"]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = make_server(app, listening, idle_s=1)
        threading.Thread(target=server.run, daemon=True).start()
        yield listening.getsockname()[1]
        server.close()


@pytest.mark.slow
def test_a_request_that_never_ends_is_left_however_often_a_byte_of_it_comes(port):
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as slow:
        slow.sendall(HALF_A_REQUEST)
        slow.settimeout(0.1)
        for _ in range(int(PATIENCE_S / 0.1)):
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return

    pytest.fail("it is still listened to")


def test_one_that_comes_in_pieces_is_answered(port):
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        for byte in REQUEST:
            client.sendall(bytes([byte]))

        assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.slow
def test_clients_without_number_leave_the_ledger_its_files_and_the_log_its_peace(start_sidecar, pipeline):
    few = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128));"
    sidecar = start_sidecar(code=f"{few} from parked_exporter.cli import main; sys.exit(main())")
    sidecar.until(lambda samples: samples["parked_ledger_writable"][()] == 1)

    with ExitStack() as open_ones:
        clients = [open_ones.enter_context(socket.create_connection(sidecar.address, PATIENCE_S)) for _ in range(120)]
        for client in clients[:40]:
            client.sendall(REQUEST)
        for client in clients[40:]:
            client.sendall(HALF_A_REQUEST)
        answers = [client.recv(12) for client in clients[:40]]
    up = sidecar.scrape()["parked_ledger_up"][()]
    sidecar.stop()

    assert answers == [b"HTTP/1.1 200"] * 40
    assert up == 1
    events = [json.loads(line)["event"] for line in iter(sidecar.lines.get, None)]
    assert [event for event in events if not re.fullmatch("[a-z_]+", event)] == []
