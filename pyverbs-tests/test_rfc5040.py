# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""RFC 5040, RDMAP, by a raw TCP peer. What concerns rights, bounds and keys is in test_misuse.py.

What is said about every segment that the device sends is checked by raw_peer.Scan in each of these
tests, and what is said about every Terminate by Dut.expect_fail()."""

import threading

import pyverbs.cm_enums as ce
import pyverbs.enums as e
import pytest
import uwarp_wire as w
from pyverbs.cq import CompChannel
from pyverbs.wr import SGE

from dut import ALL_ACCESS, PAGE, Dut, Memory, c_object, comes, until
from raw_peer import SINK_STAG, SINK_TO, read_body, tagged, terminate_body, untagged

FLUSHED = e.IBV_WC_WR_FLUSH_ERR
SENDS = [w.SEND, w.SEND_INVALIDATE, w.SEND_SOLICITED, w.SEND_SOLICITED_INVALIDATE]
OPCODES = [w.WRITE, w.READ_REQUEST, w.READ_RESPONSE, *SENDS, w.TERMINATE]


def barrier(dut, peer):
    """When this returns, the device has looked at all that the peer has sent before."""
    peer.read(dut.mr.rkey, dut.target.address, 8)
    return peer.expect(w.READ_RESPONSE)


def post_large_write(dut):
    """More than the sockets hold, as request 1. The memory must be kept."""
    large = Memory(8 << 20)
    region = dut.region(large, ALL_ACCESS)
    dut.post(e.IBV_WR_RDMA_WRITE, 1, sges=[SGE(large.address, large.length, region.lkey)], rkey=1)
    return large


def ulpdu_of(opcode, dut, peer, **overrides):
    """A correct one, but for what is replaced."""
    if w.traits(opcode).tagged:
        return tagged(opcode, dut.mr.rkey, dut.target.address, b"x" * 8, **overrides)
    body = {w.READ_REQUEST: read_body(dut.mr.rkey, dut.target.address, 8),
            w.TERMINATE: terminate_body(0, 0, 0)}.get(opcode, b"x" * 8)
    return peer.message(opcode, body, **overrides)


# ---- Sections 3 and 4: headers

@pytest.mark.parametrize("opcode", OPCODES)
@pytest.mark.parametrize("version", [0, 2, 3])
# Proves: 5040-4.1-g 5040-4.1-h 5040-7.2-c
def test_rdmap_version(link, opcode, version):
    dut, peer = link
    dut.receive(1)
    bad = peer.put(ulpdu_of(opcode, dut, peer, rv=version))
    dut.expect_fail(peer, (0, 2, 5), bad)


# Proves: 5040-4.1-j 5041-4.1-i
def test_reserved_bits_are_ignored(link):
    dut, peer = link
    dut.receive(1)
    reserved = dict(rsvd=0xF, rdmap_rsvd=3)
    peer.put(tagged(w.WRITE, dut.mr.rkey, dut.target.address, b"12345678", **reserved),
             peer.message(w.SEND, b"hello", **reserved),
             peer.message(w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address, 8),
                          **reserved))
    assert dut.expect(1).byte_len == 5
    assert peer.expect(w.READ_RESPONSE).body == b"12345678"


@pytest.mark.parametrize("opcode", [w.SEND, w.SEND_SOLICITED, w.READ_REQUEST])
# Proves: 5040-4.1-l
def test_invalidate_stag_is_ignored(link, opcode):
    dut, peer = link
    dut.receive(1)
    window = dut.window()
    rkey = dut.bind(10, window, 0, 64)
    dut.expect(10)
    peer.put(ulpdu_of(opcode, dut, peer, stag=rkey))
    if opcode == w.READ_REQUEST:
        peer.expect(w.READ_RESPONSE)
    else:
        assert not dut.expect(1).wc_flags & e.IBV_WC_WITH_INV
    peer.read(rkey, dut.target.address, 8)
    assert peer.expect(w.READ_RESPONSE).body == dut.target.read(0, 8)


@pytest.mark.parametrize("opcode", OPCODES)
# Proves: 5040-4.1-d 5040-4.1-m 5040-7.2-b
def test_wrong_model(either, opcode):
    dut, peer = either
    dut.receive(1)
    if w.traits(opcode).tagged:
        bad = peer.put(untagged(opcode, 1, bytes(40), qn=0))
    else:
        bad = peer.put(tagged(opcode, dut.mr.rkey, dut.target.address, bytes(40)))
    dut.expect_fail(peer, (0, 2, 6), bad)


@pytest.mark.parametrize("opcode, qn", [
    (opcode, qn) for opcode in OPCODES if not w.traits(opcode).tagged
    for qn in (0, 1, 2, 3, 4, 0xFFFFFFFF) if qn != w.traits(opcode).queue])
# Proves: 5040-4.1-f 5040-4.1-n 5040-5.2.1-f 5040-5.3-j 5041-7.1-u1
def test_wrong_queue(link, opcode, qn):
    dut, peer = link
    dut.receive(1)
    bad = peer.put(ulpdu_of(opcode, dut, peer, qn=qn))
    dut.expect_fail(peer, (1, 2, 1), bad)


@pytest.mark.parametrize("opcode", [0xC, 0xD, 0xE, 0xF])
@pytest.mark.parametrize("is_tagged", [False, True])
# Proves: 5040-4.2-b 5040-7.2-b
def test_opcode_that_is_not_defined(link, opcode, is_tagged):
    dut, peer = link
    dut.receive(1)
    bad = peer.put(tagged(opcode, dut.mr.rkey, dut.target.address, b"x") if is_tagged else
                   untagged(opcode, 1, b"x", qn=0))
    dut.expect_fail(peer, (0, 2, 6), bad)


@pytest.mark.parametrize("size, code", [(0, (0, 2, 0xFF)), (24, (0, 2, 0xFF)), (27, (0, 2, 0xFF)),
                                        (29, (1, 2, 5)), (32, (1, 2, 5))])
# Proves: 5040-4.2-a 5040-4.4-g
def test_read_request_of_another_length(either, size, code):
    dut, peer = either
    dut.receive(1)
    body = read_body(dut.mr.rkey, dut.target.address, 8) + bytes(8)
    bad = peer.put(peer.message(w.READ_REQUEST, body[:size]))
    dut.expect_fail(peer, code, bad)


# ---- Sends

@pytest.mark.parametrize("length", [0, 1, 3, 4, 100, 4096, 5000])
# Proves: 5040-3.1-d 5040-5.3-c 5041-5.4-c 5040-5.3-m
def test_send_length(either, length):
    dut, peer = either
    dut.buffer.snapshot()
    dut.receive(1, length=5000, offset=0)
    data = bytes(range(256)) * 20
    peer.send(data[:length])
    assert dut.expect(1, opcode=e.IBV_WC_RECV).byte_len == length
    dut.buffer.expect_changed(0, data[:length])
    dut.receive(2)
    peer.send(b"next")
    assert dut.expect(2).byte_len == 4


# Proves: 5040-3.1-i 5040-5.3-b 5040-5.3-e 5040-5.5-10 5040-B-1 5041-5.1-b 5041-5.3-e
# Proves: 5041-5.3-f 5041-4.3-e
def test_thousand_numbered_sends(either):
    dut, peer = either
    for wr_id in range(32):
        dut.receive(wr_id, length=4, offset=wr_id * 4)
    peer.put(*(peer.message(w.SEND, i.to_bytes(4, "little")) for i in range(1000)))
    for i in range(1000):
        assert dut.expect(i).byte_len == 4
        offset = i % 32 * 4
        assert dut.buffer.read(offset, 4) == i.to_bytes(4, "little")
        dut.receive(i + 32, length=4, offset=offset)


# Proves: 5040-3.2-b 5040-5.3-d 5041-7.1-u4 8797-3.1-b
def test_send_that_is_too_long(either):
    dut, peer = either
    dut.buffer.snapshot()
    dut.receive(1, length=100, offset=0)
    dut.receive(2)
    bad = peer.send(b"x" * 101)
    dut.expect_fail(peer, (1, 2, 5), bad, receive=e.IBV_WC_LOC_LEN_ERR)
    assert dut.buffer.read(100, PAGE) == dut.buffer.before[PAGE + 100:2 * PAGE + 100]


@pytest.mark.parametrize("solicited_only", [True, False])
# Proves: 5040-5.3-f 5040-5.3-g 5040-5.3-t
def test_events_of_sends(context, solicited_only):
    with CompChannel(context) as channel, Dut(context, channel=channel) as dut:
        peer = dut.connect()
        for i, opcode in enumerate(SENDS):
            window = dut.window()
            rkey = dut.bind(10, window, 0, 64)
            dut.expect(10)
            dut.receive(i)
            dut.cq.req_notify(solicited_only=solicited_only)
            invalidates = w.traits(opcode).invalidates
            peer.send(b"x", opcode, stag=rkey if invalidates else 0)
            if w.traits(opcode).solicited or not solicited_only:
                assert comes(channel)
                channel.get_cq_event(dut.cq)
                dut.cq.ack_events(1)
            wc = dut.expect(i)
            assert bool(wc.wc_flags & e.IBV_WC_WITH_INV) == invalidates
            if not w.traits(opcode).solicited and solicited_only:
                assert not comes(channel, 0)
                peer.send(b"x", w.SEND_SOLICITED)  # disarms
                dut.receive(i)
                assert comes(channel)
                channel.get_cq_event(dut.cq)
                dut.cq.ack_events(1)
                dut.expect(i)


# Proves: 5040-5.3-i 5040-5.3-k 5040-5.1-f 5040-5.1-g 5040-5.5-13 5041-5.3-a 5040-3.1-c
# Proves: 5040-4.1-c 5040-5.3-n 5040-4.6-a 5040-4.3-a
def test_requests_are_sent_in_order(link):
    dut, peer = link
    parts = [dut.sge(at, length) for at, length in ((0, 3), (1000, 500), (7, 1), (2000, 40000))]
    data = b"".join(dut.buffer.read(part.addr - dut.buffer.address, part.length) for part in parts)
    for i in range(20):
        dut.post(e.IBV_WR_SEND, 3 * i, sges=parts)
        dut.post(e.IBV_WR_RDMA_WRITE, 3 * i + 1, sges=parts, rkey=0x1234, to=i * 100000)
        dut.post(e.IBV_WR_SEND_WITH_INV, 3 * i + 2, imm=0xABCD0000 + i,
                 flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED)
        segments, sent = peer.get_message(w.SEND)
        assert sent == data and segments[0].header.msn == 2 * i + 1
        segments, written = peer.get_message(w.WRITE)
        assert written == data
        assert (segments[0].header.stag, segments[0].header.to) == (0x1234, i * 100000)
        segment = peer.expect(w.SEND_SOLICITED_INVALIDATE)
        assert segment.header.invalidate_stag == 0xABCD0000 + i
        for wr_id in range(3 * i, 3 * i + 3):
            dut.expect(wr_id)


# Proves: 5040-5.3-l 5040-5.1-j 5041-5.2-h
def test_empty_messages(link):
    dut, peer = link
    dut.post(e.IBV_WR_SEND, 1, sges=[dut.sge(0, 0)])
    dut.post(e.IBV_WR_RDMA_WRITE, 2, sges=[dut.sge(0, 0)], rkey=0x1234, to=0x5678)
    assert len(peer.expect(w.SEND).ulpdu) == 18
    write = peer.expect(w.WRITE)
    assert len(write.ulpdu) == 14 and write.header.stag == 0x1234
    dut.expect(1)
    dut.expect(2)


# ---- Writes

@pytest.mark.parametrize("offset, length", [(0, 4096), (1, 1), (3, 4099), (32 * PAGE - 1, 1)])
# Proves: 5040-3.2-c 5040-5.1-b 5040-5.1-d 5040-5.1-e 5041-4.1-a 5041-4.2-h
def test_write(either, offset, length):
    dut, peer = either
    dut.receive(1)
    data = bytes(i & 0xFF for i in range(length))
    peer.write(dut.mr.rkey, dut.target.address + offset, data)
    barrier(dut, peer)
    dut.target.expect_changed(offset, data)
    dut.expect_no_completion()
    peer.send(b"the receive is still there")
    dut.expect(1)


# Proves: 5040-5.1-h 5040-5.5-5 5040-5.5-10b 5040-B-4
def test_write_is_placed_before_the_next_send_completes(link):
    dut, peer = link
    for i in range(500):
        dut.receive(i)
        data = bytes([i & 0xFF]) * 8192
        peer.put(tagged(w.WRITE, dut.mr.rkey, dut.target.address, data), peer.message(w.SEND))
        dut.expect(i)
        assert dut.target.read(0, 8192) == data


# Proves: 5040-5.1-i
def test_write_to_two_buffers(link):
    dut, peer = link
    other = dut.region(dut.target, ALL_ACCESS)
    peer.write(dut.mr.rkey, dut.target.address, dut.target.read(0, 8), last=False)
    bad = peer.write(other.rkey, dut.target.address + 8, b"x" * 8)
    dut.expect_fail(peer, (1, 1, 0), bad)


# Proves: 5040-5.1-j 5041-5.2-i 5041-5.2-j
def test_empty_write_is_not_checked(either):
    dut, peer = either
    peer.write(0xFFFFFFFF, 2**64 - 1)
    peer.write(0, 0)
    barrier(dut, peer)
    dut.events.expect_none()
    assert dut.target.unchanged()


# ---- Reads, as the responder

@pytest.mark.parametrize("sink_stag, sink_to", [(0xFFFFFFFF, 0xFFFFFFFF00000001), (0, 0), (7, 13)])
@pytest.mark.parametrize("offset, size", [(0, 4096), (5, 4097), (32 * PAGE - 1, 1)])
# Proves: 5040-3.2-e 5040-4.4-b 5040-4.4-c 5040-5.2-a 5040-5.2.1-c 5040-5.2.1-d 5040-5.2.1-j
# Proves: 5040-5.2.1-k 5040-5.2.2-i 5040-4.4-d 5040-4.4-f
def test_read(either, sink_stag, sink_to, offset, size):
    dut, peer = either
    dut.receive(1)
    peer.read(dut.mr.rkey, dut.target.address + offset, size, sink_stag, sink_to)
    segments, data = peer.get_message(w.READ_RESPONSE)
    assert data == dut.target.read(offset, size)
    assert (segments[0].header.stag, segments[0].header.to) == (sink_stag, sink_to)
    dut.expect_no_completion()
    dut.events.expect_none()


# Proves: 5040-4.4-e 5040-5.5-20
def test_read_sizes(link):
    dut, peer = link
    large = Memory(1 << 20)
    region = dut.region(large, ALL_ACCESS)
    sizes = [1 << 20, 1, 0, 65521, 65522, 64 << 10, 1 << 20, 3]
    peer.put(*(peer.message(w.READ_REQUEST, read_body(region.rkey, large.address, size,
                                                      sink_stag=i + 1))
               for i, size in enumerate(sizes)))
    for i, size in enumerate(sizes):
        segments, data = peer.get_message(w.READ_RESPONSE)
        assert segments[0].header.stag == i + 1, "in the order of the requests"
        assert data == large.read(0, size)


# Proves: 5040-5.2.1-h 5040-5.2.2-g 5040-B-9
def test_eight_reads_in_order(link):
    dut, peer = link
    for _ in range(50):
        peer.put(*(peer.message(w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address + i, 8,
                                                          sink_stag=i)) for i in range(8)))
        for i in range(8):
            segment = peer.expect(w.READ_RESPONSE)
            assert segment.header.stag == i and segment.body == dut.target.read(i, 8)


# Proves: 5040-5.2.1-n 5040-5.2.1-o
def test_read_of_nothing_is_not_checked(either):
    dut, peer = either
    peer.read(0xFFFFFFFF, 2**64 - 1, 0)
    segment = peer.expect(w.READ_RESPONSE)
    assert segment.last and len(segment.ulpdu) == 14
    assert (segment.header.stag, segment.header.to) == (SINK_STAG, SINK_TO)


# Proves: 5040-5.2.1-i
def test_read_across_two_regions(link):
    dut, peer = link
    first = dut.region(dut.target, ALL_ACCESS, length=PAGE)
    bad = peer.read(first.rkey, dut.target.address + PAGE - 8, 16)
    dut.expect_fail(peer, (0, 1, 1), bad)


# Proves: 5040-5.5-12 5040-5.5-17 5040-B-6 5040-B-3
def test_read_behind_a_write_and_a_send(link):
    dut, peer = link
    region = dut.region(dut.buffer, ALL_ACCESS)
    for i in range(300):
        dut.receive(i, offset=0)
        cell = (i + 1).to_bytes(8, "little")
        peer.put(tagged(w.WRITE, dut.mr.rkey, dut.target.address, cell),
                 peer.message(w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address, 8)),
                 peer.message(w.SEND, cell),
                 peer.message(w.READ_REQUEST, read_body(region.rkey, dut.buffer.address, 8)))
        assert peer.expect(w.READ_RESPONSE).body == cell
        assert peer.expect(w.READ_RESPONSE).body == cell
        dut.expect(i)


@pytest.mark.parametrize("depth", [1, 4])
# Proves: 5040-5.2.1-b 5040-6.1-f
def test_more_reads_than_negotiated(dut, depth):
    large = Memory(16 << 20)
    region = dut.region(large, ALL_ACCESS)
    peer = dut.connect(resources=depth)
    # The answers do not fit into the socket buffers, so none of the requests is done.
    requests = [peer.message(w.READ_REQUEST, read_body(region.rkey, large.address, 16 << 20))
                for _ in range(depth + 1)]
    bad = peer.put(*requests)
    dut.expect_fail(peer, (1, 2, 2), bad, before=None)


# Proves: 5040-5.5-18 5042-h 5040-8.1.2-7
def test_stalled_read_delays_no_other_stream(context, link):
    """Neither a Send behind it, nor another queue pair."""
    dut, peer = link
    large = Memory(16 << 20)
    region = dut.region(large, ALL_ACCESS)
    dut.receive(1)
    peer.read(region.rkey, large.address, 16 << 20)
    peer.send(b"behind it")
    dut.expect(1)
    with Dut(context) as other:
        its_peer = other.connect()
        for _ in range(100):
            barrier(other, its_peer)
    _, data = peer.get_message(w.READ_RESPONSE)
    assert data == large.read(0, 16 << 20)


# docs/security.md
def test_flood_of_empty_writes_delays_no_other_stream(context, link):
    """They are legal at any time, and cost the peer as much as us."""
    dut, peer = link
    flood = peer.frame(tagged(w.WRITE, 1, 0)) * 5000
    over = threading.Event()

    def pour():
        while not over.is_set():
            peer.raw(flood)

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        with Dut(context) as other:
            its_peer = other.connect()
            for _ in range(100):
                barrier(other, its_peer)
    finally:
        over.set()
        thread.join()
    dut.receive(1)
    peer.send(b"behind them")
    dut.expect(1)


# ---- Reads, as the requester

# Proves: 5040-4.4-a 5040-5.2.1-a 5040-5.2.1-g 5040-5.2.2-d 5040-5.5-11 5040-5.5-19 5040-5.5-20c
def test_reads_of_the_device(link):
    dut, peer = link
    dut.buffer.snapshot()
    for i in range(16):
        dut.post(e.IBV_WR_RDMA_READ, i, sges=[dut.sge(i * 64, 64)], rkey=0x1234, to=i * 1000)
    requests = []
    for i in range(16):
        segment = peer.expect(w.READ_REQUEST)
        read = segment.read()
        assert segment.header.msn == i + 1
        assert (read.source_stag, read.source_to, read.size) == (0x1234, i * 1000, 64)
        assert read.sink_stag != 0
        requests.append(read)
    for i, read in enumerate(requests):
        peer.put(tagged(w.READ_RESPONSE, read.sink_stag, read.sink_to, bytes([i]) * 40, last=False))
        barrier(dut, peer)
        dut.expect_no_completion()
        peer.put(tagged(w.READ_RESPONSE, read.sink_stag, read.sink_to + 40, bytes([i + 1]) * 24))
        assert dut.expect(i, opcode=e.IBV_WC_RDMA_READ).byte_len == 64
        assert dut.buffer.read(i * 64, 64) == bytes([i]) * 40 + bytes([i + 1]) * 24


# Proves: 5040-5.2.1-l
def test_read_of_nothing(link):
    dut, peer = link
    dut.post(e.IBV_WR_RDMA_READ, 1, sges=[dut.sge(0, 0)])
    read = peer.expect(w.READ_REQUEST).read()
    assert read.size == 0
    peer.answer_read(read, b"")
    assert dut.expect(1).byte_len == 0


BAD_RESPONSES = {
    "STag": (lambda read: tagged(w.READ_RESPONSE, read.sink_stag ^ 1, read.sink_to, bytes(64)),
             (1, 1, 0), e.IBV_WC_BAD_RESP_ERR),
    "offset": (lambda read: tagged(w.READ_RESPONSE, read.sink_stag, read.sink_to + 8, bytes(56)),
               (1, 1, 1), e.IBV_WC_BAD_RESP_ERR),
    "too long": (lambda read: tagged(w.READ_RESPONSE, read.sink_stag, read.sink_to, bytes(65)),
                 (1, 1, 1), e.IBV_WC_LOC_LEN_ERR),
    "too short": (lambda read: tagged(w.READ_RESPONSE, read.sink_stag, read.sink_to, bytes(63)),
                  (1, 1, 1), e.IBV_WC_BAD_RESP_ERR),
    "empty": (lambda read: tagged(w.READ_RESPONSE, read.sink_stag, read.sink_to),
              (1, 1, 1), e.IBV_WC_BAD_RESP_ERR),
}


@pytest.mark.parametrize("name", BAD_RESPONSES)
# Proves: 5040-5.2.2-e 5040-5.2.2-h 5042-f 5040-7.1-c 5041-4.2-g
def test_bad_read_response(link, name):
    make, code, status = BAD_RESPONSES[name]
    dut, peer = link
    dut.receive(5)
    dut.buffer.snapshot()
    dut.post(e.IBV_WR_RDMA_READ, 1, sges=[dut.sge(1000, 64)])
    dut.post(e.IBV_WR_RDMA_READ, 2)
    read = peer.expect(w.READ_REQUEST).read()
    peer.expect(w.READ_REQUEST)
    bad = peer.put(make(read))
    dut.expect_fail(peer, code, bad, event=e.IBV_EVENT_QP_REQ_ERR,
                    sends=[(1, status), (2, FLUSHED)])
    assert dut.buffer.unchanged()


@pytest.mark.parametrize("after_one", [False, True])
# Proves: 5040-5.2.2-j 5042-f
def test_unexpected_read_response(link, after_one):
    dut, peer = link
    dut.receive(5)
    stag, to = dut.mr.rkey, dut.target.address
    if after_one:
        dut.post(e.IBV_WR_RDMA_READ, 1)
        read = peer.expect(w.READ_REQUEST).read()
        peer.answer_read(read, bytes(64))
        dut.expect(1)
        stag, to = read.sink_stag, read.sink_to
    bad = peer.put(tagged(w.READ_RESPONSE, stag, to, b"x" * 64))
    dut.expect_fail(peer, (0, 2, 6), bad)


# Proves: 5042-e
def test_write_to_the_sink_of_a_read_is_refused(link):
    dut, peer = link
    dut.buffer.snapshot()
    dut.post(e.IBV_WR_RDMA_READ, 1)
    read = peer.expect(w.READ_REQUEST).read()
    bad = peer.write(read.sink_stag, read.sink_to, b"x" * 8)
    dut.expect_fail(peer, (1, 1, 0), bad, sends=[(1, FLUSHED)])
    assert dut.buffer.unchanged()


@pytest.mark.parametrize("depth", [1, 2, 16])
# Proves: 5040-6.1-d 5040-6.1-e 5040-6.1-h
def test_no_more_reads_than_negotiated(dut, depth):
    peer = dut.connect(depth=depth)
    count = 2 * depth + 3
    for i in range(count):
        dut.post(e.IBV_WR_RDMA_READ, i)
    requests = [peer.expect(w.READ_REQUEST).read() for _ in range(depth)]
    for i in range(count):
        barrier(dut, peer)  # so no further request
        peer.answer_read(requests.pop(0), bytes(64))
        dut.expect(i)
        if i + depth < count:
            requests.append(peer.expect(w.READ_REQUEST).read())


# Proves: 5040-5.5-12c 5040-B-11
def test_fence(link):
    dut, peer = link
    dut.post(e.IBV_WR_RDMA_READ, 1)
    dut.post(e.IBV_WR_RDMA_WRITE, 2, rkey=1, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE)
    read = peer.expect(w.READ_REQUEST).read()
    barrier(dut, peer)
    peer.answer_read(read, bytes(64))
    peer.expect(w.WRITE)
    dut.expect(1)
    dut.expect(2)


# Proves: 5040-5.5-15
def test_completions_in_posting_order(link):
    dut, peer = link
    dut.post(e.IBV_WR_RDMA_READ, 1)
    dut.post(e.IBV_WR_SEND, 2)
    read = peer.expect(w.READ_REQUEST).read()
    peer.expect(w.SEND)
    barrier(dut, peer)
    dut.expect_no_completion()
    peer.answer_read(read, bytes(64))
    dut.expect(1)
    dut.expect(2)


# Proves: 5040-5.5-16 5041-4.1-g 5041-5.4-b
def test_whole_message_before_its_completion(link):
    dut, peer = link
    dut.receive(1)
    peer.send(b"first", msn=1, last=False)
    barrier(dut, peer)
    dut.expect_no_completion()
    peer.send(b"second", msn=1, mo=5)
    assert dut.expect(1).byte_len == 11


# ---- Terminate

@pytest.mark.parametrize("receives", [0, 3])
@pytest.mark.parametrize("reserved", [0, 0x1FFF])
# Proves: 5040-4.8-h 5040-5.4-c 5040-5.4-d 5040-5.4-e 5040-3.2-b 5040-5.4-h 5040-5.4-i
def test_terminate_of_the_peer(either, receives, reserved):
    dut, peer = either
    for i in range(receives):
        dut.receive(i)
    body = bytearray(terminate_body(0, 1, 2))
    body[2:4] = (int.from_bytes(body[2:4], "big") | reserved).to_bytes(2, "big")
    peer.put(peer.message(w.TERMINATE, bytes(body)))
    assert peer.get_to_the_end() == []
    dut.expect_dead(e.IBV_EVENT_QP_FATAL)


@pytest.mark.parametrize("bad", [dict(msn=2), dict(mo=4), dict(cut=2), dict(cut=0),
                                 dict(longer=40)])
# Proves: 5040-5.4-f
def test_malformed_terminate(link, bad):
    dut, peer = link
    dut.receive(1)
    body = terminate_body(0, 1, 2) + bytes(bad.pop("longer", 0))
    body = body[:bad.pop("cut", len(body))]
    peer.put(untagged(w.TERMINATE, bad.pop("msn", 1), body, **bad))
    peer.get_to_the_end()
    dut.expect_dead(dut_event(dut))


def dut_event(dut):
    """Which of the three it is, is not said anywhere."""
    kind, element = dut.events.next()
    assert kind in (e.IBV_EVENT_QP_FATAL, e.IBV_EVENT_QP_REQ_ERR)
    assert element == c_object(dut.qp)
    return None


# Proves: 5040-5.4-g 5040-5.4-h 5040-6.2.1-b 5040-6.2.1-e
def test_terminate_while_the_peer_is_stalled(link):
    """The peer reads nothing; what is not out when its Terminate comes is flushed."""
    dut, peer = link
    large = Memory(8 << 20)
    region = dut.region(large, ALL_ACCESS)
    for i in range(50):
        dut.post(e.IBV_WR_RDMA_WRITE, i, sges=[SGE(large.address, large.length, region.lkey)],
                 rkey=1, flags=e.IBV_SEND_SIGNALED if i % 2 else 0)
    peer.terminate(0, 1, 2)
    found = []

    def done():
        count, wcs = dut.cq.poll()
        found.extend(wcs)
        return count == 0 and len(found) > 0 and found[-1].wr_id == 49

    until(done, "the last request")
    peer.get_to_the_end()  # whole frames only
    until(lambda: dut.state == e.IBV_QPS_ERR, "ERR")
    statuses = {wc.wr_id: wc.status for wc in found}
    assert len(found) == len(statuses)
    first = min(i for i, status in statuses.items() if status != e.IBV_WC_SUCCESS)
    assert statuses[first] == e.IBV_WC_REM_ACCESS_ERR
    assert all(statuses[i] == FLUSHED for i in range(first + 1, 50))
    assert all(statuses[i] == e.IBV_WC_SUCCESS for i in statuses if i < first)
    dut.events.expect(e.IBV_EVENT_QP_FATAL, dut.qp)
    dut.events.expect_none()


# Proves: 5040-5.4-j 5041-7.1-c 5040-7.1-e 5041-3-8 5044-8-b
def test_first_fault_counts(link):
    dut, peer = link
    dut.receive(1)
    bad = peer.message(w.READ_REQUEST, read_body(dut.mr.rkey ^ 0x5A5A00, dut.target.address, 8))
    peer.put(bad, tagged(w.WRITE, dut.mr.rkey ^ 0x5A5A00, dut.target.address, b"x"),
             tagged(w.WRITE, dut.mr.rkey, dut.target.address, b"x" * 64),
             peer.message(w.SEND, b"x"), *[bad] * 10)
    dut.expect_fail(peer, (0, 1, 0), bad)


# Proves: 5040-6.2.1-d 5040-6.2.1-e 5040-7-b
def test_terminate_arrives_in_spite_of_unread_bytes(link):
    """A frame under way is finished, the Terminate follows, and no reset destroys it although the
    device has bytes of ours that it never reads."""
    dut, peer = link
    large = post_large_write(dut)
    bad = tagged(w.WRITE, dut.mr.rkey ^ 0x5A5A00, dut.target.address, b"x")
    peer.put(bad, *[peer.message(w.SEND, bytes(60000)) for _ in range(10)])
    dut.expect_fail(peer, (1, 1, 0), bad, sends=[(1, FLUSHED)], before=None)


# ---- The end

# Proves: 5040-6.2-a 5041-6.2.1-a 5041-6.2.1-e 5044-7.2-a 5041-6.2.1-b
def test_graceful_close(link):
    dut, peer = link
    for i in range(40):
        dut.post(e.IBV_WR_SEND, i, sges=[dut.sge(0, 3000)])
    dut.receive(99)
    dut.id.disconnect()
    for segment in peer.get_to_the_end():
        assert segment.opcode == w.SEND
    assert peer.scan.msn[0] == 40 and peer.scan.open is None
    peer.finish()
    for i in range(40):
        dut.expect(i)
    dut.expect_dead(None)
    dut.cm_event(ce.RDMA_CM_EVENT_DISCONNECTED)
    dut.post(e.IBV_WR_SEND, 1)
    dut.expect(1, FLUSHED)


# Proves: 5041-6.2.1-d
def test_half_closed(link):
    """Our FIN comes while the device has much to send: all of it arrives."""
    dut, peer = link
    large = post_large_write(dut)
    peer.finish()
    _, data = peer.get_message(w.WRITE)
    assert data == large.read(0, large.length)
    assert peer.get_to_the_end() == []
    dut.expect(1)
    dut.expect_dead(None)


# Proves: 5041-6.2.1-a 5041-6.2.1-e 5044-7.2-a
def test_both_sides_close(link):
    """The device disconnects with much to send, and our FIN comes meanwhile."""
    dut, peer = link
    large = post_large_write(dut)
    dut.id.disconnect()
    peer.finish()
    _, data = peer.get_message(w.WRITE)
    assert data == large.read(0, large.length)
    assert peer.get_to_the_end() == []
    dut.expect(1)
    dut.expect_dead(None)


# Proves: 5041-6.2.2-d 5041-6.2.1-d
def test_reset_behind_the_fin(link):
    """Who has said that it goes may go altogether: no second report, one completion for each."""
    dut, peer = link
    large = post_large_write(dut)
    dut.receive(2)
    peer.finish()
    dut.cm_event(ce.RDMA_CM_EVENT_DISCONNECTED)
    peer.reset()
    dut.expect_dead(None, sends=[(1, FLUSHED)])


def test_fin_while_requests_wait_for_answers(link):
    """What waits for an answer that cannot come is flushed, what does not is sent."""
    dut, peer = link
    dut.receive(9)
    dut.post(e.IBV_WR_RDMA_READ, 1)
    dut.post(e.IBV_WR_SEND, 2)
    dut.post(e.IBV_WR_SEND, 3, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE)
    peer.expect(w.READ_REQUEST)
    peer.expect(w.SEND)
    peer.finish()
    assert peer.get_to_the_end() == []
    dut.expect_dead(None, sends=[(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)])
