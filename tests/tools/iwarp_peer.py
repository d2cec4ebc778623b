# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""An iWARP peer made by hand: it can say what no correct implementation says.

Written from RFC 5044, 5041, 5040 and 6581 alone and sharing nothing with the code under test.
"""

import socket
import struct

REQUEST_KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
FLAG_MARKERS, FLAG_CRC, FLAG_REJECT = 0x80, 0x40, 0x20

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE = 0, 1, 2, 3, 4
TERMINATE, ATOMIC_REQUEST = 7, 10
LAST = 0x40
DV = 0x01
RV = 0x40

RECEIVE_SECONDS = 30


def _crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def start_frame(key, flags, revision, private, length=None):
    return key + struct.pack(">BBH", flags, revision, len(private) if length is None else length) + private


def tagged(opcode, stag, offset, payload=b"", *, dv=DV, rv=RV):
    return struct.pack(">BBIQ", 0x80 | LAST | dv, rv | opcode, stag, offset) + payload


def untagged(opcode, queue, number, payload=b"", *, offset=0, stag=0, dv=DV, rv=RV):
    return struct.pack(">BBIIII", LAST | dv, rv | opcode, stag, queue, number, offset) + payload


def read_request(sink_stag, sink_offset, size, source_stag, source_offset):
    return struct.pack(">IQIIQ", sink_stag, sink_offset, size, source_stag, source_offset)


class IwarpPeer:
    def __init__(self, address, port):
        self.socket = socket.create_connection((address, port), timeout=RECEIVE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.crc = False

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send_raw(self, data):
        self.socket.sendall(data)

    def receive(self, count):
        """Exactly that many bytes, or fewer at the end of the stream."""
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                break
            data += chunk
        return data

    def connect(self, private=b"", crc=True, revision=1, flags=0):
        """Sends a Request and returns the private data of the accepting Reply."""
        self.send_raw(start_frame(REQUEST_KEY, flags | (FLAG_CRC if crc else 0), revision, private))
        head = self.receive(20)
        assert head[:16] == REPLY_KEY, head
        reply_flags, reply_revision, length = struct.unpack(">BBH", head[16:])
        assert not reply_flags & FLAG_REJECT
        assert reply_revision == revision
        self.crc = crc or bool(reply_flags & FLAG_CRC)
        return self.receive(length)

    def send_fpdu(self, ulpdu, *, length=None, damage_crc=False):
        frame = struct.pack(">H", len(ulpdu) if length is None else length) + ulpdu
        frame += b"\0" * (-len(frame) % 4)
        crc = crc32c(frame) if self.crc else 0
        self.send_raw(frame + struct.pack("<I", crc ^ (0x10 if damage_crc else 0)))

    def receive_fpdu(self):
        """One ULPDU with its CRC checked, or None at the end of the stream."""
        head = self.receive(2)
        if not head:
            return None
        assert len(head) == 2, "the stream ends inside a frame"
        (length,) = struct.unpack(">H", head)
        rest = self.receive(length + (-(length + 2) % 4) + 4)
        assert len(rest) == length + (-(length + 2) % 4) + 4, "the stream ends inside a frame"
        if self.crc:
            assert struct.unpack("<I", rest[-4:])[0] == crc32c(head + rest[:-4]), "bad CRC"
        return rest[:length]

    def receive_to_the_end(self):
        ulpdus = []
        while (ulpdu := self.receive_fpdu()) is not None:
            ulpdus.append(ulpdu)
        return ulpdus


def terminate_code(ulpdu):
    """(layer, type, code) of a Terminate, or None for anything else."""
    if len(ulpdu) < 22 or ulpdu[0] & 0x80 or ulpdu[1] & 0x0F != TERMINATE:
        return None
    return ulpdu[18] >> 4, ulpdu[18] & 0x0F, ulpdu[19]
