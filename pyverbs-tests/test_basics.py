# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Objects, and data by Send, Write and Read between two queue pairs of this process."""

import errno
import time

import pytest
import pyverbs.enums as e
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SendWR

from ends import ALL_ACCESS, BYTES, DEPTH, PATIENCE_S, End, pattern

LENGTHS = [1, 8, 64, 4096, 100_001, BYTES]


def refused(code):
    """The block raises PyverbsRDMAError with this errno."""
    return pytest.raises(PyverbsRDMAError, match=f"Errno: {code}")


def test_device_is_listed():
    names = [device.name.decode() for device in get_device_list()]
    assert "uwarp_lo" in names
    assert names.index("uwarp_lo") == len([n for n in names if n.startswith("uwarp_")]) - 1, \
        "loopback comes last"


def test_device_attributes(context):
    attr = context.query_device()
    assert attr.max_qp_wr == 16384
    assert attr.max_sge == 32
    assert attr.max_qp_rd_atom == 128
    assert attr.phys_port_cnt == 1


def test_port(context):
    port = context.query_port(1)
    assert port.state == e.IBV_PORT_ACTIVE
    assert port.link_layer == e.IBV_LINK_LAYER_ETHERNET
    assert port.gid_tbl_len == 16
    with refused(errno.EINVAL):
        context.query_port(2)


def test_gids_are_addresses(context):
    gid = context.query_gid(1, 0).gid
    assert gid.startswith("0000:0000:0000:0000:0000:ffff:")
    assert context.query_gid_type(1, 0) == e.IBV_GID_TYPE_SYSFS_ROCE_V2


def test_objects_come_and_go(context):
    for _ in range(100):
        with PD(context) as pd, CQ(context, 10) as cq, MR(pd, 4096, ALL_ACCESS):
            cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
            QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)).close()


@pytest.mark.parametrize("kind", [e.IBV_QPT_UD, e.IBV_QPT_UC, e.IBV_QPT_RAW_PACKET])
def test_other_queue_pairs_are_refused(context, kind):
    with PD(context) as pd, CQ(context, 4) as cq:
        cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        with refused(errno.EOPNOTSUPP):
            QP(pd, QPInitAttr(qp_type=kind, scq=cq, rcq=cq, cap=cap))


@pytest.mark.parametrize("access", [e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_ATOMIC])
def test_remote_writing_needs_local_writing(context, access):
    with PD(context) as pd, refused(errno.EINVAL):
        MR(pd, 4096, access)


@pytest.mark.parametrize("length", [0] + LENGTHS)
def test_send(pair, length):
    a, b = pair
    a.mr.write(pattern(BYTES, 1), BYTES)
    b.mr.write(bytes(BYTES), BYTES)
    b.receive(11)
    a.send(22, length=length)
    wc = b.expect(11)
    assert wc.opcode == e.IBV_WC_RECV
    assert wc.byte_len == length
    assert wc.qp_num == b.qp.qp_num
    a.expect(22)
    assert b.mr.read(BYTES, 0) == pattern(length, 1) + bytes(BYTES - length)


@pytest.mark.parametrize("length", LENGTHS)
def test_write(pair, length):
    a, b = pair
    a.mr.write(pattern(BYTES, 2), BYTES)
    b.mr.write(bytes(BYTES), BYTES)
    a.rdma(e.IBV_WR_RDMA_WRITE, 1, b, length=length)
    assert a.expect(1).opcode == e.IBV_WC_RDMA_WRITE
    wanted = pattern(length, 2) + bytes(BYTES - length)
    limit = time.monotonic() + PATIENCE_S
    while b.mr.read(BYTES, 0) != wanted:
        assert time.monotonic() < limit
        time.sleep(0.001)


@pytest.mark.parametrize("length", LENGTHS)
def test_read(pair, length):
    a, b = pair
    a.mr.write(bytes(BYTES), BYTES)
    b.mr.write(pattern(BYTES, 3), BYTES)
    a.rdma(e.IBV_WR_RDMA_READ, 1, b, length=length)
    wc = a.expect(1)
    assert wc.opcode == e.IBV_WC_RDMA_READ
    assert wc.byte_len == length
    assert a.mr.read(BYTES, 0) == pattern(length, 3) + bytes(BYTES - length)


def test_scatter_and_gather(pair):
    a, b = pair
    a.mr.write(pattern(BYTES, 4), BYTES)
    b.mr.write(bytes(BYTES), BYTES)
    parts = [(100, 3), (5000, 1000), (9, 1), (70_000, 30_000)]
    b.qp.post_recv(RecvWR(wr_id=1, num_sge=2, sg=[b.sge(1000, 50), b.sge(200_000, 50_000)]))
    a.qp.post_send(SendWR(wr_id=2, num_sge=4, sg=[a.sge(*part) for part in parts],
                          opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED))
    total = sum(length for _, length in parts)
    assert b.expect(1).byte_len == total
    a.expect(2)
    source = pattern(BYTES, 4)
    message = b"".join(source[offset:offset + length] for offset, length in parts)
    assert b.mr.read(50, 1000) == message[:50]
    assert b.mr.read(total - 50, 200_000) == message[50:]
    assert b.mr.read(100, 200_000 + total - 50) == bytes(100)


def test_many_messages_in_order(pair):
    a, b = pair
    for i in range(1000):
        b.receive(i, offset=(i % 16) * 64, length=64)
        a.mr.write(i.to_bytes(8, "little") * 8, 64)
        a.send(i)
        assert b.expect(i).byte_len == 64
        a.expect(i)
        assert b.mr.read(8, (i % 16) * 64) == i.to_bytes(8, "little")


def test_unsignalled_requests_complete_silently(pair):
    a, b = pair
    for i in range(10):
        b.receive(i)
    for i in range(9):
        a.send(i, flags=0)
    a.send(9)
    a.expect(9)
    for i in range(10):
        b.expect(i)
    assert a.cq.poll()[0] == 0


def test_wrong_key_ends_the_connection(pair):
    a, b = pair
    b.receive(5)
    before = b.mr.read(BYTES, 0)
    a.rdma(e.IBV_WR_RDMA_READ, 1, b, rkey=b.mr.rkey ^ 0x55)
    a.send(2)
    a.expect(1, e.IBV_WC_REM_ACCESS_ERR)
    a.expect(2, e.IBV_WC_WR_FLUSH_ERR)
    b.expect(5, e.IBV_WC_WR_FLUSH_ERR)
    assert b.mr.read(BYTES, 0) == before


def test_region_without_remote_access(context):
    with End(context, "a") as a, End(context, "b", access=e.IBV_ACCESS_LOCAL_WRITE) as b:
        a.connect(b)
        b.connect(a)
        a.rdma(e.IBV_WR_RDMA_READ, 1, b)
        a.expect(1, e.IBV_WC_REM_ACCESS_ERR)


def test_receive_that_is_too_short(pair):
    a, b = pair
    b.receive(1, length=100)
    a.send(2, length=101)
    b.expect(1, e.IBV_WC_LOC_LEN_ERR)


def test_completion_event(context):
    with CompChannel(context) as channel, End(context, "a") as a, \
            End(context, "b", channel=channel) as b:
        a.connect(b)
        b.connect(a)
        for i in range(5):
            b.cq.req_notify()
            b.receive(i)
            a.send(i)
            channel.get_cq_event(b.cq)
            b.expect(i)
            b.cq.ack_events(1)


def test_full_queue(context):
    with End(context, "a") as a:
        for i in range(DEPTH):
            a.receive(i)
        with refused(errno.ENOMEM):
            for i in range(DEPTH):
                a.receive(i)
