# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""One side is killed with SIGKILL at some point of a run: the other gets its flushes and events and
ends by itself. And a clean end of one side never makes the other side fail.

The stated time is one second; the deadline here is a hang guard of ten times that.
"""

import random
import re
import signal
import time

import pytest

import places

DEADLINE_SECONDS = 10
RECEIVES = 8

HELPERS = places.BUILD / "tests"

# Tools whose survivor looks at a completion queue, an event or its TCP connection. ib_write_lat
# only spins on memory: raw_watcher below stands for it. ib_send_bw runs both ways (-b): on iWARP its
# client otherwise waits for credits in memory, and when the server dies at a moment at which all
# Sends have completed (they complete when handed to TCP) no completion is left to end it. With -b
# the posted receives are. -e is left out for the same reason.
LONG_RUNS = {
    "ibv_rc_pingpong": ["ibv_rc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", "-n", "10000000"],
    "ibv_rc_pingpong events": ["ibv_rc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}",
                               "-n", "10000000", "-e"],
    "ib_send_bw": ["ib_send_bw", "-d", "{device}", "-p", "{port}", "-F", "-D", "30", "-b"],
    "ib_send_bw cm": ["ib_send_bw", "-d", "{device}", "-p", "{port}", "-F", "-D", "30", "-b", "-R"],
    "ib_send_lat": ["ib_send_lat", "-d", "{device}", "-p", "{port}", "-F", "-D", "30"],
    "ib_write_bw": ["ib_write_bw", "-d", "{device}", "-p", "{port}", "-F", "-D", "30"],
    "ib_write_bw cm": ["ib_write_bw", "-d", "{device}", "-p", "{port}", "-F", "-D", "30", "-R"],
    "ib_read_bw": ["ib_read_bw", "-d", "{device}", "-p", "{port}", "-F", "-D", "30"],
    "ib_read_lat cm": ["ib_read_lat", "-d", "{device}", "-p", "{port}", "-F", "-D", "30", "-R"],
}


def fill(command, place, port, address):
    return [str(part).format(port=port, device=place.device, address=address) for part in command]


def check_end(survivor):
    status = survivor.wait(DEADLINE_SECONDS)
    assert status >= 0, f"ended by signal {-status}: {survivor}"


@pytest.mark.parametrize("victim", ["server", "client"])
@pytest.mark.parametrize("tool", LONG_RUNS)
def test_tool_survives_kill(start, link, port, tool, victim):
    command = LONG_RUNS[tool]
    server = start(fill(command, link.server, port, ""), link.server)
    places.wait_listening(server, port)
    client = start(fill(command + ["{address}"], link.client, port, link.server.address), link.client)
    # A server whose client never came waits rightly. From the first connection on, "any point of a
    # run": exchange of parameters, first messages, full traffic.
    # (ibv_rc_pingpong closes its own connection so fast that it may not be seen.)
    patience = time.monotonic() + 1
    while not places.connected(server.pid, port) and time.monotonic() < patience:
        time.sleep(places.POLL_SECONDS)
    time.sleep(random.Random(f"{tool} {victim} {link}").uniform(0, 1.0))
    dead, survivor = (server, client) if victim == "server" else (client, server)
    assert dead.running(), dead
    dead.send(signal.SIGKILL)
    check_end(survivor)


@pytest.mark.parametrize("victim", ["server", "client"])
def test_rping_survives_kill(start, link, port, victim):
    server = start(["rping", "-s", "-a", link.server.address, "-p", port, "-V", "-S", 4096], link.server)
    places.wait_listening(server, port)
    client = start(["rping", "-c", "-a", link.server.address, "-p", port, "-V", "-S", 4096], link.client)
    places.wait_until(lambda: places.connected(server.pid, port), lambda: str(client))
    time.sleep(0.5)
    dead, survivor = (server, client) if victim == "server" else (client, server)
    assert dead.running(), dead
    dead.send(signal.SIGKILL)
    check_end(survivor)
    assert "DISCONNECT" in survivor.output, survivor


@pytest.mark.parametrize("victim", ["server", "client"])
def test_cm_flushes_and_event(start, link, port, victim):
    """Every open receive is flushed once, DISCONNECTED comes once."""
    program = HELPERS / "verbs_peer"
    server = start([program, "serve", link.server.address, port], link.server)
    places.wait_listening(server, port)
    client = start([program, "hold", link.server.address, port], link.client)
    dead, survivor = (server, client) if victim == "server" else (client, server)
    for each in (server, client):
        places.wait_until(lambda: "RDMA_CM_EVENT_ESTABLISHED" in each.output or not each.running(),
                          lambda: str(each))
    killed = time.monotonic()
    dead.send(signal.SIGKILL)
    output = survivor.succeed(DEADLINE_SECONDS)
    assert time.monotonic() - killed < DEADLINE_SECONDS
    assert output.count("RDMA_CM_EVENT_DISCONNECTED") == 1, output
    flushed = re.findall(r"^wc id=(\d+) status=Work Request Flushed Error", output, re.M)
    assert flushed == [str(1000 + i) for i in range(RECEIVES)], output
    assert output.rstrip().endswith("done"), output


@pytest.mark.parametrize("victim", ["server", "client"])
def test_raw_flushes_and_event(start, link, port, victim):
    """The shape of ib_write_lat: both sides spin on memory, one is killed."""
    program = HELPERS / "raw_watcher"
    server = start([program, link.server.device, port], link.server)
    places.wait_listening(server, port)
    client = start([program, link.client.device, port, link.server.address], link.client)
    dead, survivor = (server, client) if victim == "server" else (client, server)
    places.wait_until(lambda: "running" in survivor.output or not survivor.running(),
                      lambda: f"{server}\n{client}")
    dead.send(signal.SIGKILL)
    output = survivor.succeed(DEADLINE_SECONDS)
    assert f"{RECEIVES} receives flushed" in output and "peer lost" in output, output
    # Others may come as well: communication established, or what the machine does to its addresses.
    assert len(re.findall(r"^async local work queue", output, re.M)) <= 1, output


def test_raw_clean_end_is_silent(pair, link):
    """InfiniBand has no disconnect: a side that ends in order leaves no flush and no event."""
    program = str(HELPERS / "raw_watcher")
    outputs = pair(link, [program, "{device}", "{port}", "end"],
                   [program, "{device}", "{port}", "{address}", "end"])
    for output in outputs:
        assert "done after 1000 rounds, 0 receives flushed" in output, output
        assert "async local work queue" not in output, output


@pytest.mark.parametrize("repetition", range(5))
def test_clean_ends_of_short_runs(pair, loopback, repetition):
    """Short runs, in which one side is often gone while the other still polls."""
    command = ["ibv_rc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", "-n", "5", "-s", "64"]
    for output in pair(loopback, command, command + ["{address}"]):
        assert "5 iters in" in output and "ailed" not in output, output


def long_write(start, link, port):
    """An endless ib_write_bw over rdma_cm whose client is told to lose its peer after a second."""
    command = fill(["ib_write_bw", "-p", "{port}", "-F", "-R", "-D", "7"], link.server, port, "")
    server = start(command, link.server)
    places.wait_listening(server, port)
    client = start(command + [link.server.address], link.client, env={"UWARP_PEER_TIMEOUT_MS": "1000"})
    places.wait_until(lambda: places.connected(server.pid, port) or not client.running(),
                      lambda: f"{server}\n{client}")
    return server, client


def test_stopped_peer_is_not_lost(start, loopback, port):
    """Its TCP answers that there is no room, as an adapter would go on by itself."""
    server, client = long_write(start, loopback, port)
    time.sleep(1.5)
    server.send(signal.SIGSTOP)
    time.sleep(4)
    server.send(signal.SIGCONT)
    assert re.search(r"^ 65536 ", client.succeed(), re.M), client


def test_vanished_peer_is_lost(start, namespaces, port):
    """No FIN, no RST, no acknowledgement: what was written last fails."""
    link = namespaces.link()
    server, client = long_write(start, link, port)
    silence = ["route", "add", "blackhole", f"{link.client.address}/32"]
    time.sleep(1.5)
    namespaces.near.ip(*silence)
    try:
        assert client.wait() > 0, client
    finally:
        namespaces.near.ip("route", "del", *silence[2:])
    assert "Failed status 12" in client.output, client
    server.wait()
