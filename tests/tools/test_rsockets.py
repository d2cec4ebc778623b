# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""rsockets over uwarp: rstream, riostream, rcopy, and unmodified TCP programs under librspreload."""

import glob
import hashlib
import os
import re

import pytest

import places
from recording_relay import RecordingRelay

FILE_BYTES = 5_000_011
MPA_REQUEST_KEY = b"MPA ID Req Frame"
LIBRSPRELOAD = next(iter(glob.glob("/usr/lib/*/rsocket/librspreload.so")), None)


def stream_rows(output):
    """(name, bytes, Gb/sec) of each line of the table of rstream and riostream."""
    return [(m[1], m[2], float(m[3])) for m in re.finditer(
        r"^(\S+)\s+(\S+)\s+\S+\s+\S+\s+\S+\s+[\d.]+s\s+([\d.]+|inf)\s+[\d.]+\s*$", output, re.M)]


def check_stream(outputs, names=None):
    for output in outputs:
        found = stream_rows(output)
        assert found, output
        assert all(rate > 0 for _, _, rate in found), output
        assert "verif" not in output.lower(), output
        if names:
            assert [row[0] for row in found] == names, output
    assert [r[:2] for r in stream_rows(outputs[0])] == [r[:2] for r in stream_rows(outputs[1])]


@pytest.mark.parametrize("mode", [["-T", "b"], ["-T", "a"], ["-T", "n"]],
                         ids=["blocking", "poll", "nonblocking"])
@pytest.mark.parametrize("tool", ["rstream", "riostream"])
def test_stream_verified(pair, link, tool, mode):
    common = ["-p", "{port}", "-S", "65536", "-I", "100", "-C", "10", "-T", "v", *mode]
    check_stream(pair(link, [tool, "-b", "{address}", *common], [tool, "-s", "{address}", *common]),
                 ["custom"])


@pytest.mark.parametrize("tool", ["rstream", "riostream"])
def test_stream_standard_series(pair, link, tool):
    """Without a size both tools run their own list, first for latency and then for bandwidth."""
    outputs = pair(link, [tool, "-b", "{address}", "-p", "{port}"],
                   [tool, "-s", "{address}", "-p", "{port}"], seconds=180)
    check_stream(outputs)
    names = [row[0] for row in stream_rows(outputs[1])]
    assert any(name.endswith("_lat") for name in names) and any(
        name.endswith("_bw") for name in names), names


def make_file(path):
    content = os.urandom(4093) * (FILE_BYTES // 4093 + 1)
    path.write_bytes(content[:FILE_BYTES])
    return hashlib.sha256(content[:FILE_BYTES]).hexdigest()


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "no file"


def test_rcopy(start, link, port, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    expected = make_file(source)
    server = start(["rcopy", "-p", port], link.server)
    places.wait_listening(server, port)
    for _ in range(2):
        target.unlink(missing_ok=True)
        client = start(["rcopy", "-p", port, source, f"{link.server.address}:{target}"], link.client)
        output = client.succeed()
        assert re.search(rf"{FILE_BYTES} bytes in [\d.]+ seconds", output), output
        assert digest(target) == expected
    assert server.running(), server


needs_librspreload = pytest.mark.skipif(not LIBRSPRELOAD, reason="librspreload is not installed")


@needs_librspreload
def test_netcat_under_librspreload(start, link, port, tmp_path):
    """A plain TCP program, with librdmacm's socket wrapper and ours both preloaded."""
    source, target = tmp_path / "source", tmp_path / "target"
    expected = make_file(source)
    env = {"LD_PRELOAD": LIBRSPRELOAD}
    server = start(["sh", "-c", f"exec nc -l {link.server.address} {port} >{target} </dev/null"],
                   link.server, env=env)
    places.wait_listening(server, port)
    client = start(["sh", "-c", f"exec nc -N {link.server.address} {port} <{source}"], link.client,
                   env=env)
    client.succeed()
    server.succeed()
    assert digest(target) == expected


@needs_librspreload
def test_iperf_under_librspreload(start, link, port):
    env = {"LD_PRELOAD": LIBRSPRELOAD}
    server = start(["iperf3", "-s", "-1", "-B", link.server.address, "-p", port], link.server, env=env)
    places.wait_listening(server, port)
    client = start(["iperf3", "-c", link.server.address, "-p", port, "-t", "2", "-n", "50M"],
                   link.client, env=env)
    output = client.succeed()
    assert re.search(r"50\.0 MBytes .* receiver", output), output
    server.succeed()


def test_rsockets_really_speak_iwarp(start, loopback, port):
    server = start(["rstream", "-b", "127.0.0.1", "-p", port, "-S", 4096, "-I", 10, "-C", 10])
    places.wait_listening(server, port)
    relay = RecordingRelay(("127.0.0.1", port))
    try:
        start(["rstream", "-s", "127.0.0.1", "-p", relay.port, "-S", 4096, "-I", 10,
               "-C", 10]).succeed()
        server.succeed()
        assert [bytes(opening[:16]) for opening in relay.openings] == [MPA_REQUEST_KEY]
    finally:
        relay.close()
