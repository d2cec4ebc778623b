# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""RFC 5041, DDP, by a raw TCP peer. What concerns STags and bounds is in test_misuse.py, messages
and their order in test_rfc5040.py."""

import random
import socket

import pyverbs.enums as e
import pytest
import uwarp_wire as w
from pyverbs.mr import MR
from pyverbs.wr import SGE

from dut import ALL_ACCESS, PAGE, Dut, Memory
from raw_peer import read_body, tagged, untagged


def barrier(dut, peer):
    """When this returns, the device has looked at all that the peer has sent before."""
    peer.read(dut.mr.rkey, dut.target.address, 8)
    return peer.expect(w.READ_RESPONSE)


# ---- Sections 3 and 4: what the layer below does, and headers

# Proves: 5041-3-4 5044-3-a 5041-3-7
def test_frames_cut_at_every_byte(either):
    dut, peer = either
    burst = b"".join(peer.frame(ulpdu) for ulpdu in (
        peer.message(w.SEND, b"12345"),
        tagged(w.WRITE, dut.mr.rkey, dut.target.address + 3, b"abcdefghi"),
        peer.message(w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address + 3, 9))))
    dut.receive(0)
    for byte in burst:
        peer.raw(bytes([byte]))
    assert peer.expect(w.READ_RESPONSE).body == b"abcdefghi"
    assert dut.expect(0).byte_len == 5
    dut.target.expect_changed(3, b"abcdefghi")


# Proves: 5044-6-a 5041-3-4
def test_frames_in_pieces_of_any_size(either):
    dut, peer = either
    randomly = random.Random(7306)
    for i in range(30):
        dut.receive(i)
        burst = peer.frame(peer.message(w.SEND, bytes(randomly.randrange(200))))
        burst += peer.frame(tagged(w.WRITE, dut.mr.rkey, dut.target.address,
                                   bytes([i]) * randomly.randrange(1, 3000)))
        burst += peer.frame(peer.message(
            w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address, 1)))
        while burst:
            size = randomly.randrange(1, len(burst) + 1)
            peer.raw(burst[:size])
            burst = burst[size:]
        assert peer.expect(w.READ_RESPONSE).body == bytes([i])
        dut.expect(i)


@pytest.mark.parametrize("is_tagged", [False, True])
# Proves: 5041-3-6 5044-4.4-b 5040-4.8-o 5041-6.2.2-b 5041-7-a
def test_damaged_byte(context, is_tagged):
    """Every byte of a frame but its length, with which it would be another frame."""
    at = 2
    damaged = True
    while damaged:
        with Dut(context) as dut:
            peer = dut.be_connected(crc=True)
            dut.receive(1)
            payload = b"x" * 13
            ulpdu = (tagged(w.WRITE, dut.mr.rkey, dut.target.address, payload) if is_tagged
                     else untagged(w.SEND, 1, payload))
            frame = bytearray(peer.frame(ulpdu))
            frame[at] ^= 1 << at % 7
            peer.raw(bytes(frame))
            dut.expect_fail(peer, (2, 0, 2))
            at += 1
            damaged = at < len(frame)


@pytest.mark.parametrize("version", [0, 2, 3])
@pytest.mark.parametrize("opcode", [w.WRITE, w.SEND, w.READ_REQUEST])
# Proves: 5041-4.1-j
def test_ddp_version(either, opcode, version):
    dut, peer = either
    dut.receive(1)
    if opcode == w.WRITE:
        bad = tagged(opcode, dut.mr.rkey, dut.target.address, b"x", dv=version)
    else:
        bad = peer.message(opcode, read_body(dut.mr.rkey, dut.target.address, 8), dv=version)
    peer.put(bad)
    dut.expect_fail(peer, (1, 1, 4) if opcode == w.WRITE else (1, 2, 6), bad)


# Proves: 5041-4.1-k
def test_ddp_version_changes_in_a_message(link):
    dut, peer = link
    dut.receive(1)
    peer.send(b"first", msn=1, last=False)
    bad = peer.send(b"second", msn=1, mo=5, dv=0)
    dut.expect_fail(peer, (1, 2, 6), bad)


@pytest.mark.parametrize("msn", [0, 2, 3, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("opcode", [w.SEND, w.READ_REQUEST])
# Proves: 5041-4.3-e 5041-4.3-f 5041-7.1-u5
def test_first_message_number(link, opcode, msn):
    dut, peer = link
    for i in range(4):
        dut.receive(i)
    bad = peer.put(untagged(opcode, msn, read_body(dut.mr.rkey, dut.target.address, 8)))
    dut.expect_fail(peer, (1, 2, 3), bad)


@pytest.mark.parametrize("second", [0, 1, 3])
# Proves: 5041-4.3-e 5041-7.1-u5
def test_second_message_number(link, second):
    dut, peer = link
    for i in range(4):
        dut.receive(i)
    peer.send(b"x", msn=1)
    dut.expect(0)
    bad = peer.send(b"x", msn=second)
    dut.expect_fail(peer, (1, 2, 3), bad)


@pytest.mark.parametrize("is_tagged, length", [(False, n) for n in range(18)]
                         + [(True, n) for n in range(1, 14)])
# Proves: 5041-4.4-a 5044-4.1-f
def test_shorter_than_a_header(either, is_tagged, length):
    dut, peer = either
    dut.receive(1)
    ulpdu = (tagged(w.WRITE, dut.mr.rkey, dut.target.address) if is_tagged
             else untagged(w.SEND, 1))
    peer.put(ulpdu[:length])
    dut.expect_fail(peer, (1, 0, 0))


# ---- Section 5: segments of a message

# Proves: 5041-5.2-l 5041-5.2-e 5040-5.5-10
def test_send_in_segments_of_one_byte(either):
    dut, peer = either
    dut.buffer.snapshot()
    dut.receive(1, offset=0)
    data = bytes(range(100))
    peer.put(*(untagged(w.SEND, 1, data[i:i + 1], mo=i, last=i == 99) for i in range(100)))
    assert dut.expect(1).byte_len == 100
    dut.buffer.expect_changed(0, data)


# Proves: 5041-5.2-d 5041-5.3-h 5041-4.3-j 5041-5.2-g
def test_write_segments_between_send_segments(link):
    dut, peer = link
    dut.buffer.snapshot()
    dut.receive(1, offset=0)
    data = bytes(range(256)) * 4
    ulpdus = []
    for at in range(0, len(data), 64):
        last = at + 64 == len(data)
        ulpdus.append(untagged(w.SEND, 1, data[at:at + 64], mo=at, last=last))
        ulpdus.append(tagged(w.WRITE, dut.mr.rkey, dut.target.address + at, data[at:at + 64],
                             last=last))
    ulpdus.append(peer.message(w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address, 1)))
    peer.put(*ulpdus)
    peer.expect(w.READ_RESPONSE)
    assert dut.expect(1).byte_len == len(data)
    dut.buffer.expect_changed(0, data)
    dut.target.expect_changed(0, data)


@pytest.mark.parametrize("size", [65535 - 18, 65535 - 14])
# Proves: 5044-4.1-e
def test_largest_frame(either, size):
    dut, peer = either
    data = bytes(size)
    if size == 65535 - 14:
        peer.write(dut.mr.rkey, dut.target.address + 1, data)
        barrier(dut, peer)
        dut.target.expect_changed(1, data)
    else:
        dut.receive(1, length=size, offset=0)
        peer.send(data)
        assert dut.expect(1).byte_len == size


# Proves: 5041-4.3-c
def test_opcode_changes_in_a_message(link):
    """Message delivered or stream ended, and the memory behind the buffer is as it was."""
    dut, peer = link
    dut.receive(1, length=16, offset=0)
    dut.buffer.snapshot()
    peer.send(b"12345678", msn=1, last=False)
    bad = peer.send(b"12345678", w.SEND_SOLICITED, msn=1, mo=8)
    dut.expect_fail(peer, (0, 2, 6), bad)
    assert dut.buffer.read(16, PAGE) == dut.buffer.before[PAGE + 16:2 * PAGE + 16]


# Proves: 5041-5.1-a
def test_buffer_written_many_times(link):
    dut, peer = link
    for i in range(1000):
        peer.write(dut.mr.rkey, dut.target.address + i % 64, bytes([i & 0xFF]) * 64)
    barrier(dut, peer)
    expected = bytearray(dut.target.before[PAGE:PAGE + 128])
    for i in range(1000):
        expected[i % 64:i % 64 + 64] = bytes([i & 0xFF]) * 64
    dut.target.expect_changed(0, bytes(expected))


@pytest.mark.parametrize("length", [3000, 100000])
# Proves: 5041-5.2-a 5041-5.2-c 5041-5.3-b 5041-5.2-f 5044-4.5-a
def test_segments_of_the_device(dut, length):
    """Towards a peer that asks for CRCs a frame is no larger than a TCP segment."""
    peer = dut.connect(crc=True)
    memory = Memory(length)
    region = dut.region(memory, ALL_ACCESS)
    for opcode, on_wire in ((e.IBV_WR_SEND, w.SEND), (e.IBV_WR_RDMA_WRITE, w.WRITE)):
        dut.post(opcode, 1, sges=[SGE(memory.address, length, region.lkey)], rkey=5, to=16384)
        segments, data = peer.get_message(on_wire)
        assert data == memory.read(0, length)
        assert all(len(s.ulpdu) == len(segments[0].ulpdu) for s in segments[:-1])
        largest = peer.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        assert all(w.fpdu_size(len(s.ulpdu)) <= largest for s in segments)
        if on_wire == w.WRITE:
            assert segments[0].header.to == 16384
        dut.expect(1)


# ---- Section 7: errors

@pytest.mark.parametrize("payload", [b"", b"x"])
# Proves: 5041-7.1-u2 5041-7.1-u2b 5041-7.1-u6
def test_send_without_a_receive(dut, payload):
    """The stream is held for a while first (docs/spec-exceptions.md)."""
    peer = dut.connect()
    bad = peer.send(payload)
    dut.expect_fail(peer, (1, 2, 2), bad)


@pytest.mark.parametrize("mo, payload, code", [
    (108, 1, (1, 2, 4)), (0xFFFFFFFF, 1, (1, 2, 4)), (0xFFFFFFF0, 0x20, (1, 2, 4)),
    (101, 0, (1, 2, 4)), (99, 2, (1, 2, 4)), (0, 101, (1, 2, 5)), (0, 60000, (1, 2, 5))])
# Proves: 5041-7.1-u3 5041-7.1-u4
def test_message_offset(link, mo, payload, code):
    dut, peer = link
    dut.receive(1, length=100, offset=0)
    dut.receive(2)
    dut.buffer.snapshot()
    bad = peer.send(bytes(payload), msn=1, mo=mo)
    dut.expect_fail(peer, code, bad, receive=e.IBV_WC_LOC_LEN_ERR)
    assert dut.buffer.read(100, 32 * PAGE) == dut.buffer.before[PAGE + 100:33 * PAGE + 100]


# Proves: 5041-7.1-u4
def test_second_segment_is_too_long(link):
    dut, peer = link
    dut.receive(1, length=100, offset=0)
    dut.buffer.snapshot()
    peer.send(bytes(60), msn=1, last=False)
    bad = peer.send(bytes(41), msn=1, mo=60)
    dut.expect_fail(peer, (1, 2, 5), bad, receive=e.IBV_WC_LOC_LEN_ERR)
    assert dut.buffer.read(100, PAGE) == dut.buffer.before[PAGE + 100:2 * PAGE + 100]


@pytest.mark.parametrize("mo", [0, 4, 12])
# Proves: 5041-5.2-k
def test_hole_in_a_message(link, mo):
    """The offset must be that of the first byte that has not been placed."""
    dut, peer = link
    dut.receive(1, length=100)
    peer.send(bytes(8), msn=1, last=False)
    bad = peer.send(bytes(8), msn=1, mo=mo)
    dut.expect_fail(peer, (1, 2, 4), bad, receive=e.IBV_WC_LOC_LEN_ERR)


# Proves: 5041-7.1-t6 5040-8.1.1-6 5041-8.3-2
def test_region_is_deregistered_between_two_segments(link):
    dut, peer = link
    region = MR(dut.pd, dut.target.length, ALL_ACCESS, address=dut.target.address)
    rkey = region.rkey
    peer.write(rkey, dut.target.address, dut.target.read(0, 8), last=False)
    barrier(dut, peer)
    region.close()
    bad = peer.write(rkey, dut.target.address + 8, b"x" * 8)
    dut.expect_fail(peer, (1, 1, 0), bad)


# Proves: 5041-7.1-a 5040-8.1.1-6 5042-b
def test_nothing_changes_after_deregistration(link):
    """The rest of a segment that is under way is not placed either."""
    dut, peer = link
    memory = Memory(60000)
    region = MR(dut.pd, memory.length, ALL_ACCESS, address=memory.address)
    frame = peer.frame(tagged(w.WRITE, region.rkey, memory.address, bytes(60000)))
    peer.raw(frame[:30000])
    region.close()
    memory.snapshot()
    peer.raw(frame[30000:])
    segments = peer.get_to_the_end()
    terminate = segments[-1].terminate()
    assert (terminate.layer, terminate.etype, terminate.error) == (1, 1, 0)
    assert memory.unchanged()
    dut.expect_dead(e.IBV_EVENT_QP_ACCESS_ERR)
