# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Events of a port and of its device, run by test_async_events.py in a network namespace that
belongs to these tests."""

import json
import subprocess

import pyverbs.enums as e
import pytest
from pyverbs.device import Context

from dut import AsyncEvents, until
from ends import End

NETDEV = "veth0"
PEER = "veth1"
DEVICE = f"uwarp_{NETDEV}"
PORT = 1


def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def link_is_up():
    return json.loads(ip("-j", "link", "show", NETDEV))[0]["operstate"] == "UP"


@pytest.fixture
def netdev():
    """A pair of network devices with an address, both up before a device watches them."""
    ip("link", "add", NETDEV, "type", "veth", "peer", "name", PEER)
    for name in (NETDEV, PEER):
        ip("link", "set", name, "addrgenmode", "none")  # no IPv6 address comes later
    ip("addr", "add", "10.77.0.1/24", "dev", NETDEV)
    for name in (NETDEV, PEER):
        ip("link", "set", name, "up")
    until(link_is_up, "the link")
    yield
    subprocess.run(["ip", "link", "del", NETDEV], check=False, capture_output=True)


@pytest.fixture
def events(netdev):
    with Context(name=DEVICE) as context:
        until(lambda: context.query_port(PORT).state == e.IBV_PORT_ACTIVE, "the port")
        events = AsyncEvents(context)
        yield events
        events.expect_none()


def test_link_goes_down_and_up(events):
    for _ in range(3):
        ip("link", "set", PEER, "down")
        events.expect(e.IBV_EVENT_PORT_ERR, PORT)
        assert events.context.query_port(PORT).state == e.IBV_PORT_DOWN
        ip("link", "set", PEER, "up")
        events.expect(e.IBV_EVENT_PORT_ACTIVE, PORT)
        assert events.context.query_port(PORT).state == e.IBV_PORT_ACTIVE


def test_addresses_come_and_go(events):
    for _ in range(3):
        ip("addr", "add", "10.77.0.9/24", "dev", NETDEV)
        events.expect(e.IBV_EVENT_GID_CHANGE, PORT)
        assert events.context.query_gid(PORT, 1).gid.endswith("0a4d:0009")
        ip("addr", "del", "10.77.0.9/24", "dev", NETDEV)
        events.expect(e.IBV_EVENT_GID_CHANGE, PORT)


def test_every_context_is_told(events):
    with Context(name=DEVICE) as second:
        more = AsyncEvents(second)
        ip("link", "set", PEER, "down")
        for each in (events, more):
            each.expect(e.IBV_EVENT_PORT_ERR, PORT)
        ip("link", "set", PEER, "up")
        for each in (events, more):
            each.expect(e.IBV_EVENT_PORT_ACTIVE, PORT)
        more.expect_none()


def test_network_device_disappears(events):
    with End(events.context, "a") as end:
        end.receive(1)
        ip("link", "del", NETDEV)
        events.expect(e.IBV_EVENT_DEVICE_FATAL, 0)
        end.expect(1, e.IBV_WC_WR_FLUSH_ERR)
        assert end.qp.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_ERR
