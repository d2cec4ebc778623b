# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Stock programs that send datagrams, in the roce persona: udaddy and udpong over rdma_cm and
rsockets, mckey in multicast groups. Unicast goes over trunks, multicast over UDP."""

import random
import re
import socket

import pytest

import places

ROCE = {"UWARP_PERSONA": "roce"}
MULTICAST_PORT = 22359
UDADDY_PORT = 7174


@pytest.fixture
def group():
    """A group that no other run of the tests uses."""
    return f"239.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(1, 255)}"


@pytest.fixture
def group6():
    return f"ff05::{random.randrange(1, 0xffff):x}:{random.randrange(1, 0xffff):x}"


@pytest.fixture(params=["loopback", "veth"])
def net(request):
    """udaddy has a port that cannot be chosen, so its loopback is one of its own."""
    if request.param == "veth":
        return request.getfixturevalue("veth")
    space = request.getfixturevalue("pod")
    place = places.Place("pod", space.enter(), "127.0.0.1", "::1", "uwarp_lo")
    return places.Link("loopback", place, place)


@pytest.fixture
def datagram_pair(start):
    """The server is ready once it has its UDP socket."""

    def run(link, server, client):
        passive = start(server, link.server, env=ROCE)
        places.wait_datagrams(passive, UDADDY_PORT)
        active = start(client, link.client, env=ROCE)
        try:
            output = active.succeed()
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n==== the server: {passive}") from None
        return passive.succeed(), output

    return run


@pytest.mark.parametrize("connections, count, size", [(1, 10, 100), (1, 200, 1), (20, 50, 512),
                                                      (100, 10, 1024)])
def test_udaddy(datagram_pair, net, connections, count, size):
    common = ["-c", connections, "-C", count, "-S", size]
    outputs = datagram_pair(net, ["udaddy", "-b", net.server.address, *common],
                            ["udaddy", "-s", net.server.address, *common])
    for output in outputs:
        assert "data transfers complete" in output and "return status 0" in output, output


def test_udaddy_on_a_wildcard(datagram_pair, net):
    common = ["-c", 10]
    outputs = datagram_pair(net, ["udaddy", *common], ["udaddy", "-s", net.server.address, *common])
    for output in outputs:
        assert "return status 0" in output, output


def test_udaddy_over_ipv6(datagram_pair, net):
    outputs = datagram_pair(net, ["udaddy", "-b", net.server.address6],
                            ["udaddy", "-s", net.server.address6])
    for output in outputs:
        assert "return status 0" in output, output


def test_udaddy_without_a_server(start, net):
    client = start(["udaddy", "-s", net.server.address], net.client, env=ROCE)
    assert client.wait() != 0
    assert "RDMA_CM_EVENT_UNREACHABLE" in client.output, client


# IP over InfiniBand is for links of InfiniBand, as the kernel's RoCE devices have it.
def test_udaddy_in_port_space_ipoib(start, net):
    client = start(["udaddy", "-s", net.server.address, "-p", "2"], net.client, env=ROCE)
    assert client.wait() != 0
    assert "RDMA_CM_EVENT_ADDR_ERROR" in client.output, client


def test_udaddy_is_refused_by_iwarp(start, net):
    env = {"UWARP_PERSONA": "iwarp", "UWARP_LOG": "stderr"}
    server = start(["udaddy"], net.server, env=env)
    assert server.wait() != 0
    assert "uwarp-run --roce (UWARP_PERSONA=roce) has it" in server.output, server


# On loopback rsockets have no device, here and with a kernel: the id that they bind gets none.
@pytest.mark.parametrize("size", [64, 1024])
def test_udpong(start, veth, port, size):
    common = ["-p", port, "-S", size, "-C", 500]
    server = start(["udpong", "-b", veth.server.address, *common], veth.server, env=ROCE)
    places.wait_datagrams(server, port)
    client = start(["udpong", "-s", veth.server.address, *common], veth.client, env=ROCE)
    output = client.succeed()
    assert re.search(r"^custom\s+\S+\s+500\s", output, re.M), output
    assert server.running(), server


def mckey(link, where, options, target, sends=False):
    place = link.client if sends else link.server
    own = place.address6 if ":" in target else place.address
    command = ["mckey", "-s"] if sends else ["mckey"]
    return [*command, where, target, "-b", own, *options]


def join(start, link, where, target, options, members=1):
    joined = [start(mckey(link, where, options, target), link.server, env=ROCE)
              for _ in range(members)]
    for member in joined:
        places.wait_datagrams(member, MULTICAST_PORT)
    return joined


def check_mckey(sender, members):
    for process in [sender, *members]:
        output = process.succeed()
        assert "data transfers complete" in output and "return status 0" in output, output


@pytest.mark.parametrize("options", [[], ["-C", "100", "-S", "1"], ["-S", "1024"], ["-o"],
                                     ["-c", "4"], ["-l"]],
                         ids=["usual", "small", "large", "send-only", "four", "no-loopback"])
def test_mckey(start, link, group, options):
    only = [option for option in options if option != "-o"]
    members = join(start, link, "-m", group, only, members=3)
    sender = start(mckey(link, "-m", options, group, sends=True), link.client, env=ROCE)
    check_mckey(sender, members)
    assert f"joined dgid: ::ffff:{group}" in members[0].output, members[0]


def test_mckey_ipv6(start, veth, group6):
    members = join(start, veth, "-m", group6, ["-C", "50"], members=2)
    sender = start(mckey(veth, "-m", ["-C", "50"], group6, sends=True), veth.client, env=ROCE)
    check_mckey(sender, members)


# Loopback has no route to IPv6 groups. mckey ends with status 0.
def test_mckey_without_a_multicast_route(start, loopback, group6):
    process = start(mckey(loopback, "-m", [], group6), loopback.server, env=ROCE)
    process.wait()
    assert "RDMA_CM_EVENT_MULTICAST_ERROR, error: -101" in process.output, process


# The group by its GID, as an address of AF_IB. An id that is bound to loopback has no device, here and
# with a kernel.
def test_mckey_unmapped(start, veth, group6):
    env = {**ROCE, "UWARP_AF_IB": "1"}
    member = start(mckey(veth, "-M", [], group6), veth.server, env=env)
    places.wait_datagrams(member, MULTICAST_PORT)
    check_mckey(start(mckey(veth, "-M", [], group6, sends=True), veth.client, env=env), [member])


def test_mckey_to_an_address_that_is_no_group(start, veth):
    process = start(mckey(veth, "-m", [], veth.server.address, sends=True), veth.client, env=ROCE)
    process.wait()
    assert "RDMA_CM_EVENT_MULTICAST_ERROR, error: -22" in process.output, process


# The fragments of a datagram that is larger than the link's MTU.
def test_mckey_beyond_the_mtu(start, loopback, group):
    members = join(start, loopback, "-m", group, ["-S", "4096"])
    check_mckey(start(mckey(loopback, "-m", ["-S", "4096"], group, sends=True), loopback.client,
                      env=ROCE), members)


def test_other_packets_to_a_group_are_dropped(start, loopback, group):
    members = join(start, loopback, "-m", group, [])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF,
                            socket.inet_aton("127.0.0.1"))
        rng = random.Random(1)
        for size in [0, 1, 23, 24, 25, 100, 4120, 4121, 9000, *[200] * 200]:
            stranger.sendto(rng.randbytes(size), (group, MULTICAST_PORT))
            stranger.sendto(b"uMC\1" + rng.randbytes(size), (group, MULTICAST_PORT))
    check_mckey(start(mckey(loopback, "-m", [], group, sends=True), loopback.client, env=ROCE),
                members)
