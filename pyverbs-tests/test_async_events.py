# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Every asynchronous event: what raises it, exactly once, with the right element. A second, quiet
queue pair shares the context, so that an event of the wrong one is seen."""

import os
import pathlib
import subprocess
import sys

import pyverbs.enums as e
import pytest
from pyverbs.qp import QPAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

import uwarp_wire as w
from dut import Dut, c_object, until
from ends import End
from raw_peer import tagged, untagged


@pytest.fixture
def links(context):
    """Two devices with their peers on one context: the second must not be told of anything."""
    with Dut(context) as dut, Dut(context) as other:
        peer, quiet = dut.connect(), other.connect()
        yield dut, peer
        quiet.read(other.mr.rkey, other.target.address, 8)
        quiet.expect(w.READ_RESPONSE)
        dut.events.expect_none()


FAULTS = {
    "access": (lambda dut: tagged(w.WRITE, dut.mr.rkey ^ 0x5A5A00, dut.target.address, b"x"),
               (1, 1, 0), e.IBV_EVENT_QP_ACCESS_ERR),
    "request": (lambda dut: untagged(0xD, 1, b"x", qn=0), (0, 2, 6), e.IBV_EVENT_QP_REQ_ERR),
    "fatal": (lambda dut: untagged(w.SEND, 9, b"x"), (1, 2, 3), e.IBV_EVENT_QP_FATAL),
}


@pytest.mark.parametrize("name", FAULTS)
# Proves: 5041-6.2.2-c 5040-5.1-c 5040-5.3-h
def test_faults_of_the_peer(links, name):
    make, code, event = FAULTS[name]
    dut, peer = links
    dut.receive(1)
    bad = make(dut)
    peer.put(*[bad] * 10)  # and still one event, and one Terminate
    dut.expect_fail(peer, code, bad, event=event)


# Proves: 5041-6.2.2-a 5040-6.2-c 5041-3-3
def test_reset(links):
    dut, peer = links
    dut.receive(1)
    dut.post(e.IBV_WR_RDMA_READ, 2)
    peer.expect(w.READ_REQUEST)
    peer.reset()
    dut.expect_dead(e.IBV_EVENT_QP_FATAL, sends=[(2, e.IBV_WC_RETRY_EXC_ERR)])


# Proves: 5044-7.2-b 5041-3-9
def test_no_event_for_an_orderly_end(links):
    dut, peer = links
    dut.receive(1)
    peer.finish()
    assert peer.get_to_the_end() == []
    dut.expect_dead(None)


@pytest.mark.parametrize("count", [1, 2, 5, 20, 30])
# Proves: 5044-7.2-c 5041-6.2.1-c
def test_end_inside_a_frame(links, count):
    dut, peer = links
    dut.receive(1)
    peer.raw(peer.frame(untagged(w.SEND, 1, bytes(64)))[:count])
    peer.finish()
    peer.get_to_the_end()
    dut.expect_dead(e.IBV_EVENT_QP_FATAL)


# Proves: 5041-6.2.1-c
def test_end_inside_a_message(links):
    dut, peer = links
    dut.receive(1)
    peer.send(b"more will come", last=False)
    peer.finish()
    peer.get_to_the_end()
    dut.expect_dead(e.IBV_EVENT_QP_FATAL)


def test_communication_established(context):
    """Data comes to a queue pair that is not in RTS yet: once, on the first message."""
    with Dut(context) as watcher, End(context, "a") as a, End(context, "b") as b:
        attr = b.attributes(a)
        b.qp.to_rtr(attr)
        a.connect(b)
        for wr_id in range(3):
            b.receive(wr_id)
            a.send(wr_id)
            a.expect(wr_id)
            b.expect(wr_id)
        watcher.events.expect(e.IBV_EVENT_COMM_EST, b.qp)
        attr.qp_state = e.IBV_QPS_RTS
        b.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT
                    | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN | e.IBV_QP_MAX_QP_RD_ATOMIC)
        a.receive(4)
        b.send(5)
        b.expect(5)
        a.expect(4)
        watcher.events.expect_none()


def test_send_queue_drained(links):
    """The event comes when the last answer has come, and only if it was asked for."""
    dut, peer = links
    for notify in (1, 0, 1):
        dut.post(e.IBV_WR_RDMA_READ, 1)
        request = peer.expect(w.READ_REQUEST).read()
        attr = QPAttr(qp_state=e.IBV_QPS_SQD)
        attr.en_sqd_async_notify = notify
        dut.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
        dut.post(e.IBV_WR_SEND, 2)
        peer.read(dut.mr.rkey, dut.target.address, 8)
        peer.expect(w.READ_RESPONSE)  # and no Send in front of it
        dut.events.expect_none()
        peer.answer_read(request, bytes(64))
        dut.expect(1)
        if notify:
            dut.events.expect(e.IBV_EVENT_SQ_DRAINED, dut.qp)
        dut.events.expect_none()
        dut.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
        peer.expect(w.SEND)
        dut.expect(2)


# ---- Shared receive queues

def shared(pd):
    return SRQ(pd, SrqInitAttr(SrqAttr(max_wr=64, max_sge=1)))


def test_last_request_reached(context):
    with Dut(context, srq=shared) as dut:
        dut.connect()
        dut.receive(1)
        dut.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        dut.events.expect(e.IBV_EVENT_QP_LAST_WQE_REACHED, dut.qp)
        dut.events.expect_none()
        dut.expect_no_completion()  # what is in the shared queue stays there


def test_last_request_reached_after_a_fault(context):
    with Dut(context, srq=shared) as dut:
        peer = dut.connect()
        dut.receive(1)
        peer.write(dut.mr.rkey ^ 0x5A5A00, dut.target.address, b"x")
        peer.get_to_the_end()
        found = {dut.events.next(), dut.events.next()}
        assert found == {(e.IBV_EVENT_QP_ACCESS_ERR, c_object(dut.qp)),
                         (e.IBV_EVENT_QP_LAST_WQE_REACHED, c_object(dut.qp))}
        dut.events.expect_none()


# Proves: 5040-8.1.2-8 4296-2.1.3-b
def test_limit_of_a_shared_queue(context):
    with Dut(context, srq=shared) as dut, Dut(context, srq=shared):
        peer = dut.connect()
        for wr_id in range(20):
            dut.receive(wr_id)
        received = 0
        for limit in (15, 10):
            dut.srq.modify(SrqAttr(srq_limit=limit), e.IBV_SRQ_LIMIT)
            while 20 - received > limit:
                dut.events.expect_none()
                peer.send(b"x")
                dut.expect(received)
                received += 1
            dut.events.expect_none()  # as many as the limit are still there
            peer.send(b"x")
            dut.expect(received)
            received += 1
            dut.events.expect(e.IBV_EVENT_SRQ_LIMIT_REACHED, dut.srq)
            assert dut.srq.query().srq_limit == 0, "it fires once"
            peer.send(b"x")
            dut.expect(received)
            received += 1
            dut.events.expect_none()


# ---- Completion queues

# Proves: 5040-8.1.1-10
def test_overrun_of_a_completion_queue(context):
    with Dut(context, cqe=1) as dut, Dut(context) as other:
        peer, other_peer = dut.connect(), other.connect()
        room = dut.cq.cqe
        for wr_id in range(room + 2):
            dut.receive(wr_id, length=8)
        for _ in range(room + 1):
            peer.send(b"x")
        peer.get_to_the_end()
        found = [dut.events.next(), dut.events.next()]
        assert sorted(found) == sorted([(e.IBV_EVENT_CQ_ERR, c_object(dut.cq)),
                                        (e.IBV_EVENT_QP_FATAL, c_object(dut.qp))])
        until(lambda: dut.state == e.IBV_QPS_ERR, "ERR")
        dut.events.expect_none()
        other.receive(1)
        other_peer.send(b"still alive")
        other.expect(1)
        dut.events.expect_none()


# ---- The network device, in a namespace of its own

def namespace_command():
    for command in (["unshare", "-n"], ["unshare", "-Urn"]):
        probe = subprocess.run([*command, "ip", "link", "add", "probe", "type", "veth", "peer",
                                "name", "other"],
                               capture_output=True, check=False)
        if probe.returncode == 0:
            return command
    return None


def test_events_of_the_network_device():
    command = namespace_command()
    if command is None:
        pytest.skip("no right to make network namespaces")
    inside = pathlib.Path(__file__).with_name("port_events_inside.py")
    run = subprocess.run([*command, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                          str(inside)], capture_output=True, text=True, check=False, timeout=60,
                         env={**os.environ, "UWARP_TEST_DEVICE": "uwarp_veth0"})
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout, run.stdout
