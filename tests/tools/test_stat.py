# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""uwarp-stat while programs run, and the counters that programs read from sysfs themselves."""

import json
import os
import pty
import re
import select
import subprocess

import pytest

import places

STAT = places.BUILD / "bin" / "uwarp-stat"


def stat(*arguments):
    done = subprocess.run([str(STAT), *map(str, arguments)], capture_output=True, text=True,
                          check=True, timeout=places.GUARD_SECONDS)
    assert not done.stderr, done.stderr
    return done.stdout


def processes(*arguments):
    """By pid."""
    return {each["pid"]: each for each in json.loads(stat("--json", *arguments))["processes"]}


def only(items):
    assert len(items) == 1, items
    return items[0]


@pytest.fixture
def environment():
    """Settings of both sides."""
    return {}


@pytest.fixture
def pingpong(start, loopback, port, environment):
    """A server and a client that go on until they are ended."""
    command = ["ibv_rc_pingpong", "-d", "uwarp_lo", "-g", "0", "-p", port, "-n", "100000000"]
    server = start(command, loopback.server, env=environment)
    places.wait_listening(server, port)
    client = start([*command, loopback.server.address], loopback.client, env=environment)

    def running():
        seen = processes()
        both = [seen.get(each.pid) for each in (server, client)]
        return all(one and one["queue_pairs"] and
                   one["queue_pairs"][0]["shared_memory"] == (not environment) and
                   one["queue_pairs"][0]["received"]["messages"]["send"] > 100 for one in both)

    places.wait_until(lambda: running() or not client.running(), lambda: f"{server}\n{client}")
    assert client.running(), client
    return server, client


def test_pingpong_is_seen(pingpong):
    seen = processes()
    server, client = (seen[each.pid] for each in pingpong)
    for one, other in ((server, client), (client, server)):
        assert one["program"] == "ibv_rc_pingpong"
        assert one["uid"] == os.geteuid()
        assert one["persona"] == "iwarp"
        assert (one["homeless"], one["unsettled"]) == (0, 0)
        device = only(one["devices"])
        assert (device["name"], device["link"]) == ("uwarp_lo", "up")
        qp = only(one["queue_pairs"])
        assert (qp["device"], qp["state"], qp["connected"]) == ("uwarp_lo", "RTS", True)
        assert not qp["rdma_cm"]
        assert qp["shared_memory"]
        assert qp["peer"] == only(other["queue_pairs"])["local"], (qp, other)
        assert qp["connections"] == 1
        assert qp["sent"]["messages"]["send"] > 100
        assert qp["sent"]["octets"] > 100 * 4096
        assert qp["sent"]["fpdus"] > 100  # counted batch by batch, after the messages
        assert 0 <= qp["outstanding"] <= qp["send_depth"]
        queue = only(one["completion_queues"])
        assert queue["index"] == qp["send_queue"] == qp["receive_queue"]
        assert queue["pushed"] > 200 and queue["polled"] > 200
        region = only(one["regions"])
        assert (region["octets"], region["device"]) == (4096, "uwarp_lo")


def test_rates_and_peers(pingpong):
    server, _ = pingpong
    first, second = stat("--json", "--pid", server.pid, "--count", "2", "--interval",
                         "0.3").splitlines()
    assert "rates" not in only(json.loads(first)["processes"])
    second = json.loads(second)
    process = only(second["processes"])
    assert 0.3 <= second["interval"]
    assert process["rates"]["sent_octets"] > 0
    assert only(process["queue_pairs"])["rates"]["received_messages"] > 0
    peer = only(second["peers"])
    assert (peer["address"], peer["queue_pairs"]) == ("127.0.0.1", 1)


def test_tables(pingpong):
    server, client = pingpong
    output = stat("--once")
    for heading in ("PERSONA", "STATE", "CAPACITY", "ADDRESS", "CONNECTIONS", "CARRIER", "PEER"):
        assert re.search(rf"\b{heading}\b", output), output
    for each in (server, client):
        assert re.search(rf"^ *{each.pid} +ibv_rc_pingpong +0x[0-9a-f]+ +uwarp_lo +RTS ", output,
                         re.M), output
        assert re.search(rf"^ *{each.pid} .* memory +127\.0\.0\.1:\d+$", output, re.M), output
    view = stat("--once", "--view", "peers")
    assert "127.0.0.1" in view and "STATE" not in view


@pytest.mark.parametrize("environment", [{"UWARP_SHM": "0"}])
def test_a_connection_that_stays_on_tcp(pingpong):
    output = stat("--once", "--view", "qps")
    for each in pingpong:
        assert re.search(rf"^ *{each.pid} .* tcp +127\.0\.0\.1:\d+$", output, re.M), output
        assert not only(processes()[each.pid]["queue_pairs"])["shared_memory"]


def test_live_table(pingpong):
    """On a terminal, until q."""
    server, _ = pingpong
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen([str(STAT), "--interval", "0.1"], stdin=follower, stdout=follower,
                          env=environment) as child:
        os.close(follower)
        shown = b""

        def show():
            nonlocal shown
            while select.select([leader], [], [], 0)[0]:
                try:
                    shown += os.read(leader, 65536)
                except OSError:
                    return
        try:
            places.wait_until(lambda: show() or f"{server.pid}".encode() in shown, lambda: shown)
            os.write(leader, b"n")
            places.wait_until(lambda: show() or b"PROCESSES" in shown, lambda: shown)
            assert b"q quit" in shown and b"[p queue pairs]" in shown and b"[n peers]" in shown
            os.write(leader, b"q")
            places.wait_until(lambda: show() or child.poll() is not None, lambda: shown)
        finally:
            child.kill()
    show()
    os.close(leader)
    assert child.returncode == 0
    assert shown.endswith(b"\x1b[?1049l"), shown[-200:]


def test_page_ends_with_the_process(pingpong):
    for each in pingpong:
        each.send(9)
        each.wait()
    assert not {each.pid for each in pingpong} & processes().keys()


def test_switched_off(start, loopback, port):
    command = ["rping", "-s", "-a", "127.0.0.1", "-p", port]
    shown = start(command, loopback.server)
    places.wait_listening(shown, port)
    assert shown.pid in processes()
    shown.reap()
    hidden = start(command, loopback.server, env={"UWARP_STAT": "0"})
    places.wait_listening(hidden, port)
    assert hidden.pid not in processes()


def test_forked_child_has_its_own(start):
    """Parent and child both open the device; neither shows what is the other's."""
    program = ("import os, time\n"
               "from pyverbs.device import Context\n"
               "context = Context(name='uwarp_lo')\n"
               "child = os.fork()\n"
               "if child == 0:\n"
               "    again = Context(name='uwarp_lo')\n"
               "print('ready', flush=True)\n"
               "time.sleep(600)\n")
    parent = start(["/usr/bin/python3", "-c", program])
    places.wait_until(lambda: parent.output.count("ready") == 2 or not parent.running(),
                      lambda: parent)
    if "No module named" in parent.output:
        pytest.skip("pyverbs is not installed")
    child = int(subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent.pid)], text=True,
                               capture_output=True, check=True).stdout)
    seen = processes()
    assert seen[child]["own_pid"] == child
    assert seen[parent.pid]["own_pid"] == parent.pid


def test_usage():
    wrong = subprocess.run([str(STAT), "--view", "nothing"], capture_output=True, check=False)
    assert wrong.returncode == 2
    assert "uwarp-stat" in stat("--help")
    assert json.loads(stat("--json", "--pid", "1"))["processes"] == []
    assert "no process uses uwarp here" in stat("--once", "--pid", "1")


def counter_changes(output):
    return {name: int(value) for name, value in re.findall(r"^\t([\w/]+)=(\d+)$", output, re.M)}


def test_programs_read_counters(pair, loopback):
    """perftest keeps the files open and reads them before and after its run."""
    size, count = 65536, 500
    names = ["counters/port_xmit_data", "counters/port_xmit_packets", "counters/port_rcv_data",
             "hw_counters/OutRdmaWrites", "hw_counters/connections", "hw_counters/crc_errors"]
    command = ["ib_write_bw", "-d", "{device}", "-p", "{port}", "-F", "-s", size, "-n", count]
    _, client = pair(loopback, command,
                     [*command, "-W", ",".join(names), "{address}"])
    changes = counter_changes(client)
    assert set(names) <= changes.keys(), client
    assert size * count / 4 <= changes["counters/port_xmit_data"] < size * count / 2, client
    assert count <= changes["hw_counters/OutRdmaWrites"] <= count + 1000, client
    assert changes["counters/port_xmit_packets"] >= count
    assert changes["hw_counters/crc_errors"] == 0


def test_counters_without_traffic(start):
    folder = "/sys/class/infiniband/uwarp_lo/ports/1/hw_counters"
    listing = start(["ls", folder]).succeed().split()
    assert {"OutRdmaWrites", "InRdmaReads", "connections", "rnr_timeouts"} <= set(listing)
    values = start(["cat", *(f"{folder}/{name}" for name in listing)]).succeed().split()
    assert values == ["0"] * len(listing)
