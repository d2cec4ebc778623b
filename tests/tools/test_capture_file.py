# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""UWARP_PCAP: captures made without privileges, as tshark's iWARP dissectors read them."""

import collections
import re
import shutil

import pytest

import places
from capture import tshark
from test_operations import OPERATIONS, check_crcs, dissect, run_operation, values

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")

WRITE, READ_REQUEST, READ_RESPONSE, SEND = 0, 1, 2, 3


def opcodes(path, port):
    """How many of each there are; nothing is malformed, and each start-up frame is there once."""
    packets = dissect(path, port, "iwarp_rdma.opcode", "iwarp_mpa.key.req", "iwarp_mpa.key.rep",
                      "_ws.malformed", "tcp.analysis.lost_segment", "tcp.analysis.retransmission",
                      "tcp.analysis.ack_lost_segment", "ip.checksum.status")
    assert packets
    text = str(packets)[:4000]
    for field in ("_ws.malformed", "tcp.analysis.lost_segment", "tcp.analysis.retransmission",
                  "tcp.analysis.ack_lost_segment"):
        assert not values(packets, field), text
    assert not any("alformed" in protocols for protocols in values(packets, "frame.protocols")), text
    assert len(values(packets, "iwarp_mpa.key.req")) == 1, text
    assert len(values(packets, "iwarp_mpa.key.rep")) == 1, text
    return collections.Counter(int(value, 0) for value in values(packets, "iwarp_rdma.opcode"))


def captures(folder):
    """The file of each process that has one with packets."""
    return [path for path in folder.iterdir() if path.stat().st_size > 24]


def port_of(path):
    """The port of the rendezvous connection, which the file alone knows: both sides may have
    dialled, and then one of the two has no FPDUs."""
    ports = tshark(path, "-T", "fields", "-e", "tcp.dstport", "-Y", "iwarp_mpa.fpdu", seconds=120)
    return int(ports.split()[0])


@pytest.mark.parametrize("address", ["{address}", "{address6}"], ids=["ipv4", "ipv6"])
def test_rping(pair, loopback, port, tmp_path, address):
    count = 5
    common = ["-a", address, "-p", "{port}", "-C", count, "-V", "-S", 1000]
    pair(loopback, ["rping", "-s", *common], ["rping", "-c", *common],
         env={"UWARP_PCAP": tmp_path / "capture-%p"})
    found = captures(tmp_path)
    assert len(found) == 2
    for path in found:
        seen = opcodes(path, port)
        # Two Sends each way for every ping; the server reads and writes once.
        assert seen[SEND] == 4 * count, seen
        assert seen[READ_REQUEST] == seen[READ_RESPONSE] == count, seen
        assert seen[WRITE] >= count, seen  # also those that start the stream


def test_pingpong(pair, loopback, tmp_path):
    count, size = 50, 100_000
    command = ["ibv_rc_pingpong", "-d", "{device}", "-g", "0", "-p", "{port}", "-n", count,
               "-s", size]
    pair(loopback, command, [*command, "{address}"],
         env={"UWARP_PCAP": tmp_path / "capture-%p", "UWARP_CRC": "1"})
    found = captures(tmp_path)
    assert len(found) == 2
    for path in found:
        port = port_of(path)
        seen = opcodes(path, port)
        # Two FPDUs of at most 64 KiB for each message.
        assert seen[SEND] == 2 * 2 * count and seen.keys() <= {SEND, WRITE}, seen
        check_crcs(path, port)


@pytest.mark.parametrize("operation", ["send-inv", "write", "read", "fetch-add"])
def test_operation(start, loopback, port, tmp_path, operation):
    run_operation(start, loopback, port, operation,
                  {"UWARP_CRC": "1", "UWARP_PCAP": tmp_path / "capture-%p"})
    found = captures(tmp_path)
    assert len(found) == 2
    seen = set()
    for path in found:
        seen |= opcodes(path, port).keys()
        check_crcs(path, port)
    # A side that has disconnected drops what it reads, so a Terminate may be in one file only.
    assert OPERATIONS[operation][1] <= seen, seen


def test_file_is_private_and_whole(pair, loopback, port, tmp_path):
    command = ["rping", "-a", "{address}", "-p", "{port}", "-C", 3]
    pair(loopback, [*command, "-s"], [*command, "-c"], env={"UWARP_PCAP": tmp_path / "capture"})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2 and names[0] == "capture" and re.fullmatch(r"capture\.\d+", names[1])
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        tcp = tshark(path, "-T", "fields", "-e", "tcp.flags.str", "-Y", f"tcp.port=={port}").split()
        assert [flags.strip("·") for flags in tcp[:3]] == ["S", "A··S", "A"]
        assert sum("F" in flags or "R" in flags for flags in tcp) >= 1
