# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""half_open.py ADDRESS PORT SOURCE: connections that say nothing, all the time, each kept open for as
long as there are places for 1,000 of them."""

import collections
import contextlib
import socket
import sys

KEPT = 1000

address, port, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
kept = collections.deque()
print("ready", flush=True)
while True:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        one.bind((source, 0))
        one.connect((address, port))
        kept.append(one)
    if len(kept) > KEPT:
        kept.popleft().close()
