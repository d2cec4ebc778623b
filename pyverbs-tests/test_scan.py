# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""All messages at once, with every segment of the device looked at; and that the looking is worth
something: what a correct sender never sends is found."""

import random

import pyverbs.enums as e
import pytest
import uwarp_wire as w
from pyverbs.mr import MR
from pyverbs.wr import SGE

from dut import ALL_ACCESS, Memory
from raw_peer import Scan, Segment, atomic_body, read_body, tagged, terminate_body, untagged

GOOD = [
    untagged(w.SEND, 1, b"first", last=False), untagged(w.SEND, 1, b"second", mo=5),
    tagged(w.WRITE, 7, 100, b"first", last=False), tagged(w.WRITE, 7, 105, b"second"),
    untagged(w.READ_REQUEST, 1, read_body(1, 2, 3)),
    untagged(w.ATOMIC_REQUEST, 2, atomic_body(1, 8)),
    untagged(w.SEND_SOLICITED_INVALIDATE, 2, b"", stag=9),
    tagged(w.READ_RESPONSE, 7, 0), untagged(w.IMMEDIATE, 3, bytes(8)),
    untagged(w.ATOMIC_RESPONSE, 1, bytes(12)), untagged(w.TERMINATE, 1, terminate_body(0, 0, 0)),
]

BAD = {
    "DDP version": [untagged(w.SEND, 1, dv=0)],
    "RDMAP version": [untagged(w.SEND, 1, rv=2)],
    "reserved DDP bit": [tagged(w.WRITE, 1, 0, rsvd=8)],
    "reserved RDMAP bit": [tagged(w.WRITE, 1, 0, rdmap_rsvd=1)],
    "opcode": [untagged(0xD, 1, qn=0)],
    "model": [tagged(w.SEND, 1, 0)],
    "queue": [untagged(w.SEND, 1, qn=1)],
    "Invalidate STag": [untagged(w.SEND, 1, stag=5)],
    "first message number": [untagged(w.SEND, 2)],
    "next message number": [untagged(w.SEND, 1), untagged(w.SEND, 3)],
    "first message offset": [untagged(w.SEND, 1, mo=4)],
    "hole in a message": [untagged(w.SEND, 1, b"1234", last=False), untagged(w.SEND, 1, mo=8)],
    "number changes": [untagged(w.SEND, 1, b"1234", last=False), untagged(w.SEND, 2, mo=4)],
    "opcode changes": [untagged(w.SEND, 1, b"1234", last=False),
                       untagged(w.SEND_SOLICITED, 1, mo=4)],
    "another message between": [tagged(w.WRITE, 1, 0, b"1234", last=False), untagged(w.SEND, 1)],
    "STag changes": [tagged(w.WRITE, 1, 0, b"1234", last=False), tagged(w.WRITE, 2, 4)],
    "hole in a Write": [tagged(w.WRITE, 1, 0, b"1234", last=False), tagged(w.WRITE, 1, 5)],
    "empty segment": [tagged(w.WRITE, 1, 0, last=False)],
    "length of a Read Request": [untagged(w.READ_REQUEST, 1, bytes(27))],
    "length of an Immediate": [untagged(w.IMMEDIATE, 1, bytes(9))],
    "second half of an Immediate": [untagged(w.IMMEDIATE, 1, bytes(7) + b"x")],
    "reserved bits of an atomic": [untagged(w.ATOMIC_REQUEST, 1, atomic_body(1, 8, reserved=1))],
    "operation": [untagged(w.ATOMIC_REQUEST, 1, atomic_body(1, 8, 3))],
    "unused field of an atomic": [untagged(w.ATOMIC_REQUEST, 1, atomic_body(1, 8, compare=1))],
    "unknown Terminate": [untagged(w.TERMINATE, 1, terminate_body(3, 0, 0))],
    "reserved bit of a Terminate": [untagged(w.TERMINATE, 1, b"\0\0\0\1")],
    "bytes behind a Terminate": [untagged(w.TERMINATE, 1, bytes(8))],
    "segment behind the Terminate": [untagged(w.TERMINATE, 1, bytes(4)), untagged(w.SEND, 1)],
}


def test_scan_accepts_correct_segments():
    scan = Scan()
    for ulpdu in GOOD:
        scan.check(Segment(ulpdu))


@pytest.mark.parametrize("name", BAD)
def test_scan_finds(name):
    scan = Scan()
    *before, bad = BAD[name]
    for ulpdu in before:
        scan.check(Segment(ulpdu))
    with pytest.raises(AssertionError):
        scan.check(Segment(bad))


REQUESTS = {
    w.SEND: (e.IBV_WR_SEND, 0), w.SEND_SOLICITED: (e.IBV_WR_SEND, e.IBV_SEND_SOLICITED),
    w.SEND_INVALIDATE: (e.IBV_WR_SEND_WITH_INV, 0),
    w.SEND_SOLICITED_INVALIDATE: (e.IBV_WR_SEND_WITH_INV, e.IBV_SEND_SOLICITED),
    w.WRITE: (e.IBV_WR_RDMA_WRITE, 0),
    w.IMMEDIATE: (e.IBV_WR_RDMA_WRITE_WITH_IMM, 0),
    w.IMMEDIATE_SOLICITED: (e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_SEND_SOLICITED),
    w.READ_REQUEST: (e.IBV_WR_RDMA_READ, 0),
    w.ATOMIC_REQUEST: (e.IBV_WR_ATOMIC_FETCH_AND_ADD, 0),
}


class Exchange:
    """The device's requests and the peer's, all under way together."""

    def __init__(self, dut, peer, seed):
        self.dut, self.peer = dut, peer
        self.random = random.Random(seed)
        self.source = Memory(70000)
        self.region = dut.region(self.source, ALL_ACCESS)
        self.asked = []    # (opcode, data) of the answers that the device owes
        self.posted = []   # (opcode, data) of the messages that the device is to send
        self.payload = b""

    def post(self, wr_id):
        on_wire = self.random.choice(list(REQUESTS))
        opcode, flags = REQUESTS[on_wire]
        length = 8 if on_wire == w.ATOMIC_REQUEST else self.random.choice([0, 1, 7, 500, 66000])
        self.dut.post(opcode, wr_id, rkey=0x1234, to=0x1000, flags=flags | e.IBV_SEND_SIGNALED,
                      sges=[SGE(self.source.address, length, self.region.lkey)])
        data = b"" if on_wire in (w.READ_REQUEST, w.ATOMIC_REQUEST) else self.source.read(0, length)
        if on_wire in (w.IMMEDIATE, w.IMMEDIATE_SOLICITED):
            self.posted.append((w.WRITE, data))
            data = bytes(8)
        self.posted.append((on_wire, data))

    def ask(self):
        dut, peer = self.dut, self.peer
        length = self.random.choice([0, 1, 100, 66000])
        peer.put(peer.message(w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address, length)),
                 peer.message(w.ATOMIC_REQUEST, atomic_body(dut.mr.rkey, dut.target.address)))
        self.asked.append((w.READ_RESPONSE, dut.target.read(0, length)))
        self.asked.append((w.ATOMIC_RESPONSE, None))

    def take(self):
        """The next segment belongs to what is due first, of either kind."""
        segment = self.peer.get()
        self.payload += segment.body
        if not segment.last:
            return
        data, self.payload = self.payload, b""
        answer = segment.opcode in (w.READ_RESPONSE, w.ATOMIC_RESPONSE)
        opcode, expected = (self.asked if answer else self.posted).pop(0)
        assert segment.opcode == opcode
        if segment.opcode == w.READ_REQUEST:
            read = segment.read()
            self.peer.answer_read(read, self.source.read(0, read.size))
        elif segment.opcode == w.ATOMIC_REQUEST:
            number = int.from_bytes(self.source.read(0, 8), "little")
            self.peer.answer_atomic(segment.atomic(), number)
        elif expected is not None:
            assert data == expected


@pytest.mark.parametrize("seed", range(3))
# Proves: 5040-3.1-a 5040-3.1-b 5040-3.1-c 5040-3.1-e 5040-3.1-f 5040-4.1-a 5040-4.1-b 5040-4.1-d
# Proves: 5040-4.1-e 5040-4.1-f 5040-4.1-g 5040-4.1-i 5040-4.1-k 5040-4.5-a 5040-4.7-a 5040-5.1-a
# Proves: 5040-5.2.1-a 5040-5.2.2-b 5040-5.2.2-f 5040-5.3-a 5040-5.5-2 5040-5.5-13 5040-6.1-a
# Proves: 5041-4.1-b 5041-4.1-c 5041-4.1-d 5041-4.1-e 5041-4.1-f 5041-4.1-h 5041-4.2-a 5041-4.2-b
# Proves: 5041-4.2-d 5041-4.2-f 5041-4.3-a 5041-4.3-b 5041-4.3-d 5041-4.3-h 5041-4.3-i 5041-4.3-j
# Proves: 5041-5.3-g 5044-4.1-a 5042-p 4296-2.2.1-c
def test_everything_at_once(either, seed):
    dut, peer = either
    peer.write(0, 0)  # lets a responder send
    exchange = Exchange(dut, peer, seed)
    for _ in range(15):
        for wr_id in range(20):
            exchange.post(wr_id)
            if wr_id % 5 == 0:
                exchange.ask()
        while exchange.posted or exchange.asked:
            exchange.take()
        for wr_id in range(20):
            dut.expect(wr_id)
    assert exchange.source.unchanged() and dut.target.unchanged()
    dut.events.expect_none()


# Proves: 5040-4.8-n 5040-7.1-d
def test_source_is_deregistered_in_the_middle_of_a_read(link):
    """The Terminate says what is left of the Read."""
    dut, peer = link
    memory = Memory(16 << 20)
    region = MR(dut.pd, memory.length, ALL_ACCESS, address=memory.address)
    request = Segment(peer.read(region.rkey, memory.address, memory.length)).read()
    answered = len(peer.expect(w.READ_RESPONSE).body)
    region.close()
    *answers, last = peer.get_to_the_end()
    answered += sum(len(answer.body) for answer in answers)
    terminate = last.terminate()
    assert (terminate.layer, terminate.etype, terminate.error) == (0, 1, 0)
    rest = w.ReadRequestHeader.decode(terminate.rdmap_header)
    assert (rest.sink_stag, rest.source_stag) == (request.sink_stag, request.source_stag)
    assert rest.size == request.size - answered
    assert rest.sink_to == (request.sink_to + answered) % 2**64
    assert rest.source_to == request.source_to + answered
    dut.expect_dead(e.IBV_EVENT_QP_ACCESS_ERR)


# Proves: 5040-5.5-9 5040-5.5-14 5041-5.4-a
def test_completion_means_handed_over(link):
    """A small Send completes although the peer does not read it; what no socket buffer takes does not."""
    dut, peer = link
    dut.post(e.IBV_WR_SEND, 1)
    dut.expect(1)
    memory = Memory(1 << 20)
    region = dut.region(memory, ALL_ACCESS)
    for wr_id in range(40):
        dut.post(e.IBV_WR_RDMA_WRITE, wr_id, rkey=1,
                 sges=[SGE(memory.address, memory.length, region.lkey)])
    early = 0
    while dut.cq.poll()[0]:
        early += 1
    assert early < 40
    peer.expect(w.SEND)
    for _ in range(40):
        peer.get_message(w.WRITE)
    for wr_id in range(early, 40):
        dut.expect(wr_id)
