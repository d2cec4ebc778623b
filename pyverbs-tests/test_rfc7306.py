# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""RFC 7306, atomics and immediate data: every requirement by a raw TCP peer against a queue pair.

What is said about every segment that the device sends (reserved bits, lengths, queues, message
numbers) is checked by raw_peer.Scan in each of these tests."""

import contextlib
import os
import pathlib
import struct
import subprocess
import sys

import pyverbs.enums as e
import pytest
import uwarp_wire as w
from pyverbs.cq import CompChannel
from pyverbs.mr import MR
from pyverbs.qp import QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SGE, SendWR

from dut import ALL_ACCESS, PAGE, TARGET_BYTES, Dut, Memory, comes
from raw_peer import RawPeer, atomic_body, made, read_body, tagged, untagged

ALL_ONES = 2**64 - 1
CELL = 64  # where the cell of most tests is in the target
EXTENSIONS = [w.IMMEDIATE, w.IMMEDIATE_SOLICITED, w.ATOMIC_REQUEST, w.ATOMIC_RESPONSE]
SIZES = {w.IMMEDIATE: 8, w.IMMEDIATE_SOLICITED: 8, w.ATOMIC_REQUEST: 52, w.ATOMIC_RESPONSE: 12}
FETCH_ADD, CMP_SWAP = e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP

# old value, what is added, field boundaries, new value
ADDS = [
    (0x29, 1, 0, 0x2A),
    (ALL_ONES, 1, 0, 0),
    (ALL_ONES, 1, 1 << 63, 0),
    (0x1FFFFFFFF, 1, 0x80000000, 0x100000000),
    (0x1FFFFFFFF, 1, 0, 0x200000000),
    (ALL_ONES, 0x100000001, 0x8000000080000000, 0),
    (0x00FF00FF00FF00FF, 0x0001000100010001, 0x8080808080808080, 0),
    (0x00FF00FF00FF00FF, 0x0001000100010001, 0x8000800080008000, 0x0100010001000100),
    (5, 3, ALL_ONES, 6),
    (0xFF, 1, 0, 0x100),
]
# old value, compare, compare mask, swap, swap mask, new value
SWAPS = [
    (0x2A, 0x2A, ALL_ONES, 0x1122334455667788, ALL_ONES, 0x1122334455667788),
    (0x2B, 0x2A, ALL_ONES, 0x1122334455667788, ALL_ONES, 0x2B),
    (0xAAAAAAAA0000002A, 0x2A, 0xFF, 0xDEADBEEF, 0xFFFFFFFF, 0xAAAAAAAADEADBEEF),
    (0x1234, 0, 0, 0xFFFF, 0xF0, 0x12F4),
    (0x1234, 0x1234, ALL_ONES, 0xFFFF, 0, 0x1234),
]


def native(value):
    return struct.pack("=Q", value)


def cell(dut, value, offset=CELL):
    """Sets a cell, and returns its STag and Tagged Offset."""
    dut.target.write(offset, native(value))
    return dut.mr.rkey, dut.target.address + offset


def old_value(peer):
    return peer.expect(w.ATOMIC_RESPONSE).atomic_response().original_value


def barrier(dut, peer):
    """When this returns, the device has looked at all that the peer has sent before, and has sent
    nothing that the peer has not read but the answer to this."""
    peer.read(dut.mr.rkey, dut.target.address, 8)
    return peer.expect(w.READ_RESPONSE)


# ---- Sections 1 and 4: which messages there are

@pytest.mark.parametrize("old, add, mask, new", ADDS)
# Proves: 7306-1.1-a 7306-5-c 7306-5.1.1-e 7306-5.1.1-f 7306-5.1.1-g 7306-5.1.1-h 7306-5.2.1-b
# Proves: 7306-5.2.1-i 7306-5.2.1-j 7306-5.2.1-n 7306-5.2.2-a 7306-5.2.2-b 7306-4-b
def test_fetch_add(link, old, add, mask, new):
    dut, peer = link
    dut.receive(1)
    peer.atomic(*cell(dut, old), request_id=7, add_or_swap=add, add_or_swap_mask=mask)
    segment = peer.expect(w.ATOMIC_RESPONSE)
    assert len(segment.ulpdu) == 30
    assert segment.header.qn == 3
    assert segment.atomic_response().request_id == 7
    assert segment.atomic_response().original_value == old
    dut.target.expect_changed(CELL, native(new))
    dut.expect_no_completion()


@pytest.mark.parametrize("old, compare, compare_mask, swap, swap_mask, new", SWAPS)
# Proves: 7306-1.1-a 7306-5-c 7306-5.1.2-a 7306-5.1.2-b 7306-5.1.2-c 7306-5.2.1-b 7306-5.2.1-n
def test_compare_and_swap(link, old, compare, compare_mask, swap, swap_mask, new):
    dut, peer = link
    peer.atomic(*cell(dut, old), w.CMP_SWAP, add_or_swap=swap, add_or_swap_mask=swap_mask,
                compare=compare, compare_mask=compare_mask)
    assert old_value(peer) == old
    dut.target.expect_changed(CELL, native(new))


# Proves: 7306-1.1-b 7306-5-b
def test_capabilities_are_shown(context):
    assert context.query_device().atomic_caps == e.IBV_ATOMIC_GLOB
    with Dut(context) as dut:
        wanted = (e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                  | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
        init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=dut.cq, rcq=dut.cq, cap=QPCap(), pd=dut.pd,
                            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                            send_ops_flags=wanted)
        QPEx(context, init).close()


# Proves: 7306-1.1-c
def test_extensions_only_when_asked_for(link):
    dut, peer = link
    for wr_id, opcode in enumerate([e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_SEND_WITH_INV,
                                    e.IBV_WR_RDMA_READ]):
        dut.post(opcode, wr_id, rkey=1, to=0)
    opcodes = [peer.get().opcode for _ in range(4)]
    assert opcodes == [w.SEND, w.WRITE, w.SEND_INVALIDATE, w.READ_REQUEST]
    barrier(dut, peer)


# Proves: 7306-1.1-d
def test_probing_by_adding_nothing(link):
    dut, peer = link
    peer.atomic(*cell(dut, 7), add_or_swap=0)
    assert old_value(peer) == 7
    assert dut.target.unchanged()
    dut.post(FETCH_ADD, 1, rkey=1, to=8, compare_add=0)
    request = peer.expect(w.ATOMIC_REQUEST).atomic()
    assert request.add_or_swap == 0
    peer.answer_atomic(request, 0x0102030405060708)
    dut.expect(1, opcode=e.IBV_WC_FETCH_ADD)
    assert dut.buffer.read(33 * PAGE, 8) == native(0x0102030405060708)


@pytest.mark.parametrize("opcode", [FETCH_ADD, CMP_SWAP])
# Proves: 7306-1.1-e
def test_peer_without_atomics(link, opcode):
    dut, peer = link
    dut.receive(5)
    dut.post(opcode, 1, rkey=1, to=8)
    dut.post(opcode, 2, rkey=1, to=8)
    bad = peer.expect(w.ATOMIC_REQUEST)
    peer.expect(w.ATOMIC_REQUEST)
    peer.terminate(0, 2, 6, bad.ulpdu)
    assert peer.get_to_the_end() == []
    dut.expect_dead(e.IBV_EVENT_QP_FATAL,
                    sends=[(1, e.IBV_WC_REM_INV_REQ_ERR), (2, e.IBV_WC_WR_FLUSH_ERR)])


# Proves: 7306-1.1-e 7306-6.1-b
def test_peer_without_immediate_data(link):
    dut, peer = link
    dut.receive(5)
    dut.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, 1, rkey=1, to=8)
    peer.expect(w.WRITE)
    bad = peer.expect(w.IMMEDIATE)
    dut.expect(1, opcode=e.IBV_WC_RDMA_WRITE)  # handed over, which is all that iWARP promises
    peer.terminate(0, 2, 6, bad.ulpdu)
    assert peer.get_to_the_end() == []
    dut.expect_dead(e.IBV_EVENT_QP_FATAL)


@pytest.mark.parametrize("size", [0, 51, 53, 56, 1000])
# Proves: 7306-4-a 7306-8.1-b 7306-8.2-a
def test_atomic_request_of_another_length(either, size):
    dut, peer = either
    stag, to = cell(dut, 1)
    dut.receive(1)
    bad = peer.put(untagged(w.ATOMIC_REQUEST, 1, (atomic_body(stag, to) + bytes(1000))[:size]))
    dut.expect_fail(peer, (0, 2, 0xFF), bad)


@pytest.mark.parametrize("opcode", EXTENSIONS)
@pytest.mark.parametrize("version", [0, 2, 3])
# Proves: 7306-4.1-a 7306-4.1-b 7306-8.2-c
def test_rdmap_version(either, opcode, version):
    dut, peer = either
    dut.receive(1)
    bad = peer.put(peer.message(opcode, bytes(SIZES[opcode]), rv=version))
    dut.expect_fail(peer, (0, 2, 5), bad)


# Proves: 7306-4.1-c
def test_invalidate_stag_is_ignored(link):
    dut, peer = link
    stag, to = cell(dut, 1)
    dut.receive(1)
    dut.receive(2)
    peer.put(peer.message(w.IMMEDIATE, bytes(8), stag=stag),
             peer.message(w.IMMEDIATE_SOLICITED, bytes(8), stag=stag),
             peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, add_or_swap=1), stag=stag))
    assert old_value(peer) == 1
    for wr_id in (1, 2):
        assert not dut.expect(wr_id).wc_flags & e.IBV_WC_WITH_INV
    peer.atomic(stag, to, add_or_swap=1)
    assert old_value(peer) == 2, "the STag is still valid"
    dut.post(FETCH_ADD, 3, rkey=stag, to=0)
    request = peer.expect(w.ATOMIC_REQUEST)
    peer.answer_atomic(request.atomic(), 9, stag=stag)
    dut.expect(3)


@pytest.mark.parametrize("opcode, qn", [(opcode, qn) for opcode in EXTENSIONS for qn in range(5)
                                        if qn != w.traits(opcode).queue])
# Proves: 7306-4.1-d 7306-5-d 7306-5.2-a 7306-5.2-c 7306-6.3-d 7306-8.2-a 7306-10-a
def test_wrong_queue(link, opcode, qn):
    dut, peer = link
    dut.receive(1)
    sends = []
    if opcode == w.ATOMIC_RESPONSE:
        dut.post(FETCH_ADD, 3)
        peer.expect(w.ATOMIC_REQUEST)
        sends = [(3, e.IBV_WC_WR_FLUSH_ERR)]
    bad = peer.put(peer.message(opcode, bytes(SIZES[opcode]), qn=qn))
    dut.expect_fail(peer, (1, 2, 1), bad, sends=sends)


@pytest.mark.parametrize("opcode", EXTENSIONS)
# Proves: 7306-4.1-d 7306-5.2.1-g 7306-6.3-a
def test_tagged_is_refused(either, opcode):
    dut, peer = either
    dut.receive(1)
    bad = peer.put(tagged(opcode, dut.mr.rkey, dut.target.address, bytes(SIZES[opcode])))
    dut.expect_fail(peer, (0, 2, 6), bad)


# Proves: 7306-4.1-b 7306-4.1-d 7306-4.2-a 7306-4-a 7306-5.2-a 7306-5.2.1-a 7306-5.2.1-c
# Proves: 7306-5.2.1-f 7306-5.2.1-g 7306-5.2.1-l 7306-5.2.2-a 7306-6.2-a 7306-6.3-a 7306-6.3-d
# Proves: 7306-6.3-e 7306-6.3-f 7306-5.2.2-g 7306-10-a
def test_what_the_device_sends(link):
    dut, peer = link
    for wr_id, opcode in enumerate([FETCH_ADD, e.IBV_WR_RDMA_READ, CMP_SWAP,
                                    e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND]):
        dut.post(opcode, wr_id, rkey=0x11223344, to=0x5566778899AABBC8, compare_add=3, swap=4,
                 imm=0x01020304)
    add, read, swap, write, immediate, send = (peer.get() for _ in range(6))
    assert [add.opcode, read.opcode, swap.opcode, write.opcode, immediate.opcode, send.opcode] == [
        w.ATOMIC_REQUEST, w.READ_REQUEST, w.ATOMIC_REQUEST, w.WRITE, w.IMMEDIATE, w.SEND]
    assert [add.header.msn, read.header.msn, swap.header.msn] == [1, 2, 3]
    assert [immediate.header.msn, send.header.msn] == [1, 2]
    assert len(add.body) == len(swap.body) == 52 and len(immediate.body) == 8
    for request in (add.atomic(), swap.atomic()):
        assert (request.remote_stag, request.remote_to) == (0x11223344, 0x5566778899AABBC8)
    assert (add.atomic().opcode, add.atomic().add_or_swap, add.atomic().add_or_swap_mask) == (
        w.FETCH_ADD, 3, 0)
    assert swap.atomic().opcode == w.CMP_SWAP
    assert (swap.atomic().add_or_swap, swap.atomic().compare) == (4, 3)
    assert swap.atomic().add_or_swap_mask == swap.atomic().compare_mask == ALL_ONES
    assert immediate.body == struct.pack("=I", 0x01020304) + bytes(4)
    peer.answer_atomic(add.atomic(), 0xAAAA)
    peer.answer_read(read.read(), b"r" * 64)
    peer.answer_atomic(swap.atomic(), 0xBBBB)
    for wr_id, opcode in enumerate([e.IBV_WC_FETCH_ADD, e.IBV_WC_RDMA_READ, e.IBV_WC_COMP_SWAP,
                                    e.IBV_WC_RDMA_WRITE, e.IBV_WC_SEND]):
        dut.expect(wr_id, opcode=opcode)
    assert dut.buffer.read(32 * PAGE, 8) == native(0xAAAA)
    assert dut.buffer.read(34 * PAGE, 8) == native(0xBBBB)


# ---- Section 5: atomics

# Proves: 7306-5-a 7306-5.3-a 7306-5.4-2
def test_atomicity_between_queue_pairs(context):
    queue_pairs, bursts, depth = 8, 25, 16
    with Dut(context) as owner:
        _, to = cell(owner, 0)
        links = []
        for _ in range(queue_pairs):
            dut = owner.enter_context(Dut(context))
            region = dut.region(owner.target, ALL_ACCESS)
            links.append((dut.connect(), region.rkey))
        values = []
        for _ in range(bursts):
            for peer, stag in links:
                peer.put(*(peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, add_or_swap=1))
                           for _ in range(depth)))
            for peer, _ in links:
                values += [old_value(peer) for _ in range(depth)]
        assert sorted(values) == list(range(queue_pairs * bursts * depth))
        assert owner.target.word(CELL) == len(values)


# Proves: 7306-5-a 7306-5-b
def test_atomicity_between_processes(context, tmp_path):
    """On memory that two processes share: IBV_ATOMIC_GLOB."""
    bursts, depth = 50, 16
    path = tmp_path / "shared"
    path.write_bytes(b"")
    command = [sys.executable, pathlib.Path(__file__).with_name("shared_cell.py"), path,
               context.name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open(path, "r+b") as file, \
            Dut(context, target=Memory(TARGET_BYTES, file=file)) as dut, \
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=environment) as other, \
            contextlib.ExitStack() as ends:
        ends.callback(other.kill)
        port, stag, to = (int(word) for word in other.stdout.readline().split())
        far = ends.enter_context(contextlib.closing(RawPeer.dial(port)))
        far.raw(far.request_frame())
        far.take_reply()
        cells = [(far, stag, to), (dut.connect(), dut.mr.rkey, dut.target.address)]
        values = []
        for _ in range(bursts):
            for peer, stag, to in cells:
                peer.put(*(peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, add_or_swap=1))
                           for _ in range(depth)))
            for peer, *_ in cells:
                values += [old_value(peer) for _ in range(depth)]
        other.stdin.close()
        assert other.wait() == 0
        assert sorted(values) == list(range(2 * bursts * depth))
        assert dut.target.word(0) == len(values)


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.parametrize("opcode", [w.FETCH_ADD, w.CMP_SWAP])
# Proves: 7306-5.1.1-a 7306-5.1.1-b 7306-5.1.1-c 7306-5.1.1-d 7306-5.1.2-d 7306-5.1.2-e
# Proves: 7306-5.1.2-f 7306-8.1-b 7306-8.2-d 7306-8.2-e
def test_misaligned(either, opcode, offset):
    dut, peer = either
    stag, to = cell(dut, 0)
    dut.receive(1)
    bad = peer.atomic(stag, to + offset, opcode, add_or_swap=1, add_or_swap_mask=ALL_ONES,
                      compare_mask=0)
    dut.expect_fail(peer, (0, 2, 7), bad)


@pytest.mark.parametrize("depth", [1, 4])
# Proves: 7306-5.2-b 7306-5.2.1-h
def test_depth_covers_reads_and_atomics(dut, depth):
    peer = dut.connect(depth=depth)
    opcodes = [e.IBV_WR_RDMA_READ, FETCH_ADD, e.IBV_WR_RDMA_READ, FETCH_ADD, e.IBV_WR_RDMA_READ,
               FETCH_ADD]
    for wr_id, opcode in enumerate(opcodes):
        dut.post(opcode, wr_id)
    on_wire = [peer.get() for _ in range(depth)]
    for wr_id in range(len(opcodes)):
        barrier(dut, peer)  # so nothing but those
        request = on_wire.pop(0)
        if request.opcode == w.READ_REQUEST:
            peer.answer_read(request.read(), bytes(64))
        else:
            peer.answer_atomic(request.atomic(), wr_id)
        dut.expect(wr_id)
        if wr_id + depth < len(opcodes):
            on_wire.append(peer.get())
    assert not on_wire


# Proves: 7306-5.2-b 7306-5.2.1-h 7306-5.2.2-e 7306-5.2.2-i 7306-5.4-9 5040-5.2.2-c 5040-6.1-c
def test_as_many_requests_as_negotiated(dut):
    peer = dut.connect(resources=4)
    stag, to = cell(dut, 0)
    for _ in range(50):
        peer.put(peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, request_id=1)),
                 peer.message(w.READ_REQUEST, read_body(stag, to, 8)),
                 peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, request_id=2)),
                 peer.message(w.READ_REQUEST, read_body(stag, to, 8)))
        assert peer.expect(w.ATOMIC_RESPONSE).atomic_response().request_id == 1
        peer.expect(w.READ_RESPONSE)
        assert peer.expect(w.ATOMIC_RESPONSE).atomic_response().request_id == 2
        peer.expect(w.READ_RESPONSE)


# Proves: 7306-5.2.1-a 7306-5.2.1-f
def test_reserved_and_unused_fields_are_ignored(link):
    dut, peer = link
    stag, to = cell(dut, 1)
    peer.atomic(stag, to, reserved=0xFFFFFFF, add_or_swap=1, compare=0x1234567890ABCDEF,
                compare_mask=0x0F0F0F0F0F0F0F0F)
    assert old_value(peer) == 1
    dut.target.expect_changed(CELL, native(2))


@pytest.mark.parametrize("identifiers", [[0], [0xFFFFFFFF], [5, 5, 5]])
# Proves: 7306-5.2.1-c 7306-5.2.2-a
def test_request_identifier_is_echoed(link, identifiers):
    dut, peer = link
    stag, to = cell(dut, 0)
    for identifier in identifiers:
        peer.atomic(stag, to, request_id=identifier)
    for identifier in identifiers:
        assert peer.expect(w.ATOMIC_RESPONSE).atomic_response().request_id == identifier


@pytest.mark.parametrize("offset", [0, 8, PAGE - 8, 32 * PAGE - 8])
# Proves: 7306-5.2.1-d
def test_any_aligned_place(link, offset):
    dut, peer = link
    peer.atomic(*cell(dut, 41, offset), add_or_swap=1)
    assert old_value(peer) == 41
    dut.target.expect_changed(offset, native(42))


# Proves: 7306-5.2.1-e
def test_the_address_is_what_is_aligned(link):
    dut, peer = link
    dut.target.write(8, native(1))
    with MR(dut.pd, 64, ALL_ACCESS | e.IBV_ACCESS_ZERO_BASED,
            address=dut.target.address + 4) as region:
        peer.atomic(region.rkey, 4, add_or_swap=1)
        assert old_value(peer) == 1
        dut.target.expect_changed(8, native(2))
        bad = peer.atomic(region.rkey, 0, add_or_swap=1)
        dut.expect_fail(peer, (0, 2, 7), bad)


@pytest.mark.parametrize("operation", [1, *range(3, 16)])
# Proves: 7306-5.2.1-k 7306-10-a 7306-8.1-b
def test_unassigned_operation(link, operation):
    dut, peer = link
    dut.receive(1)
    bad = peer.atomic(*cell(dut, 0), operation, add_or_swap=1)
    dut.expect_fail(peer, (0, 2, 6), bad)


# Proves: 7306-5.2.1-m 7306-5.4-8 7306-7-12
def test_requests_are_processed_in_order(link):
    dut, peer = link
    stag, to = cell(dut, 0)
    swap = dict(add_or_swap_mask=ALL_ONES, compare_mask=ALL_ONES)
    for _ in range(100):
        peer.put(*(peer.message(w.ATOMIC_REQUEST, body) for body in (
            atomic_body(stag, to, w.CMP_SWAP, compare=0, add_or_swap=1, **swap),
            atomic_body(stag, to, w.CMP_SWAP, compare=1, add_or_swap=2, **swap),
            atomic_body(stag, to, add_or_swap=5),
            atomic_body(stag, to, w.CMP_SWAP, compare=7, add_or_swap=0, **swap))))
        assert [old_value(peer) for _ in range(4)] == [0, 1, 2, 7]


# Proves: 7306-5.2.2-c 7306-5.2.2-d 7306-5.2.2-i
def test_sixteen_answers_in_order(link):
    dut, peer = link
    stag, to = cell(dut, 0)
    peer.put(*(peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, request_id=i, add_or_swap=1))
               for i in range(16)))
    for i in range(16):
        response = peer.expect(w.ATOMIC_RESPONSE)
        assert response.header.msn == i + 1
        assert response.atomic_response().request_id == i
        assert response.atomic_response().original_value == i


# Proves: 7306-5.2.2-f 7306-5.2.2-g 7306-5.4-1 7306-5.4-7
def test_answers_complete_requests(link):
    dut, peer = link
    for wr_id in range(16):
        dut.post(FETCH_ADD, wr_id, sges=[dut.sge(wr_id * 8, 8)], compare_add=1)
    requests = [peer.expect(w.ATOMIC_REQUEST).atomic() for _ in range(16)]
    barrier(dut, peer)
    dut.expect_no_completion()
    peer.put(*(peer.message(w.ATOMIC_RESPONSE,
                            answer(request.request_id, 1000 + request.request_id))
               for request in requests))
    for wr_id, request in enumerate(requests):
        wc = dut.expect(wr_id, opcode=e.IBV_WC_FETCH_ADD)
        assert wc.byte_len == 8
        assert dut.buffer.read(wr_id * 8, 8) == native(1000 + request.request_id)


BAD_ANSWERS = {
    "identifier": (lambda peer, request: peer.message(
        w.ATOMIC_RESPONSE, answer(request.request_id ^ 1)), (0, 2, 0xFF), e.IBV_WC_BAD_RESP_ERR),
    "11 bytes": (lambda peer, request: peer.message(
        w.ATOMIC_RESPONSE, answer(request.request_id)[:11]), (0, 2, 0xFF), e.IBV_WC_BAD_RESP_ERR),
    "13 bytes": (lambda peer, request: peer.message(
        w.ATOMIC_RESPONSE, answer(request.request_id) + b"x"), (0, 2, 0xFF), e.IBV_WC_BAD_RESP_ERR),
    "message number": (lambda peer, request: untagged(
        w.ATOMIC_RESPONSE, 2, answer(request.request_id)), (1, 2, 3), e.IBV_WC_WR_FLUSH_ERR),
    "offset": (lambda peer, request: peer.message(
        w.ATOMIC_RESPONSE, answer(request.request_id), mo=4), (1, 2, 4), e.IBV_WC_WR_FLUSH_ERR),
    "a Read's answer": (lambda peer, request: tagged(w.READ_RESPONSE, 1, 0, bytes(8)),
                        (0, 2, 6), e.IBV_WC_WR_FLUSH_ERR),
}


def answer(request_id, value=0):
    return made(w.AtomicResponseHeader(), request_id=request_id, original_value=value).encode()


@pytest.mark.parametrize("name", BAD_ANSWERS)
# Proves: 7306-5.2.2-h 7306-8.2-a
def test_bad_answer(link, name):
    make, code, status = BAD_ANSWERS[name]
    dut, peer = link
    dut.receive(5)
    dut.post(FETCH_ADD, 1)
    dut.post(FETCH_ADD, 2)
    request = peer.expect(w.ATOMIC_REQUEST)
    peer.expect(w.ATOMIC_REQUEST)
    dut.buffer.snapshot()
    bad = peer.put(make(peer, request.atomic()))
    event = e.IBV_EVENT_QP_REQ_ERR if code[0] == 0 else e.IBV_EVENT_QP_FATAL
    dut.expect_fail(peer, code, bad, event=event,
                    sends=[(1, status), (2, e.IBV_WC_WR_FLUSH_ERR)])
    assert dut.buffer.unchanged()


# Proves: 7306-5.2.2-h
def test_unexpected_answer(either):
    dut, peer = either
    dut.receive(5)
    bad = peer.put(peer.message(w.ATOMIC_RESPONSE, answer(0)))
    dut.expect_fail(peer, (0, 2, 6), bad)


# Proves: 7306-5.4-5 7306-7-14
def test_write_then_atomic(link):
    dut, peer = link
    stag, to = cell(dut, 0)
    for i in range(1000):
        peer.put(tagged(w.WRITE, stag, to, native(10 * i)),
                 peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, add_or_swap=1)))
        assert old_value(peer) == 10 * i
        assert dut.target.word(CELL) == 10 * i + 1


# Proves: 7306-5.4-4 7306-5.4-6 7306-7-9 7306-7-10
def test_messages_behind_an_atomic(link):
    dut, peer = link
    stag, to = cell(dut, 0)
    for i in range(100):
        dut.receive(i)
        before = dut.target.word(CELL)
        peer.put(peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, add_or_swap=1)),
                 peer.message(w.SEND, b"behind it"),
                 tagged(w.WRITE, stag, to, native(100 + i)))
        assert old_value(peer) in (before, 100 + i)  # the RFC allows either
        dut.expect(i)
        barrier(dut, peer)
        assert dut.target.word(CELL) in (100 + i, 101 + i)


# Proves: 7306-5.4-9 7306-7-11 7306-7-15 7306-5.2.2-i
def test_reads_and_atomics_mixed(link):
    dut, peer = link
    stag, to = cell(dut, 5)
    swap = atomic_body(stag, to, w.CMP_SWAP, compare=6, add_or_swap=5, add_or_swap_mask=ALL_ONES,
                       compare_mask=ALL_ONES)
    for _ in range(100):
        peer.put(peer.message(w.READ_REQUEST, read_body(stag, to, 8)),
                 peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to, add_or_swap=1)),
                 peer.message(w.READ_REQUEST, read_body(stag, to, 8)),
                 peer.message(w.ATOMIC_REQUEST, swap))
        assert peer.expect(w.READ_RESPONSE).body == native(5)
        assert old_value(peer) == 5
        assert peer.expect(w.READ_RESPONSE).body == native(6)
        assert old_value(peer) == 6


# ---- Section 6: immediate data

def write_with_immediate(dut, wr_id, imm, flags=0, length=64):
    dut.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, wr_id, rkey=0x77, to=0x1000, imm=imm,
             sges=[dut.sge(0, length)], flags=e.IBV_SEND_SIGNALED | flags)


@pytest.mark.parametrize("length", [0, 1, 64, 40 * PAGE])
@pytest.mark.parametrize("solicited", [0, e.IBV_SEND_SOLICITED])
# Proves: 7306-6-a 7306-6.1-a 7306-6.2-a 7306-6.3-e 7306-6.4-f
def test_write_with_immediate(link, length, solicited):
    dut, peer = link
    # Reads of the peer's do not come between the two.
    peer.put(*(peer.message(w.READ_REQUEST, read_body(dut.mr.rkey, dut.target.address, 9 * PAGE))
               for _ in range(8)))
    for wr_id in range(4):
        write_with_immediate(dut, wr_id, 0xA1B2C3D4 + wr_id, solicited, length)
    answers = 0
    for wr_id in range(4):
        opcode = w.READ_RESPONSE
        while opcode == w.READ_RESPONSE:
            segment = peer.get()
            opcode = segment.opcode
            answers += opcode == w.READ_RESPONSE and segment.last
        written = segment.body
        while not segment.last:
            segment = peer.expect(w.WRITE)
            written += segment.body
        assert written == dut.buffer.read(0, length)
        immediate = peer.expect(w.IMMEDIATE_SOLICITED if solicited else w.IMMEDIATE)
        assert immediate.header.msn == wr_id + 1
        assert immediate.body == struct.pack("=I", 0xA1B2C3D4 + wr_id) + bytes(4)
        dut.expect(wr_id, opcode=e.IBV_WC_RDMA_WRITE)
    while answers < 8:
        answers += peer.expect(w.READ_RESPONSE).last


@pytest.mark.parametrize("opcode", [w.IMMEDIATE, w.IMMEDIATE_SOLICITED])
# Proves: 7306-6-b 7306-6.1-a 7306-6.3-b
def test_immediate_alone(either, opcode):
    dut, peer = either
    dut.buffer.snapshot()
    dut.receive(1)
    dut.receive(2, length=0)
    peer.immediate(0x01020304, opcode)
    peer.immediate(0x01020305, opcode)
    for wr_id in (1, 2):
        wc = dut.expect(wr_id, opcode=e.IBV_WC_RECV_RDMA_WITH_IMM)
        assert wc.wc_flags & e.IBV_WC_WITH_IMM
        assert wc.byte_len == 0
        assert wc.imm_data == int.from_bytes((0x01020303 + wr_id).to_bytes(4, "big"), "little")
    assert dut.buffer.unchanged()


@pytest.mark.parametrize("size", [0, 4, 7, 9, 16])
@pytest.mark.parametrize("opcode", [w.IMMEDIATE, w.IMMEDIATE_SOLICITED])
# Proves: 7306-6.1-b 7306-6.3-g 7306-8.1-b 7306-8.2-a
def test_immediate_of_another_length(either, opcode, size):
    dut, peer = either
    dut.receive(1)
    dut.receive(2)
    bad = peer.put(peer.message(opcode, bytes(size)))
    dut.expect_fail(peer, (0, 2, 0xFF), bad)


# Proves: 7306-6.3-g
def test_immediate_in_two_segments(link):
    dut, peer = link
    dut.receive(1)
    peer.put(untagged(w.IMMEDIATE, 1, b"\1\2\3\4", last=False),
             untagged(w.IMMEDIATE, 1, bytes(4), mo=4))
    assert dut.expect(1).imm_data == 0x04030201


# Proves: 7306-6.3-b 7306-8.2-a
def test_immediate_without_a_receive(dut):
    peer = dut.connect()
    bad = peer.immediate(1)
    dut.expect_fail(peer, (1, 2, 2), bad)


@pytest.mark.parametrize("msn", [0, 2, 0xFFFFFFFF])
@pytest.mark.parametrize("opcode", EXTENSIONS)
# Proves: 7306-8.2-a
def test_message_number(link, opcode, msn):
    dut, peer = link
    dut.receive(1)
    bad = peer.put(untagged(opcode, msn, bytes(SIZES[opcode])))
    dut.expect_fail(peer, (1, 2, 3), bad)


@pytest.mark.parametrize("opcode", EXTENSIONS)
# Proves: 7306-8.2-a
def test_message_offset(link, opcode):
    dut, peer = link
    dut.receive(1)
    bad = peer.put(peer.message(opcode, bytes(SIZES[opcode]), mo=8))
    # Immediate Data that is not at its place has another length than 8.
    code = (1, 2, 4) if w.traits(opcode).queue else (0, 2, 0xFF)
    dut.expect_fail(peer, code, bad)


# Proves: 7306-6.3-c 7306-6.4-a 7306-7-1 7306-7-5
def test_immediates_and_sends_complete_in_order(link):
    dut, peer = link
    for i in range(32):
        dut.receive(i)
    peer.put(*(peer.message(w.SEND, bytes(i)) if i % 2 else
               peer.message(w.IMMEDIATE, i.to_bytes(4, "little") + bytes(4)) for i in range(32)))
    for i in range(32):
        wc = dut.expect(i, opcode=e.IBV_WC_RECV if i % 2 else e.IBV_WC_RECV_RDMA_WITH_IMM)
        assert wc.byte_len == (i if i % 2 else 0)
        if not i % 2:
            assert wc.imm_data == i


# Proves: 7306-6.3-h 7306-6.4-a
def test_solicited_event(context):
    with CompChannel(context) as channel, Dut(context, channel=channel) as dut:
        peer = dut.connect()
        for i in range(3):
            dut.receive(i)
        dut.cq.req_notify(solicited_only=True)
        peer.immediate(1)
        dut.expect(0)
        assert not comes(channel, 0), "0x8 raises none"
        peer.immediate(2, w.IMMEDIATE_SOLICITED)
        assert comes(channel)
        channel.get_cq_event(dut.cq)
        dut.cq.ack_events(1)
        dut.expect(1)
        peer.immediate(3, w.IMMEDIATE_SOLICITED)
        dut.expect(2)
        assert not comes(channel, 0), "one event per arming"


# Proves: 7306-6.4-b 7306-7-6
def test_write_is_placed_before_its_immediate_completes(link):
    dut, peer = link
    for i in range(1000):
        data = bytes([i & 0xFF]) * (1 + i * 7 % PAGE)
        dut.receive(i)
        peer.put(tagged(w.WRITE, dut.mr.rkey, dut.target.address + 100, data),
                 peer.message(w.IMMEDIATE, bytes(8)))
        assert dut.expect(i).byte_len == len(data)
        assert dut.target.read(100, len(data)) == data


@pytest.mark.parametrize("length", [0, 1, 70000])
# Proves: 7306-6.4-c
def test_length_is_that_of_the_write(link, length):
    dut, peer = link
    dut.receive(1)
    data = bytes(length)
    parts = [data[at:at + 30000] for at in range(0, length, 30000)] or [b""]
    at = 0
    for i, part in enumerate(parts):
        peer.write(dut.mr.rkey, dut.target.address + at, part, last=i == len(parts) - 1)
        at += len(part)
    peer.immediate(1)
    assert dut.expect(1).byte_len == length


# Proves: 7306-6.4-d
def test_length_does_not_cross_a_send(link):
    dut, peer = link
    for i in range(4):
        dut.receive(i)
    write = tagged(w.WRITE, dut.mr.rkey, dut.target.address, bytes(100))
    peer.put(write, peer.message(w.SEND, b"between"), peer.message(w.IMMEDIATE, bytes(8)),
             write, peer.message(w.IMMEDIATE, bytes(8)), peer.message(w.IMMEDIATE, bytes(8)))
    assert [dut.expect(i).byte_len for i in range(4)] == [7, 0, 100, 0]


@pytest.mark.parametrize("value", [0, 1, 0x80000000, 0x01020304, 0xFFFFFFFF])
# Proves: 7306-6.4-e
def test_value_survives(pair, value):
    a, b = pair
    b.receive(1)
    wr = SendWR(wr_id=2, num_sge=1, sg=[a.sge(0, 16)], opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM,
                imm_data=value)
    wr.set_wr_rdma(b.mr.rkey, b.mr.buf)
    a.qp.post_send(wr)
    a.expect(2)
    wc = b.expect(1)
    assert (wc.imm_data, wc.byte_len) == (value, 16)


# Proves: 7306-6.4-f
def test_second_half_is_ignored(link):
    dut, peer = link
    for i in range(2):
        dut.receive(i)
    peer.immediate(0x04030201, rest=b"\xFF\xEE\xDD\xCC")
    peer.immediate(0x04030201)
    assert dut.expect(0).imm_data == dut.expect(1).imm_data == 0x01020304


# ---- Section 7: pairs of operations

# Proves: 7306-7-2 7306-7-7 7306-7-8
def test_pairs_without_an_order(link):
    """Any order is right; both must happen."""
    dut, peer = link
    stag, to = cell(dut, 3)
    for i in range(100):
        for wr_id in range(3):
            dut.receive(wr_id)
        peer.put(peer.message(w.IMMEDIATE, bytes(8)), tagged(w.WRITE, stag, to + 8, native(i)),
                 peer.message(w.READ_REQUEST, read_body(stag, to, 8)),
                 peer.message(w.IMMEDIATE, bytes(8)),
                 peer.message(w.ATOMIC_REQUEST, atomic_body(stag, to)),
                 peer.message(w.IMMEDIATE, bytes(8)))
        assert peer.expect(w.READ_RESPONSE).body == native(3)
        assert old_value(peer) == 3
        for wr_id in range(3):
            dut.expect(wr_id)
        assert dut.target.word(CELL + 8) == i


@pytest.mark.parametrize("first", [w.IMMEDIATE, w.SEND])
@pytest.mark.parametrize("second", [w.READ_REQUEST, w.ATOMIC_REQUEST])
# Proves: 7306-7-3 7306-7-4 7306-7-13 7306-6.4-a
def test_answer_comes_after_the_completion(link, first, second):
    dut, peer = link
    stag, to = cell(dut, 3)
    body = read_body(stag, to, 8) if second == w.READ_REQUEST else atomic_body(stag, to)
    for i in range(200):
        dut.receive(i)
        peer.put(peer.message(first, bytes(8)), peer.message(second, body))
        peer.get()
        count, found = dut.cq.poll()
        assert count == 1 and found[0].wr_id == i and found[0].status == e.IBV_WC_SUCCESS
        dut.posted.clear()


# ---- Sections 8 and 9: errors

def read_only(dut):
    return [SGE(dut.target.address, 8, dut.region(dut.target, 0).lkey)]


BAD_RESULTS = {
    "unknown key": (lambda dut: [bad_key(dut)], e.IBV_WC_LOC_PROT_ERR),
    "read-only": (read_only, e.IBV_WC_LOC_PROT_ERR),
    "4 bytes": (lambda dut: [dut.sge(0, 4)], e.IBV_WC_LOC_LEN_ERR),
    "16 bytes": (lambda dut: [dut.sge(0, 16)], e.IBV_WC_LOC_LEN_ERR),
}


def bad_key(dut):
    sge = dut.sge(0, 8)
    sge.lkey ^= 0x5A5A00
    return sge


@pytest.mark.parametrize("opcode", [FETCH_ADD, CMP_SWAP])
@pytest.mark.parametrize("name", BAD_RESULTS)
# Proves: 7306-8.1-a
def test_bad_place_for_the_result(link, opcode, name):
    make, status = BAD_RESULTS[name]
    dut, peer = link
    dut.receive(5)
    dut.post(opcode, 1, sges=make(dut))
    dut.expect_fail(peer, (0, 0, 0), event=None, sends=[(1, status)])


def other_domain(dut):
    return dut.region(dut.target, ALL_ACCESS, pd=dut.other_domain()).rkey


def without_atomics(dut):
    return dut.region(dut.target, ALL_ACCESS & ~e.IBV_ACCESS_REMOTE_ATOMIC).rkey


BAD_TARGETS = {
    "unknown STag": (lambda dut: (dut.mr.rkey ^ 0x5A5A00, 0), (0, 1, 0)),
    "no remote right": (
        lambda dut: (dut.region(dut.target, e.IBV_ACCESS_LOCAL_WRITE).lkey, 0), (0, 1, 2)),
    "deregistered": (lambda dut: (dut.gone(dut.target)[1], 0), (0, 1, 0)),
    "other domain": (lambda dut: (other_domain(dut), 0), (0, 1, 3)),
    "before": (lambda dut: (dut.mr.rkey, -8), (0, 1, 1)),
    "behind": (lambda dut: (dut.mr.rkey, dut.target.length), (0, 1, 1)),
    "across the end": (lambda dut: (dut.mr.rkey, dut.target.length - 4), (0, 1, 1)),
    "wrap": (lambda dut: (dut.mr.rkey, 2**64 - 4 - dut.target.address), (0, 1, 4)),
    "no right": (lambda dut: (without_atomics(dut), 0), (0, 1, 2)),
}


@pytest.mark.parametrize("operation", [w.FETCH_ADD, w.CMP_SWAP])
@pytest.mark.parametrize("name", BAD_TARGETS)
# Proves: 7306-8.2-f 7306-9-a 7306-8.1-b
def test_bad_target(either, operation, name):
    make, code = BAD_TARGETS[name]
    dut, peer = either
    dut.receive(1)
    stag, offset = make(dut)
    bad = peer.atomic(stag, dut.target.address + offset, operation, add_or_swap=1,
                      add_or_swap_mask=ALL_ONES, compare_mask=0)
    dut.expect_fail(peer, code, bad)


# Proves: 7306-8.2-f
def test_queue_pair_without_the_right(context):
    with Dut(context, qp_access=e.IBV_ACCESS_REMOTE_READ) as dut:
        peer = dut.connect()
        bad = peer.atomic(*cell(dut, 0), add_or_swap=1)
        dut.expect_fail(peer, (0, 1, 2), bad)


@pytest.mark.parametrize("opcode", range(0xC, 0x10))
# Proves: 7306-8.2-b
def test_opcode_that_is_not_defined(either, opcode):
    dut, peer = either
    dut.receive(1)
    bad = peer.put(untagged(opcode, 1, bytes(8), qn=0))
    dut.expect_fail(peer, (0, 2, 6), bad)
