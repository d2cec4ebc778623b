# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Ping-pong by Send and Receive with pyverbs, and the time of one way.

    ping_pong.py PORT           the server
    ping_pong.py PORT HOST      the client
"""

import sys
import time

from pyverbs.cm_enums import RAI_PASSIVE, RDMA_PS_TCP
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr

BYTES = 64
ROUNDS = 1000


def endpoint(port, host=None):
    """An id with a queue pair: one that listens, or one that can connect to the host."""
    queues = QPInitAttr(cap=QPCap(max_send_wr=1, max_recv_wr=2), sq_sig_all=1)
    address = AddrInfo(src_service=port, port_space=RDMA_PS_TCP, flags=RAI_PASSIVE) \
        if host is None else AddrInfo(dst=host, dst_service=port, port_space=RDMA_PS_TCP)
    return CMID(creator=address, qp_init_attr=queues)


def send(connection, memory):
    connection.post_send(memory, 0, BYTES)
    connection.get_send_comp()


def receive(connection):
    connection.get_recv_comp()


def serve(port):
    listener = endpoint(port)
    listener.listen()
    connection = listener.get_request()
    memory = connection.reg_msgs(BYTES)
    # A receive is posted before the peer can send what it is for.
    connection.post_recv(memory, BYTES)
    connection.accept()
    for _ in range(ROUNDS):
        receive(connection)
        connection.post_recv(memory, BYTES)
        send(connection, memory)  # what came, from the same memory
    connection.close()


def play(port, host):
    connection = endpoint(port, host)
    ping, pong = connection.reg_msgs(BYTES), connection.reg_msgs(BYTES)
    connection.connect()
    began = time.perf_counter()
    for number in range(ROUNDS):
        text = f"ping {number}".ljust(BYTES)
        ping.write(text, BYTES)
        connection.post_recv(pong, BYTES)
        send(connection, ping)
        receive(connection)
        assert pong.read(BYTES, 0).decode() == text
    spent = time.perf_counter() - began
    print(f"{ROUNDS} rounds of {BYTES} bytes, {spent / ROUNDS / 2 * 1e6:.1f} us one way")
    connection.close()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    elif len(sys.argv) == 3:
        play(sys.argv[1], sys.argv[2])
    else:
        sys.exit(__doc__)
