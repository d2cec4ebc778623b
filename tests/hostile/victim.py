# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Two processes under uwarp with honest work between them, and what is asked of them in an attack.

Judged are counts only: in each second of an attack the connection that lasts makes progress, and no thread
that serves is in the same system call for all of it; new connections are made; both processes live; no
byte is wrong; files and memory are back afterwards.
"""

import contextlib
import os
import pathlib
import struct
import time

import places

PROGRAM = places.BUILD / "tests" / "victim"
# Calls in which a thread waits for work, as it may: read (applications, of their event channels), poll, nanosleep, futex, epoll_wait, ppoll,
# clock_nanosleep, epoll_pwait, epoll_pwait2, restart_syscall; those of x86_64.
WAITS = {0, 7, 35, 202, 232, 271, 230, 281, 441, 219}
# Of the resident set, in KiB: buffers that a process keeps once it has used them.
MEMORY_SLACK = 48 * 1024
# A connection whose peer says nothing is given up after 10 s.
RECOVERY_SECONDS = 25
# Connections of the caller come and go.
FILE_SLACK = 8


class Victim:
    ADDRESS = "127.0.0.1"

    def __init__(self, folder, port, **environment):
        self.port = port
        book = folder / "book"
        book.write_bytes(bytes(4096))
        self._book = os.open(book, os.O_RDONLY)
        self.server = places.Process([PROGRAM, "serve", self.ADDRESS, port, book],
                                     env=environment)
        places.wait_listening(self.server, port)
        self.caller = places.Process([PROGRAM, "call", self.ADDRESS, port, book], env=environment)
        self.both = (self.server, self.caller)

    def counts(self):
        """(rounds of the connection that lasts, fresh connections, damaged bytes)"""
        return struct.unpack("3Q", os.pread(self._book, 24, 0))

    def alive(self):
        return all(each.running() for each in self.both)

    def __str__(self):
        return f"{self.counts()}\n{self.server}\n{self.caller}"

    def warm_up(self):
        places.wait_until(lambda: not self.alive() or
                          self.counts()[0] > 100 and self.counts()[1] > 3, lambda: self)
        assert self.alive(), self
        self.before = [self._standing(each) for each in self.both]

    @staticmethod
    def _standing(process):
        """(open files, resident KiB)"""
        folder = pathlib.Path(f"/proc/{process.pid}")
        resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(list((folder / "fd").iterdir())), resident // 1024

    def endure(self, seconds, *attackers):
        """The attack, which has begun. Each of its seconds has to bring the work on."""
        rounds, fresh, _ = self.counts()
        steps = []
        for _ in range(seconds):
            before = self.threads_in_calls()
            time.sleep(1)
            after = self.threads_in_calls()
            stuck = [what for thread, what in before.items() if after.get(thread) == what]
            assert not stuck, f"the same system call for a second: {stuck}"
            now = self.counts()[0]
            steps.append(now - rounds)
            rounds = now
        assert self.alive(), self
        for each in attackers:
            assert each.running(), each
        assert all(steps), f"rounds in each second: {steps}"
        assert self.counts()[1] > fresh, f"no new connection: {self}"

    def threads_in_calls(self):
        """{(process, thread): what it is doing in the kernel}, but those that owe nothing to others
        and those that wait for work."""
        found = {}
        for process in self.both:
            for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    call = (thread / "syscall").read_text().split()
                    if (call[0] in ("running", "-1") or int(call[0]) in WAITS or
                            (thread / "comm").read_text().strip() == "uwarp-errand"):
                        continue
                    switches = (thread / "status").read_text().split("voluntary_ctxt_switches:")
                    found[process.pid, thread.name] = (call, switches[1].split()[0])
        return found

    def recover(self):
        """After the attack."""

        def back():
            return all(files <= before[0] + FILE_SLACK and memory <= before[1] + MEMORY_SLACK
                       for before, (files, memory) in zip(self.before,
                                                          map(self._standing, self.both)))

        places.wait_until(lambda: not self.alive() or back(), lambda: (
            f"files and memory before {self.before}, "
            f"now {[self._standing(each) for each in self.both]}"), RECOVERY_SECONDS)
        assert self.alive(), self
        rounds, fresh, _ = self.counts()
        places.wait_until(lambda: not self.alive() or
                          self.counts()[0] > rounds and self.counts()[1] > fresh + 1, lambda: self)
        assert self.alive(), self
        assert self.counts()[2] == 0, f"bytes were damaged: {self}"

    def reap(self):
        for each in self.both:
            each.reap()
        os.close(self._book)
