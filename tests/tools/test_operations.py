# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Each RDMA operation once, with its bytes checked at both ends, and as tshark's iWARP dissectors
read it from a capture: nothing malformed, every CRC good, the opcodes of the operation."""

import json
import re

import pytest

import places
from capture import Capture, needs_capture, tshark

# Protocols above RDMA, which no test here speaks.
NO_ULPS = ("--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct")
PEER = places.BUILD / "tests" / "verbs_peer"
START_WORD = 40
OPERAND = 100_000

CLIENT_PATTERN = f"memory changed from 8 to {OPERAND} to the client's pattern"
UNTOUCHED = "memory untouched"

# operation: lines that the server must print, opcodes that must be on the wire.
OPERATIONS = {
    "send": ([UNTOUCHED, "received 5000 bytes of the client's pattern"], {3}),
    "send-se": ([UNTOUCHED, "received 5000 bytes of the client's pattern"], {5}),
    # A plain region belongs to every queue pair of its domain, so a peer cannot invalidate it.
    "send-inv": ([UNTOUCHED, "async local access violation work queue error"], {4, 7}),
    "write": ([CLIENT_PATTERN], {0}),
    "write-imm": ([CLIENT_PATTERN, "immediate 4711"], {0, 8}),
    "read": ([UNTOUCHED, f"first word {START_WORD}"], {1, 2}),
    "fetch-add": ([UNTOUCHED, f"first word {START_WORD + 2}"], {10, 11}),
    "cmp-swap": ([UNTOUCHED, "first word 77"], {10, 11}),
    "bad-rkey": ([UNTOUCHED, f"first word {START_WORD}"], {0, 7}),
}

# tshark 4.0 takes these for something else or calls them malformed.
UNKNOWN_TO_TSHARK = {8, 9}


def run_operation(start, link, port, operation, env=None):
    server = start([PEER, "serve", link.server.address, port], link.server, env=env)
    places.wait_listening(server, port)
    client = start([PEER, operation, link.server.address, port], link.client, env=env)
    client_output = client.succeed()
    server_output = server.succeed()
    for line in OPERATIONS[operation][0]:
        assert re.search(rf"^{re.escape(line)}$", server_output, re.M), (line, server_output)
    for output in (client_output, server_output):
        assert output.count("RDMA_CM_EVENT_DISCONNECTED") == 1, output
        assert output.rstrip().endswith("done"), output
    return client_output, server_output


@pytest.mark.parametrize("crc", ["0", "1"], ids=["plain", "crc"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation(start, link, port, operation, crc):
    client, server = run_operation(start, link, port, operation, {"UWARP_CRC": crc})
    if operation == "bad-rkey":
        assert re.findall(r"^async (.*)", server, re.M) == ["local access violation work queue error"]
        assert re.search(r"^wc id=1 status=(success|remote access error)", client, re.M), client


# Proves: 5040-8.1.2-3 5042-m
def test_key_of_another_process(start, link, port, other_port):
    """What one process grants is nothing to another, which it does not disturb either."""
    ports = [port, other_port]
    servers = [start([PEER, "serve", link.server.address, number], link.server) for number in ports]
    for server, number in zip(servers, ports):
        places.wait_listening(server, number)
    start([PEER, "lent-rkey", link.server.address, ports[0], link.server.address, ports[1]],
          link.client).succeed()
    outputs = [server.succeed() for server in servers]
    for output in outputs:
        assert UNTOUCHED in output and f"first word {START_WORD}" in output, output
    refused = [re.findall("^async (.*)", output, re.M) for output in outputs]
    assert refused == [[], ["local access violation work queue error"]], outputs


def dissect(path, port, *fields):
    """One dictionary of lists per packet that belongs to the connection."""
    arguments = ["-T", "json", *NO_ULPS, "-Y", f"tcp.port=={port}"]
    for field in ("frame.number", "frame.protocols", *fields):
        arguments += ["-e", field]
    text = tshark(path, *arguments, seconds=120)
    return [packet["_source"]["layers"] for packet in json.loads(text or "[]")]


def values(packets, field):
    return [value for packet in packets for value in packet.get(field, [])]


@needs_capture
@pytest.mark.parametrize("link", ["veth"], indirect=True)  # the bytes are those of loopback
@pytest.mark.parametrize("operation", [name for name, (_, opcodes) in OPERATIONS.items()
                                       if not opcodes & UNKNOWN_TO_TSHARK])
def test_capture(start, link, port, tmp_path, operation):
    capture = Capture(start, link, port, tmp_path / "capture.pcapng")
    run_operation(start, link, port, operation, {"UWARP_CRC": "1"})
    capture.end()
    packets = dissect(capture.path, port, "iwarp_rdma.opcode", "iwarp_mpa.key.req",
                      "iwarp_mpa.key.rep", "_ws.malformed")
    text = json.dumps(packets)[:4000]
    assert not values(packets, "_ws.malformed"), text
    assert not any("alformed" in protocols for protocols in values(packets, "frame.protocols")), text
    assert len(values(packets, "iwarp_mpa.key.req")) == 1, text
    assert len(values(packets, "iwarp_mpa.key.rep")) == 1, text
    seen = {int(value, 0) for value in values(packets, "iwarp_rdma.opcode")}
    assert OPERATIONS[operation][1] <= seen, (seen, text)
    check_crcs(capture.path, port)


def check_crcs(path, port):
    """The CRC verdicts stand in the packet tree only."""
    tree = tshark(path, "-V", *NO_ULPS, "-Y", f"iwarp_mpa.fpdu && tcp.port=={port}", seconds=120)
    verdicts = re.findall(r"CRC check: [^\n]*", tree)
    assert verdicts and all("(Good CRC32)" in verdict for verdict in verdicts), verdicts
