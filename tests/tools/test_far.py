# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Stock tools whose other end is far away, over a wire that loses frames (bench/far_wire): the time
limits of queue pairs are for networks of microseconds, and must not end what is only slow."""

import re

import pytest

import places

ROUND_TRIP_MS = 150  # longer than the 67 ms after which ibv_rc_pingpong asks for a repetition
LOSS_PERCENT = 1


@pytest.fixture(scope="module")
def far(namespaces):
    """Asks for `namespaces` so that a machine without them skips."""
    made = places.FarNamespaces("--round-trip-us", ROUND_TRIP_MS * 1000, "--mbit", 1000,
                                "--loss-percent", LOSS_PERCENT)
    yield made.link()
    made.close()


@pytest.mark.parametrize("persona", ["iwarp", "roce"])
def test_ping_pong_by_gid(pair, far, persona):
    """Connected by queue pair numbers, which the program exchanges over a connection of its own."""
    common = ["ibv_rc_pingpong", "-d", "uwarp_wire0", "-g", "0", "-p", "{port}", "-n", 5]
    server, client = pair(far, common, common + ["{address}"], env={"UWARP_PERSONA": persona})
    for output in (server, client):
        assert re.search(r"^5 iters in ", output, re.M), output


@pytest.mark.parametrize("persona", ["iwarp", "roce"])
def test_rping(pair, far, persona):
    common = ["-a", "{address}", "-p", "{port}", "-C", 3, "-V", "-S", 4096]
    pair(far, ["rping", "-s", *common], ["rping", "-c", *common], env={"UWARP_PERSONA": persona})


@pytest.mark.parametrize("persona,tool", [("iwarp", "ib_write_bw"), ("iwarp", "ib_read_bw"),
                                          ("roce", "ib_write_bw"), ("roce", "ib_send_bw")])
def test_megabytes(pair, far, persona, tool):
    common = [tool, "-d", "uwarp_wire0", "-F", "-p", "{port}", "-s", 1 << 20, "-n", 16]
    _, client = pair(far, common, common + ["{address}"], env={"UWARP_PERSONA": persona})
    assert re.search(r"^ 1048576 +16 ", client, re.M), client
