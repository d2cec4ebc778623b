# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Prints what follows the keys of the MPA start-up frames of one TCP port, as they pass a network
device: mpa_frames.py DEVICE PORT. Needs the right to packet sockets."""

import socket
import struct
import sys

KEYS = {b"MPA ID Req Frame": "request", b"MPA ID Rep Frame": "reply"}
KEY_BYTES = 16
ETHERNET_BYTES = 14
IPV4, IPV6 = 0x0800, 0x86DD
EVERYTHING = 3  # ETH_P_ALL


def tcp_segment(frame):
    """Ports and payload, or None."""
    kind = struct.unpack("!H", frame[12:14])[0]
    if kind == IPV4 and frame[ETHERNET_BYTES + 9] == socket.IPPROTO_TCP:
        tcp = frame[ETHERNET_BYTES + 4 * (frame[ETHERNET_BYTES] & 15):]
    elif kind == IPV6 and frame[ETHERNET_BYTES + 6] == socket.IPPROTO_TCP:
        tcp = frame[ETHERNET_BYTES + 40:]
    else:
        return None
    return struct.unpack("!HH", tcp[:4]), tcp[4 * (tcp[12] >> 4):]


def main():
    device, port = sys.argv[1], int(sys.argv[2])
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING)) as tap:
        tap.bind((device, 0))
        print("listening", flush=True)
        while True:
            found = tcp_segment(tap.recv(1 << 17))
            if found and port in found[0] and found[1][:KEY_BYTES] in KEYS:
                print(KEYS[found[1][:KEY_BYTES]], found[1][KEY_BYTES:].hex(), flush=True)


if __name__ == "__main__":
    main()
