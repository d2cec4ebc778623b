# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What a peer can do wrong, by a peer made by hand: each violation gets its Terminate, memory stays
as it was, the queue pair flushes, one async event comes; and a listener outlives everything."""

import re
import socket
import struct
import time

import pytest

import places
from iwarp_peer import (ATOMIC_REQUEST, FLAG_CRC, FLAG_MARKERS, READ_REQUEST, READ_RESPONSE,
                        REQUEST_KEY, SEND, SEND_INVALIDATE, WRITE, IwarpPeer, read_request,
                        start_frame, tagged, terminate_code, untagged)

PEER = places.BUILD / "tests" / "verbs_peer"
RECEIVES = 8
RECEIVE_BYTES = 16 * 1024
REGION_BYTES = 256 * 1024
OWN_STAG, OWN_OFFSET = 0x1234, 0x1000


class Target:
    """The server's region as its Reply describes it."""

    def __init__(self, private):
        self.address, self.rkey, self.length = struct.unpack(">QII", private[:16])
        self.end = self.address + self.length


def fault(ulpdu, **how):
    return lambda peer, target: peer.send_fpdu(ulpdu(target) if callable(ulpdu) else ulpdu, **how)


def read_of(stag, offset, size=64):
    return untagged(READ_REQUEST, 1, 1, read_request(OWN_STAG, OWN_OFFSET, size, stag, offset))


def atomic(stag, offset, opcode=0):
    return untagged(ATOMIC_REQUEST, 1, 1, struct.pack(
        ">IIIQQQQQ", opcode, 7, stag, offset, 1, 0, 0, 0))


# The first message on queue 0 was the opening one, so 2 is the next.
# name: what is sent, the Terminate that must come back.
FAULTS = {
    "crc": (fault(untagged(SEND, 0, 2, b"x" * 40), damage_crc=True), (2, 0, 0x02)),
    "crc of write": (fault(lambda t: tagged(WRITE, t.rkey, t.address, b"x" * 4000), damage_crc=True),
                     (2, 0, 0x02)),
    "too short": (fault(b"\x41\x43" + b"\0" * 10), (1, 0, 0x00)),
    "ddp version tagged": (fault(lambda t: tagged(WRITE, t.rkey, t.address, b"x", dv=2)), (1, 1, 0x04)),
    "ddp version untagged": (fault(untagged(SEND, 0, 2, b"x", dv=0)), (1, 2, 0x06)),
    "rdmap version": (fault(untagged(SEND, 0, 2, b"x", rv=0x80)), (0, 2, 0x05)),
    "unknown opcode": (fault(untagged(0xD, 0, 2, b"x")), (0, 2, 0x06)),
    "send as tagged": (fault(lambda t: tagged(SEND, t.rkey, t.address, b"x")), (0, 2, 0x06)),
    "write unknown stag": (fault(lambda t: tagged(WRITE, t.rkey ^ 0x5A5A00, t.address, b"x" * 64)),
                           (1, 1, 0x00)),
    "write below": (fault(lambda t: tagged(WRITE, t.rkey, t.address - 1, b"x" * 64)), (1, 1, 0x01)),
    "write past end": (fault(lambda t: tagged(WRITE, t.rkey, t.end - 63, b"x" * 64)), (1, 1, 0x01)),
    "write wraps": (fault(lambda t: tagged(WRITE, t.rkey, 2**64 - 8, b"x" * 64)), (1, 1, 0x03)),
    "bad queue": (fault(untagged(SEND, 9, 1, b"x")), (1, 2, 0x01)),
    "old number": (fault(untagged(SEND, 0, 1, b"x")), (1, 2, 0x03)),
    "skipped number": (fault(untagged(SEND, 0, 3, b"x")), (1, 2, 0x03)),
    "offset past buffer": (fault(untagged(SEND, 0, 2, b"x", offset=RECEIVE_BYTES + 4)), (1, 2, 0x04)),
    "send too long": (fault(untagged(SEND, 0, 2, b"x" * (RECEIVE_BYTES + 1))), (1, 2, 0x05)),
    "read unknown stag": (fault(lambda t: read_of(t.rkey ^ 0x5A5A00, t.address)), (0, 1, 0x00)),
    "read past end": (fault(lambda t: read_of(t.rkey, t.end - 63)), (0, 1, 0x01)),
    "read wraps": (fault(lambda t: read_of(t.rkey, 2**64 - 8)), (0, 1, 0x04)),
    "read too short": (fault(untagged(READ_REQUEST, 1, 1, b"\0" * 20)), (0, 2, 0xFF)),
    "unasked response": (fault(lambda t: tagged(READ_RESPONSE, t.rkey, t.address, b"x" * 64)),
                         (0, 2, 0x06)),
    "bad invalidate": (fault(lambda t: untagged(SEND_INVALIDATE, 0, 2, b"x", stag=t.rkey ^ 0x5A5A00)),
                       (0, 1, 0x09)),
    "atomic misaligned": (fault(lambda t: atomic(t.rkey, t.address + 4)), (0, 2, 0x07)),
    "atomic unknown stag": (fault(lambda t: atomic(t.rkey ^ 0x5A5A00, t.address)), (0, 1, 0x00)),
    "atomic unknown operation": (fault(lambda t: atomic(t.rkey, t.address, 1)), (0, 2, 0x06)),
}


def check_failed_server(server, received):
    output = server.succeed()
    assert "memory untouched" in output and "first word 40" in output, output
    completions = re.findall(r"^wc id=(\d+) status=([A-Za-z -]+?) opcode", output, re.M)
    assert [number for number, _ in completions] == [str(1000 + i) for i in range(RECEIVES)], output
    assert [status for _, status in completions[:received]] == ["success"] * received, output
    assert all(status != "success" for _, status in completions[received:]), output
    # The first cause decides the status of its own receive; the others are flushed.
    assert {status for _, status in completions[received + 1:]} == {"Work Request Flushed Error"}, output
    assert len(re.findall(r"^async ", output, re.M)) == 1, output
    assert output.count("RDMA_CM_EVENT_DISCONNECTED") == 1, output


def opened(server_port):
    """A connected peer that has said its first, correct word."""
    peer = IwarpPeer("127.0.0.1", server_port)
    target = Target(peer.connect(struct.pack(">QII", OWN_OFFSET, OWN_STAG, 4096)))
    peer.send_fpdu(untagged(SEND, 0, 1, b"hello"))
    return peer, target


@pytest.fixture
def server(start, port):
    process = start([PEER, "serve", "127.0.0.1", port])
    places.wait_listening(process, port)
    return process


@pytest.mark.parametrize("name", FAULTS)
def test_violation(server, port, name):
    send, expected = FAULTS[name]
    peer, target = opened(port)
    with peer:
        send(peer, target)
        answers = peer.receive_to_the_end()
        code = terminate_code(answers[-1]) if answers else None
    check_failed_server(server, received=1)
    assert code == expected, answers


def test_correct_peer_is_served(server, port):
    """The hand-made peer is right when it wants to be: Write, then Read of what was written."""
    peer, target = opened(port)
    with peer:
        peer.send_fpdu(tagged(WRITE, target.rkey, target.address + 100, b"written by hand"))
        peer.send_fpdu(untagged(READ_REQUEST, 1, 1, read_request(
            OWN_STAG, OWN_OFFSET, 15, target.rkey, target.address + 100)))
        answer = peer.receive_fpdu()
        assert answer == tagged(READ_RESPONSE, OWN_STAG, OWN_OFFSET, b"written by hand")
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.receive_to_the_end() == []
    output = server.succeed()
    assert "memory changed from 100 to 115" in output, output
    assert not re.findall(r"^async ", output, re.M), output


@pytest.mark.parametrize("cut", [1, 2, 5, 30])
def test_stream_ends_inside_a_frame(server, port, cut):
    peer, _ = opened(port)
    with peer:
        frame = struct.pack(">H", 100) + untagged(SEND, 0, 2, b"x" * 82)
        peer.send_raw(frame[:cut])
        time.sleep(0.05)
    check_failed_server(server, received=1)


def test_reset(server, port):
    peer, _ = opened(port)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.1)
    peer.close()
    output = server.succeed()
    assert output.count("RDMA_CM_EVENT_DISCONNECTED") == 1, output
    assert output.count("Work Request Flushed Error") == RECEIVES - 1, output


# Listeners

GOOD = start_frame(REQUEST_KEY, FLAG_CRC, 1, b"")
GARBAGE = {
    "http": b"GET / HTTP/1.0\r\n\r\n",
    "zeros": b"\0" * 64,
    "reply key": b"MPA ID Rep Frame" + GOOD[16:],
    "revision 0": start_frame(REQUEST_KEY, FLAG_CRC, 0, b""),
    "revision 77": start_frame(REQUEST_KEY, FLAG_CRC, 77, b""),
    "length 513": start_frame(REQUEST_KEY, FLAG_CRC, 1, b"x" * 513),
    "length 65535": start_frame(REQUEST_KEY, FLAG_CRC, 1, b"", length=65535) + b"y" * 70000,
    "key differs at its end": REQUEST_KEY[:15] + b"E" + GOOD[16:],
}


@pytest.fixture
def listener(start, port):
    """A server that takes one connection after the other, and a quick timeout for slow callers."""
    process = start(["rping", "-s", "-P", "-a", "127.0.0.1", "-p", port],
                    env={"UWARP_MPA_TIMEOUT_MS": "1000"})
    places.wait_listening(process, port)
    return process


def check_still_serves(start, listener, port):
    client = start(["rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", 3, "-v", "-V"])
    assert client.succeed().count("ping data: rdma-ping-") == 3, client
    assert listener.running(), listener


def ends(connection, seconds):
    """Whether the other side closes within the time; what it sends before does not matter."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_on_a_listener(start, listener, port, name):
    with socket.create_connection(("127.0.0.1", port)) as caller:
        try:
            caller.sendall(GARBAGE[name])
        except ConnectionError:
            pass  # Refused before all of it was sent.
        assert ends(caller, 10)
    check_still_serves(start, listener, port)


# Proves: 5044-7.1.2-e
@pytest.mark.parametrize("cut", [0, 1, 16, 19])
def test_slow_caller_is_dropped(start, listener, port, cut):
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(GOOD[:cut])
        # Others are served meanwhile.
        check_still_serves(start, listener, port)
        assert ends(caller, 10)
    check_still_serves(start, listener, port)


def test_request_in_single_bytes_is_dropped_in_time(start, listener, port):
    """The timeout is for the whole frame, not for each byte."""
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.setblocking(False)
        dropped = False
        for byte in GOOD[:19]:
            try:
                caller.send(bytes([byte]))
                dropped = caller.recv(1) == b""
            except BlockingIOError:
                pass
            except ConnectionError:
                dropped = True
            if dropped:
                break
            time.sleep(0.5)
        assert dropped, "still open after several times the timeout"
    check_still_serves(start, listener, port)


# Proves: 5044-7.1.2-f
def test_many_idle_callers(start, listener, port):
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    try:
        check_still_serves(start, listener, port)
        assert all(ends(caller, 10) for caller in callers)
    finally:
        for caller in callers:
            caller.close()
    check_still_serves(start, listener, port)


def test_caller_that_resets_at_once(start, listener, port):
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(GOOD[:7])
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    check_still_serves(start, listener, port)


def test_markers_are_refused(start, listener, port):
    with IwarpPeer("127.0.0.1", port) as peer:
        peer.send_raw(start_frame(REQUEST_KEY, FLAG_MARKERS | FLAG_CRC, 1, b""))
        answer = peer.receive(20)
        assert not answer or answer[16] & 0x20, "neither closed nor rejected"
    check_still_serves(start, listener, port)
