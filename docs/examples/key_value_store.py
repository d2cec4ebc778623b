# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A key-value store with pyverbs whose server does nothing. The client puts by an RDMA Write and gets
by an RDMA Read, straight in the server's table. One client at a time: no two write one slot.

    key_value_store.py PORT                              the server: shows its table at the end
    key_value_store.py PORT HOST KEY=VALUE KEY ...       the client: puts and gets, in this order
"""

import struct
import sys
import zlib

from pyverbs.cm_enums import RAI_PASSIVE, RDMA_PS_TCP
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE
from pyverbs.mr import MR
from pyverbs.qp import QPCap, QPInitAttr

SLOTS = 64
SLOT = struct.Struct("32s96s")  # key, value; a slot of zeros is free
PLACE = struct.Struct("!QI")    # address and key of the table, as the server tells them


def endpoint(port, host=None):
    """An id with a queue pair: one that listens, or one that can connect to the host."""
    queues = QPInitAttr(cap=QPCap(max_send_wr=1, max_recv_wr=1), sq_sig_all=1)
    address = AddrInfo(src_service=port, port_space=RDMA_PS_TCP, flags=RAI_PASSIVE) \
        if host is None else AddrInfo(dst=host, dst_service=port, port_space=RDMA_PS_TCP)
    return CMID(creator=address, qp_init_attr=queues)


def serve(port):
    listener = endpoint(port)
    listener.listen()
    connection = listener.get_request()
    table = MR(listener.pd, SLOTS * SLOT.size,
               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
    goodbye = connection.reg_msgs(1)
    connection.post_recv(goodbye, 1)
    connection.accept(ConnParam(resources=1))
    place = connection.reg_msgs(PLACE.size)
    place.write(PLACE.pack(table.buf, table.rkey), PLACE.size)
    connection.post_send(place, 0, PLACE.size)
    connection.get_send_comp()
    connection.get_recv_comp()
    for key, value in SLOT.iter_unpack(table.read(SLOTS * SLOT.size, 0)):
        if any(key):
            print(f"{text(key)}={text(value)}")
    table.close()
    connection.close()


def text(padded):
    return padded.rstrip(b"\0").decode()


class Store:
    """The server's table, as a client uses it."""

    def __init__(self, port, host):
        self.connection = endpoint(port, host)
        place = self.connection.reg_msgs(PLACE.size)
        self.connection.post_recv(place, PLACE.size)
        self.connection.connect(ConnParam(depth=1))
        self.connection.get_recv_comp()
        self.table, self.key = PLACE.unpack(place.read(PLACE.size, 0))
        self.slot = self.connection.reg_read(SLOT.size)

    def find(self, key):
        """Number of the key's slot, or of the free one where it belongs; and its value. Reads the
        slots one after the other, from that of the key's checksum on."""
        for step in range(SLOTS):
            number = (zlib.crc32(key) + step) % SLOTS
            self.connection.post_read(self.slot, SLOT.size, self.address(number), self.key)
            self.connection.get_send_comp()
            found, value = SLOT.unpack(self.slot.read(SLOT.size, 0))
            if text(found).encode() in (key, b""):
                return number, value
        raise MemoryError("the table is full")

    def address(self, number):
        return self.table + number * SLOT.size

    def put(self, key, value):
        number, _ = self.find(key.encode())
        self.slot.write(SLOT.pack(key.encode(), value.encode()), SLOT.size)
        self.connection.post_write(self.slot, SLOT.size, self.address(number), self.key)
        self.connection.get_send_comp()

    def get(self, key):
        return text(self.find(key.encode())[1])

    def close(self):
        self.connection.post_send(self.slot, 0, 1)  # goodbye
        self.connection.get_send_comp()
        self.connection.close()


def run(port, host, words):
    store = Store(port, host)
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            store.put(key, value)
        else:
            print(f"{key}: {store.get(key)}")
    store.close()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    elif len(sys.argv) > 3:
        run(sys.argv[1], sys.argv[2], sys.argv[3:])
    else:
        sys.exit(__doc__)
