# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""One end of a connection in pyverbs' terms, and waiting for its completions."""

import contextlib
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 1
GID_INDEX = 0
DEPTH = 64
BYTES = 1 << 20
# A hang guard: what is waited for ought to take milliseconds.
PATIENCE_S = 20

ALL_ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
              | e.IBV_ACCESS_REMOTE_ATOMIC)


class End(contextlib.ExitStack):
    """PD, CQ, MR and an RC queue pair in INIT."""

    def __init__(self, context, name, access=ALL_ACCESS, channel=None):
        super().__init__()
        self.name = name
        self.context = context
        self.pd = self.enter_context(PD(context))
        self.cq = self.enter_context(CQ(context, 2 * DEPTH, None, channel))
        self.mr = self.enter_context(MR(self.pd, BYTES, access))
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=4, max_recv_sge=4,
                    max_inline_data=64)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap,
                          sq_sig_all=0)
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags = access
        self.qp = self.enter_context(QP(self.pd, init, attr))
        self.gid = context.query_gid(PORT, GID_INDEX)

    def attributes(self, peer):
        """What RTR and RTS need."""
        route = GlobalRoute(dgid=peer.gid, sgid_index=GID_INDEX)
        attr = QPAttr(port_num=PORT)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT)
        attr.dest_qp_num = peer.qp.qp_num
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = 16
        attr.max_dest_rd_atomic = 16
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = 7
        attr.rnr_retry = 7
        return attr

    def connect(self, peer):
        self.qp.to_rts(self.attributes(peer))

    def sge(self, offset=0, length=64):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self, wr_id, offset=0, length=BYTES):
        sge = self.sge(offset, length)
        self.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[sge]))

    def send(self, wr_id, offset=0, length=64, flags=e.IBV_SEND_SIGNALED):
        sge = self.sge(offset, length)
        self.qp.post_send(SendWR(wr_id=wr_id, num_sge=1, sg=[sge], opcode=e.IBV_WR_SEND,
                                 send_flags=flags))

    def rdma(self, opcode, wr_id, peer, offset=0, length=64, rkey=None):
        request = SendWR(wr_id=wr_id, num_sge=1, sg=[self.sge(offset, length)], opcode=opcode,
                         send_flags=e.IBV_SEND_SIGNALED)
        request.set_wr_rdma(rkey if rkey is not None else peer.mr.rkey, peer.mr.buf + offset)
        self.qp.post_send(request)

    def completion(self):
        """The next completion; fails the test when none comes."""
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit:
            count, found = self.cq.poll()
            if count:
                return found[0]
        raise AssertionError(f"no completion at {self.name}")

    def expect(self, wr_id, status=e.IBV_WC_SUCCESS):
        wc = self.completion()
        assert (wc.wr_id, wc.status) == (wr_id, status)
        return wc


def pattern(length, seed):
    """Bytes that differ at neighbouring places and for neighbouring seeds."""
    return bytes((i * 31 + (i >> 8) * 7 + seed) & 0xFF for i in range(length))
