# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Every operation against every misuse of memory: by the application at its own queue pair, and by
a raw peer at the device's memory."""

import errno

import pyverbs.enums as e
import pytest
import uwarp_wire as w
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.wr import SGE, SendWR

from dut import ALL_ACCESS, DEPTH, REMOTE, Dut, headers_of
from raw_peer import atomic_body, read_body, tagged

LOCAL_WRITE = e.IBV_ACCESS_LOCAL_WRITE
FLUSHED = e.IBV_WC_WR_FLUSH_ERR
FETCH_ADD, CMP_SWAP = e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP

# Requests that read local memory, and those that write an answer to it.
SOURCES = {"send": (e.IBV_WR_SEND, 0),
           "send solicited": (e.IBV_WR_SEND, e.IBV_SEND_SOLICITED),
           "send invalidate": (e.IBV_WR_SEND_WITH_INV, 0),
           "write": (e.IBV_WR_RDMA_WRITE, 0),
           "write immediate": (e.IBV_WR_RDMA_WRITE_WITH_IMM, 0)}
SINKS = {"read": (e.IBV_WR_RDMA_READ, 0), "fetch and add": (FETCH_ADD, 0),
         "compare and swap": (CMP_SWAP, 0)}
REQUESTS = {**SOURCES, **SINKS}


# ---- The application's own faults

def key_of_other_domain(dut):
    return dut.region(dut.buffer, LOCAL_WRITE, pd=dut.other_domain()).lkey


def bound(dut):
    rkey = dut.bind(10, dut.window(), 0, 64)
    dut.expect(10)
    return rkey


LOCAL_FAULTS = {
    "unknown key": lambda dut: (dut.buffer.address, dut.local.lkey ^ 0x5A5A00),
    "key of a window": lambda dut: (dut.target.address, bound(dut)),
    "other domain": lambda dut: (dut.buffer.address, key_of_other_domain(dut)),
    "deregistered": lambda dut: (dut.buffer.address, dut.gone(dut.buffer, LOCAL_WRITE)[0]),
    "before": lambda dut: (dut.buffer.address - 1, dut.local.lkey),
    "across the end": lambda dut: (dut.buffer.address + dut.buffer.length - 7, dut.local.lkey),
    "behind": lambda dut: (dut.buffer.address + dut.buffer.length, dut.local.lkey),
    "wrap": lambda dut: (2**64 - 4, dut.local.lkey),
}


@pytest.mark.parametrize("fault", LOCAL_FAULTS)
@pytest.mark.parametrize("request_name", REQUESTS)
# Proves: 5040-7.1-a 5040-7.1-b 5040-4.8-k 7306-8.1-a
def test_local_memory(link, request_name, fault):
    dut, peer = link
    opcode, flags = REQUESTS[request_name]
    dut.receive(5)
    address, lkey = LOCAL_FAULTS[fault](dut)
    dut.buffer.snapshot()
    dut.post(opcode, 1, sges=[SGE(address, 8, lkey)], rkey=1,
             flags=flags | e.IBV_SEND_SIGNALED)
    dut.post(opcode, 2, flags=0)  # flushed although it is unsignalled
    dut.expect_fail(peer, (0, 0, 0), event=None,
                    sends=[(1, e.IBV_WC_LOC_PROT_ERR), (2, FLUSHED)])
    assert dut.buffer.unchanged()


@pytest.mark.parametrize("request_name", SINKS)
def test_sink_that_is_read_only(link, request_name):
    dut, peer = link
    sink = SGE(dut.target.address, 8, dut.region(dut.target, e.IBV_ACCESS_REMOTE_READ).lkey)
    dut.post(SINKS[request_name][0], 1, sges=[sink])
    dut.expect_fail(peer, (0, 0, 0), event=None, sends=[(1, e.IBV_WC_LOC_PROT_ERR)])


@pytest.mark.parametrize("request_name", SOURCES)
def test_source_may_be_read_only(link, request_name):
    dut, peer = link
    source = SGE(dut.target.address, 8, dut.region(dut.target, 0).lkey)
    opcode, flags = SOURCES[request_name]
    dut.post(opcode, 1, sges=[source], flags=flags | e.IBV_SEND_SIGNALED)
    assert peer.get().body == dut.target.read(0, 8)
    dut.expect(1)


@pytest.mark.parametrize("fault", [name for name in LOCAL_FAULTS])
# Proves: 5040-7.1-a
def test_receive_memory(link, fault):
    dut, peer = link
    address, lkey = LOCAL_FAULTS[fault](dut)
    dut.receive(1, sges=[SGE(address, 8, lkey)])
    dut.receive(2)
    dut.buffer.snapshot()
    peer.send(b"x" * 8)
    dut.expect_fail(peer, (0, 0, 0), event=e.IBV_EVENT_QP_FATAL, receive=e.IBV_WC_LOC_PROT_ERR)
    assert dut.buffer.unchanged()


@pytest.mark.parametrize("opcode", [FETCH_ADD, CMP_SWAP])
@pytest.mark.parametrize("lengths", [[0], [4], [7], [9], [16], [4, 8]])
def test_atomic_result_is_eight_bytes(link, opcode, lengths):
    dut, peer = link
    dut.post(opcode, 1, sges=[dut.sge(i * 64, length) for i, length in enumerate(lengths)])
    dut.expect_fail(peer, (0, 0, 0), event=None, sends=[(1, e.IBV_WC_LOC_LEN_ERR)])


def test_atomic_result_needs_no_alignment(link):
    dut, peer = link
    dut.buffer.snapshot()
    dut.post(FETCH_ADD, 1, sges=[dut.sge(3, 8)])
    peer.answer_atomic(peer.expect(w.ATOMIC_REQUEST).atomic(), 0x1122334455667788)
    dut.expect(1)
    dut.buffer.expect_changed(3, (0x1122334455667788).to_bytes(8, "little"))


@pytest.mark.parametrize("request_name", SINKS)
# Proves: 5040-6.1-g
def test_without_depth(dut, request_name):
    peer = dut.connect(depth=0)
    dut.post(SINKS[request_name][0], 1)
    dut.expect_fail(peer, (0, 0, 0), event=None, sends=[(1, e.IBV_WC_LOC_QP_OP_ERR)])


# ---- What is refused when it is posted

def refused(code):
    return pytest.raises(PyverbsRDMAError, match=f"Errno: {code}")


def chain(dut, make_bad):
    """The list [good, bad, good], and a request to be overwritten by the one that is blamed."""
    good = dict(num_sge=1, sg=[dut.sge()], opcode=e.IBV_WR_SEND)
    last = SendWR(wr_id=3, **good)
    bad = make_bad(dut, last)
    first = SendWR(wr_id=1, next_wr=bad, **good)
    # pyverbs does not keep what is in a list alive.
    return [first, bad, last], SendWR(wr_id=99, **good)


def request(opcode, sges=None, **fields):
    def make(dut, behind):
        parts = [dut.sge()] if sges is None else sges(dut)
        return SendWR(wr_id=2, opcode=opcode, num_sge=len(parts), sg=parts, next_wr=behind,
                      **fields)
    return make


def binding(kind):
    def make(dut, behind):
        window = dut.window(kind)
        wr = SendWR(wr_id=2, opcode=e.IBV_WR_BIND_MW, next_wr=behind)
        wr.set_bind_wr(window, MWBindInfo(dut.mr, dut.target.address, 64, REMOTE))
        return wr
    return make


REFUSED = {
    "send with immediate": (request(e.IBV_WR_SEND_WITH_IMM), errno.EOPNOTSUPP),
    "tso": (request(e.IBV_WR_TSO), errno.EOPNOTSUPP),
    "unknown opcode": (request(200), errno.EINVAL),
    "unknown flag": (request(e.IBV_WR_SEND, send_flags=1 << 12), errno.EINVAL),
    **{f"too many SGEs: {name}": (request(opcode, lambda dut: [dut.sge(0, 1)] * 5), errno.EINVAL)
       for name, (opcode, _) in REQUESTS.items()},
    **{f"inline: {name}": (request(opcode, send_flags=e.IBV_SEND_INLINE), errno.EINVAL)
       for name, (opcode, _) in SINKS.items()},
    **{f"too much inline: {name}": (request(opcode, lambda dut: [dut.sge(0, 65)],
                                            send_flags=e.IBV_SEND_INLINE), errno.EINVAL)
       for name, (opcode, _) in SOURCES.items()},
    **{f"message too long: {name}": (
        request(opcode, lambda dut: [dut.sge(0, 2**31), dut.sge(0, 1)]), errno.EINVAL)
       for name, (opcode, _) in REQUESTS.items()},
    "binding of a type 1 window": (binding(e.IBV_MW_TYPE_1), errno.EINVAL),
}


@pytest.mark.parametrize("name", REFUSED)
# Proves: 5041-5.2-b
def test_refused_at_post(link, name):
    dut, peer = link
    make_bad, code = REFUSED[name]
    requests, blamed = chain(dut, make_bad)
    with refused(code):
        dut.qp.post_send(requests[0], blamed)
    assert blamed.wr_id == 2
    assert peer.expect(w.SEND).body == dut.buffer.read(0, 64), "the one before goes out"
    dut.expect(1)
    dut.post(e.IBV_WR_SEND, 4)
    peer.expect(w.SEND)
    dut.expect(4)
    dut.expect_no_completion()


@pytest.mark.parametrize("request_name", REQUESTS)
def test_refused_before_the_connection(dut, request_name):
    with refused(errno.EINVAL):
        dut.post(REQUESTS[request_name][0], 1)


def test_full_send_queue(link):
    dut, peer = link
    for wr_id in range(DEPTH):
        dut.post(e.IBV_WR_RDMA_READ, wr_id)  # of which none is answered
    with refused(errno.ENOMEM):
        dut.post(e.IBV_WR_SEND, 99)
    peer.finish()
    dut.expect_dead(None, sends=[(wr_id, FLUSHED) for wr_id in range(DEPTH)])


# ---- Windows and keys at home

BINDINGS = {
    "region without the right to bind": lambda dut: dict(
        region=dut.region(dut.target, ALL_ACCESS & ~e.IBV_ACCESS_MW_BIND)),
    "region of another domain": lambda dut: dict(
        region=dut.region(dut.target, ALL_ACCESS, pd=dut.other_domain())),
    "write to what is read-only": lambda dut: dict(
        region=dut.region(dut.target, e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_REMOTE_READ),
        access=e.IBV_ACCESS_REMOTE_WRITE),
    "atomic on what is read-only": lambda dut: dict(
        region=dut.region(dut.target, e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_REMOTE_READ),
        access=e.IBV_ACCESS_REMOTE_ATOMIC),
    "before": lambda dut: dict(offset=-1),
    "across the end": lambda dut: dict(offset=dut.target.length - 63),
    "behind": lambda dut: dict(offset=dut.target.length),
    "wrap": lambda dut: dict(offset=2**64 - 32 - dut.target.address),
}


@pytest.mark.parametrize("fault", BINDINGS)
@pytest.mark.parametrize("kind", [e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2])
def test_binding(link, kind, fault):
    dut, peer = link
    dut.receive(5)
    arguments = {"offset": 0, "length": 64, **BINDINGS[fault](dut)}
    window = dut.window(kind)
    if kind == e.IBV_MW_TYPE_1:
        if fault == "region of another domain":
            with refused(errno.EPERM):
                dut.bind_type1(1, window, **arguments)
            return
        dut.bind_type1(1, window, **arguments)
    else:
        dut.bind(1, window, **arguments)
    dut.expect_fail(peer, (0, 0, 0), event=None, sends=[(1, e.IBV_WC_MW_BIND_ERR)])


def bound_already(dut):
    window = dut.window()
    dut.bind(10, window, 0, 64)
    dut.bind(1, window, 64, 64)


def invalidated_twice(dut):
    rkey = dut.bind(10, dut.window(), 0, 64)
    dut.invalidate(11, rkey)
    dut.invalidate(1, rkey)


def invalidated_as_type_1(dut):
    dut.invalidate(1, dut.bind_type1(10, dut.window(e.IBV_MW_TYPE_1), 0, 64))


LOCAL_KEYS = {
    "binding what is bound": (bound_already, [10]),
    "invalidating what is unknown": (lambda dut: dut.invalidate(1, dut.mr.rkey ^ 0x5A5A00), []),
    "invalidating 0": (lambda dut: dut.invalidate(1, 0), []),
    "invalidating a region": (lambda dut: dut.invalidate(1, dut.mr.rkey), []),
    "invalidating a region for local use": (lambda dut: dut.invalidate(1, dut.local.lkey), []),
    "invalidating a window of type 1": (invalidated_as_type_1, [10]),
    "invalidating an unbound window": (lambda dut: dut.invalidate(1, dut.window().rkey), []),
    "invalidating twice": (invalidated_twice, [10, 11]),
}


@pytest.mark.parametrize("fault", LOCAL_KEYS)
def test_local_key(link, fault):
    dut, peer = link
    act, done_before = LOCAL_KEYS[fault]
    dut.receive(5)
    act(dut)
    for wr_id in done_before:
        dut.expect(wr_id)
    dut.expect_fail(peer, (0, 0, 0), event=None, sends=[(1, e.IBV_WC_MW_BIND_ERR)])


# ---- The peer's faults

OFFSET, LENGTH = 1024, 256  # of the window, or of the region that is asked for

OPERATIONS = {
    "write": lambda stag, to, peer: tagged(w.WRITE, stag, to, b"w" * 16),
    "read": lambda stag, to, peer: peer.message(w.READ_REQUEST, read_body(stag, to, 16)),
    "fetch and add": lambda stag, to, peer: peer.message(
        w.ATOMIC_REQUEST, atomic_body(stag, to, add_or_swap=1)),
    "compare and swap": lambda stag, to, peer: peer.message(
        w.ATOMIC_REQUEST, atomic_body(stag, to, w.CMP_SWAP, add_or_swap=1,
                                      add_or_swap_mask=2**64 - 1, compare_mask=0)),
}
RIGHTS = {"write": e.IBV_ACCESS_REMOTE_WRITE, "read": e.IBV_ACCESS_REMOTE_READ,
          "fetch and add": e.IBV_ACCESS_REMOTE_ATOMIC,
          "compare and swap": e.IBV_ACCESS_REMOTE_ATOMIC}
SIZES = {"write": 16, "read": 16, "fetch and add": 8, "compare and swap": 8}


def region_key(dut, access=REMOTE):
    local = ALL_ACCESS & ~REMOTE
    region = dut.enter_context(MR(dut.pd, LENGTH, access | local,
                                  address=dut.target.address + OFFSET))
    return region.rkey


def type1_key(dut, access=REMOTE):
    rkey = dut.bind_type1(10, dut.window(e.IBV_MW_TYPE_1), OFFSET, LENGTH, access)
    dut.expect(10)
    return rkey


def type2_key(dut, access=REMOTE):
    rkey = dut.bind(10, dut.window(), OFFSET, LENGTH, access)
    dut.expect(10)
    return rkey


MAKERS = {"region": region_key, "type 1 window": type1_key, "type 2 window": type2_key}


def code_of(operation, kind):
    """The Terminate for a kind of fault. A6: a Write without the right is an invalid STag."""
    if operation == "write":
        return (1, 1, {"stag": 0, "bounds": 1, "rights": 0, "domain": 2, "wrap": 3}[kind])
    return (0, 1, {"stag": 0, "bounds": 1, "rights": 2, "domain": 3, "wrap": 4}[kind])


def perform(dut, peer, operation, stag, offset):
    """Sends the operation on the target's place `offset`, behind a receive that stays open."""
    dut.receive(5)
    to = (dut.target.address + offset) % 2**64
    return peer.put(OPERATIONS[operation](stag, to, peer))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("operation", OPERATIONS)
# Proves: 5040-3.2-c 5040-3.2-e 5040-3.2-g 5040-8.1.1-5 5040-7.2-i 5041-5.2-d
def test_what_is_allowed(link, operation, maker):
    """The ends of a region or window, with no more than the right that is needed."""
    dut, peer = link
    stag = MAKERS[maker](dut, RIGHTS[operation])
    for offset in (OFFSET, OFFSET + LENGTH - SIZES[operation]):
        before = dut.target.read(offset, 16)
        perform(dut, peer, operation, stag, offset)
        if operation == "read":
            assert peer.expect(w.READ_RESPONSE).body == before
        elif operation != "write":
            answer = peer.expect(w.ATOMIC_RESPONSE).atomic_response()
            assert answer.original_value == int.from_bytes(before[:8], "little")
            value = 1 if operation == "compare and swap" else answer.original_value + 1
            dut.target.expect_changed(offset, (value % 2**64).to_bytes(8, "little"))
        else:
            peer.send()
            dut.expect(5)
            dut.target.expect_changed(offset, b"w" * 16)
    peer.finish()
    assert peer.get_to_the_end() == []
    dut.expect_dead(None)


BOUNDS = {
    "before": (OFFSET - 8, "bounds"),
    "across the end": (OFFSET + LENGTH - 4, "bounds"),
    "behind": (OFFSET + LENGTH, "bounds"),
    "far behind": (OFFSET + (1 << 40), "bounds"),
}


@pytest.mark.parametrize("place", [*BOUNDS, "wrap"])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("operation", OPERATIONS)
# Proves: 5040-7.2-h 5040-7.2-i 5040-7.2-j 5041-7.1-t3 5041-7.1-t4 5041-7.1-t5 5040-8.1.1-3
# Proves: 5041-8.1-a 7306-8.2-f 5042-d 4296-3-a 4296-3.1-b
# Every failure, looked at by Dut.expect_fail() and raw_peer.Scan:
# Proves: 5040-3.1-g 5040-4.8-a 5040-4.8-b 5040-4.8-c 5040-4.8-d 5040-4.8-e 5040-4.8-f 5040-4.8-g
# Proves: 5040-4.8-i 5040-4.8-j 5040-4.8-l 5040-4.8-m 5040-4.8-p 5040-4.8-q 5040-5.1-c 5040-5.2.1-e
# Proves: 5040-5.4-a 5040-5.4-b 5040-6.2-b 5040-6.2.1-a 5040-7-a 5040-7.1-c 5040-7.1-d 5040-7.2-a
# Proves: 5041-6.2-a 5041-6.2.2-c 5041-6.2.2-d 5041-6.2.2-e 5041-6.2.2-f 5041-7.1-b 5041-7.1-d
# Proves: 5041-7.2-a 5044-8-a 5042-o
def test_bounds(either, operation, maker, place):
    dut, peer = either
    stag = MAKERS[maker](dut)
    offset, kind = BOUNDS.get(place, (2**64 - 4 - dut.target.address, "wrap"))
    bad = perform(dut, peer, operation, stag, offset)
    dut.expect_fail(peer, code_of(operation, kind), bad)


# Each operation with every set of rights that lacks its own.
LACKING = [(operation, first | second) for operation, needed in RIGHTS.items()
           for first in (0, e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_READ)
           for second in (0, e.IBV_ACCESS_REMOTE_READ, e.IBV_ACCESS_REMOTE_ATOMIC)
           if not (first | second) & needed]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("operation, access", sorted(set(LACKING)))
# Proves: 5040-7.2-k 5040-8.1.1-5 5041-7.1-t2 5040-3.2-g 5042-c 7306-8.2-f
def test_rights(link, operation, access, maker):
    dut, peer = link
    bad = perform(dut, peer, operation, MAKERS[maker](dut, access), OFFSET)
    dut.expect_fail(peer, code_of(operation, "rights"), bad)


@pytest.mark.parametrize("operation", OPERATIONS)
# Proves: 5040-3.2-g
def test_rights_of_the_queue_pair(context, operation):
    with Dut(context, qp_access=REMOTE & ~RIGHTS[operation]) as dut:
        peer = dut.connect()
        bad = perform(dut, peer, operation, dut.mr.rkey, 0)
        dut.expect_fail(peer, code_of(operation, "rights"), bad)


def window_of_neighbour(dut):
    """A type 2 window of another queue pair of the same domain."""
    neighbour = dut.enter_context(Dut(dut.context, pd=dut.pd))
    dut.neighbour = neighbour, neighbour.connect()
    rkey = neighbour.bind(10, neighbour.window(), OFFSET, LENGTH)
    neighbour.expect(10)
    return rkey


def region_of_other_domain(dut):
    return dut.region(dut.target, ALL_ACCESS, pd=dut.other_domain()).rkey


def invalidated(dut):
    rkey = type2_key(dut)
    dut.invalidate(11, rkey)
    dut.expect(11)
    return rkey


def rebound(dut):
    window = dut.window(e.IBV_MW_TYPE_1)
    old = dut.bind_type1(10, window, OFFSET, LENGTH)
    dut.bind_type1(11, window, OFFSET, LENGTH)
    dut.expect(10)
    dut.expect(11)
    return old


def unbound(dut):
    window = dut.window(e.IBV_MW_TYPE_1)
    dut.bind_type1(10, window, OFFSET, LENGTH)
    rkey = window.rkey
    dut.bind_type1(11, window, 0, 0)
    dut.expect(10)
    dut.expect(11)
    return rkey


def deallocated(dut):
    window = MW(dut.pd, e.IBV_MW_TYPE_2)
    rkey = dut.bind(10, window, OFFSET, LENGTH)
    dut.expect(10)
    window.close()
    return rkey


KEYS = {
    "unknown": (lambda dut: dut.mr.rkey ^ 0x5A5A00, "stag"),
    "of the next registration": (lambda dut: dut.mr.rkey ^ 1, "stag"),
    "0": (lambda dut: 0, "stag"),
    "of a region without remote rights": (
        lambda dut: dut.region(dut.target, LOCAL_WRITE).lkey, "rights"),
    "of other memory without remote rights": (lambda dut: dut.local.rkey, "bounds"),
    "deregistered": (lambda dut: dut.gone(dut.target)[1], "stag"),
    "never bound": (lambda dut: dut.window().rkey, "stag"),
    "invalidated": (invalidated, "stag"),
    "bound anew": (rebound, "stag"),
    "unbound": (unbound, "stag"),
    "deallocated": (deallocated, "stag"),
    "region of another domain": (region_of_other_domain, "domain"),
    "window of another queue pair": (window_of_neighbour, "domain"),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("operation", OPERATIONS)
# Proves: 5040-3.2-d 5040-3.2-f 5040-3.2-h 5040-5.2.1-m 5040-7.2-f 5040-7.2-g 5040-8.1.1-1
# Proves: 5040-8.1.1-2 5040-8.1.1-4 5041-4.2-e 5041-7.1-t1 5041-7.1-t2 5041-8.2-a 5041-8.2-b
# Proves: 5041-8.3-2 5041-8.3-3 5041-8.3-5 5042-a 5042-b 7306-8.2-f 7306-9-a
def test_key(link, operation, key):
    dut, peer = link
    make, kind = KEYS[key]
    bad = perform(dut, peer, operation, make(dut), OFFSET)
    dut.expect_fail(peer, code_of(operation, kind), bad)


# Proves: 5041-7.1-c 7306-6.1-b
def test_immediate_behind_a_bad_write(link):
    """A Write with Immediate whose Write is refused is never reported as a success."""
    dut, peer = link
    dut.receive(5)
    bad = tagged(w.WRITE, dut.mr.rkey, dut.target.address - 1, b"w" * 16)
    peer.put(bad, peer.message(w.IMMEDIATE, bytes(8)))
    dut.expect_fail(peer, (1, 1, 1), bad)


# ---- Invalidation by the peer

def as_send(dut, peer, stag, opcode=w.SEND_INVALIDATE):
    dut.receive(5)
    return peer.send(b"x" * 8, opcode, stag=stag)


INVALIDATING = [w.SEND_INVALIDATE, w.SEND_SOLICITED_INVALIDATE]


@pytest.mark.parametrize("opcode", INVALIDATING)
# Proves: 5040-3.2-a 5040-5.3-p 5040-5.3-t 5041-5.4-d 5041-8.3-2 5042-b
def test_invalidation(link, opcode):
    dut, peer = link
    rkey = type2_key(dut)
    as_send(dut, peer, rkey, opcode)
    wc = dut.expect(5)
    assert wc.wc_flags & e.IBV_WC_WITH_INV and wc.imm_data == rkey and wc.byte_len == 8
    bad = perform(dut, peer, "write", rkey, OFFSET)
    dut.expect_fail(peer, (1, 1, 0), bad)


# Proves: 5040-5.3-r
def test_write_right_behind_an_invalidation(link):
    dut, peer = link
    rkey = type2_key(dut)
    dut.receive(5)
    bad = peer.put(peer.message(w.SEND_INVALIDATE, stag=rkey),
                   tagged(w.WRITE, rkey, dut.target.address + OFFSET, b"w" * 16))
    assert dut.expect(5).wc_flags & e.IBV_WC_WITH_INV
    dut.expect_fail(peer, (1, 1, 0), bad)


# Proves: 5040-5.3-r 5041-8.3-1
def test_window_is_free_at_the_completion(link):
    dut, peer = link
    window = dut.window()
    for i in range(50):
        rkey = dut.bind(10, window, OFFSET + i, LENGTH)
        dut.expect(10)
        peer.write(rkey, dut.target.address + OFFSET + i, bytes([i]))
        as_send(dut, peer, rkey)
        dut.expect(5)
        assert dut.target.read(OFFSET + i, 1) == bytes([i])


@pytest.mark.parametrize("opcode", INVALIDATING)
@pytest.mark.parametrize("key", [*KEYS, "region", "type 1 window"])
# Proves: 5040-5.3-o 5040-5.3-q 5040-5.3-s 5040-7.2-d 5040-7.2-e 5040-8.1.1-7 5042-l
# Proves: 5040-8.1.1-1
def test_invalidation_that_is_refused(link, key, opcode):
    dut, peer = link
    make = KEYS[key][0] if key in KEYS else MAKERS[key]
    bad = as_send(dut, peer, make(dut), opcode)
    dut.receive(6)
    dut.expect_fail(peer, (0, 1, 9), bad, receive=e.IBV_WC_REM_INV_REQ_ERR)


# Proves: 5040-8.1.1-7 5040-5.3-o
def test_refused_invalidation_changes_nothing(link):
    dut, peer = link
    rkey = window_of_neighbour(dut)
    bad = as_send(dut, peer, rkey)
    dut.expect_fail(peer, (0, 1, 9), bad, receive=e.IBV_WC_REM_INV_REQ_ERR)
    neighbour, its_peer = dut.neighbour
    its_peer.read(rkey, neighbour.target.address + OFFSET, 16)
    assert its_peer.expect(w.READ_RESPONSE).body == neighbour.target.read(OFFSET, 16)


# ---- What the peer says of our requests

BLAMES = {
    (0, 1, 0): e.IBV_WC_REM_ACCESS_ERR, (0, 1, 1): e.IBV_WC_REM_ACCESS_ERR,
    (0, 1, 2): e.IBV_WC_REM_ACCESS_ERR, (0, 1, 3): e.IBV_WC_REM_ACCESS_ERR,
    (0, 1, 4): e.IBV_WC_REM_ACCESS_ERR, (0, 1, 0xFF): e.IBV_WC_REM_ACCESS_ERR,
    (0, 2, 6): e.IBV_WC_REM_INV_REQ_ERR, (0, 2, 7): e.IBV_WC_REM_INV_REQ_ERR,
    (1, 2, 5): e.IBV_WC_REM_INV_REQ_ERR, (1, 2, 2): e.IBV_WC_REM_OP_ERR,
    (0, 0, 0): e.IBV_WC_REM_OP_ERR, (0, 2, 0xFF): e.IBV_WC_REM_OP_ERR,
}


@pytest.mark.parametrize("code", BLAMES)
@pytest.mark.parametrize("request_name", SINKS)
# Proves: 5040-5.4-e 5040-6.2.1-b 5040-3.2-b
def test_terminate_that_names_a_request(link, request_name, code):
    dut, peer = link
    dut.receive(5)
    opcode = SINKS[request_name][0]
    for wr_id in range(3):
        dut.post(opcode, wr_id, rkey=1)
    segments = [peer.get() for _ in range(3)]
    header = headers_of(code, segments[1].ulpdu)
    peer.terminate(*code, segments[1].ulpdu, read_request=header == "read")
    assert peer.get_to_the_end() == []
    # The oldest request says why as well.
    dut.expect_dead(e.IBV_EVENT_QP_FATAL,
                    sends=[(0, BLAMES[code]), (1, BLAMES[code]), (2, FLUSHED)])
