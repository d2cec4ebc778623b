# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What strangers can do to a process that takes datagrams, while an honest one talks to it: claim
another process's port, speak in its name, take all places. docs/security.md, "Datagrams"."""

import pathlib
import re
import resource
import struct
import subprocess

import pytest

import places
import trunk_stranger
from trunk_stranger import CALL_BACK, CALLS_BACK, NOT_EXPECTED, TRUNK, Stranger

ECHO = places.BUILD / "tests" / "datagram_echo"
ENV = {"UWARP_PERSONA": "roce", "UWARP_NETDEVS": "lo"}


class Server:
    """The victim: it echoes datagrams."""

    def __init__(self, start, files=None):
        limit = ["prlimit", f"--nofile={files}:{files}"] if files else []
        self.process = start([*limit, places.UWARP_RUN, ECHO, "serve"], uwarp=False, env=ENV,
                             stdin=subprocess.PIPE)
        self.number = int(self.said(r"number (\d+)"))
        self.port = self.number >> 8

    def said(self, pattern, times=1):
        places.wait_until(lambda: len(re.findall(pattern, self.process.output)) >= times,
                          lambda: self.process)
        return re.findall(pattern, self.process.output)[-1]

    def counts(self):
        """(echoed, foreign) so far."""
        before = len(re.findall("echoed", self.process.output))
        self.process.child.stdin.write(b"\n")
        self.process.child.stdin.flush()
        echoed, foreign = self.said(r"echoed (\d+) foreign (\d+)", before + 1)
        return int(echoed), int(foreign)

    @property
    def path(self):
        return pathlib.Path(f"/proc/{self.process.pid}")

    def files(self):
        return len(list((self.path / "fd").iterdir()))

    def memory_kib(self):
        return int(re.search(r"RssAnon:\s+(\d+)", (self.path / "status").read_text())[1])


class Asker:
    """An honest process."""

    def __init__(self, start, server, count):
        self.process = start([ECHO, "ask", server.number, count], env=ENV)

    def number(self):
        places.wait_until(lambda: "asked by" in self.process.output, lambda: self.process)
        return int(re.search(r"asked by (\d+)", self.process.output)[1])

    def answered(self):
        return self.process.output.count("answered")

    def goes_on(self):
        """It gets further answers."""
        before = self.answered()
        places.wait_until(lambda: self.answered() > before + 10, lambda: self.process)


@pytest.fixture
def server(start):
    return Server(start)


def test_a_claimed_port_gives_nothing(start, server):
    """The port is that of an honest process on the same host."""
    honest = Asker(start, server, 1_000_000)
    port = honest.number() >> 8
    stranger = Stranger("127.0.0.1", ("127.0.0.1", server.port))
    honest.goes_on()
    for _ in range(500):
        assert stranger.claim(port) == CALLS_BACK
        guess = trunk_stranger.call(port, server.port, [trunk_stranger.nonce()] * 32,
                                    TRUNK | CALL_BACK)
        assert stranger.verdict(guess) == NOT_EXPECTED
    honest.goes_on()
    # Another one, which has no line yet, gets one during a flood of claims for its port.
    fresh = Asker(start, server, 200)
    port = fresh.number() >> 8
    while fresh.process.running():
        stranger.claim(port)
    fresh.process.succeed()
    honest.goes_on()
    assert server.counts()[1] == 0


def test_no_other_speaks_in_a_name(start, server):
    """The stranger has a line of its own, and names the honest process's queue pair."""
    honest = Asker(start, server, 1_000_000)
    number = honest.number()
    stranger = Stranger("127.0.0.1", ("127.0.0.1", server.port))
    with stranger.listen() as listener, stranger.take_line(listener) as line:
        peer = trunk_stranger.as_iwarp(line)
        own = listener.getsockname()[1] << 8 | 1
        for i in range(1, 501):
            wrong = trunk_stranger.datagram(number, server.number, struct.pack("=II", own, i))
            peer.send_fpdu(trunk_stranger.frame(i, wrong))
        # What it says of itself is echoed to it: the line is there, and nothing else was.
        right = trunk_stranger.datagram(own, server.number, struct.pack("=II", own, 7))
        peer.send_fpdu(trunk_stranger.frame(501, right))
        assert trunk_stranger.next_frame(peer)[24:] == struct.pack("=II", own, 7)
    honest.goes_on()
    assert server.counts()[1] == 0


def test_an_unanswered_call_back_ends(start, server):
    """The stranger takes the call back, and says nothing."""
    stranger = Stranger("127.0.0.1", ("127.0.0.1", server.port))
    with stranger.listen() as listener:
        assert stranger.claim(listener.getsockname()[1]) == CALLS_BACK
        back, _ = listener.accept()
        with back:
            back.settimeout(places.GUARD_SECONDS)
            try:
                while back.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        # It may call again.
        stranger.take_line(listener).close()


def test_old_versions_are_refused(start, server):
    stranger = Stranger("127.0.0.1", ("127.0.0.1", server.port))
    with stranger.listen() as listener:
        old = trunk_stranger.call(listener.getsockname()[1], server.port, [], version=1)
        assert stranger.verdict(old) == 1


def take_lines(server, address, count):
    """Lines from one address, each with a port of its own, which it has for as long as it takes."""
    stranger = Stranger(address, ("127.0.0.1", server.port))
    lines = []
    for _ in range(count):
        with stranger.listen() as listener:
            lines.append(stranger.take_line(listener))
    return lines


def test_all_places_from_one_address(start):
    """More lines than there are places. A process that comes then gets one, those that were there
    keep theirs, and all comes back. What malloc keeps of the first crowd serves the second one."""
    count = 4300
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * count:
        pytest.skip("too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        server = Server(start, files=2 * count)
        honest = Asker(start, server, 1_000_000)
        honest.goes_on()
        files, memory = server.files(), []
        for crowd in (count, count // 2):
            lines = take_lines(server, "127.0.0.2", crowd)
            # A quarter of its files, and a port for each 256 lines, on two addresses.
            assert server.files() <= files + 2 * count // 4 * (1 + 2 / 256) + 16
            honest.goes_on()
            Asker(start, server, 200).process.succeed()
            honest.goes_on()
            for line in lines:
                line.close()
            places.wait_until(lambda: server.files() <= files + 4, lambda: f"{server.files()} files")
            honest.goes_on()
            memory.append(server.memory_kib())
        assert memory[1] <= memory[0] + 8 * 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
