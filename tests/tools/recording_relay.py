# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A TCP relay that keeps the first bytes of each connection.

The rdma_cm port is the TCP port and the wire is plain iWARP, so a relay between two ends is
invisible to them, and shows without any privilege that they really speak iWARP.
"""

import socket
import threading

KEPT_BYTES = 4096


class RecordingRelay:
    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.openings = []  # One bytearray per connection: what its caller sent first.
        self._sockets = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            opening = bytearray()
            self.openings.append(opening)
            self._sockets += [near, far]
            for source, sink, kept in ((near, far, opening), (far, near, None)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True).start()

    @staticmethod
    def _pump(source, sink, kept):
        try:
            while chunk := source.recv(1 << 16):
                if kept is not None and len(kept) < KEPT_BYTES:
                    kept += chunk[: KEPT_BYTES - len(kept)]
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self._listener.close()
        for each in self._sockets:
            each.close()
