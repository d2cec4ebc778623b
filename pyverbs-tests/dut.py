# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The device under test as a raw peer's other end: a queue pair with its memory, connected by
rdma_cm in either role, its asynchronous events, and what a failed stream has to look like."""

import contextlib
import ctypes
import mmap
import os
import pathlib
import select
import time

import pyverbs.cm_enums as ce
import pyverbs.enums as e
import uwarp_wire as w
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from raw_peer import HOST, PATIENCE_S, Port, RawPeer

PAGE = mmap.PAGESIZE
TARGET_BYTES = 32 * PAGE
BUFFER_BYTES = 64 * PAGE
DEPTH = 64

REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
ALL_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND | REMOTE


def until(condition, what):
    """Polls; fails the test when it stays false."""
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, f"waited in vain: {what}"
        os.sched_yield()


# ---- C objects behind pyverbs' ones: it does not give away file descriptors and event elements.
# Offsets: Python's object header (16), PyverbsObject (two pointers), PyverbsCM's table of methods.

_EVENT_AT = 32
_OBJECT_AT = 40
_CONTEXT_CMD_FD_AT = 8 + 32 * 8
_CHANNEL_FD_AT = 8
_CM_EVENT_AT = 16
_CM_DEPTHS_AT = 33


def c_object(of):
    """The address of the ibv_qp, ibv_cq, ibv_srq or ibv_context that a pyverbs object holds."""
    return ctypes.c_void_p.from_address(id(of) + _OBJECT_AT).value


def async_fd(context):
    at = c_object(context) + _CONTEXT_CMD_FD_AT
    assert ctypes.c_int.from_address(at).value == context.cmd_fd, "another layout of pyverbs"
    return ctypes.c_int.from_address(at + 4).value


def comes(channel, patience_s=PATIENCE_S):
    """Whether a completion channel has an event."""
    fd = ctypes.c_int.from_address(c_object(channel) + _CHANNEL_FD_AT).value
    return bool(select.select([fd], [], [], patience_s)[0])


def event_element(event):
    """Address of the object of an event, or its port."""
    kind = ctypes.c_int.from_address(id(event) + _EVENT_AT + 8).value
    assert kind == event.event_type, "another layout of pyverbs"
    return ctypes.c_void_p.from_address(id(event) + _EVENT_AT).value or 0


def event_depths(event):
    """(responder_resources, initiator_depth) of an rdma_cm event."""
    at = c_object(event)
    assert ctypes.c_int.from_address(at + _CM_EVENT_AT).value == event.event_type
    return tuple(ctypes.c_uint8.from_address(at + _CM_DEPTHS_AT + i).value for i in range(2))


def listening_ports():
    """TCP ports on which this process listens."""
    own = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{fd}"))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


class AsyncEvents:
    """The asynchronous events of a context, with their elements."""

    def __init__(self, context):
        self.context = context
        self.fd = async_fd(context)
        os.set_blocking(self.fd, False)

    def next(self, patience_s=PATIENCE_S):
        """(type, element) of the next event, acknowledged, or None."""
        if not select.select([self.fd], [], [], patience_s)[0]:
            return None
        event = self.context.get_async_event()
        found = event.event_type, event_element(event)
        event.ack()
        return found

    def expect(self, kind, element):
        """The next event is this one."""
        if not isinstance(element, int):
            element = c_object(element)
        found = self.next()
        assert found is not None, f"no event, expected {e.ibv_event_type(kind).name}"
        assert found == (kind, element), f"{e.ibv_event_type(found[0]).name} {found[1]:#x}"

    def expect_none(self):
        """None has come so far."""
        found = self.next(0)
        assert found is None, e.ibv_event_type(found[0]).name


class Memory:
    """Memory with an unregistered page on either side, all of it random unless it is a file's."""

    def __init__(self, length, margin=PAGE, file=None):
        self.length = length
        self.margin = margin
        if file is not None:
            file.truncate(length + 2 * margin)
        self.map = mmap.mmap(-1 if file is None else file.fileno(), length + 2 * margin)
        if file is None:
            self.map[:] = os.urandom(len(self.map))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) + margin
        self.before = bytes(self.map)

    def snapshot(self):
        self.before = bytes(self.map)

    def unchanged(self):
        return bytes(self.map) == self.before

    def read(self, offset, length):
        return self.map[self.margin + offset:self.margin + offset + length]

    def write(self, offset, data):
        """As the application; part of what counts as unchanged."""
        self.map[self.margin + offset:self.margin + offset + len(data)] = data
        self.snapshot()

    def word(self, offset):
        return int.from_bytes(self.read(offset, 8), "little")

    def expect_changed(self, offset, data):
        """`data` is there, and nothing else has changed."""
        at = self.margin + offset
        assert self.map[at:at + len(data)] == data
        now, before = bytes(self.map), self.before
        assert now[:at] == before[:at] and now[at + len(data):] == before[at + len(data):]
        self.snapshot()


class Dut(contextlib.ExitStack):
    """A queue pair in INIT on a context of its own.

    `target` is the region that peers reach, `buffer` holds receives and the sources and sinks of
    requests; only the device itself may access that."""

    def __init__(self, context, access=ALL_ACCESS, qp_access=REMOTE, srq=None, cqe=4 * DEPTH,
                 send_cq=None, channel=None, pd=None, target=None):
        super().__init__()
        self.context = context
        self.events = AsyncEvents(context)
        self.pd = pd or self.enter_context(PD(context))
        self.cq = self.enter_context(CQ(context, cqe, None, channel))
        self.send_cq = send_cq or self.cq
        self.srq = self.enter_context(srq(self.pd)) if srq else None
        self.target = target or Memory(TARGET_BYTES)
        self.buffer = Memory(BUFFER_BYTES)
        self.mr = self.region(self.target, access)
        self.local = self.region(self.buffer, e.IBV_ACCESS_LOCAL_WRITE)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=4, max_recv_sge=4,
                    max_inline_data=64)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.send_cq, rcq=self.cq, cap=cap,
                          srq=self.srq, sq_sig_all=0)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = qp_access
        self.qp = self.enter_context(QP(self.pd, init, attr))
        self.posted = []
        self.cm = None

    def region(self, memory, access, length=None, pd=None):
        return self.enter_context(MR(pd or self.pd, length or memory.length, access,
                                     address=memory.address))

    def other_domain(self):
        return self.enter_context(PD(self.context))

    def gone(self, memory, access=ALL_ACCESS):
        """(lkey, rkey) of a region that was deregistered."""
        with MR(self.pd, memory.length, access, address=memory.address) as region:
            return region.lkey, region.rkey

    @property
    def state(self):
        return self.qp.query(e.IBV_QP_STATE)[0].qp_state

    # ---- rdma_cm

    def cm_event(self, kind):
        """Waits for this event and returns its private data."""
        event = CMEvent(self.cm)
        with contextlib.closing(event):  # an id with an event that is not closed is never destroyed
            found, private = event.event_type, event.private_data
            self.depths = event_depths(event)
        assert found == kind, f"rdma_cm event {found} instead of {kind}"
        return private

    def _parameters(self, resources, depth, private):
        parameters = ConnParam(resources=resources, depth=depth, qp_num=self.qp.qp_num,
                               data_len=len(private))
        parameters.set_private_data(private)
        return parameters

    def dial(self, port, resources=16, depth=16, private=b""):
        """Starts to connect to a raw peer's port."""
        self.cm = self.enter_context(contextlib.closing(CMEventChannel()))
        self.id = self.enter_context(CMID(creator=self.cm))
        self.id.resolve_addr(AddrInfo(dst=HOST, dst_service=str(port), port_space=ce.RDMA_PS_TCP))
        self.cm_event(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.id.resolve_route()
        self.cm_event(ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        self.id.connect(self._parameters(resources, depth, private))

    def listen(self):
        """Returns the port."""
        self.cm = self.enter_context(contextlib.closing(CMEventChannel()))
        self.listener = self.enter_context(CMID(creator=self.cm))
        # Not bound before: pyverbs cannot bind to what is of no device, as loopback is, and cannot
        # say which port rdma_cm chose.
        before = listening_ports()
        self.listener.listen(256)
        self.port, = listening_ports() - before
        return self.port

    def request(self):
        """Waits for a connection request; returns its private data."""
        event = CMEvent(self.cm)
        with contextlib.closing(event):
            assert event.event_type == ce.RDMA_CM_EVENT_CONNECT_REQUEST
            self.depths = event_depths(event)
            self.id = self.enter_context(CMID(creator=event, listen_id=self.listener))
            return event.private_data

    def accept(self, resources=16, depth=16, private=b""):
        self.id.accept(self._parameters(resources, depth, private))

    def connect(self, resources=16, depth=16, **reply):
        """As the initiator, to a peer that replies with these fields. Without the peer-to-peer
        model, so that the first segment of the device is the test's."""
        with Port() as port:
            self.dial(port.number, resources, depth)
            peer = self.enter_context(contextlib.closing(port.accept()))
            peer.answer(**reply)
        self.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
        return peer

    def be_connected(self, resources=16, depth=16, **request):
        """As the responder, to a peer that asks with these fields."""
        port = self.listen()
        peer = self.enter_context(contextlib.closing(RawPeer.dial(port)))
        peer.raw(peer.request_frame(**request))
        self.request()
        self.accept(resources, depth)
        peer.take_reply(**request)
        if not request.get("peer_to_peer"):
            self.cm_event(ce.RDMA_CM_EVENT_ESTABLISHED)
        return peer

    # ---- Work requests

    def sge(self, offset=0, length=64, region=None):
        region = region or self.local
        base = self.target.address if region is self.mr else self.buffer.address
        return SGE(base + offset, length, region.lkey)

    def receive(self, wr_id, length=PAGE, offset=None, sges=None):
        if offset is None:
            offset = len(self.posted) % 32 * PAGE
        if sges is None:
            sges = [self.sge(offset, length)]
        (self.srq or self.qp).post_recv(RecvWR(wr_id=wr_id, num_sge=len(sges), sg=sges))
        self.posted.append(wr_id)

    def post(self, opcode, wr_id, *, sges=None, rkey=0, to=0, compare_add=0, swap=0, imm=0,
             flags=e.IBV_SEND_SIGNALED, bad_wr=None, next_wr=None):
        """Any request. Its local buffer is at the end of `buffer` unless `sges` say otherwise."""
        atomic = opcode in (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP)
        if sges is None:
            sges = [self.sge(32 * PAGE + wr_id % 32 * PAGE, 8 if atomic else 64)]
        wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=len(sges), sg=sges, send_flags=flags,
                    imm_data=imm, next_wr=next_wr)
        if atomic:
            wr.set_wr_atomic(rkey, to, compare_add, swap)
        else:
            wr.set_wr_rdma(rkey, to)
        self.qp.post_send(wr, bad_wr)
        return wr

    def window(self, kind=e.IBV_MW_TYPE_2):
        return self.enter_context(MW(self.pd, kind))

    def bind(self, wr_id, window, offset, length, access=REMOTE, region=None):
        """Posts the binding of a window of type 2 to a part of the target; returns the new key."""
        wr = SendWR(wr_id=wr_id, opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_bind_wr(window, MWBindInfo(region or self.mr, self.target.address + offset, length,
                                          access))
        self.qp.post_send(wr)
        return wr.rkey

    def bind_type1(self, wr_id, window, offset, length, access=REMOTE, region=None):
        """As bind(), of a window of type 1."""
        info = MWBindInfo(region or self.mr, self.target.address + offset, length, access)
        self.qp.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED, wr_id))
        return window.rkey

    def invalidate(self, wr_id, rkey):
        """Posts LOCAL_INV."""
        self.qp.post_send(SendWR(wr_id=wr_id, opcode=e.IBV_WR_LOCAL_INV, imm_data=rkey,
                                 send_flags=e.IBV_SEND_SIGNALED))

    # ---- Outcomes

    def completion(self, cq=None):
        found = []

        def poll():
            count, wcs = (cq or self.cq).poll()
            found.extend(wcs)
            return count

        until(poll, "a completion")
        return found[0]

    def expect(self, wr_id, status=e.IBV_WC_SUCCESS, opcode=None):
        wc = self.completion()
        assert (wc.wr_id, wc.status) == (wr_id, status), \
            f"{wc.wr_id} {e.ibv_wc_status(wc.status).name}, expected {wr_id} " \
            f"{e.ibv_wc_status(status).name}"
        if opcode is not None:
            assert wc.opcode == opcode
        if wr_id in self.posted:
            self.posted.remove(wr_id)
        return wc

    def expect_no_completion(self):
        assert self.cq.poll()[0] == 0

    def expect_dead(self, event, sends=(), receive=e.IBV_WC_WR_FLUSH_ERR):
        """The queue pair is in ERR. `sends` are (wr_id, status) of the open requests in their
        order, `receive` the status of the oldest receive; all other receives are flushed. One
        asynchronous event of this type has come, or none if it is None."""
        sends = list(sends)
        receives = [] if self.srq else list(self.posted)
        found = [self.completion() for _ in range(len(sends) + len(receives))]
        self.expect_no_completion()
        statuses = {wc.wr_id: wc.status for wc in found}
        order = [wc.wr_id for wc in found]
        open_sends = [wr_id for wr_id, _ in sends]
        assert [i for i in order if i in open_sends] == open_sends, order
        assert [i for i in order if i in receives] == receives, order
        for wr_id, status in sends:
            assert statuses[wr_id] == status, e.ibv_wc_status(statuses[wr_id]).name
        for wr_id in receives:
            assert statuses[wr_id] == receive, e.ibv_wc_status(statuses[wr_id]).name
            receive = e.IBV_WC_WR_FLUSH_ERR
        self.posted.clear()
        until(lambda: self.state == e.IBV_QPS_ERR, "ERR")
        if event is not None:
            self.events.expect(event, self.qp)
        self.events.expect_none()
        assert self.target.unchanged(), "the target's memory has changed"

    def expect_fail(self, peer, code, bad=None, *, header="by code", event="by code", sends=(),
                    receive=e.IBV_WC_WR_FLUSH_ERR, before=()):
        """FAIL(layer/type/code): the Terminate is the last segment and copies what it must of the
        ULPDU `bad`, a FIN follows, and the queue pair is as expect_dead() says. `before`: opcodes
        of the segments in front of the Terminate; None: any."""
        segments = peer.get_to_the_end()
        assert segments and segments[-1].opcode == w.TERMINATE, segments
        if before is not None:
            assert [segment.opcode for segment in segments[:-1]] == list(before), segments
        terminate = segments[-1].terminate()
        assert (terminate.layer, terminate.etype, terminate.error) == code, terminate.text
        if header == "by code":
            header = headers_of(code, bad)
        check_headers(terminate, bad, header)
        if event == "by code":
            event = event_of(code)
        self.expect_dead(event, sends, receive)
        peer.close()
        return segments[-1]


def headers_of(code, bad):
    """Which headers a Terminate copies, by its code. RFC 5040 figure 10, RFC 7306 8.1."""
    layer, etype, error = code
    if layer == 2 or etype == 0 or code in ((1, 1, 4), (1, 2, 6)):
        return None
    read = bad is not None and bad[1] & w.RDMAP_OPCODE == w.READ_REQUEST
    return "read" if (layer, etype) == (0, 1) and read else "ddp"


def check_headers(terminate, bad, header):
    copied = header is not None
    assert terminate.has_length == copied and terminate.has_ddp_header == copied
    assert terminate.has_rdmap_header == (header == "read")
    if copied:
        size = (w.TaggedHeader if bad[0] & w.TAGGED else w.UntaggedHeader).SIZE
        assert terminate.ddp_segment_length == len(bad)
        assert terminate.ddp_header == bad[:size]
    if header == "read":
        assert terminate.rdmap_header == bad[w.UntaggedHeader.SIZE:][:w.ReadRequestHeader.SIZE]


def event_of(code):
    """Which asynchronous event goes with an error that the device finds in what it receives."""
    layer, etype, error = code
    if (layer, etype) == (0, 1) or (layer, etype) == (1, 1) and error != 4:
        return e.IBV_EVENT_QP_ACCESS_ERR
    return e.IBV_EVENT_QP_REQ_ERR if layer == 0 else e.IBV_EVENT_QP_FATAL
