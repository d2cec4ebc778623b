# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""qperf's tests of reliable connections through rdma_cm (-cm1): Sends, Writes with Immediate, Reads
and atomics, of which the ver_ ones check every value. Without rdma_cm qperf addresses by LID only,
which is nothing that an Ethernet device has."""

import re

import pytest

import places

LATENCY = ["rc_lat", "rc_rdma_read_lat", "rc_rdma_write_lat", "rc_rdma_write_poll_lat"]
BANDWIDTH = ["rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_bw"]
ATOMIC = ["rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"]
FIGURE = {**dict.fromkeys(LATENCY, "latency"), **dict.fromkeys(BANDWIDTH, "bw"),
          **dict.fromkeys(ATOMIC, "msg_rate")}
PERSONAS = {"iwarp": {}, "roce": {"UWARP_PERSONA": "roce"}}


def qperf(start, link, port, tests, *options, env=None):
    """Runs these tests one after the other against one server; what each has printed, by name."""
    server = start(["qperf", "-lp", port], link.server, env=env)
    places.wait_listening(server, port)
    reached = ["qperf", link.server.address, "-lp", port]
    client = start(reached + ["-t", "1", *options, *tests], link.client, env=env)
    try:
        output = client.succeed()
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n==== the server: {server}") from None
    start(reached + ["quit"], link.client, uwarp=False).succeed()
    server.succeed()
    found = dict(re.findall(r"^(\w+):\n((?: +.*\n)*)", output, re.M))
    assert list(found) == list(tests), output
    return found


def check(found):
    for test, printed in found.items():
        figure = re.search(rf"{FIGURE[test]} += +([\d.,]+) ", printed)
        assert figure and float(figure[1].replace(",", "")) > 0, f"{test}: {printed}"


@pytest.mark.parametrize("persona", PERSONAS)
@pytest.mark.parametrize("tests", [LATENCY, BANDWIDTH, ATOMIC],
                         ids=["latency", "bandwidth", "atomic"])
def test_rdma_cm(start, link, port, tests, persona):
    if link.name == "veth" and persona == "roce":
        pytest.skip("the second persona on loopback only, to keep the suite short")
    check(qperf(start, link, port, tests, "-cm1", env=PERSONAS[persona]))


def test_polling(start, loopback, port):
    """-cp1: polls, where qperf otherwise sleeps until an event tells of a completion."""
    tests = ["rc_lat", "rc_bw", "rc_rdma_write_lat"]
    check(qperf(start, loopback, port, tests, "-cm1", "-cp1"))


def test_datagrams(start, loopback, port):
    """It sends to LID 0, which is the port itself here: so on one device only."""
    found = qperf(start, loopback, port, ["ud_lat"], env=PERSONAS["roce"])
    assert re.search(r"latency += +[\d.]+ ", found["ud_lat"]), found


def test_addressing_by_lid(start, loopback, port):
    """-cm1 is not for uc_lat. A connection wants a GID, so it ends with a message, as on an adapter
    for RoCE."""
    env = PERSONAS["roce"]
    server = start(["qperf", "-lp", port], loopback.server, env=env)
    places.wait_listening(server, port)
    client = start(["qperf", "127.0.0.1", "-lp", port, "-t", "1", "uc_lat"], loopback.client,
                   env=env)
    assert client.wait() == 1 and "Invalid argument" in client.output, client
