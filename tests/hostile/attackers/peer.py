# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""peer.py ATTACK ADDRESS PORT: connects again and again, shows itself as uwarp, offers to leave TCP for
shared memory, and answers the letter that it gets (docs/wire.md, "Shared memory").

linger       with TCP sockets whose last close waits for a minute
descriptors  with as many descriptors as a message can hold
wrong        with what is no memory, no bell, or memory that can shrink
place        rightly; then it names a place in its memory, which was never allowed
bell         rightly; then it closes its end of the bell and has it rung
urgent       with a bell in which a TCP socket waits whose last close waits for a minute, beside a
             byte that was sent out of band and has been taken: nothing can be read there
held         rightly; then it keeps the memory's inode locked, by a write() from memory that it serves
             itself, while the victim finds that all it has written is read and gives it back
crowd        with as many descriptors as a message can hold, the first of which is closed only when
             the attack ends, and goes

"switched" is printed once the victim has switched, "given away" if it reads at the place.
"""

import array
import ctypes
import fcntl
import mmap
import os
import socket
import struct
import sys
import threading
import time

import iwarp_peer
from stuck_socket import stuck_socket

MARK = 0x75776172
MEMORY_BYTES = 4096 + 2 * (1 << 20)
SIZE_SEALS = 0x1 | 0x2 | 0x4
LETTER = struct.Struct("<QQQQ")
PLACE = 1
READER_SLEEPS, WRITER_SLEEPS, TAIL = 128, 132, 64

attack, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
kept = []
kept_for_ever = []
LIBC = ctypes.CDLL(None, use_errno=True)
said = set()


def say(what):
    if what not in said:
        said.add(what)
        print(what, flush=True)


def mailbox_name(number):
    return f"\0uwarp-{number:012x}"


def mark(kind, value=0):
    """An empty Write that says something to a uwarp."""
    return iwarp_peer.tagged(iwarp_peer.WRITE, MARK, int.from_bytes(kind, "big") << 48 | value)


def send_message(peer_number, size):
    """The ULPDU of a message as tests/hostile/victim.cc expects it."""
    payload = bytes((peer_number * 31 + at) & 0xFF for at in range(size))
    return iwarp_peer.untagged(iwarp_peer.SEND, 0, peer_number + 1, payload)


def served_memory():
    """The address of a page of memory whose first access waits for a userfaultfd, which is kept."""
    fd = LIBC.syscall(323, os.O_CLOEXEC)
    if fd < 0:
        sys.exit("no userfaultfd")
    kept_for_ever.append(fd)
    fcntl.ioctl(fd, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))  # UFFDIO_API
    page = mmap.mmap(-1, 4096)
    kept_for_ever.append(page)
    where = ctypes.addressof(ctypes.c_char.from_buffer(page))
    fcntl.ioctl(fd, 0xC020AA00, struct.pack("QQQQ", where, 4096, 1, 0))  # UFFDIO_REGISTER, missing
    return where


def random_name():
    return int.from_bytes(os.urandom(6), "big")


def stuck():
    near, far = stuck_socket(60)
    kept.append(far)
    return near


def memory(seals=SIZE_SEALS):
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MEMORY_BYTES)
    if seals:
        fcntl.fcntl(fd, 1033, seals)  # F_ADD_SEALS
    return fd


def send_letter(box, to, number, descriptors):
    rights = array.array("i", descriptors)
    box.sendmsg([LETTER.pack(number, 0, 0x1000, 1)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else [],
                socket.MSG_DONTWAIT, mailbox_name(to))
    say("answered")


def await_switch(peer):
    """The victim's own mark of the switch."""
    while (ulpdu := peer.receive_fpdu()) is not None:
        if ulpdu == mark(b"r!"):
            say("switched")
            return True
    return False


def use_ring(peer, fd, bell):
    """We have made the memory, so ours is the first ring."""
    with mmap.mmap(fd, MEMORY_BYTES) as ring:
        peer.send_fpdu(mark(b"r!"))
        if attack == "place":
            secret = array.array("B", bytes(4096))
            where = secret.buffer_info()[0]
            struct.pack_into("<IIQ", ring, 4096, len(secret), PLACE, where)
            struct.pack_into("<Q", ring, 0, 16)
        elif attack == "held":
            frame = send_message(0, 32 * 1024)
            frame = struct.pack(">H", len(frame)) + frame
            frame += bytes(-len(frame) % 4 + 4)
            size = len(frame) + -len(frame) % 8
            ring[4096 + 8:4096 + 8 + len(frame)] = frame
            struct.pack_into("<II", ring, 4096, len(frame), 0)
            struct.pack_into("<Q", ring, 0, 8 + size)
            bell.shutdown(socket.SHUT_WR)
            for _ in range(100):
                time.sleep(0.01)
                (head,) = struct.unpack_from("<Q", ring, 192)
                if head > 32768:
                    say("replied")
                    break
            struct.pack_into("<Q", ring, 192 + 64, head)
            where = served_memory()
            threading.Thread(target=LIBC.write, daemon=True,
                             args=(fd, ctypes.c_void_p(where), ctypes.c_size_t(8))).start()
            say("holding")
            time.sleep(3600)
        elif attack == "urgent":
            time.sleep(0.05)
            return
        else:
            bell.close()
            struct.pack_into("<II", ring, READER_SLEEPS, 1, 1)
            struct.pack_into("<II8s", ring, 4096, 1, 0, b"\0")
            struct.pack_into("<Q", ring, 0, 16)
        for _ in range(50):
            if attack == "place":
                bell.shutdown(socket.SHUT_WR)
            time.sleep(0.002)
            if attack == "place" and struct.unpack_from("<Q", ring, TAIL)[0] != 0:
                say("given away")


def answer(peer, box, to, number):
    if attack == "linger":
        several = [stuck() for _ in range(3)]
        send_letter(box, to, number, [one.fileno() for one in several])
        for one in several:
            os.close(one.detach())
        return
    if attack == "descriptors":
        send_letter(box, to, number, [0] * 253)
        return
    if attack == "crowd":
        one = stuck()
        send_letter(box, to, number, [one.fileno()] + [0] * 252)
        os.close(one.detach())
        kept_for_ever.append(kept.pop())
        return
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    heard, rung = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    if attack == "urgent":
        one = stuck()
        rights = array.array("i", [one.fileno()])
        near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_OOB)
        far.recv(1, socket.MSG_OOB)
        os.close(one.detach())
    if attack == "wrong":
        reader, writer = os.pipe()
        good, loose = memory(), memory(0)
        bell = far.fileno()
        choices = [(good, writer, bell), (good, bell, writer), (loose, bell, bell),
                   (reader, writer, bell), (bell, good, bell), (good,), (good, bell),
                   (good, good, good), (good, 0, 0), (good, bell, bell, bell)]
        send_letter(box, to, number, choices[answer.count % len(choices)])
        answer.count += 1
        for fd in (reader, writer, good, loose):
            os.close(fd)
    else:
        fd = memory()
        send_letter(box, to, number, (fd, far.fileno(), rung.fileno()))
        far.close()
        rung.close()
        if await_switch(peer):
            use_ring(peer, fd, near)
        os.close(fd)
    for end in (near, far, heard, rung):
        end.close()


answer.count = 0


def attack_once():
    peer = iwarp_peer.IwarpPeer(address, port)
    peer.socket.settimeout(1)
    with peer, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as box:
        peer.connect(crc=False)
        name, number = random_name(), random_name()
        box.bind(mailbox_name(name))
        box.settimeout(1)
        peer.send_fpdu(mark(b"p!", 1))
        peer.send_fpdu(mark(b"o!", name))
        peer.send_fpdu(mark(b"t!", number))
        letter = LETTER.unpack(box.recv(100))
        assert letter[0] == number, letter
        answer(peer, box, letter[1], number)
    while len(kept) > 60:
        kept.pop(0).close()


print("ready", flush=True)
while True:
    try:
        attack_once()
    except (OSError, AssertionError) as error:
        say(f"failed: {type(error).__name__} {error}")
        time.sleep(0.01)
