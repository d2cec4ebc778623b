# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""rping, ucmatose, rdma_server/rdma_client and cmtime of rdmacm-utils."""

import re
import signal

import pytest

import places

COUNT = 100


def check_pings(output, prefix, count):
    numbers = re.findall(rf"^{prefix}: rdma-ping-(\d+): ", output, re.M)
    assert numbers == [str(n) for n in range(count)], output[-2000:]
    assert "mismatch" not in output


def rping_commands(address, size, *options):
    common = ["-a", address, "-p", "{port}", "-C", COUNT, "-V", "-v", "-S", size, *options]
    return ["rping", "-s", *common], ["rping", "-c", *common]


@pytest.mark.parametrize("size", [64, 4096, 65535])
def test_rping(pair, link, size):
    server, client = pair(link, *rping_commands("{address}", size))
    check_pings(client, "ping data", COUNT)
    check_pings(server, "server ping data", COUNT)


def test_rping_ipv6(pair, link):
    server, client = pair(link, *rping_commands("{address6}", 1000))
    check_pings(client, "ping data", COUNT)
    check_pings(server, "server ping data", COUNT)


def test_rping_wildcard_ipv6_listener(pair, link):
    server, client = rping_commands("{address6}", 1000)
    server[server.index("{address6}")] = "::0"
    server, client = pair(link, server, client)
    check_pings(client, "ping data", COUNT)


def test_rping_persistent_server(start, link, port):
    """Ten clients against one server that stays, their runs overlapping.

    rping of rdma-core 44 keeps one requested id at a time and mixes them up when requests come
    closer together than it clones its state (repaired upstream in "rping: wait for acknowledgement
    before processing subsequent CONNECT_REQUESTs"), so each is started once the one before exchanges
    messages.
    """
    count = 3000
    common = ["-v", "-V", "-S", 512, "-a", link.server.address, "-p", port]
    server = start(["rping", "-s", "-P", *common], link.server)
    places.wait_listening(server, port)
    clients = []
    for _ in range(10):
        client = start(["rping", "-c", "-C", count, *common], link.client)
        places.wait_until(lambda: "ping data" in client.output or not client.running(), client.__str__)
        clients.append(client)
    for client in clients:
        check_pings(client.succeed(), "ping data", count)
    assert server.running(), server


def test_rping_without_server_is_rejected(start, link, port):
    client = start(["rping", "-c", "-a", link.server.address, "-p", port, "-C", 1], link.client)
    assert client.wait() != 0
    assert "RDMA_CM_EVENT_REJECTED" in client.output, client


@pytest.mark.parametrize("migrate", [[], ["-m"]], ids=["stay", "migrate"])
def test_ucmatose(pair, link, migrate):
    common = ["-p", "{port}", "-c", "100", "-C", "10", "-S", "1000", *migrate]
    server, client = pair(link, ["ucmatose", "-b", "{address}", *common],
                          ["ucmatose", "-s", "{address}", *common])
    for output in (server, client):
        assert "data transfers complete" in output, output
        assert "test complete" in output and "return status 0" in output, output
        assert "event:" not in output.replace("cmatose: event:", "event:"), output


def test_rdma_server_and_client(pair, link):
    server, client = pair(link, ["rdma_server", "-s", "{address}", "-p", "{port}"],
                          ["rdma_client", "-s", "{address}", "-p", "{port}"])
    assert "rdma_server: end 0" in server, server
    assert "rdma_client: end 0" in client, client


def test_cmtime(start, link, port):
    """Connection rate; the server of this tool never ends by itself. That of rdma-core 56 and later is
    another program: test_rdma_core.py."""
    usage = start(["cmtime", "-h"], uwarp=False)
    usage.wait()
    if "base_qpn" in usage.output:
        pytest.skip("another cmtime")
    server = start(["cmtime", "-b", link.server.address, "-p", port], link.server)
    places.wait_listening(server, port)
    client = start(["cmtime", "-s", link.server.address, "-p", port, "-c", COUNT], link.client)
    output = client.succeed()
    assert "error" not in output, output
    table = dict(re.findall(r"^([a-z ]+?)\s*:\s+([\d.]+)", output, re.M))
    assert set(table) >= {"create id", "resolve addr", "resolve route", "create qp", "connect",
                          "disconnect", "destroy"}, output
    # A connection takes longer than nothing.
    assert float(table["connect"]) > 0
    assert server.running(), server
    server.send(signal.SIGINT)
