#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""An MPI program for test_applications.py, in the manner of the OSU benchmarks: each pair of ranks
plays ping-pong with messages of growing size and compares all bytes, all ranks exchange with all, and
rank 0's memory is written, read and counted up by the others. Rank 0 prints the figures."""

import sys
import time

from mpi4py import MPI

SIZES = (0, 1, 8, 64, 1024, 8192, 65536, 1 << 20)
COUNTS = 20 if "--short" in sys.argv else 200
world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()


def count(size):
    return COUNTS if size <= 8192 else max(2, COUNTS // 10)


def pattern(size, seed):
    block = bytes((seed * 31 + i * 7) & 0xff for i in range(256))
    return (block * (size // 256 + 1))[:size]


def ping_pong(partner, size):
    """Microseconds for half a round trip with this rank."""
    first = rank < partner
    mine, theirs = bytearray(pattern(size, rank)), bytearray(size)
    expected = pattern(size, partner)
    began = time.perf_counter()
    for _ in range(count(size)):
        if first:
            world.Send([mine, MPI.BYTE], partner)
        world.Recv([theirs, MPI.BYTE], partner)
        if not first:
            world.Send([mine, MPI.BYTE], partner)
    took = time.perf_counter() - began
    if theirs != expected:
        sys.exit(f"rank {rank}: wrong bytes from {partner}, size {size}")
    return took * 1e6 / count(size) / 2


def pairs_of(turn):
    """In each turn every rank has another partner; ranks is a power of two."""
    return rank ^ turn


def all_to_all(size):
    out = bytearray(b"".join(pattern(size, rank * ranks + to) for to in range(ranks)))
    back = bytearray(size * ranks)
    world.Alltoall([out, size, MPI.BYTE], [back, size, MPI.BYTE])
    expected = b"".join(pattern(size, source * ranks + rank) for source in range(ranks))
    if back != expected:
        sys.exit(f"rank {rank}: wrong bytes of all-to-all, size {size}")


def one_sided(size):
    """Each rank writes its part of rank 0's memory, reads the others', and counts one number up."""
    memory = MPI.Alloc_mem(8 + size * ranks)
    memory[:] = bytes(len(memory))
    window = MPI.Win.Create(memory, 1, comm=world)
    one, before = bytearray((1).to_bytes(8, "little")), bytearray(8)
    mine, others = bytearray(pattern(size, rank)), bytearray(size)
    window.Fence()
    window.Put([mine, MPI.BYTE], 0, [8 + rank * size, size, MPI.BYTE])
    window.Fence()
    partner = (rank + 1) % ranks
    window.Get([others, MPI.BYTE], 0, [8 + partner * size, size, MPI.BYTE])
    window.Fence()
    if others != pattern(size, partner):
        sys.exit(f"rank {rank}: wrong bytes from a window, size {size}")
    window.Lock(0, MPI.LOCK_SHARED)
    for _ in range(COUNTS):
        window.Fetch_and_op([one, MPI.INT64_T], [before, MPI.INT64_T], 0, 0, MPI.SUM)
        window.Flush(0)
    window.Unlock(0)
    world.Barrier()
    if rank == 0:
        window.Lock(0, MPI.LOCK_EXCLUSIVE)
        total = int.from_bytes(bytes(memory[:8]), "little")
        window.Unlock(0)
        if total != COUNTS * ranks:
            sys.exit(f"counted to {total} instead of {COUNTS * ranks}")
    window.Free()
    MPI.Free_mem(memory)


for turn in range(1, ranks):
    for size in SIZES:
        took = ping_pong(pairs_of(turn), size)
        if rank == 0:
            print(f"ranks 0 and {pairs_of(turn)}: {size:8} B {took:10.2f} us", flush=True)
for size in (1, 4096, 65536):
    all_to_all(size)
total = world.allreduce(rank)
if total != ranks * (ranks - 1) // 2:
    sys.exit(f"rank {rank}: the sum of all ranks is {total}")
if "--one-sided" in sys.argv:
    for size in (8, 4096, 65536):
        one_sided(size)
    if rank == 0:
        print("one-sided: ok")
world.Barrier()
if rank == 0:
    print(f"{ranks} ranks: ok", flush=True)
