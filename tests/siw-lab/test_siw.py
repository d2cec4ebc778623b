# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp here, siw in the guest's kernel, in both directions: stock programs and our own."""

import errno
import os
import random
import re
import signal
import sys
import time

import pytest

import perftest_report
import vm
from vm import places

MIB = 1 << 20
SLOW_SECONDS = 300  # A hang guard for perftest on emulated processors, of a machine that is busy.

CRC = {"no CRC": ({}, {}),
       "CRC asked for by uwarp": ({"UWARP_CRC": "1"}, {}),
       "CRC asked for by siw": ({}, {"mpa_crc_required": 1}),
       "CRC asked for by both": ({"UWARP_CRC": "1"}, {"mpa_crc_required": 1})}


@pytest.fixture(params=CRC)
def crc(request, machine):
    """The environment of uwarp; siw is set."""
    environment, parameters = CRC[request.param]
    machine.guest.set_siw(**parameters)
    return environment


# ---- rping: Send, Read and Write in turn, data compared

ROUNDS = 20


def rping(pair, size, family="address", env=None):
    both = ["-a", f"{{{family}}}", "-p", "{port}", "-S", size, "-C", ROUNDS, "-V", "-v"]
    passive, active = pair(["rping", "-s", *both], ["rping", "-c", *both], env=env)
    assert passive.count("server ping data") == ROUNDS
    assert len(re.findall("^ping data", active, re.M)) == ROUNDS


@pytest.mark.parametrize("size", [23, 1459, 65535])
def test_rping(pair, crc, size):
    rping(pair, size, env=crc)


@pytest.mark.parametrize("size", [23, 65535])
def test_rping_over_ipv6(pair, size):
    rping(pair, size, "address6")


def test_rping_persistent_server(direction, start, port):
    """One server, clients one after the other."""
    both = ["-a", direction.server.address, "-p", port, "-S", 1000, "-C", 5, "-V"]
    server = start(direction.server, ["rping", "-s", "-P", *both])
    places.wait_listening(server, port)
    for _ in range(5):
        start(direction.client, ["rping", "-c", *both]).succeed()
    places.wait_until(lambda: server.output.count("DISCONNECT EVENT") == 5, lambda: str(server))
    assert server.running()


# ---- perftest

REFUSALS = 8
SIW_OP_SEND = 3


def gives_up_what_was_sent(machine):
    """siw gives its last Send up when the peer's FIN overtakes its look at what became of it: the
    peer, which ended well, has that message (docs/siw.md). A function that is true for a process
    that has failed so since now, by siw's own log, and in no other way."""
    before = machine.guest.failed_requests(SIW_OP_SEND, errno.ECONNABORTED)

    def excused(process):
        after = machine.guest.failed_requests(SIW_OP_SEND, errno.ECONNABORTED)
        complaints = re.findall("(?:Bad|Unable|Failed).*$", process.output, re.M)
        return (process.place is machine.guest and after == before + 1
                and complaints[:1] == ["Bad wc status 2"]
                and re.fullmatch("Unable to write (?:to|from) socket/rdma_cm", complaints[1])
                and complaints[2:] == ["Failed to close connection between server and client"])

    return excused if before is not None else None


def perftest(machine, pair, tool, size, count, *options, env=None):
    command = [tool, "-d", "{device}", "-R", "-F", "-p", "{port}", "-s", size, "-n", count,
               *options]
    for _ in range(REFUSALS):
        try:
            _, output = pair(command, command + ["{address}"], env=env, seconds=SLOW_SECONDS,
                             excused=gives_up_what_was_sent(machine))
            break
        except AssertionError as failure:
            # Its server stops listening between two connections, and a slow one is too late for the
            # second. A kernel refuses then as well.
            if "RDMA_CM_EVENT_REJECTED; error: -111" not in str(failure):
                raise
    else:
        raise AssertionError(f"{tool}: refused {REFUSALS} times")
    # What goes to stderr comes behind the last figure, on its line.
    table = perftest_report.rows(output.replace(" Bad wc", "\n Bad wc"))
    assert [(row.size, row.iterations) for row in table] == [(size, count)], output


BANDWIDTH = ("ib_send_bw", "ib_write_bw", "ib_read_bw")
LATENCY = ("ib_send_lat", "ib_write_lat", "ib_read_lat")


@pytest.mark.parametrize("tool", BANDWIDTH)
def test_bandwidth(machine, pair, crc, tool):
    perftest(machine, pair, tool, 65536, 200, env=crc)


@pytest.mark.parametrize("tool", BANDWIDTH)
def test_small_messages(machine, pair, tool):
    perftest(machine, pair, tool, 2, 5000)


@pytest.mark.parametrize("size", [8, 5000])
@pytest.mark.parametrize("tool", LATENCY)
def test_latency(machine, direction, pair, tool, size):
    if tool == "ib_write_lat":
        if machine.form == "uml":
            pytest.skip("spins on memory on the only processor")
        if direction.uwarp_listens:
            # The server of this one sends first, which MPA allows a responder after a peer-to-peer
            # start only: siw's default is none, and both sides would wait (docs/siw.md).
            machine.guest.set_siw(peer_to_peer=1)
    perftest(machine, pair, tool, size, 500)


@pytest.mark.parametrize("tool", BANDWIDTH)
def test_a_gigabyte_in_large_messages(machine, pair, tool):
    receives = ["-r", 8] if tool == "ib_send_bw" else []
    perftest(machine, pair, tool, 16 * MIB, 64, "-t", 4, *receives)


def test_large_frames_of_siw(pair, machine):
    """siw's own switch for FPDUs beyond a segment, which it announces by a reserved bit."""
    machine.guest.set_siw(try_gso=1)
    perftest(machine, pair, "ib_write_bw", MIB, 50)


def test_both_directions_at_once(machine, pair):
    perftest(machine, pair, "ib_write_bw", 65536, 200, "-b")


# ---- every operation with its bytes checked

@pytest.mark.parametrize("operation", ["send", "send-se", "send-inv", "write", "read"])
def test_operation(direction, pair, crc, operation):
    # siw's userspace part sends the key of another field of the work request (docs/siw.md). If we refuse
    # the first FPDU early enough, siw gives up the message; else all of it counts as sent.
    refused = operation == "send-inv" and direction.uwarp_listens

    def given_up(output):
        return refused and "wc id=1 status=local QP operation error" in output

    passive, active = pair(["{tests}/verbs_peer", "serve", "{address}", "{port}"],
                           ["{tests}/verbs_peer", operation, "{address}", "{port}"], env=crc,
                           excused=lambda process: given_up(process.output))
    assert active.rstrip().endswith("done") or given_up(active)
    if refused:
        assert "remote invalid request error" in passive and "memory untouched" in passive
    elif operation.startswith("send"):
        assert "received 5000 bytes of the client's pattern" in passive
    elif operation == "write":
        assert "memory changed from 8 to 100000 to the client's pattern" in passive


def test_write_that_is_refused(pair):
    """A wrong STag: the target sends a Terminate and its memory is as it was."""
    passive, _ = pair(["{tests}/verbs_peer", "serve", "{address}", "{port}"],
                      ["{tests}/verbs_peer", "bad-rkey", "{address}", "{port}"])
    assert "memory untouched" in passive


# ---- start-up

@pytest.fixture
def frames(machine, start, port):
    """frames() -> what followed the keys of the start-up frames so far, as (kind, hex)."""
    if os.geteuid() != 0:
        pytest.skip("a packet socket needs root")
    watcher = places.Process([sys.executable, vm.HERE / "mpa_frames.py", vm.TAP, port],
                             machine.host, uwarp=False)
    places.wait_until(lambda: "listening" in watcher.output, lambda: str(watcher))
    yield lambda: [tuple(line.split()) for line in watcher.output.splitlines()[1:]]
    watcher.reap()


def exchange(direction, pair, request=0, reply=0, depth=4, env=None, reject=False):
    """Private data of these lengths; outputs of both. siw's side ends the connection: a FIN that
    comes while siw still takes the first FPDU in would stop the guest's kernel (docs/siw.md)."""
    passive, active = ("waits", "ends") if direction.uwarp_listens else ("ends", "waits")
    return pair(["{tests}/siw_peer", "serve", "{address}", "{port}", reply,
                 "rejects" if reject else passive],
                ["{tests}/siw_peer", "connect", "{address}", "{port}", request, depth, active],
                env=env)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 17, 128, 251])
def test_private_data(direction, pair, length):
    """The same length to and fro, byte for byte."""
    passive, active = exchange(direction, pair, length, length)
    assert re.search(rf"^request private={length} ", passive, re.M), passive
    assert re.search(rf"ESTABLISHED status=0 private={length} ", active), active


# siw cannot send more than 251: its length field then counts from 0 again (docs/siw.md).
@pytest.mark.parametrize("length", [252, 253, 255])
def test_longest_private_data(direction, pair, length):
    if direction.uwarp_listens and length > 252:
        pytest.skip("siw takes no longer Reply, and a listener cannot choose the revision")
    siw_sends = 20
    request, reply = (siw_sends, length) if direction.uwarp_listens else (length, siw_sends)
    passive, active = exchange(direction, pair, request, reply)
    assert re.search(rf"^request private={request} ", passive, re.M), passive
    assert re.search(rf"ESTABLISHED status=0 private={reply} ", active), active


def test_rejection_with_private_data(direction, pair):
    _, active = exchange(direction, pair, 20, 30, reject=True)
    assert re.search(r"REJECTED status=\S+ private=30 ", active), active


@pytest.mark.parametrize("revision", [1, 2])
def test_revision(direction, pair, machine, frames, revision):
    """Asked for by either side, the answer follows."""
    machine.guest.set_siw(mpa_version=revision)
    exchange(direction, pair, 10, 10, env={"UWARP_MPA_REVISION": str(revision)})
    seen = frames()
    assert [kind for kind, _ in seen] == ["request", "reply"], seen
    assert {int(data[2:4], 16) for _, data in seen} == {revision}, seen


RTR = {"Write": 0x80, "Read": 0x40, "Write or Read": 0xc0}


@pytest.mark.parametrize("rtr", RTR)
def test_peer_to_peer_start_by_siw(pair, machine, rtr):
    """siw as initiator offers one or both kinds of the first zero-length message; as responder it
    picks from what uwarp offers."""
    machine.guest.set_siw(peer_to_peer=1, rtr=RTR[rtr])
    rping(pair, 100)


# ---- ends

@pytest.mark.parametrize("who", ["client", "server"])
def test_kill(direction, start, port, who):
    """SIGKILL of one side: the other gets one event and every flush."""
    def peer(place, mode):
        program = f"{direction.programs(place)}/verbs_peer"
        return start(place, [program, mode, direction.server.address, port])

    server = peer(direction.server, "serve")
    places.wait_listening(server, port)
    client = peer(direction.client, "hold")
    for each in (server, client):
        places.wait_until(lambda: "ESTABLISHED" in each.output or not each.running(),
                          lambda: str(each))
    dead, survivor = (server, client) if who == "server" else (client, server)
    dead.send(signal.SIGKILL)
    output = survivor.succeed()
    assert output.count("RDMA_CM_EVENT_DISCONNECTED") == 1, output
    assert output.count("status=Work Request Flushed Error") == 8, output


@pytest.mark.parametrize("who", ["client", "server"])
@pytest.mark.parametrize("tool", BANDWIDTH)
def test_kill_under_load(machine, direction, start, port, pair, tool, who):
    """At any point of a run: the survivor ends by itself, and another run works. Not while perftest
    starts up: a receive that is posted after siw's flush never completes (docs/siw.md)."""
    def command(place):
        return [tool, "-d", direction.device(place), "-R", "-F", "-p", port, "-n", 10000000]

    before = machine.traffic()
    server = start(direction.server, command(direction.server))
    places.wait_listening(server, port)
    client = start(direction.client, command(direction.client) + [direction.server.address])
    places.wait_until(lambda: machine.traffic() > before + MIB or not client.running(),
                      lambda: f"traffic of {server} and {client}", SLOW_SECONDS)
    time.sleep(random.Random(f"{tool} {who}").uniform(0, 2))
    dead, survivor = (server, client) if who == "server" else (client, server)
    assert server.running() and client.running(), f"{server}\n{client}"
    dead.send(signal.SIGKILL)
    survivor.wait()
    perftest(machine, pair, tool, 65536, 100)
