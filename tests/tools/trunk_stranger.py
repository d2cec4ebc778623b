# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""One that calls the port of a process for datagrams, by hand, and may claim any port as its own.

Written from docs/wire.md and RFC 6581; shares nothing with the code under test."""

import os
import socket
import struct

from iwarp_peer import (REPLY_KEY, REQUEST_KEY, SEND, WRITE, IwarpPeer, start_frame, tagged,
                        untagged)

MARK = b"uWRV"
VERSION = 2
TRUNK, CALL_BACK = 1, 2
ACCEPTED, NOT_EXPECTED, CALLS_BACK = 0, 3, 7
FLAG_ENHANCED = 0x10
PEER_TO_PEER = 0x8000
SECONDS = 30


def call(own_port, port, nonces, capabilities=TRUNK, version=VERSION):
    return struct.pack(">4sBBHIIII", MARK, 1, 0, 0, own_port << 8, port << 8, version,
                       capabilities) + b"".join(nonces)


def nonce():
    return os.urandom(8)


def request(private):
    word = struct.pack(">HH", PEER_TO_PEER | 1, 0x8000 | 1)
    return start_frame(REQUEST_KEY, FLAG_ENHANCED, 2, word + private)


def reply(private, word):
    return start_frame(REPLY_KEY, FLAG_ENHANCED, 2, word + private)


class Stranger:
    """Has `address`, from which it calls, and listens on a port of it."""

    def __init__(self, address, victim):
        self.address = address
        self.victim = victim  # (address, port)

    def listen(self):
        listener = socket.socket()
        listener.settimeout(SECONDS)
        listener.bind((self.address, 0))
        listener.listen(64)
        return listener

    def dial(self, private):
        """A socket on which the Request has gone out."""
        peer = socket.socket()
        peer.settimeout(SECONDS)
        peer.bind((self.address, 0))
        peer.connect(self.victim)
        peer.sendall(request(private))
        return peer

    def verdict(self, private):
        """What the victim answers; None: it resets the connection."""
        with self.dial(private) as peer:
            try:
                head = receive(peer, 20)
                if len(head) < 20:
                    return None
                body = receive(peer, struct.unpack(">H", head[18:])[0])
            except ConnectionResetError:
                return None
            at = body.find(MARK)
            return body[at + 5] if at >= 0 else None

    def claim(self, own_port):
        return self.verdict(call(own_port, self.victim[1], [nonce()]))

    def take_line(self, listener):
        """A line of its own: calls, and accepts the call back."""
        own_port = listener.getsockname()[1]
        mine = nonce()
        assert self.verdict(call(own_port, self.victim[1], [mine])) == CALLS_BACK
        line, _ = listener.accept()
        line.settimeout(SECONDS)
        head = receive(line, 20)
        body = receive(line, struct.unpack(">H", head[18:])[0])
        assert body[4:8] == MARK and body[28:] == mine, body
        accepted = struct.pack(">4sBBHI", MARK, 1, ACCEPTED, 0, 0) + mine
        line.sendall(reply(accepted, struct.pack(">HH", PEER_TO_PEER | 1, 0x8000 | 1)))
        ready_to_receive(line)
        return line


def receive(peer, count):
    data = b""
    while len(data) < count:
        chunk = peer.recv(count - len(data))
        if not chunk:
            break
        data += chunk
    return data


def as_iwarp(line):
    """The line as a peer that sends and receives FPDUs."""
    peer = IwarpPeer.__new__(IwarpPeer)
    peer.socket = line
    peer.crc = False
    return peer


def ready_to_receive(line):
    """The victim's zero-length Write, which makes the connection peer to peer."""
    ulpdu = as_iwarp(line).receive_fpdu()
    assert ulpdu is not None and len(ulpdu) == len(tagged(WRITE, 0, 0)), ulpdu


def datagram(source, destination, payload, qkey=0x11111111):
    return struct.pack(">HBBIIIIB3x", len(payload), 0, 0, destination, source, qkey, 0,
                       64) + payload


def frame(number, *datagrams):
    """The `number`-th Send of a line."""
    return untagged(SEND, 0, number, b"".join(datagrams))


def next_frame(peer):
    """The payload of the next Send that comes; None at the end of the stream."""
    while (ulpdu := peer.receive_fpdu()) is not None:
        if ulpdu[1] & 0x0F == SEND:
            return ulpdu[18:]
    return None
