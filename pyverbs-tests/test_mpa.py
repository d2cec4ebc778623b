# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""RFC 5044 and 6581: start-up of a connection, in both roles, and the frame around a segment."""

import contextlib
import os

import pyverbs.cm_enums as ce
import pyverbs.enums as e
import pytest
import uwarp_wire as w
from pyverbs.pyverbs_error import PyverbsRDMAError

from dut import Dut, until
from raw_peer import Port, RawPeer, made, tagged

PEER_TO_PEER = dict(revision=2, enhanced=True, peer_to_peer=True, ird=16, ord=16)
FLAGS_AT, REVISION_AT, LENGTH_AT, WORD_AT = 16, 17, 18, 20


@contextlib.contextmanager
def asking(dut):
    """A peer whose Request the device waits for."""
    port = dut.listen()
    with contextlib.closing(RawPeer.dial(port)) as peer:
        yield peer


@contextlib.contextmanager
def asked(dut, **parameters):
    """A peer that waits for the device's Request, and the port."""
    with Port() as port:
        dut.dial(port.number, **parameters)
        with contextlib.closing(port.accept()) as peer:
            yield peer, port


def patched(frame, at, *data):
    return frame[:at] + bytes(data) + frame[at + len(data):]


def expect_refusal(peer):
    """The stream ends, after a rejecting Reply at most."""
    try:
        data = peer.receive(2000)
    except ConnectionResetError:
        return
    assert not data or data[FLAGS_AT] & 0x20, data


def expect_no_more_reads_than(dut, peer, depth):
    """One more has been posted, and comes when one is answered; ours are served meanwhile."""
    requests = [peer.expect(w.READ_REQUEST).read() for _ in range(depth)]
    peer.read(dut.mr.rkey, dut.target.address, 8)
    peer.expect(w.READ_RESPONSE)
    peer.answer_read(requests[0], bytes(64))
    peer.expect(w.READ_REQUEST)


def expect_served(dut):
    """The listener lives, and has no request but the one that comes now."""
    with contextlib.closing(RawPeer.dial(dut.port)) as peer:
        peer.raw(peer.request_frame(private_data=b"the good one"))
        assert dut.request() == b"the good one"
        dut.accept()
        peer.take_reply()
        dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
        dut.receive(1)
        peer.send(b"x")
        dut.expect(1)


# ---- The device as the responder

BAD_REQUESTS = {
    "key": lambda frame: patched(frame, 0, ord("X")),
    "end of the key": lambda frame: patched(frame, 15, ord("X")),
    "key of a Reply": lambda frame: patched(frame, 0, *b"MPA ID Rep Frame"),
    "revision 0": lambda frame: patched(frame, REVISION_AT, 0),
    "revision 3": lambda frame: patched(frame, REVISION_AT, 3),
    "revision 255": lambda frame: patched(frame, REVISION_AT, 255),
    "513 bytes of private data": lambda frame: patched(frame, LENGTH_AT, 2, 1) + bytes(513),
    "65535 bytes of private data": lambda frame: patched(frame, LENGTH_AT, 255, 255),
    "markers": lambda frame: patched(frame, FLAGS_AT, 0x80),
    "enhanced without a word": lambda frame: patched(frame, FLAGS_AT, 0x10, 2, 0, 0),
    "enhanced with 3 bytes": lambda frame: patched(frame, FLAGS_AT, 0x10, 2, 0, 3) + bytes(3),
    "only a Send as RTR": lambda frame: patched(frame, FLAGS_AT, 0x10, 2, 0, 4)
    + bytes([0xC0, 4, 0, 4]),
    "no RTR at all": lambda frame: patched(frame, FLAGS_AT, 0x10, 2, 0, 4) + bytes([0x80, 4, 0, 4]),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
# Proves: 5044-7.1.1-a 5044-7.1.1-b 5044-7.1.1-d 5044-4.3-a 6581-6-a 6581-9.2-b
def test_bad_request(dut, name):
    with asking(dut) as peer:
        peer.raw(BAD_REQUESTS[name](peer.request_frame()))
        expect_refusal(peer)
    expect_served(dut)


# Proves: 5044-7.1.2-g
def test_bytes_behind_the_request(dut):
    with asking(dut) as peer:
        peer.raw(peer.request_frame() + peer.frame(tagged(w.WRITE, 1, 0)))
        dut.request()
        with pytest.raises(PyverbsRDMAError):
            dut.accept()
        expect_refusal(peer)
    expect_served(dut)


# Proves: 5044-7.1.2-b 5041-6.1-a
def test_request_byte_by_byte(dut):
    with asking(dut) as peer:
        frame = peer.request_frame(revision=2, enhanced=True, ird=3, ord=4, private_data=b"data")
        for byte in frame:
            assert peer.is_silent()
            peer.raw(bytes([byte]))
        assert dut.request() == b"data"
        assert peer.is_silent()
        dut.accept()
        peer.take_reply()


# Proves: 5044-7.1.2-f
def test_silent_peers_delay_no_other_peer(dut):
    port = dut.listen()
    with contextlib.ExitStack() as stack:
        for i in range(100):
            peer = stack.enter_context(contextlib.closing(RawPeer.dial(port)))
            peer.raw(peer.request_frame()[:i % 20])
        expect_served(dut)


@pytest.mark.parametrize("flags", [0x00, 0x0F, 0x4F])
# Proves: 5044-7.1.1-c
def test_reserved_flags_are_ignored(dut, flags):
    with asking(dut) as peer:
        peer.raw(patched(peer.request_frame(), FLAGS_AT, flags))
        dut.request()
        dut.accept()
        reply = peer.take_reply(crc=bool(flags & 0x40))  # checks that its own are zero
        assert reply.crc == bool(flags & 0x40)
        peer.read(dut.mr.rkey, dut.target.address, 8)
        peer.expect(w.READ_RESPONSE)


@pytest.mark.parametrize("revision, length", [(1, 0), (1, 1), (1, 255), (1, 512), (2, 0), (2, 1),
                                              (2, 255), (2, 508)])
# Proves: 5044-7.1.1-d 5044-7.1.2-d 6581-6-d 6581-6-c 6581-6-b
def test_private_data_of_the_peer(dut, revision, length):
    """rdma_cm hands on 255 bytes at most."""
    data = bytes(i & 0xFF for i in range(length))
    with asking(dut) as peer:
        peer.raw(peer.request_frame(revision=revision, enhanced=revision == 2, ird=1, ord=1,
                                    private_data=data))
        assert dut.request() == data[:255]
        dut.accept(private=data[:255])
        reply = peer.take_reply()
        assert reply.private_data == data[:255]
        assert (reply.revision, reply.enhanced) == (revision, revision == 2)


# Proves: 5044-7.1.1-e
def test_rejection_by_the_device(dut):
    with asking(dut) as peer:
        peer.raw(peer.request_frame())
        dut.request()
        dut.id.reject(b"no, thanks")
        reply = peer.receive_start_frame(reply=True)
        assert reply.reject and reply.private_data == b"no, thanks"
        assert peer.get() is None
    expect_served(dut)


@pytest.mark.parametrize("asked_for", [False, True])
# Proves: 5044-4.4-c 5044-4.4-d
def test_crc_as_the_responder(dut, asked_for):
    peer = dut.be_connected(crc=asked_for)
    assert peer.crc == asked_for
    dut.receive(1)
    peer.put(peer.message(w.SEND, b"hello"), crc=None if asked_for else 0x12345678)
    dut.expect(1)
    peer.read(dut.mr.rkey, dut.target.address, 8)
    peer.expect(w.READ_RESPONSE)  # with the right CRC, or none


@pytest.mark.parametrize("kinds, chosen", [(["rtr_write"], "rtr_write"), (["rtr_read"], "rtr_read"),
                                           (["rtr_write", "rtr_read"], "rtr_write"),
                                           (["rtr_write", "rtr_send"], "rtr_write")])
# Proves: 5044-7.1.2-c 6581-9.2-e 6581-9.2-f 6581-9.2-g 6581-9.2-b
def test_responder_waits_for_the_rtr(dut, kinds, chosen):
    with asking(dut) as peer:
        peer.raw(peer.request_frame(**PEER_TO_PEER, **{kind: True for kind in kinds}))
        dut.request()
        dut.accept()
        reply = peer.take_reply()
        assert reply.peer_to_peer
        offered = ["rtr_send", "rtr_write", "rtr_read"]
        assert [kind for kind in offered if getattr(reply, kind)] == [chosen]
        dut.receive(5)
        dut.post(e.IBV_WR_SEND, 1)
        assert peer.is_silent()
        dut.expect_no_completion()
        if chosen == "rtr_write":
            peer.write(0, 0)
        else:
            peer.read(0, 0, 0)
        dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
        opcodes = {peer.get().opcode for _ in range(1 + (chosen == "rtr_read"))}
        assert opcodes == {w.SEND} | ({w.READ_RESPONSE} if chosen == "rtr_read" else set())
        dut.expect(1)
        dut.expect_no_completion()
        peer.read(dut.mr.rkey, dut.target.address, 8)
        peer.expect(w.READ_RESPONSE)
        dut.events.expect_none()


# Proves: 5044-7.1.2-c
def test_responder_waits_without_peer_to_peer_too(dut):
    peer = dut.be_connected()
    dut.post(e.IBV_WR_SEND, 1)
    assert peer.is_silent()
    dut.expect_no_completion()
    dut.receive(2)
    peer.send(b"go")
    peer.expect(w.SEND)
    assert {dut.completion().wr_id, dut.completion().wr_id} == {1, 2}


@pytest.mark.parametrize("ird, ord_, resources, depth, reply_ird, reply_ord", [
    (2, 4, 8, 8, 8, 2), (16, 16, 4, 4, 4, 4), (0, 0, 8, 8, 8, 0), (0x3FFE, 0x3FFE, 16, 16, 16, 16),
    (0x3FFF, 0x3FFF, 5, 6, 5, 6)])
# Proves: 6581-9.1-a 6581-9.1-b 6581-9.1-c 6581-9.1-d 6581-9.1-g 5040-8.1.1-11
def test_depths_as_the_responder(dut, ird, ord_, resources, depth, reply_ird, reply_ord):
    peer = dut.enter_context(contextlib.closing(RawPeer.dial(dut.listen())))
    peer.raw(peer.request_frame(revision=2, enhanced=True, ird=ird, ord=ord_))
    dut.request()
    most = dut.context.query_device().max_qp_rd_atom  # what is said of depths that are unknown
    assert dut.depths == (min(ord_, most), min(ird, most))
    dut.accept(resources=resources, depth=depth)
    reply = peer.take_reply()
    assert (reply.ird, reply.ord) == (reply_ird, reply_ord)
    dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
    peer.write(0, 0)
    # And it keeps to it.
    for wr_id in range(reply_ord + 1):
        dut.post(e.IBV_WR_RDMA_READ, wr_id)
    if reply_ord == 0:
        dut.expect_fail(peer, (0, 0, 0), event=None, sends=[(0, e.IBV_WC_LOC_QP_OP_ERR)])
        return
    expect_no_more_reads_than(dut, peer, reply_ord)


# ---- The device as the initiator

# Proves: 5044-7.1.2-a 6581-9.2-a 6581-9.1-a 5044-7.1.1-c 5044-4.3-b 6581-6-a
def test_what_the_device_asks(dut):
    with asked(dut, resources=5, depth=6, private=b"hello") as (peer, _):
        request = peer.receive_start_frame(reply=False)
        assert (request.revision, request.enhanced, request.peer_to_peer) == (2, True, True)
        assert not request.markers and not request.reject
        assert request.rtr_write or request.rtr_read
        assert not request.rtr_send
        assert (request.ird, request.ord) == (5, 6)
        assert request.private_data == b"hello"
        assert peer.is_silent()
        peer.answer(request)
        dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)


@pytest.mark.parametrize("kinds, opcode", [(["rtr_write"], w.WRITE), (["rtr_read"], w.READ_REQUEST),
                                           (["rtr_write", "rtr_read"], w.WRITE)])
# Proves: 6581-9.2-d 6581-9.2-f 6581-9.2-g 6581-9.2-h 5040-5.2.1-l
def test_rtr_of_the_device(dut, kinds, opcode):
    with asked(dut, depth=0) as (peer, _):
        peer.answer(peer_to_peer=True, ird=1, **{kind: True for kind in kinds})
        dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
        dut.post(e.IBV_WR_SEND, 1)
        first = peer.expect(opcode)
        if opcode == w.READ_REQUEST:
            assert first.header.msn == 1 and first.read().size == 0
            peer.answer_read(first.read(), b"")
        else:
            assert first.body == b"" and first.last
        peer.expect(w.SEND)
        dut.expect(1)
        dut.expect_no_completion()


@pytest.mark.parametrize("asked_for", [False, True])
# Proves: 5044-4.4-c 5044-4.4-d 5044-4.1-d
def test_crc_as_the_initiator(dut, asked_for):
    peer = dut.connect(crc=asked_for)
    assert peer.crc == asked_for
    dut.receive(1)
    peer.put(peer.message(w.SEND, b"hello"), crc=None if asked_for else 0x12345678)
    dut.expect(1)
    for length in range(8):  # every pad; get() looks at pad and CRC
        dut.post(e.IBV_WR_SEND, 2, sges=[dut.sge(0, length)])
        assert len(peer.expect(w.SEND).body) == length
        dut.expect(2)


@pytest.mark.parametrize("length", range(8))
# Proves: 5044-4.1-b 5044-4.1-c
def test_pad_is_ignored(either, length):
    dut, peer = either
    dut.buffer.snapshot()
    dut.receive(1, offset=0)
    data = b"abcdefgh"[:length]
    peer.put(peer.message(w.SEND, data), pad=0xFF)
    assert dut.expect(1).byte_len == length
    dut.buffer.expect_changed(0, data)


BAD_REPLIES = {
    "key": lambda frame: patched(frame, 0, ord("X")),
    "key of a Request": lambda frame: patched(frame, 0, *b"MPA ID Req Frame"),
    "revision 0": lambda frame: patched(frame, REVISION_AT, 0),
    "revision 3": lambda frame: patched(frame, REVISION_AT, 3),
    "513 bytes of private data": lambda frame: patched(frame, LENGTH_AT, 2, 1) + bytes(513),
    "markers": lambda frame: patched(frame, FLAGS_AT, 0x90),
    "word cut short": lambda frame: patched(frame, LENGTH_AT, 0, 3),
}


@pytest.mark.parametrize("name", BAD_REPLIES)
# Proves: 5044-7.1.1-a 5044-7.1.1-b 5044-7.1.1-d 5044-4.3-a 6581-6-a
def test_bad_reply(dut, name):
    with asked(dut) as (peer, _):
        request = peer.receive_start_frame(reply=False)
        good = made(w.MpaStartFrame(), is_reply=True, revision=2, enhanced=True, ird=request.ord,
                    ord=request.ird).encode()
        peer.raw(BAD_REPLIES[name](good))
        with contextlib.suppress(ConnectionResetError):
            assert peer.get_to_the_end() == []
        dut.cm_event(ce.RDMA_CM_EVENT_CONNECT_ERROR)


# Proves: 5044-7.1.1-e 5044-7.1.2-d
def test_rejection_by_the_peer(dut):
    with asked(dut) as (peer, _):
        peer.answer(reject=True, private_data=b"no, thanks")
        assert dut.cm_event(ce.RDMA_CM_EVENT_REJECTED) == b"no, thanks"
        assert peer.get_to_the_end() == []


@pytest.mark.parametrize("length", [0, 1, 255, 508])
# Proves: 5044-7.1.2-d 6581-6-d
def test_private_data_of_a_reply(dut, length):
    data = bytes(i & 0xFF for i in range(length))
    with asked(dut, private=data[:196]) as (peer, _):
        assert peer.answer(private_data=data).private_data == data[:196]
        assert dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED) == data[:255]


# Proves: 5041-6.1-a
def test_reply_byte_by_byte_and_a_frame_behind_it(dut):
    with asked(dut) as (peer, _):
        request = peer.receive_start_frame(reply=False)
        dut.receive(1)
        reply = made(w.MpaStartFrame(), is_reply=True, revision=2, enhanced=True, ird=request.ord,
                     ord=request.ird, private_data=b"data")
        for byte in reply.encode() + peer.frame(peer.message(w.SEND, b"first")):
            peer.raw(bytes([byte]))
        assert dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED) == b"data"
        assert dut.expect(1).byte_len == 5


# Proves: 6581-9.1-f
def test_more_reads_than_the_device_can_hold(dut):
    with asked(dut) as (peer, _):
        peer.answer(ord=0x3FFE)
        terminate = peer.expect(w.TERMINATE).terminate()
        assert (terminate.layer, terminate.etype, terminate.error) == (2, 0, 6)
        assert peer.get() is None
        dut.cm_event(ce.RDMA_CM_EVENT_CONNECT_ERROR)


# Proves: 6581-9.2-c
def test_no_common_rtr(dut):
    with asked(dut) as (peer, _):
        peer.answer(peer_to_peer=True, rtr_send=True)
        terminate = peer.expect(w.TERMINATE).terminate()
        assert (terminate.layer, terminate.etype, terminate.error) == (2, 0, 7)
        assert peer.get() is None
        dut.cm_event(ce.RDMA_CM_EVENT_CONNECT_ERROR)


@pytest.mark.parametrize("ird, depth", [(1, 16), (16, 2), (3, 3), (0x3FFF, 4)])
# Proves: 6581-9.1-e 6581-9.1-b 6581-9.1-g
def test_depths_as_the_initiator(dut, ird, depth):
    peer = dut.connect(resources=7, depth=depth, ird=ird)
    limit = min(ird, depth)
    assert dut.depths == (limit, 7)
    for wr_id in range(limit + 1):
        dut.post(e.IBV_WR_RDMA_READ, wr_id)
    expect_no_more_reads_than(dut, peer, limit)


# Proves: 6581-10-a 6581-6-b
def test_peer_of_revision_1(dut):
    """It closes whenever it sees a 2."""
    with asked(dut) as (peer, port):
        revisions = []
        while True:
            request = peer.receive_start_frame(reply=False)
            revisions.append(request.revision)
            if request.revision == 1:
                break
            peer.close()
            peer = dut.enter_context(contextlib.closing(port.accept()))
        assert revisions[0] == 2 and not request.enhanced
        peer.answer(request)
        dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
        dut.post(e.IBV_WR_SEND, 1)
        peer.expect(w.SEND)
        dut.expect(1)


def test_the_mode_of_the_first_reply_is_remembered(context):
    """A peer that closes whenever it sees a 2 sees none from then on."""
    with Port() as port:
        revisions = []
        for _ in range(2):
            with Dut(context) as dut:
                dut.dial(port.number)
                request = None
                while request is None or request.revision == 2:
                    peer = dut.enter_context(contextlib.closing(port.accept()))
                    request = peer.receive_start_frame(reply=False)
                    revisions.append(request.revision)
                    if request.revision == 2:
                        peer.close()
                peer.answer(request)
                dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
                peer.finish()
                dut.cm_event(ce.RDMA_CM_EVENT_DISCONNECTED)
    assert revisions == [2, 2, 1, 1]


# Proves: 6581-6-b
def test_reply_of_another_revision(dut):
    """The connection fails, or is tried again in revision 1."""
    with asked(dut) as (peer, port):
        request = peer.receive_start_frame(reply=False)
        peer.answer(request, revision=1, enhanced=False)
        with contextlib.suppress(ConnectionResetError):
            assert peer.get_to_the_end() == []
        again = dut.enter_context(contextlib.closing(port.accept()))
        again_asked = again.receive_start_frame(reply=False)
        while again_asked.revision == 2:
            again.close()
            again = dut.enter_context(contextlib.closing(port.accept()))
            again_asked = again.receive_start_frame(reply=False)
        again.answer(again_asked)
        dut.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)


# ---- The end of a stream

@pytest.mark.parametrize("open_read", [False, True])
# Proves: 5044-7.2-b 5041-3-9
def test_fin_between_frames(either, open_read):
    dut, peer = either
    dut.receive(1)
    peer.write(0, 0)
    sends = []
    if open_read:
        dut.post(e.IBV_WR_RDMA_READ, 2)
        peer.expect(w.READ_REQUEST)
        sends = [(2, e.IBV_WC_WR_FLUSH_ERR)]
    peer.finish()
    dut.cm_event(ce.RDMA_CM_EVENT_DISCONNECTED)
    assert peer.get_to_the_end() == []
    dut.expect_dead(None, sends)


# Proves: 5041-3-10 5040-7-c
def test_no_descriptor_is_left(context):
    """Neither by orderly ends, nor by failures, nor by start-ups that come to nothing."""
    def count():
        return len(os.listdir("/proc/self/fd"))

    def round_of_connections():
        with Dut(context) as dut:
            peer = dut.connect()
            peer.finish()
            peer.get_to_the_end()
            dut.expect_dead(None)
        with Dut(context) as dut:
            peer = dut.be_connected()
            bad = peer.write(0x1234, 0, b"x")
            dut.expect_fail(peer, (1, 1, 0), bad)
        with Dut(context) as dut, asked(dut) as (peer, _):
            peer.answer(reject=True)
            dut.cm_event(ce.RDMA_CM_EVENT_REJECTED)
        with Dut(context) as dut, asking(dut) as peer:
            peer.raw(b"nonsense" * 3)
            expect_refusal(peer)

    round_of_connections()
    before = count()
    for _ in range(25):
        round_of_connections()
    until(lambda: count() <= before, "the last descriptor")
