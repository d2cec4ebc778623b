# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""UWARP_ALLOW: who may connect, by rdma_cm and without."""

import socket

import pytest

import places


def serve(start, port, allow):
    server = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port], env={"UWARP_ALLOW": allow})
    places.wait_listening(server, port)
    return server


def call(start, port):
    return start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "2"])


@pytest.mark.parametrize("allow", ["", "127.0.0.1", "192.0.2.0/24,127.0.0.0/8"])
def test_who_is_allowed_connects(start, port, allow):
    serve(start, port, allow)
    call(start, port).succeed()


@pytest.mark.parametrize("allow", ["127.0.0.2", "192.0.2.0/24,::1", "0.0.0.0/0;", "localhost"])
def test_other_addresses_are_cut_off(start, port, allow):
    """All addresses, if the list is not understood."""
    server = serve(start, port, allow)
    with pytest.raises(ConnectionResetError):
        with socket.create_connection(("127.0.0.1", port), timeout=places.GUARD_SECONDS) as silent:
            silent.recv(1)
    client = call(start, port)
    assert client.wait() != 0 and "REJECTED" in client.output, client
    assert server.running()
    if allow in ("0.0.0.0/0;", "localhost"):
        assert "no peer may connect" in server.output


@pytest.mark.parametrize("allow, works", [("127.0.0.0/8", True), ("192.0.2.1", False)])
def test_queue_pairs_without_rdma_cm(start, port, allow, works):
    command = ["ibv_rc_pingpong", "-d", "uwarp_lo", "-g", "0", "-n", "5", "-p", port]
    server = start(command, env={"UWARP_ALLOW": allow})
    places.wait_listening(server, port)
    client = start([*command, "127.0.0.1"], env={"UWARP_ALLOW": allow})
    if works:
        client.succeed()
        server.succeed()
    else:
        assert client.wait() != 0, client
