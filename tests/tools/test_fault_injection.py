# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The examples of docs/fault-injection.md, run as they stand there.

A block with `server$` and `client$` is an example. What follows a command is what it prints among other
things: lines in any order, with `...` for anything. 192.0.2.7 stands for the address, and each
program gets a port of the test's own and the device.
"""

import re
import shlex

import pytest

import places

PAGE = places.ROOT / "docs" / "fault-injection.md"
DEVICE_TOOLS = ("ibv_rc_pingpong", "ib_write_bw", "ib_send_bw")


def examples():
    blocks = re.findall(r"^```\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return [block for block in blocks if re.search(r"^(server|client)\$ ", block, re.M)]


def sides(block):
    """{"server": (environment, command, expected lines), ...}"""
    found = {}
    for side, line, output in re.findall(r"^(server|client)\$ (.*)\n((?:(?!server\$|client\$).*\n)*)",
                                         block, re.M):
        words = shlex.split(line)
        split = words.index("uwarp-run")
        environment = dict(word.split("=", 1) for word in words[:split])
        found[side] = (environment, words[split + 1:], output.splitlines())
    return found


def command_for(words, place, port, address):
    words = [address if word == "192.0.2.7" else word for word in words]
    more = []
    if words[0] in DEVICE_TOOLS:
        more = ["-d", place.device, "-p", port]
    elif words[0] == "rping":
        more = ["-p", port]
    return [words[0], *more, *words[1:]]


def check_output(expected, output):
    got = [" ".join(line.split()) for line in output.splitlines()]
    for line in expected:
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
        # Around the dots there may be a space or none.
        pattern = pattern.replace(r"\ .*", ".*").replace(r".*\ ", ".*")
        assert any(re.search(pattern, one) for one in got), f"not printed: {line}\n{output}"


def run(block, start, link, port):
    parts = sides(block)
    server = None
    if "server" in parts:
        environment, words, _ = parts["server"]
        server = start(command_for(words, link.server, port, link.server.address), link.server,
                       env=environment)
        places.wait_listening(server, port)
    environment, words, expected = parts["client"]
    client = start(command_for(words, link.client, port, link.server.address), link.client,
                   env=environment)
    client.wait()
    check_output(expected, client.output)
    if server is not None:
        # rping's server goes on listening when no connection came.
        if "reject" not in parts["server"][0].get("UWARP_FAULT", ""):
            server.wait()
        check_output(parts["server"][2], server.output)


@pytest.mark.parametrize("block", examples(), ids=lambda block: re.search(
    r'UWARP_FAULT="([^"]*)"', block)[1].replace(" ", "_"))
def test_example(start, loopback, port, block):
    run(block, start, loopback, port)


FATAL = "async local work queue catastrophic error"
FLUSHED = "Work Request Flushed Error"
# What the client's Write completes with, and how often an event says that its queue pair failed.
SEEN = {
    ("iwarp", "wc-error status=REM_ACCESS_ERR"): ("remote access error", 1),
    ("roce", "wc-error status=REM_ACCESS_ERR"): ("remote access error", 1),
    ("iwarp", "wc-error status=LOC_PROT_ERR op=write"): ("local protection error", 0),
    ("roce", "wc-error status=RETRY_EXC_ERR"): ("transport retry counter exceeded", 0),
    ("iwarp", "reset"): ("transport retry counter exceeded", 1),
    ("roce", "reset"): ("transport retry counter exceeded", 0),
    ("iwarp", "terminate code=1/1/00"): (FLUSHED, 1),
}


@pytest.mark.parametrize("persona,fault", SEEN)
def test_what_applications_see(start, loopback, port, persona, fault):
    """Status, flushes, events and the end of the connection, on both sides."""
    status, events = SEEN[persona, fault]
    program = places.BUILD / "tests" / "verbs_peer"
    environment = {"UWARP_PERSONA": persona}
    server = start([program, "serve", loopback.server.address, port], env=environment)
    places.wait_listening(server, port)
    client = start([program, "bad-rkey", loopback.server.address, port],
                   env=environment | {"UWARP_FAULT": fault})
    output = client.succeed()
    assert re.findall(r"^wc id=1 status=(.*?) opcode", output, re.M) == [status], output
    assert output.count(FATAL) == events, output
    for each in (output, server.succeed()):
        assert len(re.findall(rf"^wc id=1\d\d\d status={FLUSHED}", each, re.M)) == 8, each
        assert each.count("RDMA_CM_EVENT_DISCONNECTED") == 1, each
    assert server.output.count(FATAL) == 1, server


def test_every_kind_has_an_example():
    kinds = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text().split("### What")[1], re.M)
    used = " ".join(re.findall(r'UWARP_FAULT="([^"]*)"', " ".join(examples())))
    assert len(kinds) == 19
    for kind in kinds:
        assert re.search(rf"(^|[ ;]){kind}([ ;]|$)", used), f"no example of {kind}"


def test_no_device_with_a_bad_setting(start):
    """Without uwarp-run, which would have checked the setting."""
    preload = places.BUILD / "lib" / "libuwarp-preload.so"
    process = start(["env", f"LD_PRELOAD={preload}", "UWARP_FAULT=reset after=soon", "ibv_devinfo"],
                    uwarp=False)
    assert process.wait() != 0, process
    complaint = 'uwarp: UWARP_FAULT: reset: "after=soon" is not a number; no device can be opened'
    assert process.output.splitlines().count(complaint) == 1, process


def test_bad_settings_run_nothing(start):
    process = start(["echo", "ran"], env={"UWARP_FAULT": "stall for=1"})
    assert process.wait() == 125
    assert process.output.splitlines() == [
        'uwarp-run: UWARP_FAULT: stall: "for=1" is not a time above 0 such as 500us, 20ms or 3s']
