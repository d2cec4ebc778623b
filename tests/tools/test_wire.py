# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Programs over a wire that UWARP_FAULT orders: all of it arrives, and nothing too early. That nothing
is late is for bench/run --wire to say."""

import re

import pytest

import places

LATENCY_US = 2000
ROUND_TRIPS = 50
WIRE = {"UWARP_FAULT": f"wire latency={LATENCY_US}us"}
ROCE = {"UWARP_PERSONA": "roce"}
BY_TCP = {"UWARP_SHM": "0"}
# Which of the two has the setting.
SIDES = {"both": (WIRE, WIRE), "server": (WIRE, {}), "client": ({}, WIRE)}


def run(start, link, port, command, sides, common):
    """What the client prints."""
    def words(more):
        return [command[0], "-d", link.server.device, "-p", port, *command[1:], *more]
    server = start(words([]), link.server, env=common | sides[0])
    places.wait_listening(server, port)
    client = start(words([link.server.address]), link.client, env=common | sides[1])
    output = client.succeed()
    server.succeed()
    return output


def microseconds(output):
    return float(re.search(r"([\d.]+) usec/iter", output)[1])


@pytest.mark.parametrize("carrier", [{}, BY_TCP], ids=["memory", "tcp"])
@pytest.mark.parametrize("persona", [{}, ROCE], ids=["iwarp", "roce"])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("events", [[], ["-e"]], ids=["polling", "sleeping"])
def test_a_round_trip_takes_twice_the_latency(start, loopback, port, carrier, persona, sides, events):
    output = run(start, loopback, port, ["ibv_rc_pingpong", "-g", 0, "-n", ROUND_TRIPS, "-c", *events],
                 SIDES[sides], carrier | persona)
    assert f"{ROUND_TRIPS} iters" in output
    # The last message may come early: its sender has gone.
    assert microseconds(output) >= 2 * LATENCY_US * (ROUND_TRIPS - 1) / ROUND_TRIPS


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("tool", ["ibv_uc_pingpong", "ibv_ud_pingpong"])
def test_unreliable_round_trips_too(start, loopback, port, tool, sides):
    output = run(start, loopback, port, [tool, "-g", 0, "-n", ROUND_TRIPS, "-r", 2 * ROUND_TRIPS],
                 SIDES[sides], ROCE)
    assert microseconds(output) >= 2 * LATENCY_US * (ROUND_TRIPS - 1) / ROUND_TRIPS


@pytest.mark.parametrize("carrier", [{}, BY_TCP], ids=["memory", "tcp"])
@pytest.mark.parametrize("sides", SIDES)
def test_the_answer_to_a_read_is_delayed_as_well(start, loopback, port, carrier, sides):
    output = run(start, loopback, port, ["ib_read_lat", "-F", "-n", ROUND_TRIPS, "-s", 8],
                 SIDES[sides], carrier)
    line = re.search(r"^\s*8\s+\d+\s+([\d.]+)", output, re.M)
    assert float(line[1]) >= 2 * LATENCY_US * 0.99  # perftest gauges the clock


@pytest.mark.parametrize("carrier", [{}, BY_TCP], ids=["memory", "tcp"])
@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_send_bw", "ib_read_bw"])
@pytest.mark.parametrize("persona", [{}, ROCE], ids=["iwarp", "roce"])
def test_what_the_short_queue_does_not_take_waits(start, loopback, port, carrier, tool, persona):
    wire = {"UWARP_FAULT": "wire latency=100us jitter=90us rate=1G queue=16K"}
    output = run(start, loopback, port, [tool, "-F", "-n", 200, "-s", 65536], (wire, wire),
                 carrier | persona)
    assert re.search(r"^\s*65536\s+200\s", output, re.M), output


def test_all_bytes_arrive_in_their_order(start, loopback, port):
    wire = {"UWARP_FAULT": "wire latency=50us jitter=50us rate=2G queue=8K"}
    output = run(start, loopback, port, ["ibv_rc_pingpong", "-g", 0, "-n", 300, "-s", 30000, "-c"],
                 (wire, {}), {})
    assert "300 iters" in output and "invalid" not in output


def test_a_wire_to_another_peer_changes_nothing(start, loopback, port):
    wire = {"UWARP_FAULT": "wire latency=1s peer=192.0.2.7", "UWARP_LOG": "1"}
    output = run(start, loopback, port, ["ibv_rc_pingpong", "-g", 0, "-n", ROUND_TRIPS], (wire, wire),
                 {})
    assert "over a wire" not in output


def test_the_log_says_that_there_is_a_wire(start, loopback, port):
    wire = {"UWARP_FAULT": "wire latency=50us rate=1G peer=127.0.0.1", "UWARP_LOG": "1"}
    output = run(start, loopback, port, ["ibv_rc_pingpong", "-g", 0, "-n", ROUND_TRIPS], (wire, wire),
                 {})
    assert re.search(r"over a wire: latency 50 us, jitter 0 us, rate 1000000000 bit/s, "
                     r"queue 65536 bytes", output), output


def test_a_bad_order_is_refused(start):
    refused = start(["ibv_devices"], env={"UWARP_FAULT": "wire latency=5us jitter=6us"})
    assert refused.wait() == 125
    assert 'UWARP_FAULT: wire: "jitter" is more than "latency"' in refused.output
