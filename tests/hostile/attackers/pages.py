# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""pages.py ATTACK [COUNT]: processes that have pages of counters which uwarp has not made
(docs/observability.md has the layout), each in a process of its own.

overlap    all tables lie at the same place, with as many slots as a field can name
large      a page of a terabyte
full       right in all, and every slot in use
changing   full, and written all the time: no slot is ever at rest
unsealed   full, and may be cut short at any time; it is
lease      opening it waits, unless the caller says that it does not want to
escapes    names that are commands to a terminal
other      the name leads to a pipe, in a mount namespace of its own
files      two hundred thousand open files, and a page behind them
"""

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import struct
import sys
import time

NAME = "uwarp-stat"
MAGIC = b"\0UWPSTA1"
HEADER = 4096
SLOT_BYTES = (512, 512, 256, 64)
SLOTS = (64, 16384, 8192, 8192)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
CLONE_NEWNS, CLONE_NEWUSER, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x10000000, 0x4000, 1 << 18, 2

LIBC = ctypes.CDLL(None, use_errno=True)
ESCAPE = b"\x1b[31m\x1b]0;owned\x07\xc2\x9b2J"


def offsets():
    at = HEADER
    for size, count in zip(SLOT_BYTES, SLOTS):
        yield at
        at += (size * count + 4095) & ~4095
    yield at


def header(tables, size, program):
    """`tables`: (offset, slot_bytes, slots, used) of each."""
    text = struct.pack("=8sIIQQQII16s64s", MAGIC, 1, HEADER, size, 1, 1, os.getpid(), 0, b"0.1.0",
                       program)
    for offset, slot_bytes, slots, used in tables:
        text += struct.pack("=QIIII", offset, slot_bytes, slots, used, 0)
    return text.ljust(HEADER, b"\0")


def right_tables(used):
    return [(at, size, slots, min(used, slots))
            for at, size, slots in zip(offsets(), SLOT_BYTES, SLOTS)]


def live(page, tables, name):
    """Each slot is at rest and in use; devices have a name, queue pairs a peer of their own."""
    for number, (offset, size, slots, used) in enumerate(tables):
        one = bytearray(size)
        struct.pack_into("=II", one, 0, 2, 1)
        if number == 0:
            one[8:8 + len(name)] = name
        for i in range(used):
            if number == 1:
                # Number, device, created, connected; and the address of the peer.
                struct.pack_into("=IIQQ", one, 8, i, i % 64, 1, 1)
                struct.pack_into("=QQI", one, 84, 0x20, i, 4791)
            page[offset + i * size:offset + (i + 1) * size] = one


def make(size, seals=SEALS):
    fd = os.memfd_create(NAME, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def template(used=1 << 30, program=b"full", name=b"full"):
    *_, size = offsets()
    page = bytearray(size)
    tables = right_tables(used)
    live(page, tables, name)
    page[:HEADER] = header(tables, size, program)
    return page


def full(seals=SEALS, made=None, **changes):
    text = made or template(**changes)
    fd = make(len(text), seals)
    page = mmap.mmap(fd, len(text))
    page[:] = bytes(text)
    return fd, page


def overlap():
    size = 256 << 20
    fd = make(size)
    page = mmap.mmap(fd, size)
    slots = 1 << 18
    tables = [(HEADER, 1024, slots, slots)] * 4
    live(page, [(HEADER, 1024, slots - 4, slots - 4)], b"overlap")
    page[:HEADER] = header(tables, size, b"overlap")
    return page


def changing():
    _, page = full(made=ready_made)
    (at, size, _, used), = right_tables(1 << 30)[1:2]
    odd = struct.pack("=I", 3)
    print("ready", flush=True)
    while True:
        for i in range(used):
            page[at + i * size:at + i * size + 4] = odd
            page[at + i * size + 16:at + i * size + 20] = os.urandom(4)


def cut():
    fd, page = full(seals=0, program=b"unsealed")
    size = len(page)
    page.close()
    print("ready", flush=True)
    while True:
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size)


def lease():
    fd, page = full(used=4, program=b"lease")
    page.close()
    path = f"/proc/self/fd/{fd}"
    alone = os.open(path, os.O_WRONLY)
    os.close(fd)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(alone, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return alone


def other():
    """A file system of its own at the root of a mount namespace: then any name can be had."""
    def done(result):
        if result != 0:
            print("refused:", os.strerror(ctypes.get_errno()), flush=True)
            sys.exit(0)

    ids = (("uid_map", f"0 {os.getuid()} 1"), ("setgroups", "deny"), ("gid_map", f"0 {os.getgid()} 1"))
    done(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    for name, text in ids:
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    done(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    done(LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    os.chdir("/tmp")
    os.mkdir("old")
    done(LIBC.syscall(155, b".", b"old") if os.uname().machine == "x86_64" else
         LIBC.syscall(41, b".", b"old"))
    os.chdir("/")
    done(LIBC.umount2(b"/old", MNT_DETACH))
    os.mkfifo(f"/memfd:{NAME} (deleted)")
    return os.open(f"/memfd:{NAME} (deleted)", os.O_RDWR)


def files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for _ in range(min(200_000, hard - 100)):
        os.dup(0)
    return full(used=4, program=b"behind")


ATTACKS = {"overlap": overlap, "large": lambda: make(1 << 40), "full": lambda: full(made=ready_made), "changing": changing,
           "unsealed": cut, "lease": lease, "other": other, "files": files,
           "escapes": lambda: full(used=40, program=b"e" + ESCAPE, name=b"n" + ESCAPE)}

# Once for all processes.
ready_made = template(program=sys.argv[1].encode())
for _ in range(int(sys.argv[2]) - 1 if len(sys.argv) > 2 else 0):
    if os.fork() == 0:
        break
held = ATTACKS[sys.argv[1]]()
print("ready", flush=True)
while True:
    time.sleep(1000)
