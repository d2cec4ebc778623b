# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""rsockets over uwarp: rstream, riostream, rcopy, and unmodified TCP programs under librspreload."""

import glob
import hashlib
import os
import re
import shutil

import pytest

import places
from recording_relay import RecordingRelay

FILE_BYTES = 5_000_011
MPA_REQUEST_KEY = b"MPA ID Req Frame"
LIBRSPRELOAD = next(iter(glob.glob("/usr/lib/*/rsocket/librspreload.so")), None)


def stream_rows(output):
    """(name, bytes) of each line of the table of rstream and riostream."""
    return [(m[1], m[2]) for m in re.finditer(
        r"^(\S+)\s+(\S+)\s+\S+\s+\S+\s+\S+\s+[\d.]+s\s+(?:[\d.]+|inf)\s+[\d.]+\s*$", output, re.M)]


def check_stream(outputs, names=None):
    for output in outputs:
        found = stream_rows(output)
        assert found, output
        assert "verif" not in output.lower(), output
        if names:
            assert [row[0] for row in found] == names, output
    assert stream_rows(outputs[0]) == stream_rows(outputs[1])


VERIFIED = ["-p", "{port}", "-S", "65536", "-I", "100", "-C", "10", "-T", "v"]


# How the server and the client wait: b blocks, a polls, n does not block.
@pytest.mark.parametrize("server_mode, client_mode", ["bb", "ab", "nn"])
@pytest.mark.parametrize("tool", ["rstream", "riostream"])
def test_stream_verified(pair, link, tool, server_mode, client_mode):
    check_stream(pair(link, [tool, "-b", "{address}", *VERIFIED, "-T", server_mode],
                      [tool, "-s", "{address}", *VERIFIED, "-T", client_mode]), ["custom"])


def test_stream_verified_polling_riostream(pair, link):
    check_stream(pair(link, ["riostream", "-b", "{address}", *VERIFIED, "-T", "a"],
                      ["riostream", "-s", "{address}", *VERIFIED, "-T", "a"]), ["custom"])


def test_stream_verified_polling_rstream(start, link, port):
    """The polling client of rstream fails with status 16 (POLLHUP) when it sees the last data and
    the server's end of the connection at once, so only the server's and a lucky client's result
    can be asked for."""
    hung_up = 16
    common = [part.format(port=port) for part in VERIFIED] + ["-T", "a"]
    for _ in range(10):
        server = start(["rstream", "-b", link.server.address, *common], link.server)
        places.wait_listening(server, port)
        client = start(["rstream", "-s", link.server.address, *common], link.client)
        status = client.wait()
        check_stream([server.succeed(), server.output], ["custom"])
        assert status in (0, hung_up), client
        if status == 0:
            check_stream([client.output, server.output], ["custom"])
            return


def test_stream_standard_series(pair, loopback):
    """Without a size rstream runs its own list, first for latency and then for bandwidth."""
    outputs = pair(loopback, ["rstream", "-b", "{address}", "-p", "{port}"],
                   ["rstream", "-s", "{address}", "-p", "{port}"], seconds=4 * places.GUARD_SECONDS)
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
        client = start(["rcopy", source, f"{link.server.address}:{target}", "-p", port], link.client)
        output = client.succeed()
        assert re.search(rf"{FILE_BYTES} bytes in [\d.]+ seconds", output), output
        assert digest(target) == expected
    assert server.running(), server


needs_librspreload = pytest.mark.skipif(not LIBRSPRELOAD, reason="librspreload is not installed")


# librspreload of rdma-core 44 wraps accept() but not accept4(), so nc and Python cannot be used.


@needs_librspreload
def test_plain_sockets_under_librspreload(pair, link):
    """rstream with TCP sockets, verified, which the wrapper turns into rsockets."""
    common = ["-p", "{port}", "-S", "65536", "-I", "100", "-C", "10", "-T", "s", "-T", "v", "-T", "b"]
    outputs = pair(link, ["rstream", "-b", "{address}", *common],
                   ["rstream", "-s", "{address}", *common], env={"LD_PRELOAD": LIBRSPRELOAD})
    check_stream(outputs, ["custom"])


@needs_librspreload
@pytest.mark.skipif(not shutil.which("iperf"), reason="iperf is not installed")
def test_iperf2_under_librspreload(start, link, port):
    env = {"LD_PRELOAD": LIBRSPRELOAD}
    server = start(["iperf", "-s", "-p", port], link.server, env=env)
    places.wait_listening(server, port)
    output = start(["iperf", "-c", link.server.address, "-p", port, "-n", "64M", "-P", "2"],
                   link.client, env=env).succeed()
    assert re.search(r"^\[SUM\] .* 128 MBytes ", output, re.M), output


@needs_librspreload
def test_netcat_under_librspreload(start, link, port, tmp_path):
    """A plain TCP program, with librdmacm's socket wrapper and ours both preloaded."""
    source, target = tmp_path / "source", tmp_path / "target"
    expected = make_file(source)
    env = {"LD_PRELOAD": LIBRSPRELOAD}
    server, client = start_netcat(start, link, port, port, source, target, env)
    client.succeed()
    server.succeed()
    assert digest(target) == expected


def start_netcat(start, link, listen_port, connect_port, source, target, env):
    server = start(["sh", "-c", f"exec nc.traditional -l -s {link.server.address} -p {listen_port} "
                                f">{target} </dev/null"], link.server, env=env)
    places.wait_listening(server, listen_port)
    client = start(["sh", "-c", f"exec nc.traditional -q 0 {link.server.address} {connect_port} "
                                f"<{source}"], link.client, env=env)
    return server, client


@needs_librspreload
def test_netcat_under_librspreload_speaks_iwarp(start, loopback, port, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    expected = make_file(source)
    relay = RecordingRelay(("127.0.0.1", port))
    try:
        server, client = start_netcat(start, loopback, port, relay.port, source, target,
                                      {"LD_PRELOAD": LIBRSPRELOAD})
        client.succeed()
        server.succeed()
        assert digest(target) == expected
        assert [bytes(opening[:16]) for opening in relay.openings] == [MPA_REQUEST_KEY]
    finally:
        relay.close()


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
