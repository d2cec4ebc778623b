#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What two threads share that have nothing to do with each other: sharing.py BUILD.

`two_threads` tells the instructions of some verbs calls of two threads, each with a queue pair and
completion queues of its own. Counted are how often the helper thread runs meanwhile, cache lines that both threads write (a lock that both take is
one), files that both make system calls on, and, of each kind of call, its instructions, atomic
instructions and system calls. Memory that the kernel writes is not seen."""

import array
import bisect
import collections
import functools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import places

LINE_BYTES = 64
CALLS = ("post of a request", "poll for its end", "poll for the answer", "post of a receive")
WORKS = ("send", "write")
CARRIERS = {"tcp": "0", "memory": "1"}  # UWARP_SHM
GUARD_SECONDS = 300
NOT_HERE = 77  # exit status: the processor cannot

WORDS_PER_STEP = 17  # the address of an instruction and the registers in front of it, as it numbers them
REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
             *(f"r{number}" for number in range(8, 16)))
NUMBER_OF = {f"%{name}": number for number, name in enumerate(REGISTERS)}
RAX, RSP, RDI = (REGISTERS.index(name) for name in ("rax", "rsp", "rdi"))

PLACE = re.compile(r"(?:%(\ws):)?(-?0x[0-9a-f]+)?\((%\w+)?(?:,(%\w+)(?:,(\d))?)?\)")
PREFIX = re.compile(r"^(?:(?:lock|rep|repz|repnz|notrack|bnd|data16|cs)\s+)+")
# What does not write its last operand.
ONLY_READS = re.compile(r"cmp(?!xchg)|test|v?u?comis|v?ptest|bt[wlq]?$|push|call|jmp|nop|prefetch|"
                        r"i?div|i?mul|fld|v?ldmxcsr|lea")
# System calls whose first argument is a file: read, write, writev, sendto, recvfrom, sendmsg, recvmsg,
# epoll_ctl, epoll_pwait, epoll_pwait2.
EPOLL_WAITS = {281, 441}
ON_A_FILE = {0, 1, 20, 44, 45, 46, 47, 233, *EPOLL_WAITS}

Write = collections.namedtuple("Write", "base index scale offset atomic")
SYSTEM_CALL = "system call"


def decoded(text):
    """What an instruction, as objdump writes it, writes to memory: a Write, SYSTEM_CALL or None. What a
    thread reaches by its own %fs is not looked at."""
    text, _, comment = text.partition("#")
    text, _, _ = text.partition("<")
    prefix = PREFIX.match(text)
    name, _, operands = text[prefix.end() if prefix else 0:].strip().partition(" ")
    operands = operands.strip()
    if name == "syscall":
        return SYSTEM_CALL
    found = list(PLACE.finditer(operands))
    if not found or found[-1][1] == "fs":
        return None
    place = found[-1]
    # xchg is atomic also without the prefix, and writes both operands.
    exchanges = name.startswith("xchg")
    atomic = exchanges or (prefix is not None and "lock" in prefix[0])
    if not exchanges and (place.end() != len(operands) or ONLY_READS.match(name)):
        return None
    offset = int(place[2] or "0", 16)
    if place[3] == "%rip":
        return Write(None, None, 0, int(comment.split()[0], 16), atomic)
    return Write(NUMBER_OF.get(place[3]), NUMBER_OF.get(place[4]), int(place[5] or 1), offset, atomic)


@functools.cache
def instructions_of(path):
    """Address, in hexadecimal digits -> instruction, of a file."""
    said = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], stdout=subprocess.PIPE, check=True,
                          text=True, timeout=GUARD_SECONDS)
    return {inside.lstrip(): text for inside, colon, text in
            (line.partition(":\t") for line in said.stdout.splitlines()) if colon}


class Modules:
    """The files that a process has mapped, by its /proc/self/maps."""

    def __init__(self, maps):
        self._mapped, starts = [], {}
        for line in maps.splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith("/"):
                first, end = (int(each, 16) for each in fields[0].split("-"))
                # The first part of a file holds its head, which is linked at 0 if the file may lie anywhere.
                base = starts.setdefault(fields[5], first)
                self._mapped.append((first, end, base, fields[5]))
        self._mapped.sort()
        self._firsts = [each[0] for each in self._mapped]

    def find(self, address):
        """The file, and by how much it has been moved."""
        at = bisect.bisect(self._firsts, address) - 1
        if at >= 0 and address < self._mapped[at][1]:
            _, _, base, path = self._mapped[at]
            return path, base
        return None, 0

    def decode(self, addresses):
        """Address -> Write or SYSTEM_CALL, of those that are one."""
        wanted = collections.defaultdict(dict)
        for address in addresses:
            path, base = self.find(address)
            if path is not None:
                wanted[path][f"{address - base:x}"] = address
        result = {}
        for path, of_file in wanted.items():
            listing = instructions_of(path)
            for inside, address in of_file.items():
                what = decoded(listing.get(inside, ""))
                if isinstance(what, Write) and what.base is None and what.index is None:
                    what = what._replace(offset=what.offset + self.find(address)[1])
                if what is not None:
                    result[address] = what
        return result

    def name(self, address):
        """The innermost function of the engine around an instruction that is no part of the library of C++,
        and those that it was inlined in."""
        path, base = self.find(address)
        if path is None:
            return "?"
        said = subprocess.run(["addr2line", "-f", "-C", "-i", "-e", path, hex(address - base)],
                              stdout=subprocess.PIPE, check=True, text=True, timeout=GUARD_SECONDS).stdout
        names = [name.split("(")[0].removeprefix("uwarp::") for name in said.splitlines()[::2]]
        own = [name for name in names if not name.startswith("std::")]
        return f"{pathlib.Path(path).name}: {' in '.join(own or names)}"


class Call:
    """One recorded call."""

    def __init__(self, kind):
        self.kind = kind
        self.instructions = self.atomics = 0
        self.lines = {}         # cache line -> address of an instruction that writes it
        self.system_calls = []  # (number, file or None)

    def serves_all(self):
        return any(number in EPOLL_WAITS for number, _ in self.system_calls)


def calls_of(words, known):
    """The calls of one thread, with what is known of their instructions."""
    calls = []
    for at in range(0, len(words), WORDS_PER_STEP):
        address, registers = words[at], at + 1
        if address == 0:
            calls.append(Call(CALLS[words[registers]]))
            continue
        call = calls[-1]
        call.instructions += 1
        what = known.get(address)
        if what is None:
            continue
        if what is SYSTEM_CALL:
            number = words[registers + RAX]
            call.system_calls.append((number, words[registers + RDI] if number in ON_A_FILE else None))
            continue
        place = what.offset
        if what.base is not None:
            place += words[registers + what.base]
        if what.index is not None:
            place += words[registers + what.index] * what.scale
        call.lines.setdefault(place % 2**64 // LINE_BYTES, address)
        call.atomics += what.atomic
    return calls


class Sharing:
    """What the calls of two threads have in common. Those that serve all sockets of the process are counted
    apart: one poll in some dozens looks at what no thread polls, in place of the helper thread."""

    def __init__(self, words, modules, helper_turns, messages):
        self.helper_turns, self.messages = helper_turns, messages  # of the helper thread, while so many went
        known = modules.decode({words[thread][at] for thread in range(2)
                                for at in range(0, len(words[thread]), WORDS_PER_STEP)})
        both = [calls_of(each, known) for each in words]
        self.threads = [[call for call in calls if not call.serves_all()] for calls in both]
        self.serving = sum(map(len, both)) - sum(map(len, self.threads))
        self._modules = modules

    def lines(self):
        """Cache line -> the functions of both threads that write it, of those that both write."""
        written = [{line: address for call in calls for line, address in call.lines.items()}
                   for calls in self.threads]
        return {line: sorted({self._modules.name(each[line]) for each in written})
                for line in set(written[0]) & set(written[1])}

    def files(self):
        """Numbers of files that both threads make system calls on."""
        used = [{file for call in calls for _, file in call.system_calls if file is not None}
                for calls in self.threads]
        return used[0] & used[1]

    def costs(self):
        """Kind of call -> medians of what one takes."""
        kinds = collections.defaultdict(list)
        for call in self.threads[0] + self.threads[1]:
            kinds[call.kind].append(call)
        return {kind: {"calls": len(calls),
                       "instructions": median(call.instructions for call in calls),
                       "atomic instructions": median(call.atomics for call in calls),
                       "system calls": median(len(call.system_calls) for call in calls)}
                for kind, calls in sorted(kinds.items())}


def median(values):
    return statistics.median_low(list(values))


def measure(build, work, carrier):
    """The Sharing of two threads that do this work by this carrier; None where the processor cannot stop
    behind each instruction."""
    command = [build / "bin" / "uwarp-run", build / "tests" / "two_threads"]
    env = {**os.environ, "UWARP_SHM": CARRIERS[carrier]}
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([*command, "serve", "0"], env=env, stdout=subprocess.PIPE, text=True,
                                  preexec_fn=places.die_with_parent)
        try:
            port = server.stdout.readline().strip()
            done = subprocess.run([*command, work, port, f"{folder}/record"], env=env, stdout=subprocess.PIPE,
                                  text=True, timeout=GUARD_SECONDS, check=False,
                                  preexec_fn=places.die_with_parent)
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
        if done.returncode == NOT_HERE:
            return None
        if done.returncode != 0:
            raise RuntimeError(f"two_threads {work} ended with {done.returncode}")
        words = []
        for thread in range(2):
            words.append(array.array("Q"))
            words[-1].frombytes(pathlib.Path(f"{folder}/record.{thread}").read_bytes())
    turns, messages = map(int, re.search(r"^helper turns (\d+) of (\d+) messages$", done.stdout, re.M).groups())
    return Sharing(words, Modules(done.stdout), turns, messages)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    for carrier in CARRIERS:
        for work in WORKS:
            sharing = measure(build, work, carrier)
            if sharing is None:
                sys.exit(NOT_HERE)
            print(f"{work}, {carrier}: {len(sharing.lines())} cache lines written by both threads, "
                  f"{len(sharing.files())} files used by both; {sharing.serving} calls served all sockets; "
                  f"the helper thread ran {sharing.helper_turns} times in {sharing.messages} messages")
            for line, functions in sharing.lines().items():
                print(f"  {line * LINE_BYTES:#x}: {'; '.join(functions)}")
            for kind, cost in sharing.costs().items():
                print(f"  {kind}: " + ", ".join(f"{count} {what}" for what, count in cost.items()))


if __name__ == "__main__":
    main()
