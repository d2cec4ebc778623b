# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""UWARP_TRACE: valid JSON in which every request has a whole life."""

import collections
import json
import re
import subprocess

import pytest

import places


PHASES = {"send": ["queued", "sending", "in flight", "unpolled"],
          "receive": ["posted", "arriving", "unpolled"]}


def read_trace(path):
    events = json.loads(path.read_text())
    assert events[-1]["name"] == "process_name"
    return events[:-1]


def lives(events, category):
    """The events of each request by its id, in the order of their times."""
    found = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == category:
            found[event["id2"]["local"]].append(event)
    for each in found.values():
        # What was noted in one step has one time, in the order of the file.
        each.sort(key=lambda event: event["ts"])
    return found


def check_life(events, category):
    """Begins and ends match, and phases follow each other. True if it has ended."""
    stack, phases = [], []
    for event in events:
        if event["ph"] == "b":
            stack.append(event["name"])
            if len(stack) == 2:
                phases.append(event["name"])
        elif event["ph"] == "e":
            assert stack and stack[-1] == event["name"], events
            stack.pop()
    order = iter(PHASES[category])
    assert all(phase in order for phase in phases), phases
    return not stack


@pytest.mark.parametrize("persona", ["iwarp", "roce"])
def test_pingpong(pair, loopback, tmp_path, persona):
    """Each side's sends all end; of its receives those may stay that were posted ahead."""
    count, depth = 300, 500
    command = ["ibv_rc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", "-n", count]
    pair(loopback, command, [*command, "{address}"],
         env={"UWARP_TRACE": tmp_path / "trace-%p", "UWARP_PERSONA": persona})
    traces = sorted(tmp_path.glob("trace-*"))
    assert len(traces) == 2
    for path in traces:
        events = read_trace(path)
        sends = lives(events, "send")
        assert len(sends) == count
        assert all(check_life(life, "send") for life in sends.values())
        assert all(life[0]["args"]["bytes"] == 4096 for life in sends.values())
        receives = lives(events, "receive")
        ended = sum(check_life(life, "receive") for life in receives.values())
        assert ended == count and len(receives) <= count + depth
        names = collections.Counter(event["name"] for event in events if event["cat"] == "fpdu")
        assert names["Send sent"] == names["Send received"] == count, names
        assert (names["RDMA Read Request sent"] > 0) == (persona == "roce"), names


@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"])
def test_every_request_completes(pair, loopback, tmp_path, tool):
    count = 1000
    sizes = [] if tool == "ib_atomic_bw" else ["-s", "8192"]
    command = [tool, "-d", "{device}", "-p", "{port}", "-F", "-n", count, *sizes]
    pair(loopback, command, [*command, "{address}"],
         env={"UWARP_TRACE": tmp_path / "trace-%p"})
    ended = 0
    for path in tmp_path.glob("trace-*"):
        for life in lives(read_trace(path), "send").values():
            assert check_life(life, "send"), life
            ended += 1
    assert ended >= count
    # One of the files may have no request: that of the side that is written to.
    picture = subprocess.run([places.ROOT / "docs" / "trace_picture.py", *tmp_path.glob("trace-*")],
                             check=True, capture_output=True, text=True).stdout
    assert picture.startswith("<svg") and "sending" in picture


@pytest.mark.parametrize("shared_memory", [True, False])
def test_what_carries_a_stream(pair, loopback, tmp_path, shared_memory):
    """In the trace, and in the log, which says why a connection on this host stays on TCP."""
    command = ["ibv_rc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", "-n", 3000]
    outputs = pair(loopback, command, [*command, "{address}"],
                   env={"UWARP_TRACE": tmp_path / "trace-%p", "UWARP_LOG": "1",
                        "UWARP_SHM": "1" if shared_memory else "0"})
    for path in tmp_path.glob("trace-*"):
        marks = sorted((event for event in read_trace(path) if event["cat"] == "carrier"),
                       key=lambda event: event["ts"])
        assert [mark["name"] for mark in marks] == ["TCP", "shared memory"][:1 + shared_memory]
        assert all(re.fullmatch("0x[0-9a-f]+", mark["args"]["qp"]) for mark in marks)
    sentence = ("shared memory carries what comes from here on" if shared_memory else
                "to 127.0.0.1 by TCP, not by shared memory: UWARP_SHM=0")
    for output in outputs:
        assert sentence in output


def test_same_name_for_both(pair, loopback, tmp_path):
    """The second process finds the file taken and puts its pid behind the name."""
    command = ["ibv_rc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", "-n", 10]
    pair(loopback, command, [*command, "{address}"], env={"UWARP_TRACE": tmp_path / "trace"})
    assert len(list(tmp_path.iterdir())) == 2
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        read_trace(path)


def test_place_that_cannot_be(start, tmp_path):
    process = start(["ibv_devinfo"], env={"UWARP_TRACE": tmp_path / "none" / "trace",
                                          "UWARP_PCAP": tmp_path})
    output = process.succeed()
    for name in ("UWARP_TRACE", "UWARP_PCAP"):
        assert len([line for line in output.splitlines() if name in line]) == 1, output
    assert "uwarp_lo" in output
