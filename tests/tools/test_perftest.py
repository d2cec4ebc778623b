# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""perftest's send, write, read and atomic programs, with and without rdma_cm, and the options of each that
its own parser takes. Checked: exit status of both sides, the sizes and iterations of the printed
table, and figures that can be true."""

import pytest

import perftest_report as report

BANDWIDTH = ["ib_send_bw", "ib_write_bw", "ib_read_bw"]
LATENCY = ["ib_send_lat", "ib_write_lat", "ib_read_lat"]
ATOMIC = ["ib_atomic_bw", "ib_atomic_lat"]
TOOLS = BANDWIDTH + LATENCY
WITH_EVENTS = ["ib_send_lat", "ib_read_bw", "ib_read_lat"]
WITH_INLINE = ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat"]
CONNECTS = {"raw": [], "cm": ["-R"]}

# Nothing moves faster than this through one memory, so a figure above it is made up.
MIB_PER_SECOND_MAX = 200_000
US_MAX = 1_000_000
ALL_SIZES = [1 << shift for shift in range(1, 24)]


def tool_and_connect(tools):
    """The test for each of these tools, connected both ways."""
    return lambda test: pytest.mark.parametrize("connect", CONNECTS)(
        pytest.mark.parametrize("tool", tools)(test))


def skip_half(link, connect):
    """Each run of perftest finds out for a second how fast the processor is. So what does not depend on
    how the link and the way of connecting go together is tried with each of them once."""
    if (link.name == "veth") == (connect == "cm"):
        pytest.skip("loopback by rdma_cm, veth without")


def run(pair, link, tool, connect, *options, server_options=(), seconds=None):
    """Runs the tool and returns the rows of the client's table."""
    command = [tool, "-d", "{device}", "-p", "{port}", "-F", *CONNECTS[connect], *options]
    server, client = pair(link, [*command, *server_options], command + ["{address}"],
                          seconds=seconds)
    print(client)  # for a test that fails later
    found = report.rows(client)
    assert found, f"no table in the client's output:\n{client}\n==== server\n{server}"
    for row in filter(report.gauged, found):
        if tool.endswith("_bw"):
            assert report.bandwidth_mib(row) < MIB_PER_SECOND_MAX, row
        else:
            assert 0 < report.latency_us(row) < US_MAX, row
    assert "rror" not in client + server, f"{client}\n==== server\n{server}"
    return found


def sizes(found):
    return [row.size for row in found]


@tool_and_connect(TOOLS)
def test_plain(pair, link, tool, connect):
    found = run(pair, link, tool, connect, "-s", "4096", "-n", "1000")
    assert [(row.size, row.iterations) for row in found] == [(4096, 1000)]


@pytest.mark.parametrize("tool, connect", [("ib_write_bw", "raw"), ("ib_send_lat", "cm")])
def test_all_sizes(pair, link, tool, connect):
    skip_half(link, connect)
    assert sizes(run(pair, link, tool, connect, "-a", "-n", "6")) == ALL_SIZES


@tool_and_connect(BANDWIDTH)
def test_both_directions(pair, link, tool, connect):
    skip_half(link, connect)
    found = run(pair, link, tool, connect, "-b", "-s", "65536", "-n", "1000")
    assert sizes(found) == [65536]


@tool_and_connect(BANDWIDTH)
def test_sixteen_queue_pairs(pair, link, tool, connect):
    skip_half(link, connect)
    found = run(pair, link, tool, connect, "-q", "16", "-s", "16384", "-n", "200")
    assert [(row.size, row.iterations) for row in found] == [(16384, 16 * 200)]


@tool_and_connect(WITH_EVENTS)
def test_events(pair, link, tool, connect):
    skip_half(link, connect)
    found = run(pair, link, tool, connect, "-e", "-s", "4096", "-n", "500")
    assert [(row.size, row.iterations) for row in found] == [(4096, 500)]


@pytest.mark.parametrize("connect", CONNECTS)
def test_events_of_the_receiving_side(pair, link, connect):
    """On iWARP ib_send_bw stops posting when it has used up its receiver's credits. With -e its
    sending side then waits for the completion of a Send although none is open, and the credit that
    comes meanwhile as an RDMA Write wakes no thread; so here only the receiving side uses events."""
    found = run(pair, link, "ib_send_bw", connect, "-s", "4096", "-n", "500",
                server_options=["-e"])
    assert [(row.size, row.iterations) for row in found] == [(4096, 500)]


@tool_and_connect(WITH_INLINE)
def test_inline(pair, link, tool, connect):
    skip_half(link, connect)
    found = run(pair, link, tool, connect, "-I", "64", "-s", "64", "-n", "1000")
    assert [(row.size, row.iterations) for row in found] == [(64, 1000)]


@tool_and_connect(TOOLS)
def test_duration(pair, link, tool, connect):
    skip_half(link, connect)
    found = run(pair, link, tool, connect, "-D", "2", "-f", "0", "-s", "8192")
    assert sizes(found) == [8192]
    assert found[0].iterations > 0, found


@pytest.mark.parametrize("operation", ["FETCH_AND_ADD", "CMP_AND_SWAP"])
@tool_and_connect(ATOMIC)
def test_atomic(pair, link, tool, connect, operation):
    skip_half(link, connect)
    found = run(pair, link, tool, connect, "-A", operation, "-n", "1000")
    assert [(row.size, row.iterations) for row in found] == [(8, 1000)]


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_send_lat"])
def test_shared_receive_queue(pair, link, tool):
    """With one queue pair only: on iWARP ib_send_bw counts credits by the buffer instead of the
    queue pair, so with several (-q) one that lags behind has more credits than messages sent, and
    its unsigned window stops it for ever."""
    found = run(pair, link, tool, "raw", "--use-srq", "-s", "1024", "-n", "1000")
    assert sizes(found) == [1024]


@pytest.mark.parametrize("kind", ["UD", "UC"])
def test_other_transports_fail_cleanly(start, loopback, port, kind):
    """Types of queue pairs that iWARP lacks are refused at creation, without a crash. Those of the
    roce persona are in test_roce_persona.py."""
    server = start(["ib_send_bw", "-d", loopback.server.device, "-p", port, "-F", "-c", kind])
    client = start(["ib_send_bw", "-d", loopback.client.device, "-p", port, "-F", "-c", kind,
                    "127.0.0.1"])
    status = client.wait()
    assert 0 < status < 128, client
    # The server's tool may wait for a client that never comes.
    assert server.child.poll() is None or 0 < server.wait() < 128, server
