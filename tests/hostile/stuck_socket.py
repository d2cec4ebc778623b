# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A TCP socket whose last close() waits."""

import contextlib
import socket
import struct


def stuck_socket(seconds):
    """Two ends of a connection: the first is full of bytes that the other does not take, and its last
    close waits for that so many seconds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(bytes(65536))
    near.setblocking(True)  # a close of a socket that does not block does not wait
    return near, far
