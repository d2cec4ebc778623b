# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""garbage.py ADDRESS PORT SOURCE: connections that say anything: noise, a start-up that is nearly
right, half of one; some end by a reset, others are left open."""

import collections
import contextlib
import os
import random
import socket
import struct
import sys

KEPT = 200
MPA_KEY = b"MPA ID Req Frame"

address, port, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
choice = random.Random(1)
kept = collections.deque()


def request():
    """A Request of MPA with wrong flags, revision or length, or with nonsense behind it."""
    private = os.urandom(choice.choice([0, 4, 512, 600]))
    length = choice.choice([len(private), 513, 0xffff])
    return (MPA_KEY + struct.pack(">BBH", choice.randrange(256), choice.randrange(4), length) +
            private + os.urandom(choice.randrange(64)))


def words():
    kind = choice.randrange(4)
    if kind == 0:
        return os.urandom(choice.choice([1, 20, 4096, 100_000]))
    if kind == 1:
        return MPA_KEY[:choice.randrange(1, len(MPA_KEY))]
    whole = request()
    return whole if kind == 2 else whole[:choice.randrange(1, len(whole))]


print("ready", flush=True)
while True:
    one = socket.socket()
    one.settimeout(0.2)
    with contextlib.suppress(OSError):
        one.bind((source, 0))
        one.connect((address, port))
        one.sendall(words())
    if choice.randrange(2):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    else:
        kept.append(one)
    if len(kept) > KEPT:
        kept.popleft().close()
